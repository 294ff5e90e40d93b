"""Plans per second on one core, beside Calculon on the same plans.

Run as ``python tests/bench/plans_per_second.py --calculon DIR [--plans N] [--profile]``. ``DIR``
is a checkout of Calculon (Isaev et al. 2023, doi 10.1145/3581784.3607102); without it this project
is timed alone, on plans that Calculon has not checked.

The list holds every plan of two problems that both tools can express, that is legal for both and
that Calculon runs without an error (so that it also fits, in Calculon's eyes). No plan is in it
twice. Both sides give all parts of time and memory and their totals. Rates are plans per CPU second
of this process, single-threaded and bound to one core: other work on the machine disturbs CPU
seconds least.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import cProfile
import pstats
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from beside_calculon import NODE, SYSTEM, Calculon, Run
from numpy.typing import NDArray
from plan_list import Problem, Row, candidates, problems
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from estimator import Plans, Stack, estimate
from estimator.catalog import load_stack

BLOCK = 32768
ROUNDS = 5
CALCULON_SECONDS = 5.0

Answers = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Step seconds and peak bytes, each of shape (P,)."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One line of the table; ``seconds`` are of the CPU."""

    who: str
    setting: str
    plans: int
    seconds: float
    wall_seconds: float

    @property
    def rate(self) -> float:
        """Plans per CPU second."""
        return self.plans / self.seconds


def timed(who: str, setting: str, work: Callable[[], int]) -> Timing:
    """Time ``work``, which says how many plans it has evaluated."""
    begin, wall = time.process_time(), time.perf_counter()
    plans = work()
    seconds, wall_seconds = time.process_time() - begin, time.perf_counter() - wall
    return Timing(who=who, setting=setting, plans=plans, seconds=seconds, wall_seconds=wall_seconds)


def best_timings(works: Sequence[tuple[str, str, Callable[[], int]]]) -> list[Timing]:
    """The best rate of each over rounds in which all take turns, so that all share quiet times."""
    rounds = [[timed(*work) for work in works] for _ in range(ROUNDS)]
    return [max(line, key=lambda timing: timing.rate) for line in zip(*rounds, strict=True)]


def calculon_work(run: Run, sample: list[Row]) -> int:
    """As many plans of the sample as Calculon evaluates in ``CALCULON_SECONDS``."""
    begin = time.process_time()
    for count, row in enumerate(sample, start=1):
        run(row.problem, row.words)
        if time.process_time() - begin >= CALCULON_SECONDS:
            return count
    return len(sample)


def evaluate(jobs: Sequence[Problem], lists: Sequence[Plans], stack: Stack) -> list[Answers]:
    """All parts of every plan, block by block, and the totals that Calculon also gives."""
    answers = []
    for one, plans in zip(jobs, lists, strict=True):
        for start in range(0, len(plans), BLOCK):
            block = plans[start : start + BLOCK]
            found = estimate(one.model, one.workload, one.cluster, block, stack=stack)
            assert all(map(len, (found.fits, found.tokens_per_second, found.mfu)))
            answers.append((found.step_seconds, found.peak_bytes))
    return answers


def print_table(timings: list[Timing]) -> None:
    """Rates, and how many times as fast each line is as each setting of Calculon."""
    others = [timing for timing in timings if timing.who == "Calculon"]
    heads = "".join(f"{'x ' + other.setting:>21}" for other in others)
    print(
        f"\n{'who':<10}{'setting':<19}{'plans':>8}{'CPU s':>8}{'wall s':>8}{'plans/s':>10}{heads}"
    )
    for line in timings:
        ratios = "".join(f"{line.rate / other.rate:>21,.1f}" for other in others)
        print(
            f"{line.who:<10}{line.setting:<19}{line.plans:>8,}{line.seconds:>8.3f}"
            f"{line.wall_seconds:>8.3f}{line.rate:>10,.0f}{ratios}"
        )


