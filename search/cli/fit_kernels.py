"""``trainplan fit kernels``: parameters of kernel models from measured operators."""

from __future__ import annotations

from typing import Annotated

import typer


def kernels(
    samples: Annotated[
        list[str],
        typer.Argument(
            metavar="SAMPLES...",
            help="CSV or Parquet files of measured operators: columns kind, dtype, device, sizes "
            "and one of seconds, milliseconds, microseconds; or a published layout (NeuSight, "
            "estimate-train-time, aiconfigurator, SimuMax).",
        ),
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the fitted parameters here (.npz).")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--form",
            help="regression (any operator, by device), surfaces (products and attention, also "
            "for devices without samples) or tiles (fp32, any device).",
        ),
    ] = "regression",
    hold_out: Annotated[
        list[str] | None,
        typer.Option("--hold-out-device", help="Leave this device's samples out; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Same samples and seed, same file.")] = 0,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate",
            help="Errors on shapes, on the largest shapes and on devices that were left out.",
        ),
    ] = False,
) -> int:
    """Fit a model of kernels to measured operators.

    All forms learn an efficiency over a roofline, never raw time. Every command prices plans by
    what was fitted with --cost FILE.
    """
    from estimator.catalog import load_device
    from estimator.samples import load_samples, pooled
    from search import kernels as fitting
    from search.files import save_all
    from search.report.fit_kernels import evaluation_text, fit_text

    if not output and not evaluate:
        raise ValueError("nothing to do: name a file with --output, or ask for --evaluate")
    if output and not output.endswith(".npz"):
        raise ValueError(f"--output {output} must end in .npz")
    held = tuple(hold_out or ())
    for name in held:
        load_device(name)
    measured = pooled([load_samples(path) for path in samples])
    strangers = sorted(set(held) - set(measured.device.tolist()))
    if strangers:
        known = ", ".join(sorted(set(measured.device.tolist())))
        raise ValueError(f"--hold-out-device {strangers[0]} has no samples; they are of {known}")
    if output:
        model = fitting.fitter(form, hold_out=held, seed=seed)(measured)
        save_all({output: model.npz()})
        fit_text(measured, form, output, held)
    if evaluate:
        fit = fitting.fitter(form, seed=seed)
        kept = measured.take(~fitting.of_devices(measured, held))
        evaluation_text(fitting.evaluate(kept, fit, seed=seed))
    return 0
