"""Small random problems, and ways to look at a space without the space's own shortcuts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from estimator import Cluster, Stack, Transformer, Workload
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.model import Experts
from spaces import Problem

MODEL = load_model("llama-3.1-8b")
STACK = load_stack("megatron")


def cluster(gpus: int, device: str = "h100-sxm") -> Cluster:
    """Nodes of 8 where they fill, else one node, else nodes of one."""
    per_node = 8 if gpus % 8 == 0 else gpus if gpus < 8 else 1
    return replace(
        load_cluster(f"{device}:8"),
        name=f"{device}:{gpus}",
        nodes=gpus // per_node,
        gpus_per_node=per_node,
        scale_up_domain=per_node,
    )


def problem(
    gpus: int = 64,
    *,
    model: str = "llama-3.1-70b",
    batch: int = 512,
    sequence: int = 8192,
    stack: Stack = STACK,
    device: str = "h100-sxm",
    **workload: object,
) -> Problem:
    """A problem from the catalogue."""
    job = Workload(global_batch=batch, sequence=sequence, **workload)  # type: ignore[arg-type]
    return Problem(load_model(model), job, cluster(gpus, device), stack)


SPARSE = replace(
    MODEL, name="sparse", experts=Experts(count=8, top_k=2, ffn=1536), kv_heads=32, mtp_layers=0
)


def sparse(plan_gpus: int = 64) -> Problem:
    """A problem with experts."""
    return Problem(SPARSE, Workload(global_batch=480, sequence=8192), cluster(plan_gpus), STACK)


@st.composite
def models(draw: st.DrawFn) -> Transformer:
    heads = draw(st.sampled_from([1, 2, 4, 6, 8, 12]))
    groups = draw(st.sampled_from([g for g in (1, 2, 3, 4, 6, 8, 12) if heads % g == 0]))
    experts = draw(
        st.none()
        | st.builds(
            Experts,
            count=st.sampled_from([2, 4, 6]),
            top_k=st.just(2),
            ffn=st.sampled_from([8, 12]),
            shared_ffn=st.sampled_from([0, 8]),
        )
    )
    return replace(
        MODEL,
        experts=experts,
        layers=draw(st.integers(1, 20)),
        heads=heads,
        kv_heads=heads // groups,
        head_dim=8,
        hidden=heads * 8,
        ffn=draw(st.sampled_from([24, 32, 40, 96])),
        vocab=512,
        max_positions=4096,
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    stack = replace(
        STACK,
        zero=draw(st.sampled_from([(0,), (0, 1), (0, 2, 3), (0, 1, 2, 3)])),
        pipeline_zero=draw(st.sampled_from([(0,), (0, 1)])),
        recompute=draw(st.sampled_from([("none",), ("none", "full"), STACK.recompute])),
        max_tp=draw(st.sampled_from([2, 64])),
        max_pp=draw(st.sampled_from([2, 64])),
        interleaving=draw(st.booleans()),
        uneven_stages=draw(st.booleans()),
        rank_orders=draw(st.sampled_from([STACK.rank_orders, STACK.rank_orders[:1]])),
    )
    workload = Workload(
        global_batch=draw(st.sampled_from([1, 4, 6, 12, 16])),
        sequence=draw(st.sampled_from([16, 96, 100])),
        mode=draw(st.sampled_from(["train", "forward"])),
        attention=draw(st.sampled_from(["flash", "eager"])),
    )
    gpus = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 16, 24]))
    return Problem(draw(models()), workload, cluster(gpus), stack)


def every_point(space: object) -> np.ndarray:
    """All raw points of a space's grid."""
    return np.arange(space.considered)  # type: ignore[attr-defined]
