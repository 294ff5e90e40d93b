"""From priced slots to seconds of a layer pass: the one place where hiding is decided.

Suffixes: U unique keys, K parts in the order of ``PASS_PARTS``, R recompute kinds, N layer kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from estimator.lower.keys import Keys
from estimator.lower.lowering import BACKWARD
from estimator.lower.slots import Columns, FloatArray, Phase, Place, Slot, Stream
from estimator.plan import CHOICES
from estimator.stack import Stack
from estimator.workload import Workload

PASS_PARTS = ("compute", "tp", "cp", "ep", "pp", "dp", "host")
COMPUTE, TP, CP, EP, PP, DP, HOST = range(len(PASS_PARTS))
PARTS = len(PASS_PARTS)
FORWARD: tuple[Phase, ...] = ("forward",)
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
class OneLayer:
    """One layer of a kind, per unique key."""

    forward: Pass
    backward: Pass
    """Shape (R, U, K): backward with the recompute of each kind."""
    again: FloatArray
    """Compute seconds of that recompute, shape (R, U)."""

    @property
    def table(self) -> FloatArray:
        """Forward and backward, (R, U, 2 K + 2).

        Exposed parts, hidden parts, and of compute what is forward and what is recompute.
        """
        forward = self.forward.exposed[:, COMPUTE]
        return np.stack(
            [
                _table(
                    self.forward,
                    Pass(exposed=self.backward.exposed[r], hidden=self.backward.hidden[r]),
                    forward,
                    self.again[r],
                )
                for r in range(len(self.again))
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """What one micro-batch costs, per unique key."""

    layers: tuple[OneLayer, ...]
    """One entry per kind of layer, in the order of :func:`layer_kinds`."""
    embedding_forward: Pass
    embedding_backward: Pass
    head_forward: Pass
    head_backward: Pass
    boundary: Pass
    """One crossing between stages, in either direction."""

    @property
    def embedding_table(self) -> FloatArray:
        """Parts of the embedding as in ``OneLayer.table``, (U, 2 K + 2)."""
        return self._edge(self.embedding_forward, self.embedding_backward)

    @property
    def head_table(self) -> FloatArray:
        """The same of the head, (U, 2 K + 2)."""
        return self._edge(self.head_forward, self.head_backward)

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
        self.totals: dict[tuple[int, Place, Stream, Phase, str | None], FloatArray] = {}
        for slot, row in zip(ops.slots, seconds, strict=True):
            for kind in (None, *slot.recomputed_by):
                key = (slot.layer, slot.place, slot.stream, slot.phase, kind)
                self.totals[key] = self.totals.get(key, self.none) + row

    def __call__(
        self,
        place: Place,
        stream: Stream,
        phases: tuple[Phase, ...],
        recomputed_by: str | None = None,
        *,
        layer: int = 0,
    ) -> FloatArray:
        total = self.none
        for phase in phases:
            key = (layer, place, stream, phase, recomputed_by)
            total = total + self.totals.get(key, self.none)
        return total


def layer_seconds(
    ops: Columns, seconds: FloatArray, workload: Workload, stack: Stack, keys: Keys
) -> LayerSeconds:
    """Combine the streams of every kind of layer, the embedding, the head and a boundary."""
    sums = _Sums(ops, seconds)
    train = workload.mode == "train"
    kinds = 1 + max(slot.layer for slot in ops.slots)

    def edge(place: Place, phases: tuple[Phase, ...]) -> Pass:
        return _pass(
            stack=stack,
            floor=0.0,
            overlap_tp=keys.overlap_tp,
            compute=sums(place, "compute", phases),
            tp=sums(place, "tp", phases),
            gather=sums(place, "dp", phases),
        )

    micro_batches = workload.global_batch // (keys.dp * keys.micro_batch)
    paired = keys.overlap_ep * train * np.maximum(1 - keys.pp / micro_batches, 0.0)
    crossing = sums("boundary", "pp", FORWARD)
    exposed = np.zeros((len(crossing), PARTS))
    hidden = np.zeros_like(exposed)
    exposed[:, PP] = np.where(keys.overlap_p2p == 1, 0.0, crossing)
    hidden[:, PP] = crossing - exposed[:, PP]
    return LayerSeconds(
        layers=tuple(
            _one_layer(ops, seconds, sums, n, train, stack, keys, paired) for n in range(kinds)
        ),
        embedding_forward=edge("embedding", FORWARD),
        embedding_backward=_scaled(edge("embedding", BACKWARD), train),
        head_forward=edge("head", FORWARD),
        head_backward=_scaled(edge("head", BACKWARD), train),
        boundary=Pass(exposed=exposed, hidden=hidden),
    )


def _one_layer(
    ops: Columns,
    seconds: FloatArray,
    sums: _Sums,
    layer: int,
    train: bool,
    stack: Stack,
    keys: Keys,
    paired: FloatArray,
) -> OneLayer:
    """Forward of a layer, and its backward under each kind of recompute."""

    def total(stream: Stream, phases: tuple[Phase, ...], again: str | None = None) -> FloatArray:
        return sums("layer", stream, phases, again, layer=layer)

    loose, shielded, core = _backward_rows(ops, seconds, layer, keys)
    experts = any(slot.stream == "ep" and slot.layer == layer for slot in ops.slots)
    launch = stack.launch_experts * experts
    launch_forward = stack.launch_forward + launch
    forward = _pass(
        stack=stack,
        floor=launch_forward,
        overlap_tp=keys.overlap_tp,
        compute=total("compute", FORWARD),
        tp=total("tp", FORWARD),
        cp=total("cp", FORWARD),
        ep=total("ep", FORWARD),
        attention=total("compute", FORWARD, "selective"),
        gather=total("dp", FORWARD),
        ep_window=total("compute", BACKWARD),
        paired=paired,
    )
    core_again = frozenset[str]().union(
        *(slot.recomputed_by for slot in ops.slots if "selective" in slot.recomputed_by)
    )
    backwards, again = [], []
    for kind in CHOICES["recompute"]:
        repeated = total("compute", FORWARD, kind)
        attention_again = total("compute", FORWARD, "selective") * (kind in core_again)
        backwards.append(
            _pass(
                stack=stack,
                floor=stack.launch_backward + launch + launch_forward * (kind == "full"),
                overlap_tp=keys.overlap_tp,
                compute=total("compute", BACKWARD) + repeated,
                tp=total("tp", BACKWARD) + total("tp", FORWARD, kind),
                tp_loose=loose * stack.async_tp_backward,
                tp_window=shielded,
                cp=total("cp", BACKWARD) + total("cp", FORWARD, kind),
                ep=total("ep", BACKWARD) + total("ep", FORWARD, kind),
                attention=core + attention_again,
                gather=total("dp", BACKWARD),
                ep_window=total("compute", FORWARD),
                paired=paired,
            )
        )
        again.append(repeated)
    backward = Pass(
        exposed=np.stack([one.exposed for one in backwards]),
        hidden=np.stack([one.hidden for one in backwards]),
    )
    return OneLayer(
        forward=forward, backward=_scaled(backward, train), again=np.stack(again) * train
    )


def _scaled(one: Pass, factor: bool) -> Pass:
    return Pass(exposed=one.exposed * factor, hidden=one.hidden * factor)


def _backward_rows(
    ops: Columns, seconds: FloatArray, layer: int, keys: Keys
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Three sums over a layer's backward, each (U,).

    Collectives that run beside their own GEMMs, how much of them those hide, and the attention
    core.
    """
    core = {slot.name for slot in ops.slots if "selective" in slot.recomputed_by}
    mine = [(i, slot) for i, slot in enumerate(ops.slots) if slot.layer == layer]
    loose = [i for i, slot in mine if slot.asynchronous]
    attention = [
        i
        for i, slot in mine
        if slot.name in core and slot.stream == "compute" and slot.phase in BACKWARD
    ]
    return (
        seconds[loose].sum(axis=0),
        _shielded(mine, seconds, keys),
        seconds[attention].sum(axis=0),
    )


