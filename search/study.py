"""From a problem to a recommendation: visit the space, keep the best, say why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from estimator.cluster import Cluster
from estimator.estimate import Estimate, FloatArray
from estimator.intervals import PAIR
from estimator.model import Transformer
from estimator.plan import Plans
from estimator.stack import Stack
from estimator.workload import Workload
from search.finalists import MOST_FINALISTS, simulated
from search.misses import Miss, nearest_misses
from search.objective import Pricing, Scores, limited_by, score
from search.pareto import best, closest, front, ties
from search.strategies import Exhaustive, Strategy
from search.versions import versions
from spaces import Problem, TransformerSpace

MISSES = 5
Progress = Callable[[int, float], None]
"""Called with plans looked at so far and the best step time (infinite while nothing fits)."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """One recommended plan."""

    rank: int
    tie_group: int
    """Plans of one group are within the model's error of their leader."""
    estimate: Estimate
    limited_by: str
    closed_form_seconds: float
    """Of a step; what was ranked before finalists were simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The answer of a search; ``ranked`` is empty where nothing fits."""

    problem: Problem
    cost: str
    considered: int
    """Points of the raw grid."""
    legal: int
    evaluated: int
    """Legal plans looked at: all of them, unless a sampling strategy chose."""
    fitting: int
    """Of those, the ones within the device's memory."""
    left_out: dict[str, int]
    ranked: tuple[Ranked, ...]
    front: tuple[Ranked, ...]
    """Plans that no other beats in both time and memory, fastest first."""
    nearest_misses: tuple[Miss, ...]
    fidelity: str = "closed form"
    """Of the leaders of ``ranked``: ``simulated`` where a number of finalists was asked for."""
    versions: dict[str, str] = field(default_factory=versions)


@dataclass(slots=True)
class _Kept:
    """The best plans so far by one criterion; holds no more than it needs."""

    choose: Callable[[Plans, FloatArray, FloatArray], np.ndarray]
    plans: Plans | None = None
    seconds: FloatArray = field(default_factory=lambda: np.zeros(0))
    peak: FloatArray = field(default_factory=lambda: np.zeros(0))

    def add(self, plans: Plans, seconds: FloatArray, peak: FloatArray) -> None:
        """Merge the chosen of a block with those kept."""
        few = self.choose(plans, seconds, peak)
        new, seconds, peak = plans[few], seconds[few], peak[few]
        if self.plans is not None:
            new = Plans.concat([self.plans, new])
            seconds = np.concatenate([self.seconds, seconds])
            peak = np.concatenate([self.peak, peak])
            few = self.choose(new, seconds, peak)
            new, seconds, peak = new[few], seconds[few], peak[few]
        self.plans, self.seconds, self.peak = new, seconds, peak


def recommend(
    model: Transformer,
    workload: Workload,
    cluster: Cluster,
    *,
    stack: Stack,
    space: TransformerSpace | None = None,
    strategy: Strategy | None = None,
    cost: str = "analytic",
    pricing: Pricing | None = None,
    top: int = 10,
    finalists: int = 0,
    progress: Progress | None = None,
) -> Recommendation:
    """Rank the fastest plans that fit.

    Args:
        model: What is trained.
        workload: Global batch, sequence, precision and so on.
        cluster: Where.
        stack: The framework that will run it.
        space: Legal plans; by default all of the problem, without constraints.
        strategy: In which order they are visited; by default every one.
        cost: Name of the cost model.
        pricing: Where costs come from, instead of a cost model by name.
        top: How many plans to rank.
        finalists: How many of the best to simulate, as far as they are within the model's error of
            the best, and to rank by that; see :mod:`search.finalists`.
        progress: Told how far the search is.

    Raises:
        ValueError: one line, where the problem admits no legal plan or ``finalists`` is not from 0
            to 64.
    """
    if top < 1:
        raise ValueError(f"top={top} must be at least 1")
    if not 0 <= finalists <= MOST_FINALISTS:
        raise ValueError(f"finalists={finalists} must lie from 0 to {MOST_FINALISTS}")
    space = space or TransformerSpace.build(model, workload, cluster, stack)
    pricing = pricing or Pricing(cost=cost)
    problem = space.problem
    if not space.legal:
        raise ValueError(space.why_empty())
    strategy = strategy or Exhaustive(space)
    kept_leaders = max(top, finalists)
    leaders = _Kept(lambda plans, seconds, peak: best(plans, seconds, peak, kept_leaders))
    frontier = _Kept(front)
    misses = _Kept(lambda plans, seconds, peak: closest(plans, peak, MISSES))
    evaluated = fitting = 0
    while (plans := strategy.propose()) is not None:
        scores = score(problem, plans, pricing)
        strategy.feedback(plans, scores)
        fits = scores.excess_bytes <= 0
        evaluated += len(plans)
        fitting += int(fits.sum())
        for kept, rows in ((leaders, fits), (frontier, fits), (misses, ~fits)):
            _add(kept, plans, scores, rows)
        if progress:
            progress(evaluated, float(leaders.seconds[0]) if fitting else np.inf)
    return Recommendation(
        problem=problem,
        cost=pricing.cost,
        considered=space.considered,
        legal=space.legal,
        evaluated=evaluated,
        fitting=fitting,
        left_out=space.left_out,
        ranked=_rows(problem, leaders.plans, pricing, finalists)[:top],
        front=_rows(problem, frontier.plans, pricing),
        nearest_misses=nearest_misses(space, misses.plans, pricing),
        fidelity="simulated" if finalists else "closed form",
    )


def _add(kept: _Kept, plans: Plans, scores: Scores, rows: np.ndarray) -> None:
    if rows.any():
        kept.add(plans[rows], scores.seconds[rows], scores.peak_bytes[rows])


def _rows(
    problem: Problem, plans: Plans | None, pricing: Pricing, finalists: int = 0
) -> tuple[Ranked, ...]:
    if plans is None:
        return ()
    priced = pricing.estimates(problem, plans)
    rows = [priced[row] for row in range(len(plans))]
    closed = {row.plan: row.step_seconds for row in rows}
    if finalists:
        rows = simulated(problem, rows, pricing.cost, finalists)
    half_width = rows[0].high_seconds / rows[0].step_seconds - 1
    groups = ties(np.array([row.step_seconds for row in rows]), min(PAIR, half_width))
    return tuple(
        Ranked(place + 1, int(groups[place]), row, limited_by(row), closed[row.plan])
        for place, row in enumerate(rows)
    )
