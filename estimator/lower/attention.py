"""The attention half of a layer: projections, core, exchange over context ranks.

GEMM counts follow Korthikanti et al. (arXiv 2205.05198, section 4), latent attention DeepSeek-V2
(arXiv 2405.04434, section 2.1). Arrays have shape (U,): one entry per unique key.
"""

from __future__ import annotations

import numpy as np

from estimator.lower.blocks import adapter, norm, residual, tp_enter, tp_leave
from estimator.lower.keys import Keys
from estimator.lower.lowering import PASS_PHASES, Lowering
from estimator.lower.slots import (
    FULL,
    NEVER,
    FloatArray,
    Slot,
    ranks_inside,
)
from estimator.model import Transformer

FUSED_ROTARY = (2.0, 2.0)
"""Passes over queries and keys, forward and backward, of rotary positions in one kernel."""
EAGER_ROTARY = (8.0, 19.0)
"""The same operation by operation (slices, products, a concatenation): measured time over one
pass's, A100, fp16 samples of estimate-train-time (arXiv 2509.22832); on GH200 14 and 21."""


def attended_pairs(
    model: Transformer, sequence: int, *, windowed: bool, document: int | None = None
) -> float:
    """Pairs of query and key that one sequence's attention computes.

    The lower triangle when causal; with a window, a band below the diagonal. Packed documents
    attend to themselves: as many triangles along the diagonal.
    """
    length = document or sequence
    if not model.causal:
        return float(sequence) * length
    reach = min(model.window or length, length) if windowed else length
    return sequence / length * (length * reach - reach**2 / 2)


def kv_elements(model: Transformer, keys: Keys) -> FloatArray:
    """Elements of a token's keys and values on one tensor-parallel rank, all heads."""
    if model.latent is not None:
        return model.heads * (model.query_dim + model.value_dim) / keys.tp
    # More ranks than key heads: each holds one, a copy.
    return 2 * np.maximum(model.kv_width / keys.tp, float(model.head_dim))


def attention_block(low: Lowering, *, windowed: bool) -> None:
    """Norm, projections, core, output projection and residual."""
    model, tp, tokens = low.model, low.keys.tp, low.tokens
    hidden = np.full_like(tokens, model.hidden)
    width = model.attention_width / tp
    frozen = low.workload.lora_rank is not None
    low.again = low.around
    norm(low, "attention norm", "layer")
    low.again = FULL
    tp_enter(low, "qkv", "layer")
    _project(low, frozen=frozen)
    low.again = low.around
    if model.positions == "rotary":
        rotated = model.query_width / tp + kv_elements(model, low.keys) / 2
        forward, backward = FUSED_ROTARY if "rope" in low.stack.fused else EAGER_ROTARY
        row = tokens * rotated * low.element
        low.memory("rotary", "layer", forward=forward * row, backward=backward * row)
    if model.qk_norm:
        row = tokens * (model.query_width / tp + kv_elements(model, low.keys) / 2) * low.element
        low.memory("query and key norm", "layer", forward=2 * row, backward=3 * row)
    low.again = low.core
    if low.workload.attention == "flash":
        _flash(low, windowed=windowed)
    else:
        _eager(low)
    _exchange(low)
    low.again = FULL
    low.gemm("attention output", "layer", m=tokens, n=hidden, k=width, frozen=frozen)
    adapter(low, "attention output", width, hidden)
    if not model.parallel_residual:
        tp_leave(low, "attention output", "layer")
        residual(low, "attention residual")


def _project(low: Lowering, *, frozen: bool) -> None:
    """The GEMMs before the core; those that tp does not divide see a rank's part of the tokens."""
    for i, (inputs, outputs, divided) in enumerate(low.model.attention_projections):
        name = f"projection {i}" if i else "qkv"
        rows = low.tokens if divided else low.split
        wide = np.full_like(rows, inputs)
        columns = outputs / low.keys.tp if divided else np.full_like(rows, outputs)
        if low.model.latent is None:
            columns = low.model.query_width / low.keys.tp + kv_elements(low.model, low.keys)
        low.gemm(name, "layer", m=rows, n=columns, k=wide, frozen=frozen, column_parallel=divided)
        adapter(low, name, wide, columns)


