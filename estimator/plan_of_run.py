"""The plan of a measured run, each field that it leaves open as its framework usually has it."""

from __future__ import annotations

from typing import get_args

from estimator.assumptions import Assumptions, UnmappedError
from estimator.cluster import Cluster
from estimator.conventions import Convention
from estimator.model import Transformer
from estimator.plan import Offload, Plan, Recompute
from estimator.runs import Run
from estimator.workload import Workload


def plan_of_run(
    run: Run,
    convention: Convention,
    model: Transformer,
    workload: Workload,
    cluster: Cluster,
    assume: Assumptions,
) -> Plan:
    """The plan that a run says or implies; what it implies goes to ``assume``.

    Raises:
        UnmappedError: degrees contradict each other, the batch or the model.
    """
    tp = assume("tp", run.tp, 1, "not given")
    cp = assume("cp", run.cp, 1, "not given")
    pp = assume("pp", run.pp, 1, "not given")
    gpus = cluster.gpus
    if gpus % (tp * cp * pp):
        raise UnmappedError(
            f"contradiction: tp x cp x pp = {tp * cp * pp} does not divide {gpus} GPUs"
        )
    dp = gpus // (tp * cp * pp)
    if run.dp is not None and run.dp not in (dp, dp * cp):
        raise UnmappedError(
            f"contradiction: dp={run.dp}, but {gpus} GPUs over tp x cp x pp leave {dp}"
        )
    interleave = _interleave(run, convention, model, pp, workload.global_batch // dp, assume)
    micro_batch = _micro_batch(run, convention, workload.global_batch // dp, pp, interleave, assume)
    if workload.global_batch % (dp * micro_batch):
        raise UnmappedError(
            f"contradiction: dp x micro_batch = {dp * micro_batch} does not divide the global "
            f"batch of {workload.global_batch}"
        )
    if model.heads % tp:
        raise UnmappedError(f"contradiction: tp={tp} does not divide {model.heads} heads")
    if pp > model.layers:
        raise UnmappedError(f"contradiction: pp={pp} exceeds {model.layers} layers")
    ep = run.ep or 1
    etp = run.etp if run.etp is not None else (1 if ep > 1 else None)
    if model.experts is None and ep > 1:
        raise UnmappedError(f"contradiction: ep={ep} without experts")
    if model.experts is not None:
        if model.experts.count % ep or (dp * tp * cp) % (ep * (etp or tp)):
            raise UnmappedError(
                f"contradiction: ep={ep} does not divide {model.experts.count} experts and the "
                f"{dp * tp * cp} ranks of a stage"
            )
        if etp is not None and run.etp is None:
            assume("etp", None, etp, "usual with expert parallelism")
    split = max(tp, pp) > 1 and workload.lora_rank is not None
    recompute, recompute_layers = _recompute(run, convention, model.layers // pp, split, assume)
    sequence_parallel = assume(
        "sp", run.sp, convention.sequence_parallel and tp > 1, "usual for its stack"
    )
    overlap_tp = run.overlap_tp
    if overlap_tp is None and tp > 1 and workload.lora_rank is not None:
        usual = convention.adapters_overlap_tp
        if usual is not None:
            overlap_tp = assume("overlap_tp", None, usual, "usual for its adapters")
    zero = _zero(run, convention, dp * cp, pp, assume)
    whole = zero == 3 and recompute == "full" and recompute_layers is None
    offload = _offload(run, convention, cluster, whole, assume)
    shard_size = run.shard_size if zero and run.shard_size != dp * cp else None
    if shard_size is not None and dp * cp % shard_size:
        raise UnmappedError(
            f"contradiction: shard_size={shard_size} does not divide dp x cp = {dp * cp}"
        )
    return Plan(
        dp=dp,
        tp=tp,
        cp=cp,
        pp=pp,
        ep=ep,
        etp=etp if ep > 1 else None,
        micro_batch=micro_batch,
        offload=offload,
        interleave=interleave if workload.global_batch // (dp * micro_batch) >= pp else 1,
        recompute=recompute,
        recompute_layers=recompute_layers,
        sequence_parallel=bool(sequence_parallel) and tp > 1,
        zero=zero,
        shard_size=shard_size,
        overlap_tp=overlap_tp,
        overlap_ep=run.overlap_ep,
        overlap_grad=run.overlap_grad,
        overlap_p2p=run.overlap_p2p,
    )


def _micro_batch(
    run: Run,
    convention: Convention,
    local_batch: int,
    pp: int,
    interleave: int,
    assume: Assumptions,
) -> int:
    """Sequences of a micro-batch; a blank is one, or what cuts a rank's batch by its stages."""
    stages = pp * interleave
    if convention.stages_of_micro_batches and pp > 1 and local_batch % stages == 0:
        usual = local_batch // stages
        size: int = assume("micro_batch", run.micro_batch, usual, "as many as stages")
        return size
    size = assume("micro_batch", run.micro_batch, 1, "not given")
    return size


def _recompute(
    run: Run, convention: Convention, layers: int, split_adapters: bool, assume: Assumptions
) -> tuple[Recompute, int | None]:
    """Kind and, where not all, the layers of a stage."""
    word = run.recompute.lower() if run.recompute else None
    said = next((kind for kind in get_args(Recompute) if kind == word), None)
    if word and said is None:
        raise UnmappedError(
            f"recompute {run.recompute!r} is unknown; use " + ", ".join(get_args(Recompute))
        )
    full = convention.adapters_recompute and split_adapters
    usual: Recompute = "full" if full else convention.recompute
    kind: Recompute = assume("recompute", said, usual, "usual for its stack")
    if kind == "selective" and convention.selective_is_every_second_layer:
        every_second = max(layers // 2, 1)
        assume("recompute_layers", None, every_second, "selective is every second layer there")
        return "full", every_second
    return kind, None


def _offload(
    run: Run, convention: Convention, cluster: Cluster, whole: bool, assume: Assumptions
) -> Offload:
    """What host memory holds; ``whole``: zero=3 with every layer recomputed."""
    said = next((one for one in get_args(Offload) if one == (run.offload or "").lower()), None)
    offload: Offload = said or "none"
    if whole and convention.zero3_offload != "none" and said in (None, "optimizer"):
        usual = convention.zero3_offload if said is None else "both"
        offload = assume("offload", None, usual, "as its example for zero=3")
    if offload != "none" and cluster.device.host is None:
        raise UnmappedError(f"the host of {cluster.device.name}, for offload, is not known")
    return offload


def _zero(run: Run, convention: Convention, ranks: int, pp: int, assume: Assumptions) -> int:
    if ranks == 1:
        return 0
    said = run.zero_stage
    if said is None and run.dist_optimizer is not None:
        said = int(run.dist_optimizer)
    if pp > 1 and convention.pipeline_zero is not None and said in (None, 3):
        zero: int = assume("zero_stage", None, convention.pipeline_zero, "3, gathered for a step")
        return zero
    zero = assume("zero_stage", said, convention.zero, "usual for its stack")
    return zero


def _interleave(
    run: Run,
    convention: Convention,
    model: Transformer,
    pp: int,
    local_batch: int,
    assume: Assumptions,
) -> int:
    """Chunks per stage; a blank means what the framework's recipes usually do."""
    if pp == 1:
        return 1
    if run.vpp is not None:
        fits = any((model.layers + spare) % (pp * run.vpp) == 0 for spare in (0, 1, 2))
        return run.vpp if fits else 1
    if run.interleaved and not convention.interleaves:
        chunks: int = assume("vpp", None, 2, "the least that interleaves")
        return chunks
    if not convention.interleaves or local_batch < pp:
        return 1
    per_stage = model.layers // pp
    usual = 5 if model.layers % (5 * pp) == 0 else max(per_stage // 2, 1)
    usual = usual if model.layers % (usual * pp) == 0 else 1
    chunks = assume("vpp", None, usual, "usual for its recipes")
    return chunks
