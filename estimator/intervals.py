"""How far off a step time may be: the half width of its interval, by how much is known.

The base is the stack's ``uncertainty``: of a calibrated one the 80 % quantile of errors on runs
that its fit did not see (split-conformal prediction, Lei et al. 2018, arXiv 1604.04173), taken
after each error was divided by the factor of its class; so factors say how classes differ, and the
quantile how wide an interval must be. ``tests/bench/interval_classes.py`` prints what they rest on.
"""

from __future__ import annotations

import math

from estimator.cluster import Cluster
from estimator.cost import CostModel
from estimator.model import Transformer
from estimator.stack import Calibration, Stack

EXTRAPOLATED = 2.4
"""A device without kernel tables of its own, on which no run calibrated the stack: of published
runs of dense models (role fit), 80 % of the errors lie within 19 % on such devices, and within 8 %
on measured ones."""
EXPERTS = 2.0
"""A mixture of experts: 80 % of the errors of Megatron-Bridge's runs (role fit) lie within 13 %, of
its dense models' within 8 %; rounded up, since one model stands for all there."""
OTHER_COST = 2.0
"""A calibration under another cost model. Its scalars have taken up that model's errors. Assumed:
on 17 publishers' runs, stacks that were not calibrated err twice as much as those that were."""
OTHER_COLLECTIVES = 1.25
"""A calibration with other collectives; these are a tenth to a quarter of most steps. Assumed."""
PAIR = 0.08
"""Two plans of one problem share most of their error. What remains between plans within a fifth of
the best: 80 % of pairs of published runs (role fit) lie within 9 % (26 plans of GPT-3.6B on 64
A100), 2 to 8 % (InternLM-7B on 32 to 1,024 A100) and 6 % (Llama-70B on 8 B200) of what was
measured. ``tests/bench/pairs.py`` prints it."""
WIDEST = 0.9
LINKS = "links"
"""Names the collectives of a cluster that has none fitted: priced by the links' numbers."""


def half_width(stack: Stack, model: Transformer, cluster: Cluster, pricer: CostModel) -> float:
    """Half width of the interval around a step time, relative to it.

    What the model does not know and what the machine itself scatters by are independent.
    """
    width = stack.uncertainty * class_factor(model)
    seen = () if stack.calibration is None else stack.calibration.devices
    if pricer.origin == "extrapolated" and cluster.device.name not in seen:
        width *= EXTRAPOLATED
    if stack.calibration is not None:
        width *= calibration_widening(stack.calibration, cluster, pricer.name)
    return min(math.hypot(width, cluster.noise), WIDEST)


def class_factor(model: Transformer) -> float:
    """How much further off runs of such a model are, in general, than those of a dense one."""
    return EXPERTS if model.experts is not None else 1.0


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
