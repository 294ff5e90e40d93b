"""A dense Transformer's operations per micro-batch: FLOPs, bytes and collectives.

GEMM counts follow Korthikanti et al. (arXiv 2205.05198, section 4); element-wise kernels are
listed one by one, each as the elements it reads and writes. T = micro_batch x sequence / cp is
the tokens of a rank. Arrays have shape (U,): one entry per unique key.
"""

from __future__ import annotations

import numpy as np

from estimator.cluster import Cluster
from estimator.lower.keys import DP_BEFORE_PP, Keys, dp_ranks_inside, tp_ranks_inside
from estimator.lower.lowering import PASS_PHASES, Lowering
from estimator.lower.slots import (
    NEVER,
    SELECTIVE_AND_FULL,
    Builder,
    Collective,
    Columns,
    FloatArray,
    IntArray,
    Phase,
    Place,
    Slot,
    ranks_inside,
)
from estimator.model import Transformer
from estimator.stack import Stack
from estimator.workload import CAST_PRECISIONS, Workload

FUSED_LOSS_PASSES = (2.0, 3.0)
"""Passes over the half-precision logits, forward and backward, of a fused cross-entropy."""
EAGER_LOSS_PASSES = (12.0, 9.0)
"""The same when fp32 copies are written by separate kernels (two half passes per fp32 one)."""


def lower_layers(
    model: Transformer, workload: Workload, cluster: Cluster, keys: Keys, stack: Stack
) -> Columns:
    """All slots of a micro-batch: one layer, the embedding, the head and a stage boundary."""
    tokens = keys.micro_batch * workload.sequence / keys.cp
    split = tokens / np.where(keys.sequence_parallel == 1, keys.tp, 1)
    low = Lowering(
        model=model,
        workload=workload,
        stack=stack,
        cluster=cluster,
        keys=keys,
        rows=Builder(unique=len(keys.tp)),
        element=float(workload.activation_bytes),
        tokens=tokens,
        split=split,
        tp_inside=tp_ranks_inside(keys, cluster),
    )
    _attention_block(low)
    _mlp_block(low)
    _layer_extras(low)
    _gather_weights(low, "layer", model.layer_parameters)
    _embedding(low)
    _head(low)
    _boundary(low)
    return low.rows.build()


def _norm(low: Lowering, name: str, place: Place) -> None:
    row = low.split * low.model.hidden * low.element
    low.memory(name, place, forward=2 * row, backward=3 * row)


def _residual(low: Lowering, name: str) -> None:
    row = low.split * low.model.hidden * low.element
    mask = 0.5 * low.workload.dropout
    saved = 1.0 if "norm_residual" in low.stack.fused else 0.0
    low.memory(name, "layer", forward=(3 + mask - saved) * row, backward=(2 + mask) * row)


def _attention_block(low: Lowering) -> None:
    model, tp, tokens = low.model, low.keys.tp, low.tokens
    width = model.attention_width / tp
    kv_width = np.maximum(model.kv_width / tp, model.head_dim)
    hidden = np.full_like(tokens, model.hidden)
    _norm(low, "attention norm", "layer")
    _tp_enter(low, "qkv", "layer")
    qkv_width = width + 2 * kv_width
    frozen = low.workload.lora_rank is not None
    low.gemm("qkv", "layer", m=tokens, n=qkv_width, k=hidden, frozen=frozen, column_parallel=True)
    _adapter(low, "qkv", hidden, qkv_width)
    if model.positions == "rotary":
        passes = 2 if "rope" in low.stack.fused else 6
        moved = passes * tokens * (width + kv_width) * low.element
        low.memory("rotary", "layer", forward=moved, backward=moved)
    if low.workload.attention == "flash":
        _flash(low)
    else:
        _eager(low)
    _ring(low, kv_width)
    low.gemm("attention output", "layer", m=tokens, n=hidden, k=width, frozen=frozen)
    _adapter(low, "attention output", width, hidden)
    if not model.parallel_residual:
        _tp_leave(low, "attention output", "layer")
        _residual(low, "attention residual")


