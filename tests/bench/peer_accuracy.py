"""Errors of predicted step times beside two peers: Calculon, and one efficiency per group.

Run as ``python tests/bench/peer_accuracy.py RUNS.csv --calculon DIR [--role test]``. The rows are
those that ``trainplan validate`` scores on time, equal configurations counted once by their
median. ``DIR`` is a checkout of Calculon (github.com/calculon-ai/calculon, Apache-2.0), which also
needs pandas and psutil.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from peer_baseline import LEVELS, Baseline, Rate, full_flops, rate
from peer_calculon import Answer, Peer

from estimator.assumptions import UnmappedError
from estimator.mapping import map_run
from estimator.runs import read_runs
from search.accuracy import Configuration, configurations
from search.validate import Scored, score

PRINTED = "derived_model_tflops_fullattn"
"""Optional column: TFLOP/s per GPU of the model, scores not halved, no recompute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measured configuration and the signed relative errors of the three."""

    configuration: Configuration
    ours: float
    baseline: float
    calculon: Answer | tuple[str, ...]

    @property
    def source(self) -> str:
        """Who published it."""
        return self.configuration.rows[0].run.source_id or "unnamed"

    @property
    def theirs(self) -> float:
        """Calculon's error."""
        assert isinstance(self.calculon, Answer)
        return self.calculon.seconds / self.configuration.seconds - 1


def measured_rate(one: Scored, seconds: float) -> Rate:
    """The rate of a mapped row at a measured time."""
    assert one.mapped is not None
    achieved = full_flops(one.mapped) / (seconds * one.mapped.cluster.gpus)
    return rate(one.run, one.mapped, achieved)


def rates(rows: Iterable[Scored]) -> list[Rate]:
    """Rates of the rows with a measured and a predicted time."""
    return [
        measured_rate(row, row.seconds)
        for row in rows
        if row.error is not None and row.seconds is not None
    ]


def compare(rows: Sequence[Scored], baseline: Baseline, peer: Peer) -> list[Compared]:
    """Every mapped configuration, by all three."""
    found = []
    for one in configurations(rows):
        first = one.rows[0]
        assert first.mapped is not None
        found.append(
            Compared(
                configuration=one,
                ours=one.error,
                baseline=baseline.over_measured(measured_rate(first, one.seconds)) - 1,
                calculon=peer.ask(first.mapped),
            )
        )
    return found


def summary(errors: Iterable[float]) -> str:
    """Median, mean and 90th percentile of the size, and the mean of the signed error; percent."""
    signed = 100 * np.array(list(errors))
    if not len(signed):
        return "-"
    size = np.abs(signed)
    return (
        f"{np.median(size):.1f} / {size.mean():.1f} / {np.quantile(size, 0.9):.1f} / "
        f"{signed.mean():+.1f}"
    )


def noise(compared: Sequence[Compared]) -> str:
    """Median spread of configurations that were measured more than once, percent."""
    spreads = [one.configuration.noise for one in compared]
    known = [spread for spread in spreads if spread is not None]
    return f"{100 * float(np.median(known)):.1f}" if known else "-"


def table(title: str, rows: Sequence[Scored], compared: Sequence[Compared], three: bool) -> None:
    """Errors by source and overall; ``three`` shows Calculon, who must have answered."""
    print(f"\n{title}\n")
    print("| source | rows | of these | n | noise | ours | baseline |" + " Calculon |" * three)
    print("|---|--:|--:|--:|--:|--:|--:|" + "--:|" * three)
    timed = Counter(row.run.source_id or "unnamed" for row in rows if row.seconds is not None)
    for source in [*sorted(timed), None]:
        chosen = [one for one in compared if source in (None, one.source)]
        total = timed.total() if source is None else timed[source]
        share = sum(len(one.configuration.rows) for one in chosen) / total
        cells = [
            source or "**all**",
            f"{total}",
            f"{share:.0%}",
            f"{len(chosen)}",
            noise(chosen),
            summary(one.ours for one in chosen),
            summary(one.baseline for one in chosen),
        ]
        if three:
            cells.append(summary(one.theirs for one in chosen))
        if chosen or not three:
            print("| " + " | ".join(cells) + " |")


def counts(title: str, names: Iterable[str]) -> None:
    """How often each name came, most frequent first."""
    print(f"\n{title}\n")
    for name, count in Counter(names).most_common():
        print(f"- {count}: {name}")


