"""Which plans are worth showing: the best, the undominated, and those that tie."""

from __future__ import annotations

import numpy as np

from estimator.estimate import FloatArray
from estimator.plan import NAMES, IntArray, Plans


def rank(plans: Plans, seconds: FloatArray, peak_bytes: FloatArray) -> IntArray:
    """Indices of P plans from best to worst, shape (P,).

    A total order: time, then memory, then the plan's columns, so that equal costs rank the same
    however the plans were visited.
    """
    columns = [getattr(plans, name) for name in reversed(NAMES)]
    return np.lexsort((*columns, peak_bytes, seconds))


def best(plans: Plans, seconds: FloatArray, peak_bytes: FloatArray, count: int) -> IntArray:
    """The first ``count`` of :func:`rank`, without sorting the rest."""
    near = np.arange(len(plans))
    if 0 < count < len(plans):
        near = np.flatnonzero(seconds <= np.partition(seconds, count - 1)[count - 1])
    return near[rank(plans[near], seconds[near], peak_bytes[near])[:count]]


def closest(plans: Plans, peak_bytes: FloatArray, count: int) -> IntArray:
    """Plans that need the least memory, at most ``count``, each from another mesh."""
    order = rank(plans, np.zeros(len(plans)), peak_bytes)
    mesh = np.stack([plans.tp, plans.cp, plans.pp], axis=1)[order]
    _, first = np.unique(mesh, axis=0, return_index=True)
    return order[np.sort(first)[:count]]


def front(plans: Plans, seconds: FloatArray, peak_bytes: FloatArray) -> IntArray:
    """Plans that no other beats in both time and memory, fastest first; one of each equal pair."""
    # Columns only decide between equal costs, so the cheap sort does for all but those.
    order = np.lexsort((peak_bytes, seconds))
    ahead = np.minimum.accumulate(np.concatenate([[np.inf], peak_bytes[order][:-1]]))
    undominated = order[peak_bytes[order] < ahead] if len(order) else order
    equal = np.isin(seconds, seconds[undominated]) & np.isin(peak_bytes, peak_bytes[undominated])
    near = np.flatnonzero(equal)
    near = near[rank(plans[near], seconds[near], peak_bytes[near])]
    ahead = np.minimum.accumulate(np.concatenate([[np.inf], peak_bytes[near][:-1]]))
    return near[peak_bytes[near] < ahead] if len(near) else near


def ties(seconds: FloatArray, share: float) -> IntArray:
    """Tie group of each ranked plan, from 1, shape (P,).

    A plan joins the current group while it takes at most ``share`` longer than the group's leader:
    the model cannot tell the two apart.
    """
    groups = np.zeros(len(seconds), dtype=np.int64)
    leader = 0
    for row in range(len(groups)):
        if row and seconds[row] > (1 + share) * seconds[leader]:
            leader = row
            groups[row] = groups[row - 1] + 1
        else:
            groups[row] = groups[row - 1] if row else 1
    return groups