def print_agreement(name: str, ours: Answers, theirs: Answers, within_node: Mask) -> None:
    """How far two predictions of the same plans lie apart.

    Calculon prices a tensor-parallel group of several nodes on the slower tier alone, where ours
    has a hierarchy; hence two lines.
    """
    for where, some in (("in", within_node), ("across", ~within_node)):
        for what, one, other in zip(("seconds", "bytes"), ours, theirs, strict=True):
            low, middle, high = np.quantile(one[some] / other[some], (0.05, 0.5, 0.95))
            rank = spearmanr(one[some], other[some]).statistic
            print(
                f"{name:<13}{f'tp {where} nodes':<17}{some.sum():>7,} plans {what:<8}"
                f"ratio {middle:.2f} ({low:.2f} to {high:.2f}), rank correlation {rank:.3f}"
            )


def runnable(calculon: Calculon, rows: list[Row]) -> tuple[list[Row], list[tuple[float, float]]]:
    """The rows that Calculon can run, and its seconds and bytes for each."""
    fastest = calculon.fastest()
    pairs = [(row, calculon.answer(fastest, row.problem, row.words)) for row in rows]
    return [row for row, answer in pairs if answer], [answer for _, answer in pairs if answer]


def calculon_works(calculon: Calculon, rows: list[Row]) -> list[tuple[str, str, Callable[[], int]]]:
    """Each setting on the same plans in the same random order, after a check of equal answers."""
    sample = random.Random(0).sample(rows, len(rows))
    settings = calculon.settings()
    for row in sample[:20]:
        first, *rest = (run(row.problem, row.words) for run in settings.values())
        assert all(other == first for other in rest), "a setting changed an answer"
    return [
        ("Calculon", name, partial(calculon_work, run, sample)) for name, run in settings.items()
    ]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Plans per second on one core.")
    parser.add_argument("--calculon", type=Path, help="checkout of Calculon to time as well")
    parser.add_argument("--plans", type=int, help="length of a random part of the list to take")
    parser.add_argument("--profile", action="store_true", help="also print where our time goes")
    asked = parser.parse_args()
    if asked.plans is not None and asked.plans < 1000:
        parser.error(f"plans={asked.plans} must be at least 1000 for a rate that means something")
    if asked.calculon and not (asked.calculon / SYSTEM).is_file():
        parser.error(f"calculon={asked.calculon} has no {SYSTEM}; name a checkout of Calculon")
    return asked


def legal_rows(jobs: list[Problem], limit: int | None) -> list[Row]:
    """Every candidate of every problem, or as many of them drawn at random."""
    rows = [
        Row(problem=index, plan=plan, words=words)
        for index, one in enumerate(jobs)
        for plan, words in candidates(one)
    ]
    print(f"{len(rows):,} distinct plans are legal in both tools' terms")
    if limit is None or limit >= len(rows):
        return rows
    print(f"{limit:,} of them taken at random")
    chosen = random.Random(1).sample(range(len(rows)), limit)
    return [rows[index] for index in sorted(chosen)]


def main() -> None:
    """Build the list, time both sides on it, print the table and how far the answers agree."""
    asked = arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    jobs, stack = problems(), load_stack("megatron")
    rows, theirs, works = legal_rows(jobs, asked.plans), np.empty((0, 2)), []
    if asked.calculon:
        calculon = Calculon(asked.calculon, [one.calculon_model for one in jobs])
        rows, found = runnable(calculon, rows)
        theirs, works = np.array(found), calculon_works(calculon, rows)
        print(f"{len(rows):,} of them run in Calculon's eyes: the list")
    else:
        print("no --calculon: trainplan is timed alone, on plans that Calculon has not checked")
    which = np.array([row.problem for row in rows])
    plans = Plans.of(row.plan for row in rows)
    lists = [plans[which == index] for index in range(len(jobs))]

    def ours() -> int:
        return sum(len(seconds) for seconds, _ in evaluate(jobs, lists, stack))

    first = timed("trainplan", "first pass", ours)
    print_table([first, *best_timings([*works, ("trainplan", "warm", ours)])])
    if asked.calculon:
        for index, one in enumerate(jobs):
            answers = evaluate([one], [lists[index]], stack)
            seconds, size = (np.concatenate(column) for column in zip(*answers, strict=True))
            mine, within_node = theirs[which == index], lists[index].tp <= NODE
            print_agreement(one.model.name, (seconds, size), (mine[:, 0], mine[:, 1]), within_node)
    if asked.profile:
        with cProfile.Profile() as profile:
            ours()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
