"""Prices of operations: every model here maps rows of the lowering to seconds."""

from __future__ import annotations

from typing import Protocol

from estimator.cluster import Cluster
from estimator.lower.slots import Columns, FloatArray
from estimator.stack import Stack
from estimator.workload import Workload


class CostModel(Protocol):
    """Anything that prices rows."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    @property
    def origin(self) -> str:
        """analytic, learned, measured or extrapolated."""
        ...

    def seconds(
        self, ops: Columns, workload: Workload, cluster: Cluster, stack: Stack
    ) -> FloatArray:
        """Seconds of each slot under each key, shape (O, U), its count included; never negative."""
        ...