def _adapter(low: Lowering, name: str, inputs: FloatArray, outputs: FloatArray) -> None:
    """Two thin GEMMs beside a frozen one (Hu et al., arXiv 2106.09685, section 4)."""
    if low.workload.lora_rank is None:
        return
    rank = np.full_like(low.tokens, low.workload.lora_rank)
    low.gemm(f"{name} adapter down", "layer", m=low.tokens, n=rank, k=inputs)
    low.gemm(f"{name} adapter up", "layer", m=low.tokens, n=outputs, k=rank)


def _flash(low: Lowering) -> None:
    """Fused attention: scores never reach memory; backward runs five GEMMs for forward's two."""
    model, keys = low.model, low.keys
    heads = keys.micro_batch * model.heads / keys.tp
    queries = low.workload.sequence / keys.cp
    causal = 2 * queries * low.workload.sequence * model.head_dim
    for phase, gemms in zip(PASS_PHASES, (1.0, 2.5), strict=True):
        low.rows.add(
            Slot(
                name="attention",
                kind="attention",
                place="layer",
                phase=phase,
                recomputed_by=SELECTIVE_AND_FULL if phase == "forward" else NEVER,
            ),
            count=1.0,
            flops=gemms * heads * causal,
            m=queries,
            n=float(low.workload.sequence),
            k=float(model.head_dim),
        )


def _eager(low: Lowering) -> None:
    """Unfused attention: the full square of scores, written and read by each kernel."""
    model, keys, element = low.model, low.keys, low.element
    heads = keys.micro_batch * model.heads / keys.tp
    queries = low.workload.sequence / keys.cp
    keys_read = np.full_like(queries, low.workload.sequence)
    head = np.full_like(queries, model.head_dim)
    scores = heads * queries * keys_read * element
    passes = 2.0 if "softmax" in low.stack.fused else 7.0
    low.gemm(
        "attention scores",
        "layer",
        m=queries,
        n=keys_read,
        k=head,
        batch=heads,
        recomputed=SELECTIVE_AND_FULL,
        weights=False,
    )
    low.memory(
        "softmax",
        "layer",
        forward=passes * scores,
        backward=(passes + 1) * scores,
        recomputed=SELECTIVE_AND_FULL,
    )
    if low.workload.dropout:
        low.memory(
            "attention dropout",
            "layer",
            forward=2.5 * scores,
            backward=2.5 * scores,
            recomputed=SELECTIVE_AND_FULL,
        )
    low.gemm(
        "attention context",
        "layer",
        m=queries,
        n=head,
        k=keys_read,
        batch=heads,
        recomputed=SELECTIVE_AND_FULL,
        weights=False,
    )


def _ring(low: Lowering, kv_width: FloatArray) -> None:
    """Context parallelism: keys and values pass around the ring, with their gradients back."""
    keys = low.keys
    block = 2 * low.tokens * kv_width * low.element
    inside = ranks_inside(keys.cp, keys.tp, low.cluster.scale_up_domain)
    for phase, blocks in zip(PASS_PHASES, (1.0, 2.0), strict=True):
        low.collective(
            "context exchange",
            "layer",
            "send_recv",
            stream="cp",
            phase=phase,
            size=blocks * (keys.cp - 1) * block,
            group=keys.cp,
            inside=inside,
            recomputed=SELECTIVE_AND_FULL,
        )


