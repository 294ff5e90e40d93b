"""``trainplan estimate --module``: one pass of the user's own PyTorch module on one device."""

from __future__ import annotations

from typing import Annotated

import typer

ModuleName = Annotated[
    str | None,
    typer.Option(
        "--module",
        help="package:factory, a function that returns a torch.nn.Module, or it and its inputs. "
        "THIS RUNS YOUR CODE (on the meta device: no weights, no GPU). Instead of --plan.",
    ),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input", help="With --module: 8,1024:int64, a shape and dtype for each argument."
    ),
]
OneDevice = Annotated[str, typer.Option("--device", help="With --module: a device by name.")]
Fuse = Annotated[
    bool, typer.Option("--fuse", help="With --module: element-wise chains as torch.compile does.")
]
Tf32 = Annotated[
    bool, typer.Option("--tf32", help="With --module: fp32 matrix products run in TF32.")
]
OWN = ("module", "input", "device", "fuse", "tf32")
"""Options that only a module has."""
SHARED = ("mode", "cost", "json")


def estimate_module(
    context: typer.Context,
    module: str | None,
    *,
    inputs: list[str] | None,
    device: str,
    fuse: bool,
    tf32: bool,
    mode: str,
    cost: str,
    json: str | None,
) -> bool:
    """Price the module if one is named; whether it was."""
    _check_options(context, module)
    if module is None:
        return False
    from estimator.catalog import load_device
    from search import contracts
    from search.module import kernels_of, price_module
    from search.report.module import module_text

    place = load_device(device)
    value = price_module(
        module,
        inputs=inputs or (),
        device=place,
        model=kernels_of(cost, place),
        mode=mode,
        fuse=fuse,
        tf32=tf32,
    )
    if json:
        contracts.write(contracts.module(value), json)
    if json != "-":
        module_text(value)
    return True


def _check_options(context: typer.Context, module: str | None) -> None:
    """``ValueError`` for an option that would be passed over."""
    for parameter in context.command.params:
        name, option = str(parameter.name), parameter.opts[0]
        source = context.get_parameter_source(name)
        if source is None or source.name == "DEFAULT":
            continue
        if module is None and name in OWN:
            raise ValueError(f"{option} needs --module package:factory")
        if module is not None and name not in OWN + SHARED:
            raise ValueError(f"{option} is for plans of a --model; leave it out with --module")
