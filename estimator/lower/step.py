"""What happens once per step on each stage: gradients, weights and optimizer states.

Suffixes: U unique step keys, C the four stage classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from estimator.cluster import Cluster
from estimator.lower.keys import dp_ranks_inside, expert_tp
from estimator.lower.kinds import layer_kinds, layers_by_kind
from estimator.lower.slots import (
    Builder,
    Collective,
    Columns,
    FloatArray,
    IntArray,
    Slot,
    above_leaf,
    ranks_inside,
    unique_rows,
)
from estimator.lower.stages import StageClasses, stage_classes
from estimator.lower.transformer import expert_shard, layer_shard, vocab_rows
from estimator.model import Transformer
from estimator.plan import HOST_OPTIMIZER, UNSET, Plans
from estimator.stack import Stack
from estimator.workload import OPTIMIZER_STATE_BYTES, Workload

ATTENTION_MATRICES = 2
"""Of a layer: queries, keys and values as one, and the output projection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """How a stage's parameters and their states are spread; columns of shape (U,) or (4, U)."""

    plans: Plans
    """One representative plan per unique key."""
    classes: StageClasses
    shard: IntArray
    """Ranks that share one sharded copy; 1 without zero."""
    parameters_CU: FloatArray
    """Parameters per rank of each stage class, before sharding over dp x cp."""
    trainable_CU: FloatArray
    """Of these, the ones that get gradients and optimizer states."""
    experts_CU: FloatArray
    """Routed experts' parameters per rank of each stage class."""
    expert_ranks: IntArray
    """Ranks that hold the same experts."""
    expert_shard: IntArray
    """Ranks that share one sharded copy of them; 1 without zero."""
    layers_NCU: FloatArray
    """Layers of each kind on a stage of each class."""
    layer_parameters: FloatArray
    """Parameters per rank of the largest layer, shape (U,)."""


