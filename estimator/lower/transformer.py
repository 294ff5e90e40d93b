"""A Transformer's operations per micro-batch: FLOPs, bytes and collectives.

Element-wise kernels are listed one by one, each as the elements it reads and writes. T =
micro_batch x sequence / cp is the tokens of a rank. Arrays have shape (U,): one entry per unique
key.
"""

from __future__ import annotations

import numpy as np

from estimator.cluster import Cluster
from estimator.lower.attention import attended_pairs, attention_block
from estimator.lower.blocks import norm, tp_enter, tp_leave
from estimator.lower.keys import (
    DP_BEFORE_PP,
    Keys,
    dp_ranks_inside,
    expert_dp,
    tp_ranks_inside,
)
from estimator.lower.kinds import layer_kinds
from estimator.lower.lowering import PASS_PHASES, Lowering
from estimator.lower.mlp import expert_rows, mlp_block
from estimator.lower.slots import (
    FULL,
    MLP,
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
from estimator.model import LayerKind, Transformer
from estimator.stack import Stack
from estimator.workload import CAST_PRECISIONS, Workload

FUSED_LOSS_PASSES = (2.0, 3.0)
"""Passes over the half-precision logits, forward and backward, of a fused cross-entropy."""
EAGER_LOSS_PASSES = (12.0, 9.0)
"""The same when fp32 copies are written by separate kernels (two half passes per fp32 one)."""


def lower_layers(
    model: Transformer, workload: Workload, cluster: Cluster, keys: Keys, stack: Stack
) -> Columns:
    """All slots of a micro-batch: a layer of each kind, embedding, head and a stage boundary."""
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
        tp_inside=tp_ranks_inside(keys, cluster.scale_up_domain),
        tp_leaf=tp_ranks_inside(keys, cluster.leaf_ranks),
    )
    for index, kind in enumerate(layer_kinds(model)):
        low.layer = index
        attention_block(low, windowed=kind.windowed)
        mlp_block(low, kind.mlp)
        _layer_extras(low, kind.mlp)
        _checkpoint_copies(low)
        trained = trained_share(model, workload, kind.mlp)
        _gather_weights(low, "layer", "layer", layer_shard(model, kind.mlp, keys.tp), trained)
        if kind.mlp == "moe":
            routed = expert_shard(model, kind.mlp, keys.ep, keys.etp)
            full = 1.0 if workload.lora_rank is None else 0.0
            _gather_weights(low, "experts", "layer", routed, full, experts=True)
    low.layer = 0
    _embedding(low)
    _head(low)
    _boundary(low)
    return low.rows.build()


def _layer_extras(low: Lowering, kind: LayerKind) -> None:
    """Casts of GEMM inputs to fp8 or fp4, and the read and write of fp32 main gradients."""
    model, keys = low.model, low.keys
    mlp = model.ffn if kind == "dense" else model.experts.shared_ffn if model.experts else 0
    if low.workload.precision in CAST_PRECISIONS:
        forward, backward = _cast_bytes(low)
        cast = low.tokens * (model.hidden + model.attention_width / keys.tp)
        low.memory("casts of attention", "layer", forward=forward * cast, backward=backward * cast)
        cast = low.tokens * (model.hidden + mlp / keys.tp)
        if kind == "moe" and model.experts is not None:
            visits = expert_rows(low, model.experts)
            # Fused experts cast what their activation gives inside their first product.
            inner = 0.0 if "expert_mlp" in low.stack.fused else model.experts.ffn / keys.etp
            cast = cast + visits * (model.hidden + inner)
        low.again = MLP
        low.memory("casts of mlp", "layer", forward=forward * cast, backward=backward * cast)
        low.again = FULL
        if low.workload.fp8_scaling == "row":
            weights = layer_shard(model, kind, keys.tp) + expert_shard(
                model, kind, keys.ep, keys.etp
            )
            row, column = _rowwise_bytes(low)
            low.memory(
                "casts of weights", "layer", forward=row * weights, backward=column * weights
            )
    share = low.stack.gradient_accumulation_traffic
    if share and low.workload.mode == "train" and low.workload.lora_rank is None:
        low.rows.add(
            Slot(
                name="gradient accumulation",
                kind="memory",
                place="layer",
                phase="backward_weight",
                layer=low.layer,
            ),
            bytes=share
            * 8.0
            * (layer_shard(model, kind, keys.tp) + expert_shard(model, kind, keys.ep, keys.etp)),
        )


