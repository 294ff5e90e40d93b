"""``trainplan explain``: a plan in words, or two compared part by part."""

from __future__ import annotations

from typing import Annotated

import typer

from search.cli import options


def explain(
    plan: Annotated[
        list[str], typer.Option("--plan", help="tp=8,pp=4,mbs=1,...; give two to compare them.")
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
    json: options.JsonFile = None,
) -> int:
    """Say in words what a plan does and what it costs; compare two plans part by part.

    Exit status 1 says that a plan does not fit.
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
    if len(plan) > 2:
        raise ValueError(f"{len(plan)} plans given; explain takes one, or two to compare")
    from search import contracts
    from search.objective import Pricing, limited_by
    from search.report.parts import comparison_text
    from search.report.words import explanation_text

    pricing = Pricing(cost=cost)
    values = [options.price(problem, text, pricing) for text in plan]
    if json:
        documents = [contracts.estimate(problem, cost, v, limited_by(v)) for v in values]
        contracts.write(contracts.explanation(documents), json)
    if json != "-":
        if len(values) == 2:
            comparison_text(problem, values[0], values[1])
        else:
            explanation_text(problem, values[0])
    return 0 if all(value.fits for value in values) else 1
