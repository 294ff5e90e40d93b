"""Passes operator by operator: the priced slots of every layer, in the order that autograd runs.

A forward runs the slots of a layer as they are lowered, a backward in reverse: of each GEMM the
input's gradient first, then the weights', beside which a column-parallel layer reduces. What runs
beside what is decided here by streams and edges, where the closed form uses shares.

Three things differ from the closed form on purpose. A layer ends no earlier than its launches; the
closed form's 6-norm (fitted) adds up to 12 % where both are as long, for kernels that some of the
launches hold up. Ring exchange runs beside all of an attention core, not beside a fitted share.
And under zero=3 nothing hides what the first layer of a pass gathers, unless the pass before does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimator.compose import FULL, Composition
from estimator.layer import DP, EP, PP, Pass
from estimator.lower.kinds import layer_kinds
from estimator.lower.lowering import BACKWARD as BACKWARD_PHASES
from estimator.lower.memory import recomputed_layers
from estimator.lower.slots import FloatArray, Slot
from estimator.plan import CHOICES, Plan
from estimator.simulate.graph import NONE
from estimator.simulate.orders import FORWARD, LAGS, WEIGHT
from estimator.simulate.passes import Template, Templates
from estimator.simulate.rows import (
    COMPUTE,
    HOST,
    NAMES,
)
from estimator.simulate.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A slot with its seconds under one plan."""

    slot: Slot
    seconds: float
    name: int


@dataclass(frozen=True, slots=True)
class Block:
    """A layer, the embedding or the head in one pass."""

    place: str
    kind: int
    """Of layer."""
    again: str
    """Recompute of a layer."""
    weight: float
    """How many of them; of layers, 1 or less."""
    beside: float
    """Seconds that it and the gathering of weights share, not scaled."""


def _gathered_beside(one: Pass, key: int | tuple[int, int]) -> float:
    """The shorter of what a pass does and of what it gathers."""
    gather = float(one.exposed[key][DP] + one.hidden[key][DP])
    return min(gather, float(one.exposed[key].sum() - one.exposed[key][DP]))