def _shielded(mine: list[tuple[int, Slot]], seconds: FloatArray, keys: Keys) -> FloatArray:
    """Seconds of collectives that the GEMMs they lead to hide, (U,).

    Gradients of inputs are reduced once they are there, beside the weights' GEMM unless that is put
    off; what that reads is gathered beside the inputs' GEMM.
    """
    total = np.zeros(seconds.shape[1])
    names = list(dict.fromkeys(slot.name for _, slot in mine if slot.asynchronous))
    sums = {(name, phase, side): total for name in names for phase in BACKWARD for side in (0, 1)}
    name = ""
    for i, slot in mine:
        name = slot.name if slot.asynchronous else name
        if name and (slot.asynchronous or slot.shields):
            sums[name, slot.phase, slot.shields] = sums[name, slot.phase, slot.shields] + seconds[i]
    of_input, of_weight = BACKWARD
    for name in names:
        reduced = np.minimum(sums[name, of_input, False], sums[name, of_weight, True])
        total = total + np.where(keys.puts_off == 1, 0.0, reduced)
        total = total + np.minimum(sums[name, of_weight, False], sums[name, of_input, True])
    return total


def _pass(
    *,
    stack: Stack,
    floor: float,
    overlap_tp: NDArray[np.int64],
    compute: FloatArray,
    tp: FloatArray,
    gather: FloatArray,
    cp: FloatArray | float = 0.0,
    ep: FloatArray | float = 0.0,
    attention: FloatArray | float = 0.0,
    tp_loose: FloatArray | float = 0.0,
    tp_window: FloatArray | float = 0.0,
    ep_window: FloatArray | float = 0.0,
    paired: FloatArray | float = 0.0,
) -> Pass:
    """One pass: launches under a floor, collectives partly hidden, weights gathered beside.

    The share ``paired`` of micro-batches meets the opposite pass of another, whose compute is the
    window of their experts' exchange. Tensor-parallel collectives beside GEMMs also fill the time
    in which launches hold kernels up.
    """
    nothing = np.zeros_like(compute)
    cp_all, ep_all = cp + nothing, ep + nothing
    kept_tp = 1 - stack.hidden_tp * overlap_tp
    # What runs beside compute takes multiprocessors from it.
    ep_kept = ep_all - paired * np.minimum((1 - stack.exposed_ep) * ep_all, ep_window)
    cp_exposed = np.maximum(stack.exposed_cp * cp_all, cp_all - stack.hiding_cp * attention)
    # Collectives wait in line with the kernels, so launches run ahead during them as well.
    queue = compute + ep_kept + cp_exposed + kept_tp * (tp - np.minimum(tp_loose, tp_window))
    host = (queue**FLOOR_NORM + floor**FLOOR_NORM) ** (1 / FLOOR_NORM) - queue
    tp_exposed = kept_tp * (tp - np.minimum(tp_loose, tp_window + host))
    busy = compute + host + tp_exposed + cp_exposed + ep_kept
    longer, shorter = np.maximum(busy, gather), np.minimum(busy, gather)
    dp_exposed = np.maximum(longer + stack.interference_zero3 * shorter - busy, 0.0)
    exposed = (compute, tp_exposed, cp_exposed, ep_kept, nothing, dp_exposed, host)
    hidden = (
        nothing,
        tp - tp_exposed,
        cp_all - cp_exposed,
        ep_all - ep_kept,
        nothing,
        np.maximum(gather - dp_exposed, 0),
        nothing,
    )
    return Pass(exposed=np.stack(exposed, axis=-1), hidden=np.stack(hidden, axis=-1))
