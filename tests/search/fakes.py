"""A deterministic closed form in place of the estimator: cheap, and easy to reason about."""

from __future__ import annotations

from typing import Any

import numpy as np

from estimator import Estimates, Plans, Workload
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.estimate import HIDDEN_PARTS, MEMORY_PARTS, PHASES, TIME_PARTS, StageCosts
from estimator.plan import CHOICES
from search.objective import Pricing
from spaces import Constraints, Problem, TransformerSpace

GIB = 2.0**30
FULL = CHOICES["recompute"].index("full")


def problem(gpus: int = 16, batch: int = 32, model: str = "llama-3.1-8b", **job: Any) -> Problem:
    workload = Workload(global_batch=batch, sequence=2048, **job)
    cluster = load_cluster(f"h100-sxm:{gpus}")
    return Problem(load_model(model), workload, cluster, load_stack("megatron"))


def space(given: Problem, constraints: Constraints | None = None) -> TransformerSpace:
    return TransformerSpace.build(
        given.model, given.workload, given.cluster, given.stack, constraints
    )


def small(given: Problem | None = None) -> TransformerSpace:
    """A few hundred legal plans."""
    asked = Constraints.parse(fix=["cp=1", "sp=false"], most=["mbs=4", "interleave=2"])
    return space(given or problem(), asked)


def peak_memory(model: Any, workload: Any, cluster: Any, plans: Plans, *, stack: Any) -> np.ndarray:
    """States divided by what shards them, activations by tp; recompute keeps a tenth."""
    states = 130 * GIB / (plans.tp * plans.pp)
    states = states / np.where(plans.zero > 0, np.sqrt(plans.dp), 1)
    kept = np.where(plans.recompute == FULL, 0.1, 1.0)
    return 2 * GIB + states + 9 * GIB * kept * plans.micro_batch * plans.interleave / plans.tp


def estimate(
    model: Any, workload: Any, cluster: Any, plans: Plans, *, stack: Any, cost: str
) -> Estimates:
    """Some preference on every axis, so that the best plan is not at a corner by accident."""
    batches = workload.global_batch / (plans.dp * plans.micro_batch)
    zero = np.zeros(len(plans))
    again = np.where(plans.recompute == FULL, 1.3, 1.0)
    compute = 2.0 * again * (1 + 0.2 / plans.micro_batch)
    time = dict.fromkeys(TIME_PARTS, zero) | {
        "compute": compute,
        "tp": 0.1 * np.log2(plans.tp),
        "bubble": compute * (plans.pp - 1) / (batches * plans.interleave),
        "pp": 0.01 * plans.interleave * (plans.pp > 1),
        "dp": 0.02 * np.log2(plans.dp) + 0.01 * plans.zero + 0.003 * plans.order,
    }
    peak = peak_memory(model, workload, cluster, plans, stack=stack)
    memory = dict.fromkeys(MEMORY_PARTS, zero) | {
        "weights": peak - 2 * GIB,
        "context": zero + 2 * GIB,
    }
    four = np.zeros((len(plans), 4))
    count = np.array([[1, 0, 0, 0]] * len(plans))
    return Estimates(
        plans=plans,
        time=time,
        hidden=dict.fromkeys(HIDDEN_PARTS, zero),
        compute_phases=dict.fromkeys(PHASES, zero),
        memory=memory,
        stages=StageCosts(count=count, layers=count * 32, seconds=four, allocated_bytes=four),
        uncertainty=zero + 0.02,
        memory_uncertainty=0.1,
        origin=lambda _: dict.fromkeys(TIME_PARTS, "analytic"),
        capacity_bytes=cluster.device.memory_bytes,
        tokens_per_step=workload.tokens,
        model_flops=1e15,
        peak_flops=cluster.gpus * cluster.peak(workload.precision),
    )


PRICING = Pricing(estimate, peak_memory)
