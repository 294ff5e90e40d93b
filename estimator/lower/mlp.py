"""The other half of a layer: a dense MLP, or experts behind a router.

Arrays have shape (U,): one entry per unique key.
"""

from __future__ import annotations

import numpy as np

from estimator.lower.blocks import adapter, norm, residual, tp_enter, tp_leave
from estimator.lower.keys import ep_ranks_inside
from estimator.lower.lowering import PASS_PHASES, Lowering
from estimator.lower.slots import FULL, MLP, NEVER, Collective, FloatArray, Phase
from estimator.model import Experts, LayerKind
from estimator.workload import CAST_PRECISIONS


def mlp_block(low: Lowering, kind: LayerKind) -> None:
    """Norm, MLP or experts (a shared expert beside the routed), and residual."""
    model = low.model
    low.again = low.around
    if model.norms_per_layer > 1:
        norm(low, "mlp norm", "layer")
    if model.norms_per_layer == 4:
        norm(low, "norm after attention", "layer")
        norm(low, "norm after mlp", "layer")
    low.again = MLP
    if not model.parallel_residual:
        tp_enter(low, "mlp up", "layer")
    end = _end(low, kind)
    if kind == "dense":
        _dense(low, "mlp", float(model.ffn), end)
    elif model.experts is not None:
        if model.experts.shared_ffn:
            _dense(low, "shared expert", float(model.experts.shared_ffn), end)
        _routed(low, model.experts)
    low.again = end
    tp_leave(low, "mlp down", "layer")
    low.again = end & FULL
    residual(low, "mlp residual")
    low.again = FULL


def _end(low: Lowering, kind: LayerKind) -> frozenset[str]:
    """Kinds of recompute that run again the last GEMM of a layer, and what follows it.

    Backward reads nothing of it in a dense layer, unless a norm comes after it or an adapter's
    GEMMs; a combination of experts reads what each gave.
    """
    unread = kind == "dense" and low.model.norms_per_layer < 4
    whole = low.stack.recompute_style == "modules" or low.workload.lora_targets == "all"
    return NEVER if unread and not whole else MLP


def _dense(low: Lowering, name: str, width: float, end: frozenset[str]) -> None:
    model, tokens = low.model, low.tokens
    hidden = np.full_like(tokens, model.hidden)
    ffn = width / low.keys.tp
    frozen = low.workload.lora_rank is not None
    halves = 2 if model.gated else 1
    low.gemm(
        f"{name} up",
        "layer",
        m=tokens,
        n=halves * ffn,
        k=hidden,
        frozen=frozen,
        column_parallel=True,
    )
    _activation(low, f"{name} activation", tokens * ffn)
    low.again = end
    low.gemm(f"{name} down", "layer", m=tokens, n=hidden, k=ffn, frozen=frozen)
    low.again = MLP
    if low.workload.lora_targets == "all" and model.experts is None:
        adapter(low, f"{name} up", hidden, halves * ffn)
        adapter(low, f"{name} down", ffn, hidden)


def _activation(low: Lowering, name: str, elements: FloatArray) -> None:
    """Reads the first projection (both halves when gated) and writes the second one's input."""
    halves = 2 if low.model.gated else 1
    eager = 0 if "bias_activation" in low.stack.fused else 2
    low.memory(
        name,
        "layer",
        forward=(halves + 1 + eager) * elements * low.element,
        backward=(2 * halves + 1 + eager) * elements * low.element,
    )


def expert_rows(low: Lowering, experts: Experts) -> FloatArray:
    """Token visits that one rank's experts work on, at the busiest rank.

    Each rank sends its part of the tokens to ``top_k`` experts; ranks of expert tensor
    parallelism all work on the same visits.
    """
    visits = low.split * experts.top_k * low.workload.expert_imbalance
    rows: FloatArray = visits * low.keys.etp.astype(np.float64)
    return rows