def calculon_tables(rows: Sequence[Scored], compared: Sequence[Compared]) -> None:
    """Where Calculon has an answer, and why it has none elsewhere."""
    answered = [(one, one.calculon) for one in compared if isinstance(one.calculon, Answer)]
    answers = [answer for _, answer in answered]
    kinds: dict[str, Callable[[Answer], bool]] = {
        "all that Calculon can express": lambda answer: True,
        "exactly": lambda answer: not answer.approximated,
        "approximately": lambda answer: bool(answer.approximated),
    }
    for kind, belongs in kinds.items():
        chosen = [one for one, answer in answered if belongs(answer)]
        table(f"Configurations of all three: {kind}", rows, chosen, three=True)
    own = (answer.seconds_own_network / one.configuration.seconds - 1 for one, answer in answered)
    print(f"\nCalculon with each run's network rate for its shipped one: {summary(own)}")
    refused = sum(not answer.fits for answer in answers)
    print(f"Calculon would refuse for memory: {refused} of {len(answers)}")
    counts(
        f"The {len(answers)} with an answer: approximated (one may count several times)",
        (name for answer in answers for name in answer.approximated),
    )
    counts(
        f"The other {len(compared) - len(answers)}: what Calculon has no words for (likewise)",
        (
            reason
            for one in compared
            if not isinstance(one.calculon, Answer)
            for reason in one.calculon
        ),
    )


def printed_rates(path: Path, rows: Sequence[Scored]) -> list[tuple[Scored, Rate]]:
    """Of all rows of the file, those to be scored on time with a printed FLOP count.

    A run that is only mapped without its experts or its offload still tells GPU and precision.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        column = [cells.get(PRINTED) for cells in csv.DictReader(file)]
    found = []
    for row, printed in zip(rows, column, strict=True):
        if row.seconds is None or not printed:
            continue
        bare = row.run.model_copy(update={"moe_experts": None, "offload": None})
        try:
            mapped = row.mapped or map_run(bare)
        except UnmappedError:
            continue
        found.append((row, rate(row.run, mapped, float(printed) * 1e12)))
    return found


def printed_table(path: Path, rows: Sequence[Scored], role: str) -> None:
    """The baseline fitted and scored on the printed counts, row by row."""
    every = printed_rates(path, rows)
    baseline = Baseline(one for row, one in every if row.run.role == "fit")
    scored = [(row, one) for row, one in every if row.run.role == role]
    if not baseline.efficiency or not scored:
        return
    errors = [baseline.over_measured(one) - 1 for _, one in scored]
    both = [(row.error, error) for (row, _), error in zip(scored, errors, strict=True)]
    mapped = [(ours, error) for ours, error in both if ours is not None]
    print(f"\nRows whose file gives {PRINTED}; that count, each row once\n")
    print("| rows | n | ours | baseline |\n|---|--:|--:|--:|")
    print(f"| all, mixtures of experts included | {len(both)} | - | {summary(errors)} |")
    ours = summary(error for error, _ in mapped)
    theirs = summary(error for _, error in mapped)
    print(f"| mapped by this project | {len(mapped)} | {ours} | {theirs} |")
    counts(
        "Rows by the group whose efficiency they got",
        (LEVELS[baseline.level(one)] for _, one in scored),
    )


def main() -> None:
    """Print the tables of one role."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--calculon", type=Path, required=True, metavar="DIR")
    parser.add_argument("--role", default="test", choices=("fit", "test"))
    arguments = parser.parse_args()
    try:
        rows = score(read_runs(arguments.runs).runs)
    except ValueError as error:
        parser.error(str(error))
    baseline = Baseline(rates(row for row in rows if row.run.role == "fit"))
    if not baseline.efficiency:
        parser.error(f"{arguments.runs} has no row of role fit to take the baseline from")
    chosen = [row for row in rows if row.run.role == arguments.role]
    compared = compare(chosen, baseline, Peer(arguments.calculon))
    print("Errors in percent: median / mean / p90 of the size / bias (mean, signed).")
    print("n counts configurations; `of these` is the share of the rows they were measured in.")
    if arguments.role == "fit":
        print("On role fit, ours and the baseline are in-sample.")
    table("All configurations that this project maps", chosen, compared, three=False)
    counts(
        "Baseline: rows by the group whose efficiency they got",
        (LEVELS[baseline.level(one)] for one in rates(chosen)),
    )
    calculon_tables(chosen, compared)
    printed_table(arguments.runs, rows, arguments.role)


if __name__ == "__main__":
    main()
