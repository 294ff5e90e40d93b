"""How layers fall onto pipeline stages: at most four classes of equal stages per plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from estimator.lower.slots import IntArray
from estimator.plan import UNSET, Plans


@dataclass(frozen=True, slots=True, kw_only=True)
class StageClasses:
    """First, heavier middle, lighter middle and last stage: arrays of shape (4, P).

    Stages of a class are neighbours in this order, so a class has a first position.
    """

    count: IntArray
    layers: IntArray
    position: IntArray
    """Stage index of the class's first member."""


def stage_classes(layers: int, plans: Plans) -> StageClasses:
    """Split ``layers`` over the stages of each plan.

    End stages hold what the plan says; the others share the rest as evenly as whole layers
    allow, the surplus going to the first of the middle stages.
    """
    pp = plans.pp
    first_given = (plans.first_stage_layers != UNSET) & (pp > 1)
    last_given = (plans.last_stage_layers != UNSET) & (pp > 1)
    first = np.where(first_given, plans.first_stage_layers, 0)
    last = np.where(last_given, plans.last_stage_layers, 0)
    sharing = np.maximum(pp - first_given - last_given, 1)
    base, surplus = np.divmod(layers - first - last, sharing)
    middle = np.maximum(pp - 2, 0)
    heavier = np.minimum(surplus, middle)
    rest = surplus - heavier
    first = np.where(first_given, first, base + (rest > 0))
    last = np.where(last_given, last, base + ((rest > 0) & first_given))
    count = np.stack([np.ones_like(pp), heavier, middle - heavier, (pp > 1).astype(np.int64)])
    per_stage = np.stack([first, base + 1, base, last]) * (count > 0)
    position = np.stack([np.zeros_like(pp), np.ones_like(pp), 1 + heavier, pp - 1])
    return StageClasses(count=count, layers=per_stage, position=position)
