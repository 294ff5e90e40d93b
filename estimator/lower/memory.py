"""Bytes on a device at the peak of a step, part by part and stage class by stage class.

Activations follow Korthikanti et al. (arXiv 2205.05198, section 4) with what flash attention,
grouped queries and gated MLPs change; states follow ZeRO (arXiv 1910.02054, section 3).
Suffixes: P plans, U unique keys, C the four stage classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from estimator.estimate import ALLOCATED_PARTS
from estimator.lower.attention import kv_elements
from estimator.lower.keys import Keys, expert_tp
from estimator.lower.kinds import layer_kinds
from estimator.lower.slots import FloatArray, IntArray, largest_row
from estimator.lower.step import Shards, state_bytes, state_parameters
from estimator.lower.transformer import vocab_rows
from estimator.model import LayerKind, Transformer
from estimator.plan import CHOICES, HOST_CHECKPOINTS, HOST_OPTIMIZER, UNSET, Plans
from estimator.schedule import GPIPE, ZB_H1, ZB_H2, micro_batch_group
from estimator.stack import Stack
from estimator.workload import Workload

SELECTIVE, MLP, FULL = (CHOICES["recompute"].index(kind) for kind in ("selective", "mlp", "full"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """Bytes that one micro-batch keeps until its backward; arrays of shape (U,) or (N, U)."""

    layer: FloatArray
    """One layer of each kind with nothing recomputed, (N, U)."""
    without_scores: FloatArray
    """One layer of each kind that recomputes its attention core, (N, U)."""
    without_mlp: FloatArray
    """One layer of each kind that recomputes its MLP, (N, U)."""
    checkpoint: FloatArray
    """One layer that keeps only its input."""
    embedding: FloatArray
    """Dropout mask of the embedding's output."""
    gradients: FloatArray
    """Gradients alive while one layer runs backward: of its output, and the larger of those inside
    the MLP (both sides of the activation) and inside attention (scores and probabilities)."""
    head: FloatArray
    """Input and output of the final norm."""
    logits: FloatArray


def activation_bytes(
    model: Transformer, workload: Workload, stack: Stack, keys: Keys
) -> ActivationBytes:
    """Activations per layer and at the head, by what backward reads."""
    element = float(workload.activation_bytes)
    tokens = keys.micro_batch * workload.sequence / keys.cp
    split = tokens / np.where(keys.sequence_parallel == 1, keys.tp, 1)
    mask = 1.0 * workload.dropout
    train = 1.0 if workload.mode == "train" else 0.0
    row = element * split * model.hidden
    # Inputs of the norms (one tensor when attention and MLP run in parallel) and their outputs.
    inputs = 1 if model.parallel_residual else min(model.norms_per_layer, 2)
    inputs += 2 if model.norms_per_layer == 4 else 0
    # Outputs of norms are inputs of column-parallel GEMMs: kept whole unless gathered again.
    read = row if stack.regathers_inputs else element * tokens * model.hidden
    rows = row * inputs + read * model.norms_per_layer + 2 * mask * split * model.hidden
    q_width = model.query_width / keys.tp
    kv = kv_elements(model, keys)
    heads = model.heads / keys.tp
    if workload.attention == "flash":
        scores = np.zeros_like(tokens)
        core_gradients = element * tokens * (2 * q_width + kv)
        statistics = 4.0 * tokens * heads  # fp32 log-sum-exp
    else:
        elements = tokens * heads * workload.sequence
        scores = (element + (element + 1) * mask) * elements
        core_gradients = 2 * element * elements
        statistics = np.zeros_like(tokens)
    attention = element * tokens * (q_width + model.attention_width / keys.tp + kv) + statistics
    if model.latent is not None:
        latent = model.latent
        attention = attention + element * split * (latent.q_rank + latent.kv_rank + latent.rope_dim)
    # XLA keeps a layer's input and the outputs of attention's projections, and nothing between.
    only_products = stack.recompute_style == "unsaved"
    products = 2 * row + element * tokens * (q_width + kv)
    layers, outside_mlp, gradients = [], [], []
    for kind in layer_kinds(model):
        mlp = _mlp_bytes(model, workload, keys, tokens, split, kind.mlp)
        # When attention runs backward, the MLP has released what it kept.
        released = mlp + row * (inputs - 1 + model.norms_per_layer - 1)
        # The whole sequence's output gradient, and the input gradient before it is scattered.
        edges = row if stack.regathers_inputs else np.where(read > row, 2 * read, row)
        gradients.append(edges + np.maximum(mlp, core_gradients - released))
        layer = rows + attention + mlp + scores
        outside_mlp.append(products if only_products else layer - mlp)
        if workload.lora_rank is not None and workload.lora_targets == "attention":
            # Frozen GEMMs of the MLP need no input: its norm's output and the activation's.
            dropped = row * (model.norms_per_layer > 1)
            if kind.mlp == "dense":
                dropped = dropped + element * tokens * model.ffn / keys.tp
                if frozen_in_fp8(workload, stack):
                    dropped = dropped + (element - 1) * tokens * model.up_width(model.ffn) / keys.tp
            layer = layer - dropped
        layers.append(layer)
    loss = stack.logit_bytes if element == 2 else 2 * stack.logit_bytes
    whole = np.stack(layers)
    return ActivationBytes(
        layer=train * whole,
        without_scores=train * (whole - scores),
        without_mlp=train * np.stack(outside_mlp),
        checkpoint=train * row,
        embedding=train * split * model.hidden * mask,
        gradients=train * np.max(gradients, axis=0),
        head=train * (row + read) * (1 + model.mtp_layers),
        logits=(loss if train else element) * tokens * vocab_rows(model, keys.tp),
    )


