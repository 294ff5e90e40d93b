"""Options that several commands share, and the problem they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from estimator.estimate import Estimate
    from estimator.plan import Plan
    from search.objective import Pricing
    from spaces import Problem

EXAMPLE_MODEL, EXAMPLE_CLUSTER = "llama-3.1-70b", "h100-sxm:64"
EXAMPLE_BATCH, EXAMPLE_SEQUENCE = 512, 8192

ModelName = Annotated[str, typer.Option("--model", help="A model by name, or a YAML file.")]
ClusterName = Annotated[
    str, typer.Option("--cluster", help="device:gpus, a cluster by name, or a YAML file.")
]
GlobalBatch = Annotated[int, typer.Option("--global-batch", help="Sequences per step.")]
Sequence = Annotated[int, typer.Option("--seq", help="Tokens per sequence.")]
PrecisionName = Annotated[
    str, typer.Option("--precision", help="fp32, tf32, fp16, bf16, fp8, fp4.")
]
AttentionName = Annotated[str, typer.Option("--attention", help="flash or eager.")]
OptimizerName = Annotated[
    str,
    typer.Option(
        "--optimizer", help="adam, adam-bf16 or adam-8bit (its moments), sgd or sgd-momentum."
    ),
]
Dropout = Annotated[bool, typer.Option("--dropout", help="Dropout runs.")]
LoraRank = Annotated[
    int | None, typer.Option("--lora-rank", help="Train adapters of this rank, freeze the rest.")
]
Fp8ScalingName = Annotated[
    str, typer.Option("--fp8-scaling", help="Scales of fp8 products: by tensor, or by row.")
]
LoraTargetsName = Annotated[
    str, typer.Option("--lora-targets", help="Adapters on attention, or on all dense projections.")
]
Document = Annotated[
    int | None,
    typer.Option("--document", help="Mean tokens of packed documents, each attending to itself."),
]
Tokens = Annotated[
    float | None, typer.Option("--tokens", help="Token budget of the run, for days and dollars.")
]
Margin = Annotated[
    float, typer.Option("--margin", help="Share of each device's memory to leave free.")
]
MARGIN = 0.03
"""The error of the memory model on runs that were not fitted is 1 to 2 %."""
ModeName = Annotated[str, typer.Option("--mode", help="train or forward.")]
StackName = Annotated[str, typer.Option("--stack", help="A framework by name, or a YAML file.")]
CostName = Annotated[
    str,
    typer.Option(
        "--cost",
        help="Cost model: analytic, learned, amped, or a file (.npz) of trainplan fit kernels.",
    ),
]
OnlyRows = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="COLUMN=VALUE",
        help="Only such rows, by the columns of validate --by, for example stack=nemo; again for "
        "more (values of one column add up).",
    ),
]
JsonFile = Annotated[
    str | None, typer.Option("--json", help="Also write JSON here; - is standard output, alone.")
]


def load_problem(
    *,
    model: str,
    cluster: str,
    stack: str,
    global_batch: int,
    sequence: int,
    precision: str,
    fp8_scaling: str,
    attention: str,
    optimizer: str,
    mode: str,
    dropout: bool,
    lora_rank: int | None,
    lora_targets: str,
    document: int | None,
    margin: float,
    tokens: float | None,
) -> Problem:
    """The problem that the options describe; ``ValueError`` in one line for a bad one."""
    from dataclasses import replace
    from typing import get_args

    from estimator import workload as words
    from estimator.catalog import load_cluster, load_model, load_stack
    from spaces import Problem, check_problem

    for option, given, kind in (
        ("precision", precision, words.Precision),
        ("fp8_scaling", fp8_scaling, words.Fp8Scaling),
        ("attention", attention, words.Attention),
        ("optimizer", optimizer, words.Optimizer),
        ("mode", mode, words.Mode),
        ("lora_targets", lora_targets, words.LoraTargets),
    ):
        if given not in get_args(kind):
            raise ValueError(f"{option}={given} must be one of {', '.join(get_args(kind))}")
    workload = words.Workload(
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,  # type: ignore[arg-type]
        fp8_scaling=fp8_scaling,  # type: ignore[arg-type]
        attention=attention,  # type: ignore[arg-type]
        optimizer=optimizer,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        dropout=dropout,
        token_budget=tokens,
        lora_rank=lora_rank,
        lora_targets=lora_targets,  # type: ignore[arg-type]
        document=document,
    )
    if not 0 <= margin < 1:
        raise ValueError(f"margin={margin} must be a share of memory from 0 to below 1")
    place = replace(load_cluster(cluster), memory_margin=margin)
    problem = Problem(load_model(model), workload, place, load_stack(stack))
    check_problem(problem.model, workload, problem.cluster, problem.stack)
    return problem


def price(problem: Problem, plan: str, pricing: Pricing) -> Estimate:
    """What a legal plan costs; ``ValueError`` with rule, value and remedy for an illegal one."""
    from estimator.plan import Plans

    return pricing.estimates(problem, Plans.of([legal_plan(problem, plan)]))[0]


def legal_plan(problem: Problem, plan: str) -> Plan:
    """A plan from its text; ``ValueError`` with rule, value and remedy for an illegal one."""
    from estimator.plan import Plan
    from spaces import check

    parsed = Plan.parse(plan, world=problem.cluster.gpus)
    check(problem.model, problem.workload, problem.cluster, problem.stack, parsed)
    return parsed