def _routed(low: Lowering, experts: Experts) -> None:
    """Router, permutation, dispatch, the experts as a grouped GEMM, and back."""
    model, keys = low.model, low.keys
    rows = expert_rows(low, experts)
    sent = rows / keys.etp / low.workload.expert_imbalance
    hidden = np.full_like(rows, model.hidden)
    local = experts.count / keys.ep
    ffn = experts.ffn / keys.etp
    halves = 2 if model.gated else 1
    frozen = low.workload.lora_rank is not None
    low.gemm(
        "router",
        "layer",
        m=low.split,
        n=np.full_like(rows, experts.count),
        k=hidden,
        weights=False,
    )
    row = sent * model.hidden * low.element
    # Rows are read and written on either side of each exchange: twice where the exchange itself
    # sorts them (DeepEP, HybridEP), else into and out of both the senders' and the experts' order.
    passes = 4 if low.stack.deduplicated_dispatch else 8
    low.memory("permutation", "layer", forward=passes * row, backward=passes * row)
    if low.workload.precision in CAST_PRECISIONS and "expert_mlp" not in low.stack.fused:
        # Blocks of scales need whole tiles of rows: experts' rows are padded, and unpadded after.
        low.memory("padding", "layer", forward=4 * row, backward=4 * row)
    _dispatch(low, experts, rows / keys.etp)
    for name, n, k in (("expert up", halves * ffn, hidden), ("expert down", hidden, ffn)):
        # One product of all rows, cut into as many as a rank has experts.
        low.gemm(name, "layer", m=rows / local, n=n, k=k, batch=local, starts=local, frozen=frozen)
        if name == "expert up" and "expert_mlp" not in low.stack.fused:
            _activation(low, "expert activation", rows * ffn)


def _dispatch(low: Lowering, experts: Experts, visits: FloatArray) -> None:
    """Tokens to their experts and back: two all-to-alls a pass, split at the scale-up domain.

    ``visits`` reach the busiest rank, for which an uneven all-to-all waits. Where the stack sends
    a token once per domain, ``u(n) = n (1 - (1 - 1 / n)^k)`` of n domains hold one of its k
    experts; else every visit is sent.
    """
    keys, model = low.keys, low.model
    inside = ep_ranks_inside(keys, low.cluster.scale_up_domain)
    width = model.hidden * low.element
    tokens = visits / experts.top_k
    domains = keys.ep / inside
    if low.stack.deduplicated_dispatch:
        holding = domains * (1 - (1 - 1 / domains) ** experts.top_k)
        between = tokens * width * holding * (domains - 1) / domains
        per_domain = inside * (1 - (1 - 1 / inside) ** (experts.top_k / holding))
        within = tokens * width * holding * per_domain * (inside - 1) / inside
    else:
        between = visits * width * (keys.ep - inside) / keys.ep
        within = visits * width * (inside - 1) / keys.ep
    for phase in PASS_PHASES:
        low.collective(
            "expert dispatch and return",
            "layer",
            "all_to_all",
            stream="ep",
            phase=phase,
            size=within,
            between=between,
            group=keys.ep,
            inside=inside,
            leaf=ep_ranks_inside(keys, low.cluster.leaf_ranks),
            count=2.0,
            recomputed=low.again,
        )
    _share_visits(low, visits * width)


def _share_visits(low: Lowering, size: FloatArray) -> None:
    """Expert tensor parallelism: visits are gathered before the experts, partial sums scattered."""
    keys = low.keys
    rows: tuple[tuple[Collective, Phase], ...] = (
        ("all_gather", "forward"),
        ("reduce_scatter", "forward"),
        ("all_gather", "backward_input"),
        ("reduce_scatter", "backward_input"),
    )
    for kind, phase in rows:
        low.collective(
            "expert visits",
            "layer",
            kind,
            stream="tp",
            phase=phase,
            size=size * keys.etp,
            group=keys.etp,
            inside=np.minimum(keys.etp, low.cluster.scale_up_domain).astype(float),
            leaf=np.minimum(keys.etp, low.cluster.leaf_ranks).astype(float),
            recomputed=low.again,
        )