def _mlp_bytes(
    model: Transformer,
    workload: Workload,
    keys: Keys,
    tokens: FloatArray,
    split: FloatArray,
    kind: LayerKind,
) -> FloatArray:
    """What an MLP keeps: both sides of its activation; of experts also the visits in and out."""
    element = float(workload.activation_bytes)
    halves = 3 if model.gated else 2
    if kind == "dense" or model.experts is None:
        return element * halves * tokens * model.ffn / keys.tp
    experts = model.experts
    visits = split * experts.top_k * workload.expert_imbalance
    shared = halves * tokens * experts.shared_ffn / keys.tp
    # etp ranks see etp times the visits and hold 1 / etp of each expert.
    routed = visits * (halves * experts.ffn + 2 * model.hidden)
    return element * (shared + routed) + 4.0 * split * experts.count


def in_flight(plans: Plans, position_CP: IntArray, micro_batches: IntArray) -> FloatArray:
    """Micro-batches whose activations a stage holds at once, shape (4, P).

    1F1B holds as many as stages follow, itself included; interleaved stages hold the chunks that
    run ahead of their first backward (Narayanan et al., arXiv 2104.04473, section 2.2); GPipe
    holds all. Zero-bubble schedules hold what late weight gradients read: on every stage as many
    as 1F1B on the first, or twice that less one (Qi et al., arXiv 2401.10241, section 2).
    """
    following = plans.pp - position_CP
    held = np.minimum(following, micro_batches).astype(float)
    held = np.where(plans.schedule == GPIPE, micro_batches, held)
    held = np.where(plans.schedule == ZB_H1, np.minimum(plans.pp, micro_batches), held)
    held = np.where(plans.schedule == ZB_H2, np.minimum(2 * plans.pp - 1, micro_batches), held)
    rows = np.flatnonzero(plans.interleave > 1)
    if len(rows):
        v, m = plans.interleave[rows], micro_batches[rows]
        group = micro_batch_group(plans.pp[rows], m)
        chunks = 2 * (following[:, rows] - 1) + (v - 1) * group + 1
        held[:, rows] = np.minimum(chunks / v, m)
    return np.maximum(held, 1.0)


