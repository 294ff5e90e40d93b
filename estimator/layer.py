"""From priced slots to seconds of a layer pass: the one place where hiding is decided.

Suffixes: U unique keys, K parts in the order of ``PASS_PARTS``, R recompute kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from estimator.lower.keys import Keys
from estimator.lower.lowering import BACKWARD
from estimator.lower.slots import Columns, FloatArray, Phase, Place, Stream
from estimator.plan import CHOICES
from estimator.stack import Stack
from estimator.workload import Workload

PASS_PARTS = ("compute", "tp", "cp", "pp", "dp", "host")
COMPUTE, TP, CP, PP, DP, HOST = range(len(PASS_PARTS))
PARTS = len(PASS_PARTS)
FLOOR_NORM = 6.0
"""Kernels and their launches overlap: a 6-norm passes smoothly from the longer to the longer
(fitted form, robust least squares on 607 published training runs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Seconds of one pass over something: exposed and hidden, arrays of shape (..., U, K)."""

    exposed: FloatArray
    hidden: FloatArray

    @property
    def seconds(self) -> FloatArray:
        """Exposed seconds of all parts together, shape (..., U)."""
        total: FloatArray = self.exposed.sum(axis=-1)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """What one micro-batch costs, per unique key."""

    forward: Pass
    backward: Pass
    """Shape (R, U, K): backward with the recompute of each kind."""
    again: FloatArray
    """Compute seconds of that recompute, shape (R, U)."""
    embedding_forward: Pass
    embedding_backward: Pass
    head_forward: Pass
    head_backward: Pass
    boundary: Pass
    """One crossing between stages, in either direction."""

    @property
    def layer_table(self) -> FloatArray:
        """Forward and backward of a layer, (R, U, 2 K + 2).

        Exposed parts, hidden parts, and of compute what is forward and what is recompute.
        """
        kinds = len(self.again)
        forward = self.forward.exposed[:, COMPUTE]
        return np.stack(
            [
                _table(
                    self.forward,
                    Pass(exposed=self.backward.exposed[r], hidden=self.backward.hidden[r]),
                    forward,
                    self.again[r],
                )
                for r in range(kinds)
            ]
        )

    @property
    def embedding_table(self) -> FloatArray:
        """The same of the embedding, (U, 2 K + 2)."""
        return self._edge(self.embedding_forward, self.embedding_backward)

    @property
    def head_table(self) -> FloatArray:
        """The same of the head, (U, 2 K + 2)."""
        return self._edge(self.head_forward, self.head_backward)

    @property
    def boundary_table(self) -> FloatArray:
        """The same of one crossing, (U, 2 K + 2)."""
        nothing = Pass(
            exposed=np.zeros_like(self.boundary.exposed), hidden=np.zeros_like(self.boundary.hidden)
        )
        return self._edge(self.boundary, nothing)

    def _edge(self, forward: Pass, backward: Pass) -> FloatArray:
        compute = forward.exposed[:, COMPUTE]
        return _table(forward, backward, compute, np.zeros_like(compute))


def _table(forward: Pass, backward: Pass, compute: FloatArray, again: FloatArray) -> FloatArray:
    parts = (
        forward.exposed + backward.exposed,
        forward.hidden + backward.hidden,
        compute[:, None],
        again[:, None],
    )
    return np.concatenate(parts, axis=1)


class _Sums:
    """Sums of priced slots by where, when and on which stream they run."""

    def __init__(self, ops: Columns, seconds: FloatArray) -> None:
        self.none = np.zeros(seconds.shape[1])
        self.totals: dict[tuple[Place, Stream, Phase, str | None], FloatArray] = {}
        for slot, row in zip(ops.slots, seconds, strict=True):
            for kind in (None, *slot.recomputed_by):
                key = (slot.place, slot.stream, slot.phase, kind)
                self.totals[key] = self.totals.get(key, self.none) + row

    def __call__(
        self,
        place: Place,
        stream: Stream,
        phases: tuple[Phase, ...],
        recomputed_by: str | None = None,
    ) -> FloatArray:
        total = self.none
        for phase in phases:
            total = total + self.totals.get((place, stream, phase, recomputed_by), self.none)
        return total


def layer_seconds(
    ops: Columns, seconds: FloatArray, workload: Workload, stack: Stack, keys: Keys
) -> LayerSeconds:
    """Combine the streams of a layer, the embedding, the head and a stage boundary."""
    sums = _Sums(ops, seconds)
    train = workload.mode == "train"
    forward_phase: tuple[Phase, ...] = ("forward",)
    overlap = keys.overlap_tp
    nothing = np.zeros(ops.bytes.shape[1])

    def run(place: Place, phases: tuple[Phase, ...], floor: float) -> Pass:
        return _pass(
            compute=sums(place, "compute", phases),
            tp=sums(place, "tp", phases),
            tp_loose=nothing,
            tp_window=nothing,
            cp=sums(place, "cp", phases),
            attention=sums(place, "compute", phases, "selective"),
            gather=sums(place, "dp", phases),
            floor=floor,
            overlap_tp=overlap,
            stack=stack,
        )

    loose, window = _asynchronous(ops, seconds)
    backwards, again = [], []
    for kind in CHOICES["recompute"]:
        repeated = sums("layer", "compute", forward_phase, kind)
        backwards.append(
            _pass(
                compute=sums("layer", "compute", BACKWARD) + repeated,
                tp=sums("layer", "tp", BACKWARD) + sums("layer", "tp", forward_phase, kind),
                tp_loose=loose * stack.async_tp_backward,
                tp_window=window,
                cp=sums("layer", "cp", BACKWARD) + sums("layer", "cp", forward_phase, kind),
                attention=_attention_backward(ops, seconds)
                + sums("layer", "compute", forward_phase, "selective") * (kind != "none"),
                gather=sums("layer", "dp", BACKWARD),
                floor=stack.launch_backward + stack.launch_forward * (kind == "full"),
                overlap_tp=overlap,
                stack=stack,
            )
        )
        again.append(repeated)
    crossing = sums("boundary", "pp", forward_phase)
    exposed = np.zeros((len(crossing), len(PASS_PARTS)))
    hidden = np.zeros_like(exposed)
    exposed[:, PP] = np.where(keys.overlap_p2p == 1, 0.0, crossing)
    hidden[:, PP] = crossing - exposed[:, PP]
    return LayerSeconds(
        forward=run("layer", forward_phase, stack.launch_forward),
        backward=_scaled(
            Pass(
                exposed=np.stack([one.exposed for one in backwards]),
                hidden=np.stack([one.hidden for one in backwards]),
            ),
            train,
        ),
        again=np.stack(again) * train,
        embedding_forward=run("embedding", forward_phase, 0.0),
        embedding_backward=_scaled(run("embedding", BACKWARD, 0.0), train),
        head_forward=run("head", forward_phase, 0.0),
        head_backward=_scaled(run("head", BACKWARD, 0.0), train),
        boundary=Pass(exposed=exposed, hidden=hidden),
    )


def _scaled(one: Pass, factor: bool) -> Pass:
    return Pass(exposed=one.exposed * factor, hidden=one.hidden * factor)


def _attention_backward(ops: Columns, seconds: FloatArray) -> FloatArray:
    """Seconds of the attention core's backward: what context exchange hides behind."""
    core = {slot.name for slot in ops.slots if "selective" in slot.recomputed_by}
    rows = [
        i
        for i, slot in enumerate(ops.slots)
        if slot.name in core and slot.stream == "compute" and slot.phase in BACKWARD
    ]
    total: FloatArray = seconds[rows].sum(axis=0)
    return total


def _asynchronous(ops: Columns, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Backward's collectives beside their own layer's GEMMs, and those GEMMs; both (U,)."""
    loose = [i for i, slot in enumerate(ops.slots) if slot.asynchronous]
    shields = [i for i, slot in enumerate(ops.slots) if slot.shields]
    return seconds[loose].sum(axis=0), seconds[shields].sum(axis=0)


def _pass(
    *,
    compute: FloatArray,
    tp: FloatArray,
    tp_loose: FloatArray,
    tp_window: FloatArray,
    cp: FloatArray,
    attention: FloatArray,
    gather: FloatArray,
    floor: float,
    overlap_tp: NDArray[np.int64],
    stack: Stack,
) -> Pass:
    """One pass: launches under a floor, collectives partly hidden, weights gathered beside.

    Tensor-parallel collectives beside GEMMs also fill the time in which launches hold kernels up.
    """
    host = (compute**FLOOR_NORM + floor**FLOOR_NORM) ** (1 / FLOOR_NORM) - compute
    tp_bound = tp - np.minimum(tp_loose, tp_window + host)
    tp_exposed = tp_bound * (1 - stack.hidden_tp * overlap_tp)
    cp_exposed = np.maximum(stack.exposed_cp * cp, cp - stack.hiding_cp * attention)
    busy = compute + host + tp_exposed + cp_exposed
    longer, shorter = np.maximum(busy, gather), np.minimum(busy, gather)
    dp_exposed = np.maximum(longer + stack.interference_zero3 * shorter - busy, 0.0)
    nothing = np.zeros_like(busy)
    exposed = np.stack([compute, tp_exposed, cp_exposed, nothing, dp_exposed, host], axis=-1)
    hidden = np.stack(
        [
            nothing,
            tp - tp_exposed,
            cp - cp_exposed,
            nothing,
            np.maximum(gather - dp_exposed, 0),
            nothing,
        ],
        axis=-1,
    )
    return Pass(exposed=exposed, hidden=hidden)
