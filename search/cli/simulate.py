"""``trainplan simulate``: one plan on its critical path, with a timeline."""

from __future__ import annotations

from typing import Annotated

import typer

from search.cli import options


def simulate(
    plan: Annotated[
        str, typer.Option("--plan", help="tp=8,pp=4,mbs=1,...; dp is what is left of the GPUs.")
    ],
    model: options.ModelName = options.EXAMPLE_MODEL,
    cluster: options.ClusterName = options.EXAMPLE_CLUSTER,
    global_batch: options.GlobalBatch = options.EXAMPLE_BATCH,
    sequence: options.Sequence = options.EXAMPLE_SEQUENCE,
    precision: options.PrecisionName = "bf16",
    fp8_scaling: options.Fp8ScalingName = "tensor",
    attention: options.AttentionName = "flash",
    optimizer: options.OptimizerName = "adam",
    mode: options.ModeName = "train",
    dropout: options.Dropout = False,
    lora_rank: options.LoraRank = None,
    lora_targets: options.LoraTargetsName = "attention",
    document: options.Document = None,
    margin: options.Margin = options.MARGIN,
    tokens: options.Tokens = None,
    stack: options.StackName = "megatron",
    cost: options.CostName = "analytic",
    timeline: Annotated[
        str | None,
        typer.Option("--timeline", "-o", help="Write a trace for Perfetto here."),
    ] = None,
    detail: Annotated[
        str, typer.Option("--detail", help="stages: a task per pass; ops: a task per operator.")
    ] = "stages",
    slow_rank: Annotated[
        list[str] | None,
        typer.Option("--slow-rank", help="RANK=FACTOR: this rank computes that much longer."),
    ] = None,
    noise: Annotated[
        float, typer.Option("--noise", help="Spread of each computation's time, 0.05 is 5 %.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the noise.")] = 0,
    slowdown: Annotated[
        float,
        typer.Option("--slowdown", help="Of compute beside data-parallel traffic, 0.1 is 10 %."),
    ] = 0.0,
    all_ranks: Annotated[
        bool, typer.Option("--all-ranks", help="Every rank, not one per stage.")
    ] = False,
    json: options.JsonFile = None,
) -> int:
    """Run one step task by task: what waits for what, who idles, memory over time.

    Exit status 1 says that the plan does not fit; the answer is printed all the same.
    """
    if json == timeline == "-":
        raise ValueError("only one of --timeline and --json can be -, standard output")
    problem = options.load_problem(
        model=model,
        cluster=cluster,
        stack=stack,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
        fp8_scaling=fp8_scaling,
        attention=attention,
        optimizer=optimizer,
        mode=mode,
        dropout=dropout,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        document=document,
        margin=margin,
        tokens=tokens,
    )
    from estimator import simulate as engine
    from search import contracts
    from search.objective import limited_by
    from search.report.simulation import simulation_text

    value = engine.simulate(
        problem.model,
        problem.workload,
        problem.cluster,
        options.legal_plan(problem, plan),
        stack=problem.stack,
        cost=cost,
        detail=detail,
        all_ranks=all_ranks,
        noise=noise,
        seed=seed,
        slow_ranks=slow_ranks(slow_rank or []),
        slowdown=slowdown,
    )
    if timeline:
        from estimator.simulate.timeline import trace_json
        from search.files import save

        save(trace_json(value), timeline)
    if json:
        limit = limited_by(value.estimate)
        contracts.write(contracts.simulation(problem, cost, value, limit), json)
    if "-" not in (json, timeline):
        simulation_text(problem, value)
    return 0 if value.estimate.fits else 1


def slow_ranks(items: list[str]) -> dict[int, float]:
    """``RANK=FACTOR`` items as numbers; ``ValueError`` shows how one is written."""
    slow: dict[int, float] = {}
    for item in items:
        rank, separator, factor = item.partition("=")
        try:
            if not separator or int(rank) in slow:
                raise ValueError
            slow[int(rank)] = float(factor)
        except ValueError:
            raise ValueError(
                f"slow-rank={item} must be written rank=factor, each rank once, as in 3=1.2"
            ) from None
    return slow