def stage_state_bytes(
    workload: Workload, stack: Stack, shards: Shards, model: Transformer
) -> dict[str, FloatArray]:
    """Weights, gradients, optimizer states and buffers per stage class, shape (4, U)."""
    weight, gradient, optimizer = state_bytes(workload, stack)
    zero = shards.plans.zero
    parameters, trainable = shards.parameters_CU, shards.trainable_CU
    trained_experts = shards.experts_CU * (workload.lora_rank is None)
    half = float(workload.activation_bytes)
    full_gradients = workload.mode == "train" and workload.lora_rank is None
    gathered = np.where(zero == 3, stack.unsharded_layers * half * shards.layer_parameters, 0.0)
    # One layer's gradients before they are scattered.
    unscattered = gradient * shards.layer_parameters * full_gradients
    scattered = np.where(zero >= 2, unscattered, 0.0)
    buffers = gathered + scattered
    if stack.weight_gradient_buffers and full_gradients and half == 2:
        # One per shape: the four matrices of a layer, and the output projection.
        buffers = buffers + half * largest_matrices(model, shards.plans)
        one_stage = shards.plans.pp == 1
        table = half * vocab_rows(model, shards.plans.tp) * model.hidden
        none = np.zeros_like(table)
        ends = [np.where(one_stage, table, 0), none, none, np.where(one_stage, 0, table)]
        buffers = buffers + np.stack(ends)
    exists = shards.classes.count > 0
    return {
        "weights": _weight_bytes(workload, stack, shards, weight),
        "gradients": gradient * _spread(trainable, trained_experts, shards, zero >= 2),
        "optimizer": optimizer
        * state_parameters(model, workload, stack, shards)
        * ~np.isin(shards.plans.offload, HOST_OPTIMIZER),
        "buffers": np.broadcast_to(buffers, parameters.shape) * exists,
    }


def largest_matrices(model: Transformer, plans: Plans) -> FloatArray:
    """Elements of one buffer per shape of a layer's weights on a rank, (P,); dense MLP if any."""
    attention = sum(
        a * b / (plans.tp if divided else 1) for a, b, divided in model.attention_projections
    )
    attention = attention + model.attention_width * model.hidden / plans.tp
    mlp = model.matrices_of_mlp * model.hidden
    width = model.ffn / plans.tp
    if model.experts is not None:
        width = model.experts.ffn / expert_tp(plans) + model.experts.shared_ffn / plans.tp
    elements: FloatArray = attention + mlp * width
    return elements


def frozen_in_fp8(workload: Workload, stack: Stack) -> bool:
    """Whether frozen weights and the inputs of activations are kept in one byte."""
    adapters = workload.lora_rank is not None and workload.mode == "train"
    return adapters and stack.frozen_in_fp8 and workload.precision == "fp8"


def _weight_bytes(workload: Workload, stack: Stack, shards: Shards, weight: float) -> FloatArray:
    """Bytes of weights per stage class, (4, U); adapters keep their width beside fp8."""
    sharded = shards.plans.zero >= 3
    every = _spread(shards.parameters_CU, shards.experts_CU, shards, sharded)
    trained = _spread(shards.trainable_CU, np.zeros_like(shards.experts_CU), shards, sharded)
    if not frozen_in_fp8(workload, stack):
        if stack.half_precision_shards or workload.mode != "train":
            return weight * every
        # The fp32 shard among the optimizer's states is cast when it is gathered.
        experts = shards.experts_CU * (workload.lora_rank is None)
        masters = _spread(shards.trainable_CU, experts, shards, sharded)
        kept: FloatArray = weight * (every - np.where(sharded, masters, 0.0))
        return kept
    bytes_CU: FloatArray = (every - trained) + weight * trained
    return bytes_CU


