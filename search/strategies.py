"""In what order plans are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from estimator.plan import Plans
from search.objective import Scores
from spaces import TransformerSpace

BLOCK = 1 << 15
"""Plans priced together: enough for numpy, little enough to stay below a few hundred MB."""


class Strategy(Protocol):
    """Proposes legal plans until it has seen enough."""

    def propose(self) -> Plans | None:
        """The next plans to price, or ``None`` when done."""

    def feedback(self, plans: Plans, scores: Scores) -> None:
        """The scores of the plans proposed last."""


class Exhaustive:
    """Every legal plan: exact, and for a closed form the fastest there is."""

    def __init__(self, space: TransformerSpace, block: int = BLOCK) -> None:
        self._blocks: Iterator[Plans] = space.blocks(block)

    def propose(self) -> Plans | None:
        """The next block of the space."""
        return next(self._blocks, None)

    def feedback(self, plans: Plans, scores: Scores) -> None:
        """Nothing to learn: the order is fixed."""
