"""Tasks of a plan while its table grows: streams, names, who runs a task together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from estimator.lower.slots import IntArray
from estimator.simulate.graph import NONE

RESOURCES = (
    *("compute", "dp", "host", "send forward", "receive forward", "send backward"),
    *("receive backward", "tp", "cp", "ep", "weights"),
)
COMPUTE, DP, HOST, SEND = 0, 1, 2, 3
TP, CP, EP, WEIGHTS = 7, 8, 9, 10
NAMES = (
    *("forward", "backward", "weight", "send", "receive", "reduce gradients", "gather weights"),
    *("reduce tied embedding", "gradient norm", "optimizer", "step overhead"),
)
"""The first three are the names of ``graph.PHASES``."""
ALONE, LAYER_GROUP, REPLICAS, PAIR, WORLD = range(5)
"""Who runs a task together: nobody, the tp x cp ranks of a layer, those of dp x cp, the two ranks
of a transfer, all."""


@dataclass(slots=True)
class Rows:
    """Columns of tasks, block after block, and their edges."""

    blocks: list[dict[str, Any]] = field(default_factory=list)
    sources: list[IntArray] = field(default_factory=list)
    targets: list[IntArray] = field(default_factory=list)
    count: int = 0

    def add(self, seconds: ArrayLike, **columns: ArrayLike) -> IntArray:
        """Append tasks; returns their numbers. ``mix`` follows from ``kind`` unless given."""
        values = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
        default = {"micro_batch": NONE, "chunk": 0, "scope": ALONE, "pair": NONE, "phase": 3}
        given: dict[str, ArrayLike] = {**default, "mix": columns["kind"], **columns}
        block = {name: np.broadcast_to(column, values.shape) for name, column in given.items()}
        self.blocks.append({"seconds": values, **block})
        self.count += len(values)
        return np.arange(self.count - len(values), self.count)

    def edge(self, sources: ArrayLike, targets: ArrayLike) -> None:
        """Targets wait for sources, pair by pair (broadcast)."""
        a, b = np.broadcast_arrays(np.asarray(sources), np.asarray(targets))
        self.sources.append(a.reshape(-1))
        self.targets.append(b.reshape(-1))

    def column(self, name: str) -> Any:
        """All blocks of one column."""
        return np.concatenate([block[name] for block in self.blocks])
