"""From a measured run to model, workload, cluster, stack and plan, every assumption recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

import numpy as np

from estimator import catalog
from estimator.assumptions import Assumptions, UnmappedError
from estimator.cluster import Cluster
from estimator.compose import peak_memory
from estimator.conventions import CLUSTERS, DEVICES, Convention, convention_of
from estimator.model import Experts, LatentAttention, Transformer
from estimator.plan import Offload, Plan, Plans, Recompute
from estimator.plan_of_run import plan_of_run
from estimator.runs import Run
from estimator.stack import Stack
from estimator.workload import OPTIMIZER_STATE_BYTES, Fp8Scaling, Workload

load_cluster, load_node = cache(catalog.load_cluster), cache(catalog.load_node)
load_device = cache(catalog.load_device)
load_model, load_stack = cache(catalog.load_model), cache(catalog.load_stack)

LORA_RANK = 16
"""Rank of adapters where a run does not say (MLPerf's fine-tuning benchmark uses 16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """A run in the estimator's nouns."""

    model: Transformer
    workload: Workload
    cluster: Cluster
    stack: Stack
    plan: Plan
    assumed: Mapping[str, str]
    """What the run did not say: field and the value taken, with why."""


def map_run(run: Run, *, stack: Stack | None = None) -> Mapped:
    """The nouns of a run; ``stack`` replaces the one that its framework would get.

    Raises:
        UnmappedError: it cannot be expressed, and why.
    """
    assume = Assumptions()
    convention = _convention(run, assume)
    _supported(run)
    model = _model(run, convention, assume)
    cluster = _cluster(run, assume)
    workload = _workload(run, convention, cluster, assume)
    plan = plan_of_run(run, convention, model, workload, cluster, assume)
    try:
        used = stack or load_stack(_stack_name(run, convention, cluster, assume))
    except ValueError as error:
        raise UnmappedError(str(error)) from None
    if convention.least_recompute and run.recompute is None:
        plan = _least_recompute(model, workload, cluster, plan, used, assume)
    if convention.selective_is_every_second_layer and plan.recompute_layers is not None:
        peak = peak_memory(model, workload, cluster, Plans.of([plan]), stack=used)
        if peak[0] > cluster.capacity_bytes:
            assume("recompute_layers", None, "all", "every second layer would not fit")
            plan = replace(plan, recompute_layers=None)
    return Mapped(
        model=model,
        workload=workload,
        cluster=cluster,
        stack=used,
        plan=plan,
        assumed=assume.taken,
    )


def _least_recompute(
    model: Transformer,
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    stack: Stack,
    assume: Assumptions,
) -> Plan:
    """The plan with the least recompute that fits, or with the most there is."""
    kinds: list[Recompute] = [kind for kind in get_args(Recompute) if kind in stack.recompute]
    plans = Plans.of(replace(plan, recompute=kind) for kind in kinds)
    fits = peak_memory(model, workload, cluster, plans, stack=stack) <= cluster.capacity_bytes
    least = int(np.argmax(fits)) if fits.any() else len(kinds) - 1
    assume("recompute", None, kinds[least], "the least that fits")
    return plans[least]


def _stack_name(run: Run, convention: Convention, cluster: Cluster, assume: Assumptions) -> str:
    """The framework's stack, or that of its recipe."""
    if run.compiled is False and convention.eager_stack is not None:
        return convention.eager_stack
    release = _release(run)
    early = release is not None and release < convention.early_until
    if early and convention.early_stack is not None:
        return convention.early_stack
    graphs = run.cuda_graphs
    since = convention.experts_in_graphs_since
    if since is not None and run.moe_experts and cluster.device.architecture == "blackwell":
        recent = release is not None and release >= since
        graphs = assume("cuda_graphs", graphs, recent, "its recipes of that release")
    if graphs and convention.graph_stack is not None:
        return convention.graph_stack
    if convention.adapter_stack is not None and (run.workload or "").lower() == "lora":
        return convention.adapter_stack
    return convention.stack


def _release(run: Run) -> tuple[int, int] | None:
    """Year and month of the framework's release, as 24.07 or 2024-07, where it has such."""
    found = re.search(r"(?:20)?(\d\d)[.-](\d\d)\b", run.framework_version or "")
    return (int(found[1]), int(found[2])) if found else None


def _need(run: Run, name: str) -> Any:
    value = getattr(run, name)
    if value is None:
        raise UnmappedError(f"{name} is not given")
    return value


def _supported(run: Run) -> None:
    if (run.offload or "none").lower() not in get_args(Offload):
        raise UnmappedError(
            f"offload of {run.offload!r} is not supported; use " + ", ".join(get_args(Offload))
        )


def _convention(run: Run, assume: Assumptions) -> Convention:
    device = _device(run) or ""
    if run.framework is None:
        framework = assume("framework", None, "Megatron-LM", "not given")
    else:
        framework = run.framework
    found = convention_of(framework, run.source_id, device)
    if found is None:
        raise UnmappedError(f"framework {framework!r} is unknown")
    return found


def _device(run: Run) -> str | None:
    name = (run.gpu or "").lower()
    return next((device for pattern, device in DEVICES if re.search(pattern, name)), None)


def _model(run: Run, convention: Convention, assume: Assumptions) -> Transformer:
    if run.layers is None or run.hidden is None or run.heads is None:
        if run.model is None:
            raise UnmappedError("neither the model's shape nor its name is given")
        try:
            known = load_model(run.model)
        except ValueError:
            raise UnmappedError(
                f"model {run.model!r} has no shape (layers, hidden, heads) and is not in the "
                "catalogue"
            ) from None
        experts = known.experts.count if known.experts is not None else 0
        if run.moe_experts is not None and run.moe_experts != experts:
            raise UnmappedError(
                f"contradiction: moe_experts={run.moe_experts}, but {known.name} of the catalogue "
                f"has {experts}"
            )
        return known
    llama = _like_llama(run)
    gated = assume("gated_mlp", run.gated_mlp, llama, "by the model's name")
    hidden: int = run.hidden
    sequence = _need(run, "seq_len")
    ffn = assume("ffn", run.ffn, _usual_ffn(hidden, gated), "8/3 hidden if gated, else 4 hidden")
    learned = "learn" in (run.pos_emb or ("" if gated else "learned"))
    shape = {
        "kv_heads": assume("kv_heads", run.kv_heads, run.heads, "as many as heads"),
        "head_dim": run.head_dim or max(hidden // run.heads, 1),
        "vocab": assume("vocab", run.vocab, 32000 if gated else 51200, "usual for its family"),
        "tied": assume("tied_embeddings", run.tied_embeddings, not gated, "usual for its family"),
    }
    heads_of = _latent(run, assume)
    try:
        return Transformer(
            experts=_experts(run),
            latent=heads_of,
            mtp_layers=int("w/ mtp" in (run.notes or "").lower()),
            name=run.model or "unnamed",
            layers=run.layers,
            hidden=hidden,
            ffn=ffn,
            heads=run.heads,
            max_positions=sequence if learned else max(sequence, 2**20),
            activation="swiglu" if gated else "gelu",
            positions="learned" if learned else "rotary",
            norm="rmsnorm" if gated or llama else "layernorm",
            bias="none" if gated else "all",
            parallel_residual=convention.parallel_residual and not llama,
            **shape,
        )
    except ValueError as error:
        raise UnmappedError(str(error)) from None


def _experts(run: Run) -> Experts | None:
    """The experts of a run; the dense prefix stands in words ("first 3 layers dense")."""
    if not run.moe_experts:
        return None
    prefix = re.search(r"first (\d+)? ?layers? dense", run.moe_note or "")
    return Experts(
        count=run.moe_experts,
        top_k=_need(run, "moe_topk"),
        ffn=_need(run, "moe_ffn"),
        shared_ffn=run.moe_shared_ffn or 0,
        first_dense=int(prefix.group(1) or 1) if prefix else 0,
    )


def _latent(run: Run, assume: Assumptions) -> LatentAttention | None:
    """Latent attention where the words say MLA, with the sizes they give or DeepSeek-V3's."""
    note = run.moe_note or ""
    if "MLA" not in note:
        return None
    sizes = {"q_lora": 1536, "kv_lora": 512, "nope": 128, "rope": 64, "v": 128}
    said = re.search(r"q_lora (\d+), kv_lora (\d+), qk (\d+)\+(\d+), v (\d+)", note)
    if said:
        sizes = dict(zip(sizes, map(int, said.groups()), strict=True))
    else:
        assume("latent", None, "1536, 512, 128+64, 128", "as DeepSeek-V3")
    return LatentAttention(
        q_rank=sizes["q_lora"],
        kv_rank=sizes["kv_lora"],
        nope_dim=sizes["nope"],
        rope_dim=sizes["rope"],
        v_dim=sizes["v"],
    )


def _like_llama(run: Run) -> bool:
    """Whether its name is of a family built as Llama: RMS norms, one block after the other."""
    return bool(
        re.search(r"llama|mistral|mixtral|qwen|internlm|llemma|deepseek", (run.model or "").lower())
    )


def _usual_ffn(hidden: int, gated: bool) -> int:
    """Llama rounds 8/3 of the width up to a multiple of 256."""
    return -(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden


def _cluster(run: Run, assume: Assumptions) -> Cluster:
    gpus = _need(run, "n_gpus")
    if run.gpu is None:
        raise UnmappedError("gpu is not given")
    try:
        node, network_known = _node(run)
    except ValueError as error:
        raise UnmappedError(str(error)) from None
    usual = min(node.gpus_per_node, gpus)
    per_node = min(assume("gpus_per_node", run.gpus_per_node, usual, "its usual node"), gpus)
    if gpus % per_node:
        raise UnmappedError(f"n_gpus={gpus} is no whole number of nodes of {per_node}")
    # A rack's domain spans nodes; elsewhere it is the node.
    domain = node.scale_up_domain if node.scale_up_domain > node.gpus_per_node else per_node
    out = node.scale_out
    rate = run.inter_net_gbps_per_gpu
    if out is not None and gpus > domain and not network_known:
        nominal = round(out.bandwidth * 8e-9)
        rate = assume("inter_net_gbps_per_gpu", rate, nominal, "the device's usual network")
        out = replace(
            out, bandwidth=rate * 1e9 / 8, nic_bandwidth=_nic_bandwidth(run, rate, per_node)
        )
    try:
        return replace(
            node,
            name=f"{node.name}:{gpus}",
            nodes=gpus // per_node,
            gpus_per_node=per_node,
            scale_up_domain=min(domain, gpus),
            scale_out=out,
        )
    except ValueError as error:
        raise UnmappedError(str(error)) from None


def _nic_bandwidth(run: Run, rate: float, per_node: int) -> float | None:
    """Bytes/s of a NIC where the network's name says how many share a node (4x100Gb)."""
    said = re.search(r"\b(\d+) ?x ?(\d+) ?gb", (run.inter_net or "").lower())
    if said is None or int(said[1]) * int(said[2]) != rate * per_node:
        return None
    return int(said[2]) * 1e9 / 8


def _node(run: Run) -> tuple[Cluster, bool]:
    """A node like the run's, and whether its network is one that was measured."""
    place = f"{run.gpu} {run.inter_net or ''} {run.source_id or ''}".lower()
    device = _device(run)
    for pattern, name in CLUSTERS:
        if re.search(pattern, place):
            known = load_cluster(name)
            own = device is None or known.device.name.startswith(device)
            return known if own else replace(known, device=load_device(device)), True
    if device is None:
        raise UnmappedError(f"gpu {run.gpu!r} is not in the catalogue")
    return load_node(device), False


def _workload(run: Run, convention: Convention, cluster: Cluster, assume: Assumptions) -> Workload:
    said = (run.precision or "").lower()
    precision = next((p for p in ("fp8", "fp4", "bf16", "fp16", "tf32", "fp32") if p in said), None)
    if said and precision is None:
        raise UnmappedError(f"precision {run.precision!r} is not supported yet")
    precision = assume("precision", precision, convention.precision(cluster), "usual for its stack")
    if precision not in cluster.device.peaks:
        raise UnmappedError(f"{cluster.device.name} has no {precision}")
    scaling = (run.fp8_scaling or "tensor").lower()
    if scaling not in get_args(Fp8Scaling):
        raise UnmappedError(
            f"fp8_scaling {run.fp8_scaling!r} is unknown; use " + ", ".join(get_args(Fp8Scaling))
        )
    optimizer = (run.optimizer or "adam").lower()
    if optimizer not in OPTIMIZER_STATE_BYTES:
        raise UnmappedError(
            f"optimizer {run.optimizer!r} is not supported; use " + ", ".join(OPTIMIZER_STATE_BYTES)
        )
    if run.flash_attention is None:
        attention = assume("flash_attention", None, convention.attention, "usual for its era")
    else:
        attention = "flash" if run.flash_attention else "eager"
    lora = None
    if (run.workload or "").lower() == "lora":
        lora = assume("lora_rank", None, LORA_RANK, "of MLPerf's benchmark")
    try:
        return Workload(
            global_batch=_need(run, "global_batch"),
            sequence=_need(run, "seq_len"),
            precision=precision,
            fp8_scaling=scaling if precision == "fp8" else "tensor",  # type: ignore[arg-type]
            attention=attention,
            optimizer=optimizer,  # type: ignore[arg-type]
            dropout=convention.dropout and attention == "eager",
            document=_document(run, convention, attention, assume),
            lora_rank=lora,
            lora_targets="attention" if lora is None else convention.lora_targets,
            expert_imbalance=_imbalance(run, assume),
        )
    except ValueError as error:
        raise UnmappedError(str(error)) from None


def _document(run: Run, convention: Convention, attention: str, assume: Assumptions) -> int | None:
    """Mean tokens of packed documents; flash attention alone can tell them apart."""
    tuned = (run.workload or "").lower() in ("sft", "lora") and attention == "flash"
    usual = convention.tuning_document if tuned else None
    if run.document is None and usual is None:
        return None
    document: int = assume("document", run.document, usual, "packed by its fine-tuning recipes")
    return document


def _imbalance(run: Run, assume: Assumptions) -> float:
    """1 where the words say that routing was forced to balance or padded to capacity."""
    words = f"{run.notes or ''} {run.moe_note or ''}".lower()
    if not run.moe_experts or "balanced" in words or "pad to capacity" in words:
        return 1.0
    imbalance: float = assume("expert_imbalance", None, 1.2, "not said to be balanced")
    return imbalance
