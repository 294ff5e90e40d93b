"""What a measured run leaves open: assumptions, written down as they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class UnmappedError(ValueError):
    """A run that cannot be priced, with the reason."""


@dataclass(slots=True)
class Assumptions:
    """What is taken for granted, remembered as it is taken."""

    taken: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str, said: Any, default: Any, why: str) -> Any:
        """What was said, or else the default, noted down."""
        if said is not None:
            return said
        self.taken[name] = f"{default} ({why})"
        return default
