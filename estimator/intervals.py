"""How far off a step time may be: the half width of its interval, by how much is known."""

from __future__ import annotations

from estimator.cluster import Cluster
from estimator.cost import CostModel
from estimator.stack import Calibration, Stack

EXTRAPOLATED = 2.0
"""A device that was not measured."""
OTHER_COST = 2.0
"""A calibration under another cost model. Its scalars have taken up that model's errors. Assumed:
on 17 publishers' runs, stacks that were not calibrated err twice as much as those that were."""
OTHER_COLLECTIVES = 1.25
"""A calibration with other collectives; these are a tenth to a quarter of most steps. Assumed."""
WIDEST = 0.9
LINKS = "links"
"""Names the collectives of a cluster that has none fitted: priced by the links' numbers."""


def half_width(stack: Stack, cluster: Cluster, pricer: CostModel) -> float:
    """Half width of the interval around a step time, relative to it."""
    width = stack.uncertainty * (EXTRAPOLATED if pricer.origin == "extrapolated" else 1.0)
    if stack.calibration is not None:
        width *= calibration_widening(stack.calibration, cluster, pricer.name)
    return min(width, WIDEST)


def calibration_widening(calibration: Calibration, cluster: Cluster, cost: str) -> float:
    """By how much an interval grows where a calibration is used under what it was not made with."""
    widening = 1.0
    if cost != calibration.cost:
        widening *= OTHER_COST
    if not set(collectives_of(cluster)) <= set(calibration.collectives):
        widening *= OTHER_COLLECTIVES
    return widening


def collectives_of(cluster: Cluster) -> tuple[str, ...]:
    """What prices a cluster's collectives: the sources of the fitted ones, else ``links``."""
    return tuple(sorted({one.source for one in cluster.collectives if one.source})) or (LINKS,)