def _checkpoint_copies(low: Lowering) -> None:
    """A layer's input to host memory and back, a part of it on each tensor-parallel rank.

    DeepSpeed copies at once and waits (runtime/activation_checkpointing/checkpointing.py).
    """
    keys = low.keys
    if not keys.host_checkpoints.any():
        return
    for phase in PASS_PHASES:
        low.rows.add(
            Slot(
                name="checkpoint copy",
                kind="host_copy",
                place="layer",
                phase=phase,
                layer=low.layer,
            ),
            count=keys.host_checkpoints.astype(float),
            bytes=low.tokens * low.model.hidden * low.element / keys.tp,
        )


def _cast_bytes(low: Lowering) -> tuple[float, float]:
    """Bytes that casts move for each element that a layer's GEMMs read, forward and backward.

    Half precision is read, unless the kernel that makes it casts it as well; rows and columns are
    written, since backward reads the other way. Half as many gradients again as inputs are cast.
    With scales by row nothing can be cast the other way before backward, where the inputs are cast
    by column, and gradients by both.
    """
    if low.workload.fp8_scaling == "row":
        row, column = _rowwise_bytes(low)
        return row, column + 1.5 * (row + column)
    read = 0.0 if "cast" in low.stack.fused else low.element
    moved = read + 2 * low.workload.gemm_bytes
    return moved, 1.5 * moved


def _rowwise_bytes(low: Lowering) -> tuple[float, float]:
    """Bytes of a cast by row, whose scale is found while the row is at hand, and by column."""
    read, write = low.element, low.workload.gemm_bytes
    return read + write, 2 * read + write


def layer_shard(model: Transformer, kind: LayerKind, tp: IntArray) -> FloatArray:
    """Parameters of a layer on one rank, without its routed experts."""
    shard: FloatArray = model.layer_sharded_parameters(
        kind
    ) / tp + model.layer_replicated_parameters(kind)
    return shard


def expert_shard(model: Transformer, kind: LayerKind, ep: IntArray, etp: IntArray) -> FloatArray:
    """Parameters of a layer's routed experts on one rank."""
    count = model.experts.count if kind == "moe" and model.experts is not None else 0
    shard: FloatArray = count / ep * model.expert_parameters / etp
    return shard


def _gather_weights(
    low: Lowering,
    name: str,
    place: Place,
    parameters: FloatArray,
    trained: float,
    *,
    experts: bool = False,
) -> None:
    """zero=3: gather weights before forward and backward, scatter gradients after it.

    ``trained`` is the share of the parameters that get gradients. Experts are sharded over the
    ranks that hold the same ones.
    """
    keys = low.keys
    group, same = keys.shard, expert_dp(keys)
    if experts:
        group = np.where(keys.shard > 1, same, 1)

    def ranks(domain: int) -> FloatArray:
        if experts:
            return ranks_inside(same, keys.etp * keys.ep, domain)
        return np.minimum(dp_ranks_inside(keys, domain), keys.shard)

    gradient = min(low.stack.gradient_bytes, 4.0) if low.element == 2 else 4.0
    rows: tuple[tuple[str, Collective, Phase, float], ...] = (
        ("weights", "all_gather", "forward", low.element),
        ("weights", "all_gather", "backward_input", low.element),
        ("gradients", "reduce_scatter", "backward_weight", gradient * trained),
    )
    for what, kind, phase, width in rows:
        if width == 0:
            continue
        low.collective(
            f"{name} {what}",
            place,
            kind,
            stream="dp",
            phase=phase,
            size=parameters * width,
            group=group,
            inside=ranks(low.cluster.scale_up_domain),
            leaf=ranks(low.cluster.leaf_ranks),
        )