def _mlp_block(low: Lowering) -> None:
    model, tokens = low.model, low.tokens
    hidden = np.full_like(tokens, model.hidden)
    ffn = model.ffn / low.keys.tp
    if not model.shared_norm:
        _norm(low, "mlp norm", "layer")
    if not model.parallel_residual:
        _tp_enter(low, "mlp up", "layer")
    frozen = low.workload.lora_rank is not None
    up = model.up_width / low.keys.tp
    low.gemm("mlp up", "layer", m=tokens, n=up, k=hidden, frozen=frozen, column_parallel=True)
    halves = 2 if model.gated else 1
    eager = 0 if "bias_activation" in low.stack.fused else 2
    row = tokens * ffn * low.element
    low.memory(
        "activation",
        "layer",
        forward=(halves + 1 + eager) * row,
        backward=(2 * halves + 1 + eager) * row,
    )
    low.gemm("mlp down", "layer", m=tokens, n=hidden, k=ffn, frozen=frozen)
    _tp_leave(low, "mlp down", "layer")
    _residual(low, "mlp residual")


def _tp_enter(low: Lowering, name: str, place: Place) -> None:
    """Into a column-parallel GEMM: gathers the sequence, or sums input gradients in backward.

    With sequence parallelism the input is gathered again for the weight gradient. Backward's
    collectives depend on one of the layer's two backward GEMMs only and may run beside the other.
    """
    sp = (low.keys.sequence_parallel == 1).astype(float)
    low.tp_collectives(
        f"{name} input",
        place,
        (
            ("all_gather", "forward", sp),
            ("reduce_scatter", "backward_input", sp),
            ("all_gather", "backward_weight", sp),
            ("all_reduce", "backward_input", 1 - sp),
        ),
        asynchronous=place == "layer",
    )


def _tp_leave(low: Lowering, name: str, place: Place) -> None:
    """Out of a row-parallel GEMM: partial sums are reduced, or scattered along the sequence."""
    sp = (low.keys.sequence_parallel == 1).astype(float)
    low.tp_collectives(
        f"{name} output",
        place,
        (
            ("reduce_scatter", "forward", sp),
            ("all_gather", "backward_input", sp),
            ("all_reduce", "forward", 1 - sp),
        ),
    )


def _layer_extras(low: Lowering) -> None:
    """Casts of GEMM inputs to fp8 or fp4, and the read and write of fp32 main gradients."""
    model, tp = low.model, low.keys.tp
    if low.workload.precision in CAST_PRECISIONS:
        width = 2 * model.hidden + (model.ffn + model.attention_width) / tp
        cast = 4.0 * low.tokens * width
        low.memory("casts", "layer", forward=cast, backward=1.5 * cast)
    share = low.stack.gradient_accumulation_traffic
    if share and low.workload.mode == "train" and low.workload.lora_rank is None:
        low.rows.add(
            Slot(
                name="gradient accumulation",
                kind="memory",
                place="layer",
                phase="backward_weight",
            ),
            bytes=share * 8.0 * model.layer_matrix_parameters / tp,
        )


def _gather_weights(low: Lowering, place: Place, parameters: int) -> None:
    """zero=3: gather weights before forward and backward, scatter gradients after it."""
    keys = low.keys
    sharded = parameters / keys.tp
    gradient = min(low.stack.gradient_bytes, 4.0) if low.element == 2 else 4.0
    inside = np.minimum(dp_ranks_inside(keys, low.cluster), keys.shard)
    scattered = trainable_parameters(low.model, low.workload, parameters, place) / keys.tp
    rows: tuple[tuple[str, Collective, Phase, FloatArray], ...] = (
        ("weights", "all_gather", "forward", low.element * sharded),
        ("weights", "all_gather", "backward_input", low.element * sharded),
        ("gradients", "reduce_scatter", "backward_weight", gradient * scattered),
    )
    for name, kind, phase, size in rows:
        low.collective(
            f"{place} {name}",
            place,
            kind,
            stream="dp",
            phase=phase,
            size=size,
            group=keys.shard,
            inside=inside,
            count=(size > 0).astype(float),
        )


def trainable_parameters(
    model: Transformer, workload: Workload, parameters: int, place: Place
) -> int:
    """Of ``parameters`` in a layer (or outside), those that get gradients."""
    if workload.lora_rank is None:
        return parameters
    return model.adapter_parameters(workload.lora_rank) if place == "layer" else 0


