"""Fit the shipped stacks to published runs, and write what was fitted into their files.

Run as ``python tests/bench/calibrate_stacks.py RUNS.csv [--write]``. Each stack starts from its
file without the block ``calibrated``, which ``--write`` replaces. Rows of role ``fit`` alone are
read. A fit is kept where it lowers the median error of runs that it did not see: of parts left out
in turn, and of whole sources or, in one source of three devices or more, of whole devices.
Elsewhere the numbers stay as they are, and only the interval is measured. One source cannot show
how sources differ: errors before its fit count for the interval beside those of runs left out.
"""

from __future__ import annotations

import argparse
import datetime
from dataclasses import replace
from pathlib import Path
from statistics import median

from estimator import catalog
from estimator.catalog import load_stack, stack_yaml
from estimator.catalog.loader import names
from estimator.runs import Run, read_runs
from estimator.stack import Stack
from search.accuracy import configurations, selected
from search.calibrated_stack import conformal, rounded
from search.calibration import Calibrated, calibrate
from search.scalars import scalars_of
from search.validate import mapped_rows, score

STACKS = Path(catalog.__file__).parent / "stacks"
HEADING = "\n# Fitted to published runs by tests/bench/calibrate_stacks.py.\ncalibrated:\n"
ALWAYS = ("uncertainty", "calibration")


def fitted(name: str, runs: list[Run], today: datetime.date) -> Calibrated | None:
    """The stack fitted, or only measured where a fit does not help; ``None`` without runs."""
    base = load_stack(name, calibrated=False)

    def fit(interval_only: bool) -> Calibrated:
        return calibrate(
            runs,
            stack=base,
            role="fit",
            only=[f"stack={name}"],
            name=name,
            today=today,
            interval_only=interval_only,
        )

    try:
        found = fit(interval_only=False)
    except ValueError as error:
        print(f"{name}: {error}")
        return None
    if not (found.helps and helps_elsewhere(found, name, base, runs)):
        return fit(interval_only=True)
    return found if found.left_out is not None else wider(found)


def helps_elsewhere(found: Calibrated, name: str, base: Stack, runs: list[Run]) -> bool:
    """Whether the median error falls on sources, or devices, that a fit did not see."""
    if found.left_out is not None:
        return found.left_out.median < found.before.median
    rows = selected(mapped_rows(runs, role="fit"), [f"stack={name}"])
    by_device: dict[str, list[Run]] = {}
    for row in rows:
        if row.mapped is not None and row.seconds is not None:
            by_device.setdefault(row.mapped.cluster.device.name, []).append(row.run)
    if len(by_device) < 3:
        return True
    errors = []
    for device, own in by_device.items():
        others = [run for other, group in by_device.items() if other != device for run in group]
        there = calibrate(others, stack=base, name=name).stack
        errors += [abs(one.error) for one in configurations(score(own, stack=there))]
    print(f"{name}: devices left out {100 * median(errors):.1f} %")
    return median(errors) < found.before.median


def wider(found: Calibrated) -> Calibrated:
    """The same with an interval over errors before the fit as well."""
    seen = [one for one in found.runs if one.crossed is not None]
    errors = [
        (error / one.factor, one.configuration.rows[0].mapped.model.name)
        for one in seen
        for error in (one.before, one.crossed)
        if error is not None
    ]
    sizes, models = zip(*errors, strict=True)
    width = rounded(conformal(sizes, models, found.stack.uncertainty))
    return replace(found, stack=replace(found.stack, uncertainty=width))


def block(found: Calibrated) -> str:
    """The fields that the fit moved, the interval, and what it rests on, as YAML."""
    moved = {
        field
        for scalar, one in zip(scalars_of(found.base, found.cost), found.scalars, strict=True)
        for field in scalar.fields
        if one.value != one.before
    }
    whole = stack_yaml(found.stack).split("\n")
    lines: list[str] = []
    keep = False
    for line in whole:
        if line[:1] not in (" ", "-", ""):
            keep = line.split(":")[0] in {*moved, *ALWAYS}
        if keep and line:
            lines.append(f"  {line}")
    return HEADING + "\n".join(lines) + "\n"


def report(found: Calibrated) -> str:
    """One line: errors before, after, left out, and the half width of the interval."""
    moved = [f"{one.name} {one.value:g}" for one in found.scalars if one.value != one.before]
    parts = [f"before {100 * found.before.median:.1f} / {100 * found.before.mean:.1f}"]
    for title, errors in (("left out", found.crossed), ("source left out", found.left_out)):
        if errors is not None:
            parts.append(f"{title} {100 * errors.median:.1f} / {100 * errors.mean:.1f}")
    parts.append(f"+-{100 * found.stack.uncertainty:.1f} %")
    return (
        f"{found.stack.name:20s} {len(found.runs):4d} runs  {', '.join(parts)}; "
        f"moved: {', '.join(moved) or 'nothing'}"
    )


def main() -> None:
    """Fit every stack; with ``--write``, into its file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--date", type=datetime.date.fromisoformat, default=datetime.date.today())
    arguments = parser.parse_args()
    runs = read_runs(arguments.runs).runs
    stacks: list[Stack] = []
    for name in names("stacks"):
        found = fitted(name, runs, arguments.date)
        path = STACKS / f"{name}.yaml"
        text = path.read_text(encoding="utf-8").split(HEADING)[0]
        if found is not None:
            print(report(found), flush=True)
            stacks.append(found.stack)
            text += block(found)
        if arguments.write:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