def operator_passes(
    composed: Composition, plan: Plan, shares: FloatArray
) -> tuple[Templates, tuple[str, ...]]:
    """Templates of every pass of the first plan, and the names of all tasks.

    ``shares`` of a stage's layers lie in each of its chunks, (S, V).
    """
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
    names += ["launch forward", "launch backward", "interference"]
    maker = _Maker(
        composed=composed,
        plan=plan,
        shares=shares,
        priced=priced,
        launch=(len(names) - 3, len(names) - 2),
        interference=len(names) - 1,
        puts_off=plan.schedule in LAGS and plan.pp > 1,
        boundary=float(composed.layers.boundary.exposed[key, PP]) * scale if plan.pp > 1 else 0.0,
        hidden_tp=composed.stack.hidden_tp if _overlaps_tp(composed) else 0.0,
    )
    made: dict[tuple[int, ...], Template] = {}

    def template(phase: int, stage: int, chunk: int, buckets: int) -> Template:
        which = (phase, maker.class_of(stage), *maker.ends(stage, chunk), buckets)
        if which not in made:
            made[which] = maker.template(phase, stage, chunk, buckets)
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
    shares: FloatArray
    """Of a stage's layers in each chunk, (S, V)."""
    priced: list[Priced]
    launch: tuple[int, int]
    """Names of a layer's launches, forward and backward."""
    interference: int
    """Name of the time that gathering weights takes from compute beside it."""
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

    def ends(self, stage: int, chunk: int) -> tuple[bool, bool]:
        """Whether a chunk is the first, and the last, of the model."""
        return (stage, chunk) == (0, 0), (stage, chunk) == (
            self.plan.pp - 1,
            self.plan.interleave - 1,
        )

    def template(self, phase: int, stage: int, chunk: int, buckets: int) -> Template:
        """One pass of one chunk."""
        writer = Writer()
        forward = phase == FORWARD
        if not forward and self.composed.workload.mode == "forward":
            writer.layer_starts.append(0)
            writer.main(0.0, "compute", NAMES.index("backward"))
            return writer.finished(forward, buckets)
        if phase == WEIGHT:
            return self._put_off(stage, chunk, buckets)
        blocks = self._blocks(stage, chunk, forward)
        gathered = self._gather(writer, blocks[0], forward)
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            # The next block's weights are asked for before this one's gradients leave.
            ahead = self._gather(writer, after, forward) if after else NONE
            self._block(writer, block, forward, gathered)
            gathered = ahead
        if self.boundary:
            name = NAMES.index("send" if forward else "receive")
            number = writer.add(
                self.boundary, "compute", name, writer.chain, kind="pp", resource=COMPUTE
            )
            writer.chain = [number]
        return writer.finished(forward, buckets)

    def _put_off(self, stage: int, chunk: int, buckets: int) -> Template:
        """The weights' gradients of a zero-bubble schedule, last layer first."""
        writer = Writer()
        for block in self._blocks(stage, chunk, False):
            slots = self._slots(block)
            writer.layer_starts.append(len(writer.template.seconds))
            for one in slots:
                late = one.slot.phase == "backward_weight" and one.slot.kind == "gemm"
                if late and one.seconds:
                    writer.main(one.seconds * block.weight, "compute", one.name)
            if writer.chain:
                self._scatter(writer, slots, block.weight)
        return writer.finished(False, buckets)

    def _layers(self, stage: int, chunk: int) -> list[tuple[int, str, float]]:
        """Kind, recompute and number of the layers of a chunk; numbers need not be whole."""
        composed, step = self.composed, self.composed.step_P[0]
        stage_class = self.class_of(stage)
        layers = composed.shards.classes.layers[:, composed.step_P[:1]]
        again = float(recomputed_layers(composed.plans, layers)[stage_class, 0])
        share = again / max(float(layers[stage_class, 0]), 1.0)
        plain = CHOICES["recompute"][int(composed.base_kind()[0])]
        groups = []
        for kind in range(len(layer_kinds(composed.model))):
            count = float(composed.shards.layers_NCU[kind][stage_class, step])
            each = count * float(self.shares[stage, chunk])
            groups += [
                (kind, CHOICES["recompute"][FULL], each * share),
                (kind, plain, each * (1 - share)),
            ]
        return [group for group in groups if group[2] > 1e-9]

    def _blocks(self, stage: int, chunk: int, forward: bool) -> list[Block]:
        """Layers of a chunk, and the embedding and the head at its ends, in the order they run."""
        costs, key = self.composed.layers, int(self.composed.key_P[0])
        place = "forward" if forward else "backward"
        first, last = self.ends(stage, chunk)
        blocks = []
        if first:
            one: Pass = getattr(costs, f"embedding_{place}")
            blocks.append(Block("embedding", 0, "", 1.0, _gathered_beside(one, key)))
        for kind, again, count in self._layers(stage, chunk):
            whole = math.ceil(count - 1e-9)
            layer, again_key = costs.layers[kind], (CHOICES["recompute"].index(again), key)
            row = (layer.forward, key) if forward else (layer.backward, again_key)
            blocks += [Block("layer", kind, again, count / whole, _gathered_beside(*row))] * whole
        if last:
            one = getattr(costs, f"head_{place}")
            heads = 1.0 + self.composed.model.mtp_layers
            blocks.append(Block("head", 0, "", heads, _gathered_beside(one, key)))
        return blocks if forward else blocks[::-1]

    def _block(self, writer: Writer, block: Block, forward: bool, gathered: int) -> None:
        """A layer behind its launches, or an end of the model, behind its gathered weights."""
        stack, scale, weight = self.composed.stack, self.composed.scale(), block.weight
        slots = self._slots(block)
        writer.layer_starts.append(len(writer.template.seconds))
        launch = NONE
        if block.place == "layer":
            launches = stack.launch_experts * any(one.slot.stream == "ep" for one in slots)
            floor = launches + (stack.launch_forward if forward else stack.launch_backward)
            if not forward and block.again == "full":
                floor += launches + stack.launch_forward
            name = self.launch[0 if forward else 1]
            launch = writer.add(floor * weight * scale, "host", name, [], resource=HOST)
        if gathered != NONE:
            writer.chain = [*writer.chain, gathered]
        writer.kept_ep = self._kept_ep(block, forward)
        if forward:
            self._forward(writer, slots, weight)
        else:
            repeated = [one for one in slots if block.again in one.slot.recomputed_by]
            self._forward(writer, repeated, weight)
            self._backward(writer, slots, weight)
        slower = stack.interference_zero3 * block.beside * weight * scale
        if slower:
            number = writer.add(
                slower, "compute", self.interference, writer.chain, kind="dp", resource=COMPUTE
            )
            writer.chain = [number]
        end = writer.chain[-1]
        if launch != NONE:
            writer.edge(launch, end)
            writer.template.launches.append(launch)
            writer.template.launched.append(end)
        writer.template.gathers.append(gathered)
        writer.template.gathered.append(end)
        if not forward and not self.puts_off:
            self._scatter(writer, slots, weight)

    def _kept_ep(self, block: Block, forward: bool) -> float:
        """Share of a layer's exchange of experts that its own pass waits for."""
        if block.place != "layer":
            return 1.0
        layer, key = self.composed.layers.layers[block.kind], int(self.composed.key_P[0])
        one = layer.forward if forward else layer.backward
        row = (key, EP) if forward else (CHOICES["recompute"].index(block.again), key, EP)
        exposed, hidden = float(one.exposed[row]), float(one.hidden[row])
        return exposed / (exposed + hidden) if hidden else 1.0

    def _slots(self, block: Block) -> list[Priced]:
        return [
            one
            for one in self.priced
            if one.slot.place == block.place
            and (block.place != "layer" or one.slot.layer == block.kind)
        ]

    def _gather(self, writer: Writer, block: Block, forward: bool) -> int:
        """Weights of zero=3; how far ahead is for the queue of gathers to say."""
        phase = "forward" if forward else "backward_input"
        number = NONE
        for one in self._slots(block):
            if one.slot.stream == "dp" and one.slot.phase == phase and one.seconds:
                number = writer.add(one.seconds * block.weight, "dp", one.name, [])
        return number

    def _scatter(self, writer: Writer, slots: list[Priced], weight: float) -> None:
        """Gradients of zero=3, beside the layers that follow."""
        for one in slots:
            if one.slot.stream == "dp" and one.slot.phase == "backward_weight" and one.seconds:
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
        if stream == "ep" and writer.kept_ep < 1:
            number = writer.add(seconds * writer.kept_ep, "ep", one.name, writer.chain)
            writer.add(seconds * (1 - writer.kept_ep), "ep", one.name, [number])
            writer.chain = [number]
            return
        if stream == "tp" and self.hidden_tp:
            writer.chain = [self._beside(writer, one, seconds, writer.chain)]
            return
        writer.main(seconds, stream, one.name)

    def _beside(self, writer: Writer, one: Priced, seconds: float, after: list[int]) -> int:
        """A tensor-parallel collective; nothing waits for what GEMMs hide of it."""
        number = writer.add(seconds * (1 - self.hidden_tp), "tp", one.name, after)
        if self.hidden_tp:
            writer.add(seconds * self.hidden_tp, "tp", one.name, [number])
        return number

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
                self._beside(writer, one, one.seconds * weight, before)
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
                self._beside(writer, one, one.seconds * weight, writer.chain)
                for one in beside
                if one.slot.phase == "backward_input"
            ]
            for one, after in [] if self.puts_off else loose:
                writer.add(one.seconds * weight, "compute", one.name, after)
            loose = []
            writer.chain = reduced or writer.chain
        for one in late:
            writer.add(one.seconds * weight, "compute", one.name, [])