def _embedding(low: Lowering) -> None:
    """Token lookup, vocabulary-parallel over tp: partial rows are summed like a GEMM's output."""
    row = low.split * low.model.hidden * low.element
    learned = 1.0 if low.model.positions == "learned" else 0.0
    low.memory("embedding", "embedding", forward=(2 + 2 * learned) * row, backward=3 * row)
    _tp_leave(low, "embedding", "embedding")
    _gather_weights(low, "embedding", low.model.embedding_parameters)


def vocab_rows(model: Transformer, tp: IntArray) -> FloatArray:
    """Vocabulary rows per tensor-parallel rank, rounded up so that every rank has as many."""
    rows: FloatArray = np.ceil(model.vocab / tp)
    return rows


def _head(low: Lowering) -> None:
    """Final norm, logits and loss of the last stage."""
    model, tokens, keys = low.model, low.tokens, low.keys
    vocab = vocab_rows(model, keys.tp)
    _norm(low, "final norm", "head")
    _tp_enter(low, "logits", "head")
    frozen = low.workload.lora_rank is not None
    hidden = np.full_like(tokens, model.hidden)
    low.gemm("logits", "head", m=tokens, n=vocab, k=hidden, frozen=frozen)
    fused = "cross_entropy" in low.stack.fused
    forward, backward = FUSED_LOSS_PASSES if fused else EAGER_LOSS_PASSES
    row = tokens * vocab * low.element
    if low.workload.mode == "train":
        low.memory("loss", "head", forward=forward * row, backward=backward * row)
        low.collective(
            "loss reduction",
            "head",
            "all_reduce",
            stream="tp",
            phase="forward",
            size=4.0 * tokens,
            group=keys.tp,
            inside=low.tp_inside,
            count=3.0,
        )
    if not model.tied:
        _gather_weights(low, "head", model.embedding_parameters)


def _boundary(low: Lowering) -> None:
    """Activations to the next stage, their gradients to the previous one.

    Ranks of a tensor-parallel group that hold the same activations may send a part each and gather
    them on the other side (Narayanan et al., arXiv 2104.04473, section 4.1).
    """
    keys = low.keys
    size = low.split * low.model.hidden * low.element
    whole = keys.sequence_parallel == 0
    if low.stack.scattered_boundaries:
        size = size / np.where(whole, keys.tp, 1)
    stride = keys.tp * keys.cp * np.where(keys.order == DP_BEFORE_PP, keys.dp, 1)
    inside = np.where(stride * keys.pp <= low.cluster.scale_up_domain, 2.0, 1.0)
    for phase in PASS_PHASES:
        low.collective(
            "boundary",
            "boundary",
            "send_recv",
            stream="pp",
            phase=phase,
            size=size,
            group=np.where(keys.pp > 1, 2, 1),
            inside=inside,
        )
        low.collective(
            "boundary gather",
            "boundary",
            "all_gather",
            stream="pp",
            phase=phase,
            size=low.tokens * low.model.hidden * low.element,
            group=np.where(keys.pp > 1, keys.tp, 1),
            inside=low.tp_inside,
            count=np.where(whole & low.stack.scattered_boundaries, 1.0, 0.0),
        )


def model_flops(model: Transformer, workload: Workload) -> float:
    """Useful FLOPs of a step over all devices: matrix products, causal scores counted once.

    Backward counts twice forward; recompute, embedding lookups and element-wise work count zero.
    """
    matrices = model.layers * model.layer_matrix_parameters + model.embedding_parameters
    scores = model.layers * 2 * workload.sequence * model.attention_width
    if workload.mode == "forward":
        return float(workload.tokens * (2 * matrices + scores))
    # Frozen weights have no gradient GEMM.
    matrix_passes = 3 if workload.lora_rank is None else 2
    return float(workload.tokens * (matrix_passes * 2 * matrices + 3 * scores))
