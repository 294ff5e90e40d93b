"""One suite that every strategy passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from estimator.plan import NAMES, Plans
from search.objective import score
from search.sampling import OptunaSampling
from search.strategies import Exhaustive, Strategy
from search.study import Recommendation, recommend
from spaces import Constraints, TransformerSpace
from tests.search.fakes import PRICING, problem, small, space

MAKERS: dict[str, Callable[[TransformerSpace], Strategy]] = {
    "exhaustive": Exhaustive,
    "optuna": lambda of: OptunaSampling(of, trials=300, seed=3),
}


@pytest.fixture(scope="module")
def tiny() -> TransformerSpace:
    asked = Constraints.parse(
        fix=["cp=1", "sp=false", "order=tp-cp-ep-dp-pp"], most=["mbs=2", "interleave=2", "tp=8"]
    )
    return space(problem(), asked)


def search(of: TransformerSpace, strategy: Strategy) -> Recommendation:
    p = of.problem
    return recommend(
        p.model, p.workload, p.cluster, stack=p.stack, space=of, strategy=strategy, pricing=PRICING
    )


def proposals(of: TransformerSpace, strategy: Strategy) -> list[Plans]:
    seen = []
    while (plans := strategy.propose()) is not None:
        seen.append(plans)
        strategy.feedback(plans, score(of.problem, plans, PRICING))
    return seen


@pytest.mark.parametrize("name", MAKERS)
def test_it_finds_the_best_plan_of_a_small_space(name: str, tiny: TransformerSpace) -> None:
    exact = search(tiny, Exhaustive(tiny)).ranked[0].estimate
    found = search(tiny, MAKERS[name](tiny)).ranked[0].estimate
    assert found.step_seconds == exact.step_seconds
    assert found.plan == exact.plan


@pytest.mark.parametrize("name", MAKERS)
def test_it_proposes_legal_plans_and_none_twice(name: str, tiny: TransformerSpace) -> None:
    plans = Plans.concat(proposals(tiny, MAKERS[name](tiny)))
    points = tiny.encode(plans)
    assert tiny.contains(points).all()
    assert len(np.unique(points)) == len(points)


@pytest.mark.parametrize("name", MAKERS)
def test_it_is_deterministic(name: str, tiny: TransformerSpace) -> None:
    one, other = (proposals(tiny, MAKERS[name](tiny)) for _ in range(2))
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert all(np.array_equal(getattr(a, n), getattr(b, n)) for n in NAMES)


def test_sampling_keeps_to_its_trials_and_its_seed() -> None:
    of = small()
    runs = [proposals(of, OptunaSampling(of, trials=40, seed=seed)) for seed in (0, 1)]
    assert all(sum(len(plans) for plans in run) <= 40 for run in runs)
    assert of.encode(runs[0][0]).tolist() != of.encode(runs[1][0]).tolist()
    with pytest.raises(ValueError, match="trials=0 must be at least 1"):
        OptunaSampling(of, trials=0)


def test_sampling_reports_what_it_looked_at() -> None:
    of = small()
    result = search(of, OptunaSampling(of, trials=60, seed=0))
    assert result.fitting <= result.evaluated <= 60 < result.legal
    assert result.legal == of.legal


def test_sampling_beats_chance_on_a_larger_space() -> None:
    of = space(problem(64, 128))
    exact = search(of, Exhaustive(of)).ranked[0].estimate.step_seconds
    found = [
        search(of, OptunaSampling(of, trials=200, seed=seed)).ranked[0].estimate.step_seconds
        for seed in range(2)
    ]
    chance = []
    for seed in range(2):
        scores = score(of.problem, of.sample(200, seed), PRICING)
        chance.append(float(scores.seconds.min()))
    assert np.mean(found) <= np.mean(chance)
    assert np.mean(found) <= 1.05 * exact


def test_every_trial_tells_by_how_many_bytes_its_plan_misses(tiny: TransformerSpace) -> None:
    strategy = OptunaSampling(tiny, trials=64, seed=0)
    proposals(tiny, strategy)
    trials = strategy.study.trials
    excess = np.array([trial.constraints["memory"] for trial in trials])
    seconds = np.array([trial.value for trial in trials])
    assert len(trials) == 64 and (excess > 0).any() and (excess <= 0).any()
    assert np.array_equal(seconds == 1e9, excess > 0)
