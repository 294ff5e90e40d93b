"""Closed forms of pipeline schedules: seconds from the first forward to the last backward.

Suffixes: C the four stage classes (first, heavier middle, lighter middle, last), P plans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.lower.slots import FloatArray, IntArray
from estimator.plan import Plans

GPIPE, ONE_F_ONE_B, ZB_H1, ZB_H2 = 0, 1, 2, 3


def pipeline_seconds(
    forward_CP: FloatArray,
    backward_CP: FloatArray,
    count_CP: IntArray,
    plans: Plans,
    micro_batches: IntArray,
    weight_CP: FloatArray | None = None,
) -> FloatArray:
    """Seconds of all micro-batches through all stages, shape (P,).

    ``forward_CP`` and ``backward_CP`` are seconds of one micro-batch on one stage of a class
    (all its model chunks); classes with ``count`` zero must hold zeros. ``weight_CP`` is the part
    of a backward that only its own weights wait for, which zero-bubble schedules put off.
    """
    seconds: FloatArray = micro_batches * (forward_CP[0] + backward_CP[0])
    deep = plans.pp > 1
    alternating = deep & (plans.schedule == ONE_F_ONE_B)
    for rows, form in (
        (deep & (plans.schedule == GPIPE), _gpipe),
        (alternating & (plans.interleave == 1), _one_forward_one_backward),
        (alternating & (plans.interleave > 1), _interleaved),
    ):
        some = np.flatnonzero(rows)
        if len(some):
            seconds[some] = form(
                np.take(forward_CP, some, axis=1),
                np.take(backward_CP, some, axis=1),
                np.take(count_CP, some, axis=1),
                plans.pp[some],
                plans.interleave[some],
                micro_batches[some],
            )
    some = np.flatnonzero(deep & (plans.schedule >= ZB_H1))
    if len(some):
        weight = np.zeros_like(backward_CP) if weight_CP is None else weight_CP
        seconds[some] = _zero_bubble(
            np.take(forward_CP, some, axis=1),
            np.take(backward_CP - weight, some, axis=1),
            np.take(weight, some, axis=1),
            np.take(count_CP, some, axis=1),
            plans.pp[some],
            micro_batches[some],
            np.where(plans.schedule[some] == ZB_H1, 1, 2),
        )
    return seconds


def last_passes(
    backward_CP: FloatArray, weight_CP: FloatArray | None, count_CP: IntArray, plans: Plans
) -> tuple[FloatArray, FloatArray]:
    """What a micro-batch's gradients are ready after, and by how much a stage ends early, (4, P).

    A stage's backward ends one backward of each stage before it earlier than that of the first.
    Zero-bubble schedules then still have as many weight gradients to do as they put off.
    """
    before = _running(np.add, count_CP * backward_CP) - count_CP * backward_CP
    early = before / plans.interleave
    if weight_CP is None:
        return backward_CP, early
    late = (plans.schedule >= ZB_H1) & (plans.pp > 1)
    lag = plans.schedule - ZB_H1 + 1
    position = _running(np.add, count_CP) - count_CP
    others = _running(np.add, count_CP * weight_CP) - count_CP * weight_CP
    early_late = before - others + weight_CP[0] - (lag * position + 1) * weight_CP
    early = np.where(late, np.maximum(early_late, 0.0), early)
    return np.where(late, weight_CP, backward_CP), early


def _zero_bubble(
    forward_CP: FloatArray,
    input_CP: FloatArray,
    weight_CP: FloatArray,
    count_CP: IntArray,
    pp: IntArray,
    micro_batches: IntArray,
    lag: IntArray,
) -> FloatArray:
    """ZB-H1 and ZB-H2 (Qi et al., arXiv 2401.10241, section 2), of ``lag`` 1 and 2.

    Stage s puts its weight gradients off by ``lag`` x s micro-batches. The longest of three ways:
    down to a stage, through all its passes but those put off, and up again; all passes of a stage;
    the first stage behind its first backward. Balanced stages whose W is no longer than F or B give
    m (F + B + W) + (p - 1)(F + B - lag W), exactly, where m is at least what runs ahead; elsewhere
    it is a lower bound. ZB-H2 is a stage's own time: its update waits for no other stage.
    """
    both = forward_CP + input_CP
    after = _running(np.add, count_CP)
    begin = after - count_CP
    down = _running(np.add, count_CP * forward_CP) - count_CP * forward_CP
    way = _running(np.add, count_CP * both) - count_CP * both
    best: FloatArray = np.full(len(pp), -np.inf)
    for stage in (begin, after - 1):
        inside = stage - begin
        done = np.maximum(micro_batches - 1 - lag * stage, 0)
        turn = way + (inside + micro_batches) * both + done * weight_CP + weight_CP[0]
        start = np.where(lag == 1, down + inside * forward_CP, 0.0)
        own = start + micro_batches * (both + weight_CP)
        for row in np.where(count_CP > 0, np.maximum(turn, own), -np.inf):
            best = np.maximum(best, row)
    ahead = np.minimum(lag * pp - (lag - 1), micro_batches)
    first_backward = (count_CP * both).sum(axis=0) - input_CP[0] - ahead * forward_CP[0]
    waiting = first_backward + micro_batches * (both + weight_CP)[0]
    longest: FloatArray = np.maximum(best, waiting)
    return longest


def _gpipe(
    forward_CP: FloatArray,
    backward_CP: FloatArray,
    count_CP: IntArray,
    pp: IntArray,
    interleave: IntArray,
    micro_batches: IntArray,
) -> FloatArray:
    """GPipe (arXiv 1811.06965): all forwards, then all backwards; each a flow shop of equal jobs.

    Exact for any stages: the sum over stages plus (m - 1) times the slowest, per direction.
    """
    down = (count_CP * forward_CP).sum(axis=0) + (micro_batches - 1) * forward_CP.max(axis=0)
    up = (count_CP * backward_CP).sum(axis=0) + (micro_batches - 1) * backward_CP.max(axis=0)
    total: FloatArray = down + up
    return total


def _one_forward_one_backward(
    forward_CP: FloatArray,
    backward_CP: FloatArray,
    count_CP: IntArray,
    pp: IntArray,
    interleave: IntArray,
    micro_batches: IntArray,
) -> FloatArray:
    """1F1B (arXiv 2006.09503), exact for any costs of the four classes and any m.

    Balanced stages give (m + p - 1)(f + b).
    """
    none = np.zeros_like(pp)
    return _longest_path(
        forward_CP, backward_CP, count_CP, pp, micro_batches, none, none > 0, slope=1
    )


def _interleaved(
    forward_CP: FloatArray,
    backward_CP: FloatArray,
    count_CP: IntArray,
    pp: IntArray,
    interleave: IntArray,
    micro_batches: IntArray,
) -> FloatArray:
    """Interleaved 1F1B (arXiv 2104.04473, section 2.2) with v chunks per stage and m >= p.

    Balanced stages give m (f + b) + (p - 1)(f + b) / v, exactly, also where p does not divide m:
    micro-batches then advance in the groups of :func:`micro_batch_group`. Uneven stages are exact
    but for rare cases of a slow early stage, where a path that wraps around the stages is longer.
    """
    group = micro_batch_group(pp, micro_batches)
    return _longest_path(
        forward_CP / interleave,
        backward_CP / interleave,
        count_CP,
        pp,
        micro_batches * interleave,
        (interleave - 1) * group,
        (interleave > 1) & (group == pp),
        slope=2,
    )


def _longest_path(
    forward_CP: FloatArray,
    backward_CP: FloatArray,
    count_CP: IntArray,
    pp: IntArray,
    units: IntArray,
    ahead: IntArray,
    wraps: NDArray[np.bool_],
    *,
    slope: int,
) -> FloatArray:
    """The longest path through a schedule that alternates forwards and backwards.

    Stage k runs ``ahead + 1 + slope (p - 1 - k)`` of its ``units`` forwards before its first
    backward. The path goes down the stages with forwards and turns at some stage s >= k: behind it
    lie one forward per stage down to s and the remaining ones ahead at the slowest of these. It
    takes one backward per stage on its way up to k, stands there for the forward-backward pairs
    that are left, and ends with the mirror image, with an s of its own. Along a class each term is
    linear in k and s, so that only ends of classes need comparing; no stage k can be stood at
    whose forwards all come ahead.
    """
    both = forward_CP + backward_CP
    last = _running(np.add, count_CP) - 1
    least = pp - 1 - (units - 1 - ahead) // slope
    first = np.maximum(last + 1 - count_CP, least)
    best: FloatArray = np.full(len(pp), -np.inf)
    # In 1F1B standing earlier in a class costs nothing and leaves more turns to choose from.
    for stand in (first,) if slope == 1 else (first, last):
        pairs = units - ahead - 1 - slope * (pp - 1 - stand)
        paths = pairs * both
        for one, other in ((forward_CP, backward_CP), (backward_CP, forward_CP)):
            paths = paths + _turn(one, other, count_CP, pp, ahead, wraps, last, stand, slope)
        possible = (stand >= least) & (stand <= last) & (count_CP > 0)
        for row in np.where(possible, paths, -np.inf):
            best = np.maximum(best, row)
    return best


def _turn(
    one: FloatArray,
    other: FloatArray,
    count_CP: IntArray,
    pp: IntArray,
    ahead: IntArray,
    wraps: NDArray[np.bool_],
    last: IntArray,
    stand: IntArray,
    slope: int,
) -> FloatArray:
    """Longest way from the start of the pipeline to standing at ``stand``, shape (4, P)."""
    slowest = _running(np.maximum, one)
    down = _running(np.add, count_CP * one)
    up = _running(np.add, count_CP * other)
    back = last - stand
    up_stand = up - back * other

    def turning(extra: IntArray) -> FloatArray:
        at_last = down + up + (extra + slope * (pp - 1 - last)) * slowest
        later = _running(np.maximum, at_last[::-1])[::-1]
        here = down - back * one + up_stand + (extra + slope * (pp - 1 - stand)) * slowest
        longer: FloatArray = np.maximum(later, here)
        return longer

    path: FloatArray = turning(ahead)
    if wraps.any():
        # Once around all stages first, resting at the slowest of all: no detour where the next
        # chunk of a micro-batch follows its previous one without a gap.
        sweep = down[-1] + (ahead - pp) * one.max(axis=0) + turning(np.zeros_like(ahead))
        path = np.where(wraps, np.maximum(path, sweep), path)
    result: FloatArray = path - up_stand
    return result


def _running(operation: np.ufunc, rows: NDArray[Any]) -> NDArray[Any]:
    """``operation.accumulate`` down the four rows, ten times as fast for many columns."""
    out = rows.copy()
    for i in range(1, len(out)):
        operation(out[i - 1], out[i], out=out[i])
    return out


def micro_batch_group(pp: IntArray, micro_batches: IntArray) -> IntArray:
    """Micro-batches that pass one chunk before the next takes over, shape (P,).

    The smallest group of at least p whose last, shorter group is empty or also at least p, as
    Megatron-Core demands of its ``microbatch_group_size_per_vp_stage``; m itself where none is.
    """
    group: IntArray = pp.copy()
    while True:
        rest = micro_batches % group
        wrong = (rest > 0) & (rest < pp) & (group < micro_batches)
        if not wrong.any():
            return group
        group += wrong
