"""Passes operator by operator: the priced slots of every layer, in the order that autograd runs.

A forward runs the slots of a layer as they are lowered, a backward in reverse: of each GEMM the
input's gradient first, then the weights', beside which a column-parallel layer reduces. What runs
beside what is decided here by streams and edges, where the closed form uses shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimator.compose import FULL, Composition
from estimator.layer import PP
from estimator.lower.kinds import layer_kinds
from estimator.lower.lowering import BACKWARD as BACKWARD_PHASES
from estimator.lower.memory import recomputed_layers
from estimator.lower.slots import Slot
from estimator.plan import CHOICES, Plan
from estimator.simulate.orders import BACKWARD, FORWARD, LAGS, WEIGHT
from estimator.simulate.passes import Template, Templates
from estimator.simulate.rows import (
    COMPUTE,
    HOST,
    NAMES,
)
from estimator.simulate.writer import Writer

PREFETCHED = 2
"""Layers whose weights are gathered at a time under zero=3: the running one and the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A slot with its seconds under one plan."""

    slot: Slot
    seconds: float
    name: int


def operator_passes(composed: Composition, plan: Plan) -> tuple[Templates, tuple[str, ...]]:
    """Templates of every pass of the first plan, and the names of all tasks."""
    key, scale = int(composed.key_P[0]), composed.scale()
    names = list(NAMES)
    priced: list[Priced] = []
    for slot, row in zip(composed.ops.slots, composed.ops_seconds, strict=True):
        label = f"{slot.name}" + {"backward_input": " dx", "backward_weight": " dw"}.get(
            slot.phase, ""
        )
        if label not in names:
            names.append(label)
        priced.append(Priced(slot=slot, seconds=float(row[key]) * scale, name=names.index(label)))
    names += ["launch forward", "launch backward"]
    maker = _Maker(
        composed=composed,
        plan=plan,
        priced=priced,
        launch=(len(names) - 2, len(names) - 1),
        puts_off=plan.schedule in LAGS and plan.pp > 1,
        boundary=float(composed.layers.boundary.exposed[key, PP]) * scale if plan.pp > 1 else 0.0,
        hidden_tp=composed.stack.hidden_tp if _overlaps_tp(composed) else 0.0,
    )
    made: dict[tuple[int, ...], Template] = {}

    def template(phase: int, stage: int, chunk: int, buckets: int) -> Template:
        ends = (stage == 0 and chunk == 0, (stage, chunk) == (plan.pp - 1, plan.interleave - 1))
        which = (phase, maker.class_of(stage), *ends, buckets)
        if which not in made:
            made[which] = maker.template(phase, maker.class_of(stage), ends, buckets)
        return made[which]

    return template, tuple(names)


def _overlaps_tp(composed: Composition) -> bool:
    flag = int(composed.plans.overlap_tp[0])
    return composed.stack.overlap_tp if flag < 0 else bool(flag)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """What templates of one plan are made from."""

    composed: Composition
    plan: Plan
    priced: list[Priced]
    launch: tuple[int, int]
    """Names of a layer's launches, forward and backward."""
    puts_off: bool
    """Whether weights' gradients are passes of their own."""
    boundary: float
    """Seconds that compute waits for a transfer between stages."""
    hidden_tp: float
    """Share of tensor-parallel collectives that GEMMs hide."""

    def class_of(self, stage: int) -> int:
        """Stage class of a stage."""
        count = self.composed.shards.classes.count[:, self.composed.step_P[0]].tolist()
        return next(c for c in range(4) if stage < sum(count[: c + 1]))

    def template(
        self, phase: int, stage_class: int, ends: tuple[bool, bool], buckets: int
    ) -> Template:
        """One pass of one chunk."""
        writer = Writer()
        forward = phase == FORWARD
        if not forward and self.composed.workload.mode == "forward":
            writer.layer_starts.append(0)
            writer.main(0.0, "compute", NAMES.index("backward"))
            return writer.finished(forward, buckets)
        if phase == WEIGHT:
            return self._put_off(stage_class, ends, buckets)
        first, last = ends
        heads = 1 + self.composed.model.mtp_layers
        layers: list[tuple[int, str, float]] = []
        for kind, again, count in self._layers(stage_class):
            whole = math.ceil(count - 1e-9)
            layers += [(kind, again, count / whole)] * whole
        if first and forward:
            self._edge(writer, "embedding", forward, 1.0)
        if last and not forward:
            self._edge(writer, "head", forward, float(heads))
        for kind, again, weight in layers if forward else layers[::-1]:
            self._layer(writer, kind, again, forward, weight)
        if first and phase == BACKWARD:
            self._edge(writer, "embedding", forward, 1.0)
        if last and forward:
            self._edge(writer, "head", forward, float(heads))
        if self.boundary:
            name = NAMES.index("send" if forward else "receive")
            number = writer.add(
                self.boundary, "compute", name, writer.chain, kind="pp", resource=COMPUTE
            )
            writer.chain = [number]
        return writer.finished(forward, buckets)

    def _put_off(self, stage_class: int, ends: tuple[bool, bool], buckets: int) -> Template:
        """The weights' gradients of a zero-bubble schedule, last layer first."""
        writer = Writer()
        heads = 1.0 + self.composed.model.mtp_layers
        groups = [("head", 0, heads)] if ends[1] else []
        for kind, _, count in self._layers(stage_class)[::-1]:
            whole = math.ceil(count - 1e-9)
            groups += [("layer", kind, count / whole)] * whole
        for place, kind, weight in groups:
            writer.layer_starts.append(len(writer.template.seconds))
            for one in self.priced:
                slot = one.slot
                here = (slot.place, slot.layer, slot.phase) == (place, kind, "backward_weight")
                if here and slot.kind == "gemm" and one.seconds:
                    writer.main(one.seconds * weight, "compute", one.name)
        return writer.finished(False, buckets)

    def _layers(self, stage_class: int) -> list[tuple[int, str, float]]:
        """Kind, recompute and number of the layers of a chunk; numbers need not be whole."""
        composed, step = self.composed, self.composed.step_P[0]
        layers = composed.shards.classes.layers[:, composed.step_P[:1]]
        again = float(recomputed_layers(composed.plans, layers)[stage_class, 0])
        share = again / max(float(layers[stage_class, 0]), 1.0)
        plain = CHOICES["recompute"][int(composed.base_kind()[0])]
        groups = []
        for kind in range(len(layer_kinds(composed.model))):
            count = float(composed.shards.layers_NCU[kind][stage_class, step])
            each = count / self.plan.interleave
            groups += [
                (kind, CHOICES["recompute"][FULL], each * share),
                (kind, plain, each * (1 - share)),
            ]
        return [group for group in groups if group[2] > 1e-9]

    def _edge(self, writer: Writer, place: str, forward: bool, weight: float) -> None:
        """Embedding or head."""
        slots = [one for one in self.priced if one.slot.place == place]
        writer.layer_starts.append(len(writer.template.seconds))
        gather = self._gather(writer, slots, forward, weight)
        writer.chain = writer.chain + gather
        if forward:
            self._forward(writer, slots, weight)
        else:
            self._backward(writer, slots, weight)
        self._scatter(writer, slots, forward, weight)
        writer.layer_ends.append(writer.chain[-1])

    def _layer(self, writer: Writer, kind: int, again: str, forward: bool, weight: float) -> None:
        """One layer behind its launches and its gathered weights."""
        slots = [one for one in self.priced if one.slot.place == "layer" and one.slot.layer == kind]
        stack = self.composed.stack
        writer.layer_starts.append(len(writer.template.seconds))
        floor = stack.launch_forward
        if not forward:
            floor = stack.launch_backward + stack.launch_forward * (again == "full")
        launch = writer.add(
            floor * weight * self.composed.scale(),
            "host",
            self.launch[0 if forward else 1],
            [],
            resource=HOST,
        )
        writer.chain = writer.chain + self._gather(writer, slots, forward, weight)
        if forward:
            self._forward(writer, slots, weight)
        else:
            repeated = [one for one in slots if again in one.slot.recomputed_by]
            self._forward(writer, repeated, weight)
            self._backward(writer, slots, weight)
        end = writer.chain[-1]
        writer.template.sources.append(launch)
        writer.template.targets.append(end)
        writer.template.launches.append(launch)
        writer.template.launched.append(end)
        self._scatter(writer, slots, forward, weight)
        writer.layer_ends.append(end)

    def _gather(
        self, writer: Writer, slots: list[Priced], forward: bool, weight: float
    ) -> list[int]:
        """Weights of zero=3, while the layer before the previous one has ended."""
        phase = "forward" if forward else "backward_input"
        mine = [one for one in slots if one.slot.stream == "dp" and one.slot.phase == phase]
        after = writer.layer_ends[-PREFETCHED : 1 - PREFETCHED]
        return [
            writer.add(one.seconds * weight, "dp", one.name, after) for one in mine if one.seconds
        ]

    def _scatter(self, writer: Writer, slots: list[Priced], forward: bool, weight: float) -> None:
        """Gradients of zero=3, beside the layers that follow."""
        for one in slots:
            late = one.slot.stream == "dp" and one.slot.phase == "backward_weight"
            if late and one.seconds and not forward:
                writer.add(one.seconds * weight, "dp", one.name, writer.chain)

    def _forward(self, writer: Writer, slots: list[Priced], weight: float) -> None:
        """Slots one after the other; ring exchange beside the attention that it feeds."""
        before = writer.chain
        for one in slots:
            slot, seconds = one.slot, one.seconds * weight
            if slot.phase != "forward" or slot.stream == "dp" or not seconds:
                continue
            if slot.stream == "cp":
                writer.chain = [*writer.chain, writer.add(seconds, "cp", one.name, before)]
                continue
            before = writer.chain
            self._one(writer, one, seconds)

    def _one(self, writer: Writer, one: Priced, seconds: float) -> None:
        """A task of the chain; of an overlapped collective only what GEMMs do not hide."""
        stream = one.slot.stream
        if stream == "tp" and self.hidden_tp:
            writer.main(seconds * (1 - self.hidden_tp), stream, one.name)
            writer.add(seconds * self.hidden_tp, "tp", one.name, writer.chain)
            return
        writer.main(seconds, stream, one.name)

    def _backward(self, writer: Writer, slots: list[Priced], weight: float) -> None:
        """Slots in reverse; weights' gradients and loose collectives off the chain."""
        asynchronous = self.composed.stack.async_tp_backward
        late: list[Priced] = []
        loose: list[tuple[Priced, list[int]]] = []
        own = [
            one
            for one in slots
            if one.slot.phase in BACKWARD_PHASES and one.slot.stream != "dp" and one.seconds
        ]
        order: list[str] = list(dict.fromkeys(one.slot.name for one in own))
        by_name = {name: [one for one in own if one.slot.name == name] for name in order}
        for place, name in reversed(list(enumerate(order))):
            group = by_name[name]
            beside = by_name[order[place - 1]] if place else []
            beside = [one for one in beside if one.slot.asynchronous and asynchronous]
            before = writer.chain
            regathered = [
                writer.add(one.seconds * weight, "tp", one.name, before)
                for one in beside
                if one.slot.phase == "backward_weight"
            ]
            for one in group:
                slot, seconds = one.slot, one.seconds * weight
                if slot.asynchronous and asynchronous:
                    continue  # written beside the GEMM that comes before it
                if slot.stream == "cp":
                    continue
                if slot.phase == "backward_weight" and slot.kind == "memory":
                    late.append(one)
                elif slot.phase == "backward_weight" and slot.stream == "compute":
                    loose.append((one, [*before, *regathered]))
                else:
                    self._one(writer, one, seconds)
            if name == "attention":
                writer.chain = writer.chain + [
                    writer.add(one.seconds * weight, "cp", one.name, before)
                    for one in own
                    if one.slot.stream == "cp"
                ]
            reduced = [
                writer.add(one.seconds * weight, "tp", one.name, writer.chain)
                for one in beside
                if one.slot.phase == "backward_input"
            ]
            for one, after in [] if self.puts_off else loose:
                writer.add(one.seconds * weight, "compute", one.name, after)
            loose = []
            writer.chain = reduced or writer.chain
        for one in late:
            writer.add(one.seconds * weight, "compute", one.name, [])
