"""Prices of operations: every model here maps rows of the lowering to seconds."""

from __future__ import annotations

from typing import Protocol

from estimator.cluster import Cluster
from estimator.lower.slots import Columns, FloatArray
from estimator.operators import NameArray
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
        """analytic, learned, measured or extrapolated: what most of its kernels are."""
        ...

    def seconds(
        self, ops: Columns, workload: Workload, cluster: Cluster, stack: Stack
    ) -> FloatArray:
        """Seconds of each slot under each key, shape (O, U), its count included; never negative."""
        ...

    def origins(
        self, ops: Columns, workload: Workload, cluster: Cluster, stack: Stack
    ) -> NameArray:
        """Where each of these seconds is from, shape (O, U).

        Kernels: analytic, learned, measured or extrapolated. Collectives: measured-fit or linear.
        """
        ...