def _spread(
    rest: FloatArray, experts: FloatArray, shards: Shards, sharded: NDArray[np.bool_]
) -> FloatArray:
    """Parameters per rank where those of ``sharded`` plans are spread over their groups."""
    spread: FloatArray = rest / np.where(sharded, shards.shard, 1) + experts / np.where(
        sharded, shards.expert_shard, 1
    )
    return spread


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Parts of the fullest stage, shape (P,), and what each stage class allocates, (4, P)."""

    parts: dict[str, FloatArray]
    allocated_CP: FloatArray
    states_CP: FloatArray
    """Of that, what stays allocated throughout a step."""
    kept_CP: FloatArray
    """Of that, what one micro-batch keeps from its forward to its backward."""


def peak_memory_parts(
    model: Transformer,
    workload: Workload,
    stack: Stack,
    plans: Plans,
    keys: Keys,
    key_P: IntArray,
    shards: Shards,
    step_P: IntArray,
) -> PeakMemory:
    """Peak bytes per plan: the stage class that allocates most, itemised."""
    kept = activation_bytes(model, workload, stack, keys)
    states = stage_state_bytes(workload, stack, shards, model)
    layers = shards.classes.layers[:, step_P]
    exists = shards.classes.count[:, step_P] > 0
    micro_batches = workload.global_batch // (plans.dp * plans.micro_batch)
    held = in_flight(plans, shards.classes.position[:, step_P], micro_batches)

    full, selective, mlp = (plans.recompute == kind for kind in (FULL, SELECTIVE, MLP))
    away = np.isin(plans.offload, HOST_CHECKPOINTS)
    recomputed = recomputed_layers(plans, layers)
    share = recomputed / np.maximum(layers, 1)
    activations = np.zeros(layers.shape)
    for n in range(len(kept.layer)):
        per_layer = np.where(selective, kept.without_scores[n][key_P], kept.layer[n][key_P])
        per_layer = np.where(mlp, kept.without_mlp[n][key_P], per_layer)
        saving = kept.layer[n][key_P] - np.where(away, 0.0, kept.checkpoint[key_P])
        activations += shards.layers_NCU[n][:, step_P] * (per_layer - share * saving)
    activations[0] += kept.embedding[key_P]
    per_micro_batch = np.where(exists, activations, 0.0)
    activations *= held
    # While one layer runs again, its whole set and its output are alive beside the checkpoints.
    again = kept.layer.max(axis=0)[key_P] + kept.checkpoint[key_P]
    activations += np.where(full & (recomputed > 0), again, 0.0)
    one_mlp = (kept.layer - kept.without_mlp).max(axis=0)[key_P]
    activations += np.where(mlp, np.maximum(one_mlp, 0.0), 0.0)
    one_stage = plans.pp == 1
    head = kept.head[key_P]
    activations[0] += np.where(one_stage, head, 0.0)
    activations[3] += np.where(one_stage, 0.0, head)
    logits = np.zeros_like(activations)
    logits[0] = np.where(one_stage, kept.logits[key_P], 0.0)
    logits[3] = np.where(one_stage, 0.0, kept.logits[key_P])
    # The peak is at the loss, or after it while a layer runs backward.
    later = kept.gradients[key_P] > logits
    activations += np.where(later, kept.gradients[key_P], 0.0)
    logits = np.where(later, 0.0, logits)

    state_total = sum(states.values(), np.zeros(shards.parameters_CU.shape))
    allocated = np.where(exists, state_total[:, step_P] + activations + logits, 0.0)
    fullest = largest_row(allocated)
    row = np.arange(len(plans))
    parts = {name: value[fullest, step_P] for name, value in states.items()}
    parts["activations"] = activations[fullest, row]
    parts["logits"] = logits[fullest, row]
    parts["reserved"] = (stack.reserved_ratio - 1) * allocated[fullest, row]
    parts["context"] = np.full(len(plans), stack.context_bytes)
    assert set(ALLOCATED_PARTS) < set(parts)
    return PeakMemory(
        parts=parts,
        allocated_CP=allocated,
        states_CP=np.where(exists, state_total[:, step_P], 0.0),
        kept_CP=per_micro_batch,
    )


def recomputed_layers(plans: Plans, layers_CP: IntArray) -> IntArray:
    """Layers per stage that run again in backward under full recompute, shape (4, P)."""
    asked = np.where(plans.recompute_layers == UNSET, layers_CP, plans.recompute_layers)
    again: IntArray = np.where(plans.recompute == FULL, np.minimum(asked, layers_CP), 0)
    return again