def step_keys(model: Transformer, workload: Workload, plans: Plans) -> tuple[Shards, IntArray]:
    """Unique step keys of the plans, and each plan's key index of shape (P,)."""
    first, index = unique_rows(
        [
            plans.dp,
            plans.tp,
            plans.cp,
            plans.pp,
            plans.ep,
            plans.etp,
            plans.zero,
            plans.offload,
            plans.shard_size,
            plans.order,
            plans.first_stage_layers,
            plans.last_stage_layers,
        ]
    )
    unique = plans[first]
    full = unique.dp * unique.cp
    shard = np.where(unique.shard_size == UNSET, full, unique.shard_size)
    classes = stage_classes(model.layers, unique)
    kinds = layer_kinds(model)
    by_kind = layers_by_kind(model, kinds, classes)
    etp = expert_tp(unique)
    rest = [layer_shard(model, kind.mlp, unique.tp) for kind in kinds]
    routed = [expert_shard(model, kind.mlp, unique.ep, etp) for kind in kinds]
    parameters = edge_parameters(model, unique)
    experts = np.zeros_like(parameters)
    for n in range(len(kinds)):
        parameters = parameters + by_kind[n] * rest[n]
        experts = experts + by_kind[n] * routed[n]
    trainable = parameters
    if workload.lora_rank is not None:
        adapters = model.adapter_parameters(workload.lora_rank, workload.lora_targets) / unique.tp
        trainable = by_kind.sum(axis=0) * adapters
        parameters = parameters + trainable
    same = np.maximum(full * unique.tp // (unique.ep * etp), 1)
    return Shards(
        plans=unique,
        classes=classes,
        shard=np.where(unique.zero > 0, shard, 1),
        parameters_CU=parameters,
        trainable_CU=trainable,
        experts_CU=experts,
        expert_ranks=same,
        expert_shard=np.where(unique.zero > 0, same, 1),
        layers_NCU=by_kind,
        layer_parameters=np.max([a + b for a, b in zip(rest, routed, strict=True)], axis=0),
    ), index


def edge_parameters(model: Transformer, plans: Plans) -> FloatArray:
    """Parameters per rank outside the layers, shape (4, P).

    The first stage holds the embedding, the last the final norm and the output projection; a tied
    projection is a second copy where the two stages differ. Multi-token prediction joins two
    states on the last stage.
    """
    table = vocab_rows(model, plans.tp) * model.hidden
    one_stage = plans.pp == 1
    first = table + model.position_parameters
    joined = model.mtp_layers * (2 * model.hidden**2 / plans.tp + 3 * model.norm_parameters)
    last = np.where(one_stage & model.tied, 0, table) + model.norm_parameters + joined
    none = np.zeros_like(table)
    return np.stack(
        [first + np.where(one_stage, last, 0), none, none, np.where(one_stage, 0, last)]
    )


def state_parameters(
    model: Transformer, workload: Workload, stack: Stack, shards: Shards
) -> FloatArray:
    """Parameters that the fullest rank of each stage class updates and has states of, (4, U).

    An even share; where ranks own whole tensors, no less than the largest, a table of the
    vocabulary at either end.
    """
    experts = shards.experts_CU * (workload.lora_rank is None)
    even: FloatArray = shards.trainable_CU / shards.shard + experts / shards.expert_shard
    if not stack.whole_tensor_owners:
        return even
    table = vocab_rows(model, shards.plans.tp) * model.hidden
    none = np.zeros_like(table)
    return np.maximum(even, np.minimum(np.stack([table, none, none, table]), shards.trainable_CU))


def lower_step(
    model: Transformer, workload: Workload, cluster: Cluster, shards: Shards, stack: Stack
) -> Columns:
    """Slots of the step phase; columns of shape (O, 4 U), stage class by stage class.

    zero=2 scatters gradients after every micro-batch: its row is one such scatter. zero=3 gathers
    and scatters inside layers, so that only replicas of hybrid sharding are reduced here.
    """
    plans = shards.plans
    half = workload.activation_bytes == 2
    gradient = stack.gradient_bytes if half else 4.0
    full = plans.dp * plans.cp
    replicas = full // shards.shard
    blocks = (cluster.scale_up_domain, cluster.leaf_ranks)
    near_all = np.stack([dp_ranks_inside(plans, ranks) for ranks in blocks])
    near_shard = np.minimum(near_all, shards.shard)
    expert_stride = expert_tp(plans) * plans.ep
    near_experts = np.stack(
        [ranks_inside(shards.expert_ranks, expert_stride, ranks) for ranks in blocks]
    )
    exists = (shards.classes.count > 0).astype(float)
    parameters = shards.trainable_CU * exists
    experts = shards.experts_CU * exists * (workload.lora_rank is None)

    def spread(value: FloatArray | IntArray) -> FloatArray:
        """Broadcast (U,) over the stage classes and flatten to (4 U,)."""
        return np.broadcast_to(value, parameters.shape).reshape(-1).astype(float)

    rows = Builder(unique=parameters.size)

    def collective(
        name: str,
        kind: Collective,
        size: FloatArray,
        group: IntArray,
        near: FloatArray,
        when: FloatArray,
    ) -> None:
        """``near``, (2, U): ranks in one scale-up domain, and below one leaf switch."""
        slot = Slot(
            name=name, kind="collective", place="stage", phase="step", stream="dp", collective=kind
        )
        rows.add(
            slot,
            count=spread(when * exists * (group > 1)),
            bytes=spread(size),
            group=spread(group),
            inside=spread(near[0]),
            above_leaf=spread(above_leaf(kind, group, near[0], near[1])),
        )

    early = (plans.zero > 0) & (plans.zero < 3)
    owned = early & stack.whole_tensor_owners
    reduced = (plans.zero == 0) | owned
    sharded = early & ~owned
    collective(
        "gradient reduction",
        "all_reduce",
        gradient * parameters,
        full,
        near_all,
        reduced.astype(float),
    )
    collective(
        "gradient scatter",
        "reduce_scatter",
        gradient * parameters,
        shards.shard,
        near_shard,
        sharded.astype(float),
    )
    collective(
        "replica reduction",
        "all_reduce",
        gradient * parameters / shards.shard,
        replicas,
        np.maximum(near_all / near_shard, 1),
        ((plans.zero > 0) & ~owned).astype(float),
    )
    collective(
        "weight gather",
        "all_gather",
        float(workload.activation_bytes) * parameters,
        shards.shard,
        near_shard,
        sharded.astype(float),
    )
    if stack.whole_tensor_owners:
        tensors = (ATTENTION_MATRICES + model.matrices_of_mlp) * shards.layers_NCU.sum(axis=0) + 1
        owners = np.maximum(np.minimum(shards.shard, tensors), 1)
        collective(
            "weight broadcast",
            "broadcast",
            float(workload.activation_bytes) * parameters / owners,
            shards.shard,
            near_shard,
            owned * owners,
        )
    if model.experts is not None:
        for name, kind, width, when in (
            ("expert gradient reduction", "all_reduce", gradient, reduced),
            ("expert gradient scatter", "reduce_scatter", gradient, sharded),
            ("expert weight gather", "all_gather", float(workload.activation_bytes), early),
        ):
            collective(
                name,
                kind,  # type: ignore[arg-type]
                width * experts,
                shards.expert_ranks,
                near_experts,
                when.astype(float) * (experts > 0),
            )
    tied = np.zeros_like(parameters)
    tied[0] = np.where(model.tied & (plans.pp > 1) & (workload.lora_rank is None), 1.0, 0.0)
    two = np.full_like(plans.pp, 2)
    collective(
        "tied embedding reduction",
        "all_reduce",
        gradient * vocab_rows(model, plans.tp) * model.hidden,
        two,
        np.stack([two / 2, two / (1 if cluster.gpus <= cluster.leaf_ranks else 2)]),
        tied,
    )
    updated = state_parameters(model, workload, stack, shards) * exists
    on_device = 1.0 - np.isin(plans.offload, HOST_OPTIMIZER)
    states = optimizer_traffic(workload, stack) * updated
    copied = (gradient + float(workload.activation_bytes)) * updated
    rows.add(
        Slot(name="optimizer", kind="memory", place="stage", phase="step"),
        count=spread(exists * on_device),
        bytes=spread(states),
    )
    # Gradients down, an update where the states are, weights up (ZeRO-Offload, arXiv 2101.06840).
    rows.add(
        Slot(name="offload copies", kind="host_copy", place="stage", phase="step"),
        count=spread(exists * (1 - on_device)),
        bytes=spread(copied),
    )
    rows.add(
        Slot(name="host optimizer", kind="host_memory", place="stage", phase="step"),
        count=spread(exists * (1 - on_device)),
        bytes=spread(states),
    )
    return rows.build()


def optimizer_traffic(workload: Workload, stack: Stack) -> float:
    """Bytes per parameter that an optimizer step moves.

    The gradient is read twice (norm, update), states and master are read and written, and
    half-precision weights written.
    """
    half = workload.activation_bytes == 2
    gradient = stack.gradient_bytes if half else 4.0
    states = 2 * OPTIMIZER_STATE_BYTES[workload.optimizer]
    return 2 * gradient + states + 8.0 + (2.0 if half else 0.0)


def state_bytes(workload: Workload, stack: Stack) -> tuple[float, float, float]:
    """Bytes per parameter of weights, gradients and optimizer states (with fp32 master)."""
    if workload.mode == "forward":
        return float(workload.activation_bytes), 0.0, 0.0
    states = OPTIMIZER_STATE_BYTES[workload.optimizer]
    if workload.activation_bytes == 4:
        return 4.0, 4.0, states
    master = 0.0 if stack.weight_bytes == 4 else 4.0
    return stack.weight_bytes, stack.gradient_bytes, master + states
