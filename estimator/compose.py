"""From layers to plans: stages, pipeline, data parallelism and the parts that add up.

Suffixes: P plans, C the four stage classes, K pass parts, U unique keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import overload

import numpy as np
from numpy.typing import NDArray

from estimator.amped import estimate_amped
from estimator.cluster import Cluster
from estimator.cost import CostModel
from estimator.estimate import TIME_PARTS, Estimate, Estimates, StageCosts
from estimator.intervals import half_width
from estimator.layer import (
    COMPUTE,
    CP,
    DP,
    EP,
    HOST,
    PARTS,
    PP,
    TP,
    LayerSeconds,
    layer_seconds,
)
from estimator.lower.keys import Keys, layer_keys, overlaps
from estimator.lower.memory import PeakMemory, peak_memory_parts, recomputed_layers
from estimator.lower.slots import Columns, FloatArray, IntArray, largest_row
from estimator.lower.step import Shards, lower_step, step_keys
from estimator.lower.transformer import lower_layers, model_flops
from estimator.model import Transformer
from estimator.origins import part_origins
from estimator.plan import CHOICES, Plan, Plans
from estimator.pricers import pricer_of
from estimator.schedule import ZB_H1, last_passes, pipeline_seconds
from estimator.stack import Stack
from estimator.workload import Workload

FULL = CHOICES["recompute"].index("full")


@overload
def estimate(
    model: Transformer,
    workload: Workload,
    cluster: Cluster,
    plans: Plans,
    *,
    stack: Stack,
    cost: str | CostModel = ...,
) -> Estimates: ...
@overload
def estimate(
    model: Transformer,
    workload: Workload,
    cluster: Cluster,
    plans: Plan,
    *,
    stack: Stack,
    cost: str | CostModel = ...,
) -> Estimate: ...
def estimate(
    model: Transformer,
    workload: Workload,
    cluster: Cluster,
    plans: Plans | Plan,
    *,
    stack: Stack,
    cost: str | CostModel = "analytic",
) -> Estimates | Estimate:
    """Time and memory of legal plans, all at once; of one plan, as numbers.

    Args:
        model: what is trained.
        workload: batch, sequence, precision.
        cluster: where; its GPUs should be the plans' world.
        plans: P legal plans or one (the laws of ``spaces.rules`` are not checked again here).
        stack: the framework's habits.
        cost: name of a cost model, or one itself.

    Raises:
        ValueError: the cost model is unknown or lacks constants for this device.
    """
    if isinstance(plans, Plan):
        return estimate(model, workload, cluster, Plans.of([plans]), stack=stack, cost=cost)[0]
    if cost == "amped":
        _, _, shards, step_P, memory = _memory(model, workload, plans, stack)
        return estimate_amped(
            model,
            workload,
            cluster,
            plans,
            stack=stack,
            memory=memory.parts,
            stages=_unpriced_stages(shards, step_P, memory),
            model_flops=model_flops(model, workload),
        )
    return composition(model, workload, cluster, plans, stack=stack, cost=cost).estimates()


def composition(
    model: Transformer,
    workload: Workload,
    cluster: Cluster,
    plans: Plans,
    *,
    stack: Stack,
    cost: str | CostModel = "analytic",
) -> Composition:
    """Layers and steps of legal plans, priced: what :func:`estimate` and the simulator add up.

    Raises:
        ValueError: the cost model is unknown, prices whole plans only, or lacks constants here.
    """
    if cost == "amped":
        raise ValueError("cost=amped prices whole plans, not their layers; use analytic")
    keys, key_P, shards, step_P, memory = _memory(model, workload, plans, stack)
    pricer = pricer_of(cost, cluster)
    ops = lower_layers(model, workload, cluster, keys, stack)
    ops_seconds = pricer.seconds(ops, workload, cluster, stack)
    step_ops = lower_step(model, workload, cluster, shards, stack)
    step_OCU = pricer.seconds(step_ops, workload, cluster, stack).reshape(
        len(step_ops.slots), 4, -1
    )
    return Composition(
        model=model,
        workload=workload,
        cluster=cluster,
        stack=stack,
        plans=plans,
        ops=ops,
        ops_seconds=ops_seconds,
        layers=layer_seconds(ops, ops_seconds, workload, stack, keys),
        key_P=key_P,
        shards=shards,
        step_ops=step_ops,
        step={slot.name: step_OCU[i] for i, slot in enumerate(step_ops.slots)},
        step_P=step_P,
        memory=memory,
        pricer=pricer,
    )


def _memory(
    model: Transformer, workload: Workload, plans: Plans, stack: Stack
) -> tuple[Keys, IntArray, Shards, IntArray, PeakMemory]:
    """Layer keys and each plan's, how parameters are spread and each plan's, bytes at the peak."""
    keys, key_P = layer_keys(plans, stack)
    shards, step_P = step_keys(model, workload, plans)
    memory = peak_memory_parts(model, workload, stack, plans, keys, key_P, shards, step_P)
    return keys, key_P, shards, step_P, memory


def _unpriced_stages(shards: Shards, step_P: IntArray, memory: PeakMemory) -> StageCosts:
    """What memory alone says of the stages; their seconds are for the cost model to fill in."""
    layers = shards.classes.layers[:, step_P].T
    return StageCosts(
        count=shards.classes.count[:, step_P].T,
        layers=layers,
        seconds=np.zeros(layers.shape),
        allocated_bytes=memory.allocated_CP.T,
    )


def peak_memory(
    model: Transformer, workload: Workload, cluster: Cluster, plans: Plans, *, stack: Stack
) -> FloatArray:
    """Peak bytes per device of legal plans, shape (P,): the memory half of :func:`estimate`."""
    *_, memory = _memory(model, workload, plans, stack)
    total: FloatArray = np.sum(list(memory.parts.values()), axis=0)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Everything that a block of plans is composed from."""

    model: Transformer
    workload: Workload
    cluster: Cluster
    stack: Stack
    plans: Plans
    ops: Columns
    ops_seconds: FloatArray
    """Seconds of each slot under each layer key, (O, U)."""
    layers: LayerSeconds
    key_P: IntArray
    shards: Shards
    step_ops: Columns
    """Slots of the step phase, stage class by stage class, (O, 4 U)."""
    step: dict[str, FloatArray]
    step_P: IntArray
    memory: PeakMemory
    pricer: CostModel

    def estimates(self) -> Estimates:
        """Stages, then the pipeline, then what a step adds; scaled to this stack and size."""
        plans, stack = self.plans, self.stack
        m = self.workload.global_batch // (plans.dp * plans.micro_batch)
        count = self.shards.classes.count[:, self.step_P]
        layers = self.shards.classes.layers[:, self.step_P]
        again = recomputed_layers(plans, layers)
        forward, backward, crossing = self.stage_seconds(count, layers, again)
        weight = self.weight_seconds() if (plans.schedule >= ZB_H1).any() else None
        pipeline = pipeline_seconds(forward, backward, count, plans, m, weight)
        critical = largest_row(forward + backward)
        row = np.arange(len(plans))
        on_stage, hidden, phases = self._critical_parts(
            critical, layers[critical, row], again[critical, row], m, crossing[critical, row]
        )
        bubble = pipeline - m * (forward + backward)[critical, row]
        data, hidden_data = self._data_parallel(forward, backward, weight, count, m)
        optimizer = self.update().max(axis=0)
        train = self.workload.mode == "train"
        scale = self.scale()
        time = {
            "compute": on_stage[:, COMPUTE],
            "tp": on_stage[:, TP],
            "cp": on_stage[:, CP],
            "ep": on_stage[:, EP],
            "pp": on_stage[:, PP],
            "bubble": np.maximum(bubble, 0.0),
            "dp": on_stage[:, DP] + data,
            "optimizer": optimizer * train,
            "host": on_stage[:, HOST] + stack.step_seconds,
        }
        return Estimates(
            plans=plans,
            time={part: scale * time[part] for part in TIME_PARTS},
            hidden={
                "tp": scale * hidden[:, TP],
                "cp": scale * hidden[:, CP],
                "ep": scale * hidden[:, EP],
                "pp": scale * hidden[:, PP],
                "dp": scale * (hidden[:, DP] + hidden_data),
            },
            compute_phases={name: scale * value for name, value in phases.items()},
            memory=self.memory.parts,
            stages=StageCosts(
                count=count.T,
                layers=layers.T,
                seconds=scale * (forward + backward).T,
                allocated_bytes=self.memory.allocated_CP.T,
            ),
            memory_uncertainty=stack.memory_uncertainty,
            uncertainty=np.full(
                len(plans), half_width(stack, self.model, self.cluster, self.pricer)
            ),
            origin=partial(part_origins, self),
            capacity_bytes=self.cluster.capacity_bytes,
            tokens_per_step=self.workload.tokens,
            model_flops=model_flops(self.model, self.workload),
            peak_flops=self.cluster.gpus * self.cluster.peak(self.workload.precision),
        )

    def scale(self) -> float:
        """In-situ factor of the stack under this cost model, and stragglers by nodes."""
        if self.pricer.name not in self.stack.in_situ:
            raise ValueError(
                f"stack {self.stack.name} has no in_situ factor for cost model "
                f"{self.pricer.name}; it has {', '.join(self.stack.in_situ)}"
            )
        stragglers = 1 + self.stack.straggler_per_doubling * np.log2(self.cluster.nodes)
        return float(self.stack.in_situ[self.pricer.name] * stragglers)

    def _gather(self, value_U: FloatArray) -> FloatArray:
        """A column of step keys, per plan."""
        gathered: FloatArray = value_U[..., self.step_P]
        return gathered

    def crossings(self) -> IntArray:
        """Stage boundaries that a micro-batch crosses per stage and direction, shape (P,)."""
        return np.where(self.plans.pp > 1, self.plans.interleave, 0)

    def crossing_seconds(self, forward: FloatArray) -> FloatArray:
        """Exposed seconds of one crossing, (4, P): all of it, or what outlasts another chunk.

        ``forward`` holds the seconds of a micro-batch on each stage class, (4, P).
        """
        boundary, key = self.layers.boundary, self.key_P
        outlasts = np.maximum(boundary.hidden[key, PP] - forward / self.plans.interleave, 0.0)
        exposed: FloatArray = boundary.exposed[key, PP] + outlasts
        return exposed

    def base_kind(self) -> IntArray:
        """Recompute kind of every layer; full recompute is counted by layer, on top of none."""
        return np.where(self.plans.recompute == FULL, 0, self.plans.recompute)

    def stage_seconds(
        self, count: IntArray, layers: IntArray, again: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Forward and backward seconds of a micro-batch per stage class, both (4, P).

        Also the exposed seconds of one crossing, (4, P), which both hold as often as stages cross.
        """
        costs, key, one_stage = self.layers, self.key_P, self.plans.pp == 1
        forward, backward = np.zeros(layers.shape), np.zeros(layers.shape)
        base = self.base_kind()
        share = again / np.maximum(layers, 1)
        for n, layer in enumerate(costs.layers):
            of_kind = self.of_kind(n)
            by_recompute = layer.backward.seconds
            extra = (by_recompute[FULL] - by_recompute[0])[key]
            forward += of_kind * layer.forward.seconds[key]
            backward += of_kind * (by_recompute[base, key] + share * extra)
        forward[0] += costs.embedding_forward.seconds[key]
        backward[0] += costs.embedding_backward.seconds[key]
        for side, one in (
            (forward, costs.head_forward.seconds[key]),
            (backward, costs.head_backward.seconds[key]),
        ):
            head = (1 + self.model.mtp_layers) * one
            side[0] += np.where(one_stage, head, 0.0)
            side[3] += np.where(one_stage, 0.0, head)
        exists = count > 0
        train = self.workload.mode == "train"
        crossing = self.crossing_seconds(forward)
        sent = self.crossings() * crossing
        return (forward + sent) * exists, (backward + sent) * exists * train, crossing

    def weight_seconds(self) -> FloatArray:
        """Of a stage's backward, the GEMMs that only its own weights wait for, (4, P)."""

        def each(place: str, layer: int) -> FloatArray:
            rows = [
                i
                for i, slot in enumerate(self.ops.slots)
                if (slot.place, slot.layer, slot.phase) == (place, layer, "backward_weight")
                and slot.kind == "gemm"
            ]
            summed: FloatArray = self.ops_seconds[rows].sum(axis=0)[self.key_P]
            return summed

        weight = sum(self.of_kind(n) * each("layer", n) for n in range(len(self.layers.layers)))
        weight = weight + np.zeros((4, len(self.plans)))
        head = (1 + self.model.mtp_layers) * each("head", 0)
        weight[0] += np.where(self.plans.pp == 1, head, 0.0)
        weight[3] += np.where(self.plans.pp == 1, 0.0, head)
        exists = self.shards.classes.count[:, self.step_P] > 0
        return weight * exists * (self.workload.mode == "train")

    def of_kind(self, n: int) -> FloatArray:
        """Layers of a kind on a stage of each class, (4, P)."""
        layers: FloatArray = self.shards.layers_NCU[n][:, self.step_P]
        return layers

    def _critical_parts(
        self,
        critical: IntArray,
        layers: IntArray,
        again: IntArray,
        m: IntArray,
        crossing: FloatArray,
    ) -> tuple[FloatArray, FloatArray, dict[str, FloatArray]]:
        """Exposed and hidden seconds of the slowest stage over a step, each of shape (P, K).

        Also the compute seconds of its phases.
        """
        costs, key = self.layers, self.key_P
        passes = 2 if self.workload.mode == "train" else 1
        last = (critical == 3) | (self.plans.pp == 1)
        heads = last * (1.0 + self.model.mtp_layers)

        def times(
            weight: FloatArray | IntArray | NDArray[np.bool_], rows: FloatArray
        ) -> FloatArray:
            product: FloatArray = weight[:, None] * rows
            return product

        share = again / np.maximum(layers, 1)
        total = times(critical == 0, np.take(costs.embedding_table, key, axis=0))
        total += times(heads, np.take(costs.head_table, key, axis=0))
        boundary = costs.boundary
        crossed = boundary.exposed[key, PP] + boundary.hidden[key, PP]
        total[:, PP] += passes * self.crossings() * crossing
        total[:, PARTS + PP] += passes * self.crossings() * (crossed - crossing)
        for n, layer in enumerate(costs.layers):
            table = layer.table
            by_kind = table.reshape(-1, table.shape[-1])
            base = self.base_kind() * table.shape[1] + key
            of_kind = self.of_kind(n)[critical, np.arange(len(key))]
            total += times(of_kind, np.take(by_kind, base, axis=0))
            if again.any():
                extra = np.take(table[FULL] - table[0], key, axis=0)
                total += times(of_kind * share, extra)
        total *= m[:, None]
        exposed, hidden, phases = np.split(total, (PARTS, 2 * PARTS), axis=1)
        return (
            exposed,
            hidden,
            {
                "forward": phases[:, 0],
                "recompute": phases[:, 1],
                "backward": exposed[:, COMPUTE] - phases[:, 0] - phases[:, 1],
            },
        )

    def update(self) -> FloatArray:
        """Seconds of the optimizer on each stage class, (4, P)."""
        rows = self.step["optimizer"] + self.step["offload copies"] + self.step["host optimizer"]
        return self._gather(rows)

    def step_traffic(self) -> dict[str, FloatArray]:
        """Seconds of what each stage class exchanges outside its layers, each (4, P).

        Gradients at the end, those that leave after every other micro-batch (zero=2), gathered
        weights, and the gradients of a tied embedding.
        """
        nothing = np.zeros_like(self.step["optimizer"])

        def step(name: str) -> FloatArray:
            return self._gather(self.step[name] + self.step.get(f"expert {name}", nothing))

        scatter = step("gradient scatter")
        reduce = step("gradient reduction") + self._gather(self.step["replica reduction"])
        return {
            "gradients": reduce + scatter,
            "every gradients": np.where(self.plans.zero == 2, scatter, 0.0),
            "weights": step("weight gather")
            + self._gather(self.step.get("weight broadcast", nothing)),
            "tied": self._gather(self.step["tied embedding reduction"]),
        }

    def _data_parallel(
        self,
        forward: FloatArray,
        backward: FloatArray,
        weight: FloatArray | None,
        count: IntArray,
        m: IntArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Exposed and hidden seconds of gradients and weights outside the layers, both (P,).

        Gradients hide behind the last backward (with interleaving, behind all that follows the
        first chunk's last backward; where weight gradients are put off, behind the last of these),
        gathered weights behind the next forward. A stage that ends before the first has that much
        more time.
        """
        plans, stack = self.plans, self.stack
        if self.workload.mode != "train":
            return np.zeros(len(plans)), np.zeros(len(plans))
        traffic = self.step_traffic()
        final, gather = traffic["gradients"], traffic["weights"]
        scatter = traffic["every gradients"]
        both = forward + backward
        v = plans.interleave
        later = np.where(v > 1, (1 - 1 / v) * np.minimum(m, plans.pp), 0.0)
        ending, slack = last_passes(backward, weight, count, plans)
        window = ending / v + later * both
        grad_on = overlaps(plans.overlap_grad, stack.overlap_grad) == 1
        param_on = overlaps(plans.overlap_param, stack.overlap_param) == 1
        exposed = self._beside(final, window, grad_on) + self._beside(gather, forward, param_on)
        exposed = exposed + traffic["tied"]
        after = np.maximum((exposed - slack).max(axis=0), 0.0)
        # What each micro-batch leaves exposed makes the slowest stage of a steady pipeline slower.
        slower = both + self._beside(scatter, ending, grad_on, each=v)
        after = after + (m - 1) * (slower.max(axis=0) - both.max(axis=0))
        all_traffic = (final + gather).max(axis=0) + (m - 1) * scatter.max(axis=0)
        return after, np.maximum(all_traffic - after, 0.0)

    def _beside(
        self, traffic: FloatArray, window: FloatArray, on: IntArray, each: IntArray | int = 1
    ) -> FloatArray:
        """What a window leaves exposed of traffic: of ``each`` parts the last bucket at least."""
        stack = self.stack
        least = np.minimum(stack.exposed_dp * each, 1.0) * traffic
        hidden = np.maximum(least, traffic - stack.hiding_dp * window)
        exposed: FloatArray = np.where(on, hidden, traffic)
        return exposed
