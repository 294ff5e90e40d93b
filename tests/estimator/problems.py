"""Small problems that many tests share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from estimator import Cluster, Plan, Plans, Stack, Transformer, Workload
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.plan import CHOICES

MODEL = load_model("llama-3.1-8b")
WORKLOAD = Workload(global_batch=256, sequence=4096)
CLUSTER = load_cluster("h100-sxm:64")
STACK = replace(load_stack("megatron"), recompute=CHOICES["recompute"])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Legal plans of ``MODEL`` on the 64 GPUs of ``CLUSTER``."""
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    cp = draw(st.sampled_from([1, 2]))
    pp = draw(st.sampled_from([1, 2, 4]))
    dp = 64 // (tp * cp * pp)
    micro_batch = draw(st.sampled_from([1, 2, 4]))
    recompute = draw(st.sampled_from(CHOICES["recompute"]))
    zero = draw(st.sampled_from([0, 1]))
    return Plan(
        dp=dp,
        tp=tp,
        cp=cp,
        pp=pp,
        micro_batch=micro_batch,
        interleave=draw(st.sampled_from([1, 2])) if pp > 1 else 1,
        schedule="1f1b",
        recompute=recompute,
        recompute_layers=draw(st.sampled_from([None, 1, 3])) if recompute == "full" else None,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        zero=zero,
        overlap_grad=draw(st.sampled_from([None, True, False])),
        overlap_tp=draw(st.sampled_from([None, True, False])),
        overlap_p2p=draw(st.sampled_from([None, True, False])),
        order=draw(st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])),
    )


def many(count: int, seed: int = 0) -> Plans:
    """``count`` legal plans, drawn with a seed."""
    random = np.random.default_rng(seed)
    rows = []
    while len(rows) < count:
        tp, cp, pp = (int(random.choice(axis)) for axis in ([1, 2, 4, 8], [1, 2], [1, 2, 4]))
        rows.append(
            Plan(
                dp=64 // (tp * cp * pp),
                tp=tp,
                cp=cp,
                pp=pp,
                micro_batch=int(random.choice([1, 2, 4])),
                zero=int(random.integers(2)),
                recompute=str(random.choice(CHOICES["recompute"])),  # type: ignore[arg-type]
                sequence_parallel=tp > 1,
            )
        )
    return Plans.of(rows)


def faster(cluster: Cluster, *, peak: float = 1, memory: float = 1, links: float = 1) -> Cluster:
    """The cluster with its peaks, memory bandwidth or links scaled up."""
    device = replace(
        cluster.device,
        peaks={dtype: peak * flops for dtype, flops in cluster.device.peaks.items()},
        bandwidth=memory * cluster.device.bandwidth,
    )
    assert cluster.scale_out is not None
    return replace(
        cluster,
        device=device,
        scale_up=replace(cluster.scale_up, bandwidth=links * cluster.scale_up.bandwidth),
        scale_out=replace(cluster.scale_out, bandwidth=links * cluster.scale_out.bandwidth),
    )


__all__ = [
    "CLUSTER",
    "MODEL",
    "STACK",
    "WORKLOAD",
    "Cluster",
    "Stack",
    "Transformer",
    "faster",
    "many",
    "plans",
]
