"""Cost models by name: those that ship, and files of fitted kernels."""

from __future__ import annotations

from estimator.cluster import Cluster
from estimator.cost import CostModel
from estimator.cost.roofline import roofline

COST_MODELS = ("analytic", "learned", "amped")
FITTED = ".npz"
"""A cost model may also be a file of kernel parameters: learned, with these first."""


def check_cost_model(name: str) -> None:
    """``ValueError`` for a name that no cost model has; it lists those that are."""
    if name not in COST_MODELS and not name.endswith(FITTED):
        raise ValueError(
            f"unknown cost model {name!r}; use one of {', '.join(COST_MODELS)}, or a file "
            f"({FITTED}) of trainplan fit kernels"
        )


def pricer_of(cost: str | CostModel, cluster: Cluster) -> CostModel:
    """The cost model of a name; ``ValueError`` lists the known ones."""
    if not isinstance(cost, str):
        return cost
    check_cost_model(cost)
    if cost == "analytic":
        return roofline(cluster.device)
    from estimator.cost.composite import composite  # learned models are read where asked for
    from estimator.cost.parameters import load_kernels

    first = [load_kernels(cost)] if cost.endswith(FITTED) else []
    return composite(cluster.device, first)
