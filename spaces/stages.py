"""How the layers of a model are dealt to pipeline stages.

Megatron-LM's three ways: evenly; the end stages one layer short for the embedding or the loss
(``--account-for-embedding-in-pipeline-split``, ``--account-for-loss-in-pipeline-split``); or end
stages of a given size with the rest even (``--decoder-first-pipeline-num-layers`` and ``-last-``).
"""

from __future__ import annotations

import numpy as np

from estimator.plan import UNSET, IntArray, Plans
from spaces.problem import BoolArray


def end_stages(
    layers: int, pp: IntArray, interleave: IntArray, uneven: bool
) -> tuple[IntArray, IntArray]:
    """Layers of the first and last stage, shape (P,); -1 where the split is even.

    Even where ``pp * interleave`` divides the layers, else (if ``uneven``) the last stage, or both
    end stages, hold one layer fewer than the others. Where none of these works the columns stay -1
    and the rule ``layers`` rejects the plan.
    """
    chunks = pp * interleave
    even = layers % chunks == 0
    short_last = ~even & uneven & (pp > 1) & ((layers + 1) % chunks == 0)
    short_both = ~even & ~short_last & uneven & (pp > 2) & ((layers + 2) % chunks == 0)
    last = np.where(short_last, (layers + 1) // pp - 1, UNSET)
    first = np.where(short_both, (layers + 2) // pp - 1, UNSET)
    return first, np.where(short_both, first, last)


def inner_layers(layers: int, plans: Plans) -> tuple[IntArray, BoolArray]:
    """Layers of each stage whose size is not given, and whether the deal comes out even.

    Both of shape (P,); the layer count is 0 where every stage's size is given.
    """
    given = [
        np.where(c == UNSET, 0, c) for c in (plans.first_stage_layers, plans.last_stage_layers)
    ]
    stages = plans.pp - (plans.first_stage_layers != UNSET) - (plans.last_stage_layers != UNSET)
    left = layers - given[0] - given[1]
    inner = np.where(stages > 0, left // np.maximum(stages, 1), 0)
    exact = np.where(
        stages > 0, (left == inner * stages) & (inner > 0), (stages == 0) & (left == 0)
    )
    return inner, exact


def fullest_stage(layers: int, plans: Plans) -> IntArray:
    """Layers of the stage that holds most, shape (P,)."""
    inner, _ = inner_layers(layers, plans)
    fullest: IntArray = np.maximum(
        np.maximum(plans.first_stage_layers, plans.last_stage_layers), inner
    )
    return fullest
