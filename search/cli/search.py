"""``trainplan search``: the fastest plans that fit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from search.cli import options

if TYPE_CHECKING:
    from search.objective import Pricing
    from search.strategies import Strategy
    from search.study import Progress, Recommendation
    from spaces import Constraints, Problem, TransformerSpace


def search(
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
    fix: Annotated[
        list[str] | None, typer.Option("--fix", help="field=value that every plan has.")
    ] = None,
    most: Annotated[
        list[str] | None, typer.Option("--max", help="field=value that no plan exceeds.")
    ] = None,
    forbid: Annotated[
        list[str] | None, typer.Option("--forbid", help="field=value that no plan has.")
    ] = None,
    top: Annotated[int, typer.Option("--top", help="How many plans to rank.")] = 10,
    finalists: Annotated[
        int, typer.Option("--finalists", help="How many of the best to simulate and rank by that.")
    ] = 0,
    strategy: Annotated[
        str, typer.Option("--strategy", help="exhaustive, or optuna for samples.")
    ] = "exhaustive",
    trials: Annotated[int, typer.Option("--trials", help="Plans that optuna may try.")] = 400,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the sampler.")] = 0,
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", help="field=value,...: the best plan at each value of a number."),
    ] = None,
    json: options.JsonFile = None,
) -> int:
    """Rank the fastest plans that fit; without options, a 70B model on 64 H100.

    Exit status 1 says that no plan fits.
    """
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
    from search import contracts
    from search.misses import gpus_needed
    from search.objective import Pricing
    from search.report.table import recommendation_text
    from search.rules_of_thumb import baselines
    from spaces import Constraints, TransformerSpace

    constraints = Constraints.parse(fix=fix or (), most=most or (), forbid=forbid or ())
    if sweep is not None:
        if finalists:
            raise ValueError("--finalists goes with one search; leave it out of a --sweep")
        visit = partial(_strategy, strategy, trials=trials, seed=seed)
        return _sweep(problem, sweep, constraints, Pricing(cost=cost), visit, json)
    space = TransformerSpace.build(
        problem.model, problem.workload, problem.cluster, problem.stack, constraints
    )
    pricing = Pricing(cost=cost)
    visit_order = _strategy(strategy, space, trials, seed)
    result = _watched(problem, space, visit_order, pricing, top, finalists)
    rules = baselines(problem, pricing, simulate=finalists > 0) if result.ranked else ()
    if json:
        contracts.write(contracts.recommendation(result, rules), json)
    if json != "-":
        needed = None if result.ranked else gpus_needed(problem, constraints, pricing)
        recommendation_text(result, needed, rules)
    return 0 if result.ranked else 1


def _sweep(
    problem: Problem,
    text: str,
    constraints: Constraints,
    pricing: Pricing,
    strategy: Callable[[TransformerSpace], Strategy | None],
    json: str | None,
) -> int:
    """Search at each value of a field; exit status 1 where nothing fits at any."""
    from search import contracts
    from search.report.sweep import sweep_text
    from search.sweep import Sweep, run_sweep

    asked = Sweep.parse(text)
    swept = run_sweep(problem, asked, constraints=constraints, pricing=pricing, strategy=strategy)
    if json:
        contracts.write(contracts.sweep(swept), json)
    if json != "-":
        sweep_text(swept)
    return 0 if any(point.best for point in swept.points) else 1


def _strategy(name: str, space: TransformerSpace, trials: int, seed: int) -> Strategy | None:
    if name == "exhaustive" or not space.legal:
        return None
    if name == "optuna":
        from search.sampling import OptunaSampling

        return OptunaSampling(space, trials, seed)
    raise ValueError(f"strategy={name} must be exhaustive or optuna")


def _watched(
    problem: Problem,
    space: TransformerSpace,
    strategy: Strategy | None,
    pricing: Pricing,
    top: int,
    finalists: int,
) -> Recommendation:
    """Search, with progress on standard error where that is a terminal."""
    from search.study import recommend

    def run(progress: Progress | None = None) -> Recommendation:
        return recommend(
            problem.model,
            problem.workload,
            problem.cluster,
            stack=problem.stack,
            space=space,
            strategy=strategy,
            pricing=pricing,
            top=top,
            finalists=finalists,
            progress=progress,
        )

    if not sys.stderr.isatty():
        return run()
    from rich.console import Console

    with Console(stderr=True).status("searching") as status:

        def show(looked: int, best: float) -> None:
            found = f"best {best:.3f} s" if best < float("inf") else "none fits yet"
            status.update(f"{looked:,} of {space.legal:,} legal plans, {found}")

        return run(show)