def _flash(low: Lowering, *, windowed: bool) -> None:
    """Fused attention: scores never reach memory; backward runs five GEMMs for forward's two."""
    model, keys = low.model, low.keys
    heads = keys.micro_batch * model.heads / keys.tp
    workload = low.workload
    length = workload.document or workload.sequence
    pairs = attended_pairs(model, workload.sequence, windowed=windowed, document=length) / keys.cp
    # Backward: scores once more and the gradients of queries and keys are as wide as queries, the
    # gradients of probabilities and of values as wide as values.
    widths = (model.query_dim + model.value_dim, 3 * model.query_dim + 2 * model.value_dim)
    # Around a ring, each of cp kernels sees the keys of one rank; all but the first see all of
    # them, where a causal mask leaves each query half of its keys in the mean.
    ring = low.stack.cp_exchange == "ring"
    full = np.where(ring & model.causal, 2 - 1 / keys.cp, 1.0)
    seen = np.minimum(length, full * workload.sequence / np.where(ring, keys.cp, 1))
    for phase, width in zip(PASS_PHASES, widths, strict=True):
        low.rows.add(
            Slot(
                name="attention",
                kind="attention",
                place="layer",
                phase=phase,
                layer=low.layer,
                recomputed_by=low.again if phase == "forward" else NEVER,
            ),
            flops=2 * heads * pairs * width,
            m=workload.sequence / keys.cp,
            n=seen,
            k=float(model.query_dim),
            starts=full * heads,
        )
    if ring:
        _merge(low)


def _merge(low: Lowering) -> None:
    """Partial results of the steps around a ring, of which causal masks leave three quarters.

    Forward rescales an fp32 sum per step (arXiv 2310.01889, section 3) and casts it at the end;
    backward adds up gradients of queries, keys and values in half precision.
    """
    model, keys = low.model, low.keys
    steps = 0.75 * keys.cp
    output = low.tokens * model.attention_width / keys.tp
    inputs = low.tokens * (model.query_width / keys.tp + kv_elements(model, keys))
    low.memory(
        "ring merge",
        "layer",
        forward=np.where(keys.cp > 1, ((8 + low.element) * steps + 4 + low.element) * output, 0.0),
        backward=np.where(keys.cp > 1, 3 * low.element * steps * inputs, 0.0),
    )


def _eager(low: Lowering) -> None:
    """Unfused attention: the full square of scores, written and read by each kernel."""
    model, keys, element = low.model, low.keys, low.element
    heads = keys.micro_batch * model.heads / keys.tp
    queries = low.workload.sequence / keys.cp
    keys_read = np.full_like(queries, low.workload.sequence)
    scores = heads * queries * keys_read * element
    passes = 2.0 if "softmax" in low.stack.fused else 7.0
    low.gemm(
        "attention scores",
        "layer",
        m=queries,
        n=keys_read,
        k=np.full_like(queries, model.query_dim),
        batch=heads,
        weights=False,
    )
    low.memory(
        "softmax",
        "layer",
        forward=passes * scores,
        backward=(passes + 1) * scores,
    )
    if low.workload.dropout:
        low.memory(
            "attention dropout",
            "layer",
            forward=2.5 * scores,
            backward=2.5 * scores,
        )
    low.gemm(
        "attention context",
        "layer",
        m=queries,
        n=np.full_like(queries, model.value_dim),
        k=keys_read,
        batch=heads,
        weights=False,
    )


def _exchange(low: Lowering) -> None:
    """Context parallelism: keys and values around a ring, or sequence swapped for heads.

    Gradients of keys and values travel back beside them; a swap is done four times, each way.
    """
    keys, model = low.keys, low.model
    inside = ranks_inside(keys.cp, keys.tp, low.cluster.scale_up_domain)
    block = low.tokens * low.element
    kv = kv_elements(model, keys)
    ring = low.stack.cp_exchange == "ring"
    swapped = block * (kv + (model.query_width + model.attention_width) / keys.tp)
    for phase, blocks in zip(PASS_PHASES, (1.0, 2.0), strict=True):
        if ring:
            size, between = blocks * (keys.cp - 1) * block * kv, np.zeros_like(block)
        else:
            size = swapped * (inside - 1) / keys.cp
            between = swapped * (keys.cp - inside) / keys.cp
        low.collective(
            "context exchange",
            "layer",
            "send_recv" if ring else "all_to_all",
            stream="cp",
            phase=phase,
            size=size,
            between=between,
            group=keys.cp,
            inside=inside,
            leaf=ranks_inside(keys.cp, keys.tp, low.cluster.leaf_ranks),
            recomputed=low.again,
        )