def trained_share(model: Transformer, workload: Workload, kind: LayerKind) -> float:
    """Of a layer's parameters without its experts, the share that gets gradients."""
    if workload.lora_rank is None:
        return 1.0
    rest = model.layer_sharded_parameters(kind) + model.layer_replicated_parameters(kind)
    return model.adapter_parameters(workload.lora_rank, workload.lora_targets) / rest


def _embedding(low: Lowering) -> None:
    """Token lookup, vocabulary-parallel over tp: partial rows are summed like a GEMM's output."""
    row = low.split * low.model.hidden * low.element
    learned = 1.0 if low.model.positions == "learned" else 0.0
    low.memory("embedding", "embedding", forward=(2 + 2 * learned) * row, backward=3 * row)
    tp_leave(low, "embedding", "embedding")
    trained = 1.0 if low.workload.lora_rank is None else 0.0
    table = low.model.embedding_parameters / low.keys.tp
    _gather_weights(low, "embedding", "embedding", table, trained)


def vocab_rows(model: Transformer, tp: IntArray) -> FloatArray:
    """Vocabulary rows per tensor-parallel rank, rounded up so that every rank has as many."""
    rows: FloatArray = np.ceil(model.vocab / tp)
    return rows


def _head(low: Lowering) -> None:
    """Final norm, logits and loss of the last stage, once more for each further token predicted."""
    model, tokens, keys = low.model, low.tokens, low.keys
    vocab = vocab_rows(model, keys.tp)
    norm(low, "final norm", "head")
    tp_enter(low, "logits", "head")
    frozen = low.workload.lora_rank is not None
    hidden = np.full_like(tokens, model.hidden)
    low.gemm("logits", "head", m=tokens, n=vocab, k=hidden, frozen=frozen)
    if model.mtp_layers:
        # One of 1 + n passes predicts the next token and joins no states.
        joined = tokens * model.mtp_layers / (1 + model.mtp_layers)
        low.gemm("joined states", "head", m=joined, n=hidden, k=2 * hidden, frozen=frozen)
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
            leaf=low.tp_leaf,
            count=3.0,
        )
    if not model.tied:
        trained = 0.0 if frozen else 1.0
        _gather_weights(low, "head", "head", model.embedding_parameters / keys.tp, trained)


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
            leaf=ranks_inside(keys.pp, stride, low.cluster.leaf_ranks),
            chain=keys.pp,
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
            leaf=low.tp_leaf,
            count=np.where(whole & low.stack.scattered_boundaries, 1.0, 0.0),
        )


def model_flops(model: Transformer, workload: Workload) -> float:
    """Useful FLOPs of a step over all devices: matrix products, causal scores counted once.

    Backward counts twice forward; recompute, embedding lookups and element-wise work count zero.
    Of experts, those that a token visits count.
    """
    matrices = float(model.embedding_parameters)
    scores = 0.0
    windows = {True: model.windowed_layers / model.layers}
    windows[False] = 1 - windows[True]
    moe = model.moe_layers
    counts: tuple[tuple[LayerKind, int], ...] = (("dense", model.layers - moe), ("moe", moe))
    for kind, layers in counts:
        if layers == 0:
            continue
        matrices += layers * _layer_matrices(model, kind)
        for windowed, share in windows.items():
            pairs = attended_pairs(
                model, workload.sequence, windowed=windowed, document=workload.document
            )
            core = 2 * pairs * model.heads * (model.query_dim + model.value_dim)
            scores += layers * share * core / workload.sequence
    if workload.mode == "forward":
        return float(workload.tokens * (2 * matrices + scores))
    # Frozen weights have no gradient GEMM.
    matrix_passes = 3 if workload.lora_rank is None else 2
    return float(workload.tokens * (matrix_passes * 2 * matrices + 3 * scores))


def _layer_matrices(model: Transformer, kind: LayerKind) -> int:
    """Weights that a token is multiplied with in one layer."""
    attention = sum(a * b for a, b, _ in model.attention_projections)
    attention += model.attention_width * model.hidden
    mlp = model.matrices_of_mlp * model.hidden
    if kind == "dense" or model.experts is None:
        return attention + mlp * model.ffn
    experts = model.experts
    router = model.hidden * experts.count
    return attention + mlp * (experts.top_k * experts.ffn + experts.shared_ffn) + router
