"""``trainplan estimate``: what one plan costs, or one pass of a PyTorch module."""

from __future__ import annotations

from typing import Annotated

import typer

from search.cli import options
from search.cli.module import Fuse, InputShapes, ModuleName, OneDevice, Tf32, estimate_module


def estimate(
    context: typer.Context,
    plan: Annotated[
        str | None,
        typer.Option("--plan", help="tp=8,pp=4,mbs=1,...; dp is what is left of the GPUs."),
    ] = None,
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
    module: ModuleName = None,
    input: InputShapes = None,
    device: OneDevice = "h100-sxm",
    fuse: Fuse = False,
    tf32: Tf32 = False,
) -> int:
    """Price one plan: seconds and bytes, part by part; or, with --module, one PyTorch module.

    Exit status 1 says that the plan does not fit; the answer is printed all the same.
    """
    if estimate_module(
        context,
        module,
        inputs=input,
        device=device,
        fuse=fuse,
        tf32=tf32,
        mode=mode,
        cost=cost,
        json=json,
    ):
        return 0
    if plan is None:
        raise ValueError("no plan: add --plan tp=8,pp=4,... (or --module package:factory)")
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
    from search.objective import Pricing, limited_by
    from search.report.parts import estimate_text

    pricing = Pricing(cost=cost)
    value = options.price(problem, plan, pricing)
    if json:
        contracts.write(contracts.estimate(problem, cost, value, limited_by(value)), json)
    if json != "-":
        estimate_text(problem, value)
    return 0 if value.fits else 1
