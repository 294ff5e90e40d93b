"""A plan in words: what each device does, what the step consists of, what limits it."""

from __future__ import annotations

from estimator.estimate import Estimate
from estimator.plan import Plan
from search.contracts import budget_of
from search.objective import limited_by
from search.report.parts import budget_line, parts_line, verdict
from search.report.units import console, gib, say, seconds, share
from spaces import Problem

LIMITS = {
    "compute": "arithmetic: no other part takes a noticeable share",
    "tp": "tensor-parallel exchange inside every layer: a smaller tp, or sequence parallelism",
    "cp": "context-parallel exchange of keys and values: a smaller cp",
    "ep": "the exchange of tokens between experts: a smaller ep",
    "pp": "activations sent between stages: a smaller pp or less interleaving",
    "bubble": "idle stages at the start and end of a step: more micro-batches, interleaving or a "
    "smaller pp",
    "dp": "gradients and parameters between replicas: fewer replicas, or more work per step",
    "optimizer": "the optimizer's pass over its states: sharding them (zero)",
    "host": "launching kernels: larger micro-batches",
}
"""What a limiting part means, and what eases it."""


def explanation_text(problem: Problem, value: Estimate) -> None:
    """Print one plan in words."""
    out = console()
    say(out, f"{problem.model.name} on {problem.cluster.name}: {value.plan}", style="bold")
    for line in describe(problem, value.plan):
        say(out, f"- {line}")
    say(
        out,
        f"- A step takes {seconds(value.step_seconds)} s "
        f"({seconds(value.low_seconds)} to {seconds(value.high_seconds)}): "
        f"{parts_line(value.time, value.step_seconds)}. MFU is {share(value.mfu, 1)}.",
    )
    limit = limited_by(value)
    say(out, f"- It is limited by {LIMITS[limit]}.")
    say(out, f"- It {verdict(problem, value)}: {parts_line(value.memory, value.peak_bytes)}.")
    for stage in value.stages:
        say(
            out,
            f"  {stage['count']} x {stage['stage']} stage: {stage['layers']} layers, "
            f"{gib(stage['allocated_bytes'])} GiB allocated",
        )
    budget = budget_line(budget_of(problem, value))
    if budget:
        say(out, f"- {budget}.")


def describe(problem: Problem, plan: Plan) -> list[str]:
    """What the plan's fields mean for this problem, one sentence each."""
    workload = problem.workload
    count = workload.global_batch // (plan.dp * plan.micro_batch)
    lines = [
        f"{problem.cluster.gpus} GPUs hold {plan.dp} replicas of the model on "
        f"{plan.tp * plan.cp * plan.pp} GPUs each; a replica runs {count} micro-batches of "
        f"{plan.micro_batch} sequence{'s' if plan.micro_batch > 1 else ''} per step."
    ]
    if plan.tp > 1:
        where = "inside" if plan.tp <= problem.cluster.scale_up_domain else "beyond"
        lines.append(
            f"Each layer is cut over {plan.tp} GPUs, {where} the scale-up domain of "
            f"{problem.cluster.scale_up_domain}"
            + (", norms and residuals along the sequence." if plan.sequence_parallel else ".")
        )
    if plan.cp > 1:
        lines.append(f"Each sequence is cut over {plan.cp} GPUs.")
    if plan.pp > 1:
        chunks = f", each in {plan.interleave} chunks" if plan.interleave > 1 else ""
        lines.append(f"The layers form {plan.pp} pipeline stages{chunks}, run as {plan.schedule}.")
    if plan.zero:
        kept = ("", "optimizer states", "optimizer states and gradients", "all model states")
        ranks = plan.shard_size or plan.dp * plan.cp
        lines.append(f"{kept[plan.zero].capitalize()} are sharded over {ranks} GPUs.")
    if plan.recompute == "full":
        layers = (
            "every layer"
            if plan.recompute_layers is None
            else f"{plan.recompute_layers} layers of each stage"
        )
        lines.append(f"Backward recomputes {layers}.")
    elif plan.recompute == "selective":
        lines.append("Backward recomputes the attention core.")
    elif plan.recompute == "mlp":
        lines.append("Backward recomputes the MLP of every layer.")
    return lines
