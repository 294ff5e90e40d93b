"""Laws of a calibration: known scalars come back, few runs move little, faults are no fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.catalog import load_stack, stack_yaml
from estimator.compose import estimate
from estimator.stack import Stack
from search import calibrate
from search.accuracy import configurations
from search.calibrated_stack import conformal
from search.calibration import Calibrated, evidence_of
from search.left_out import folds
from search.posterior import HUBER, Evidence, choose, pseudo_huber
from search.report.calibration import calibration_text
from search.repricing import Repricing
from search.scalars import scalars_of, value_of, with_value
from search.validate import mapped_rows, priced
from tests.search.measured import BASE, measured, plans

STEP = "step_seconds"
DAY = date(2026, 1, 2)
NAMES = [one.name for one in scalars_of(BASE, "analytic")]
HABITS = {"name", "sources", "calibration", "uncertainty"}


def truth(**values: float) -> Stack:
    """The base with other values of some scalars, each times a factor."""
    stack = BASE
    for name, factor in values.items():
        stack = with_value(stack, name, factor * value_of(stack, name, "analytic"), "analytic")
    return stack


def states(found: Calibrated) -> dict[str, str]:
    return {one.name: one.state for one in found.scalars}


def moved(found: Calibrated) -> set[str]:
    """Fields that differ from where the fit started."""
    return {
        f.name
        for f in fields(Stack)
        if f.name not in HABITS and getattr(found.stack, f.name) != getattr(found.base, f.name)
    }


# Pricing again.


@settings(max_examples=15, deadline=None)
@given(
    factors=st.lists(st.floats(0.3, 3.0), min_size=len(NAMES), max_size=len(NAMES)),
    base=st.sampled_from(["megatron", "nemo", "fsdp"]),
)
def test_prices_again_are_prices_from_scratch(factors: list[float], base: str) -> None:
    stack = load_stack(base)
    runs = [row.mapped for row in mapped_rows(plans(7)) if row.mapped is not None]
    runs = [replace(one, stack=stack) for one in runs]
    other = stack
    for one, factor in zip(scalars_of(stack, "analytic"), factors, strict=True):
        other = with_value(other, one.name, one.value(math.log(factor)), "analytic")
    again = Repricing(runs, "analytic").seconds(other)
    for run, seconds in zip(runs, again, strict=True):
        fresh = estimate(run.model, run.workload, run.cluster, run.plan, stack=other)
        assert seconds == pytest.approx(fresh.step_seconds, rel=1e-9)


@pytest.mark.parametrize("cost", ["analytic", "learned"])
def test_every_cost_model_prices_again(cost: str) -> None:
    runs = [row.mapped for row in mapped_rows(plans(3)) if row.mapped is not None]
    other = with_value(BASE, "gradient_accumulation_traffic", 0.8, cost)
    again = Repricing(runs, cost).seconds(other)
    for run, seconds in zip(runs, again, strict=True):
        fresh = estimate(run.model, run.workload, run.cluster, run.plan, stack=other, cost=cost)
        assert seconds == pytest.approx(fresh.step_seconds, rel=1e-6)


# The fit.


@settings(max_examples=6, deadline=None)
@given(
    in_situ=st.floats(0.8, 1.4),
    launch=st.floats(0.5, 2.5),
    step=st.floats(0.3, 10.0),
    seed=st.integers(0, 1000),
)
def test_known_scalars_come_back(in_situ: float, launch: float, step: float, seed: int) -> None:
    right = truth(in_situ=in_situ, launch=launch, step_seconds=step)
    found = calibrate(measured(right, 28, noise=0.02, seed=seed))
    assert found.after.mean < max(found.before.mean, 0.02)
    for one in found.scalars:
        if one.state == "identified":
            true = value_of(right, one.name, "analytic")
            assert abs(math.log(one.value / true)) < 3 * one.sd, one.name


def test_without_noise_a_fit_is_exact() -> None:
    right = truth(in_situ=1.2, launch=3.0, step_seconds=8.0)
    found = calibrate(measured(right, 28))
    assert found.helps
    assert found.after.mean < 0.01 < found.before.mean
    assert found.crossed is not None and found.crossed.mean < 0.02
    assert {"in_situ", "launch", "step_seconds"} <= {
        name for name, state in states(found).items() if state == "identified"
    }


@pytest.mark.parametrize("count", [1, 2])
def test_few_runs_move_the_overall_factor_only(count: int) -> None:
    """Shrunk by its prior: at least some of the way from 1.2 times to the base."""
    found = calibrate(measured(truth(in_situ=1.2), count))
    assert moved(found) == {"in_situ"}
    factor = found.stack.in_situ["analytic"] / BASE.in_situ["analytic"]
    assert 1.1 < factor < 1.2
    assert set(states(found).values()) == {"identified", "too few runs", "not exercised"}
    assert (found.crossed is None) == (count == 1)
    assert found.helps == (count == 2)
    assert found.stack.uncertainty >= BASE.uncertainty


def test_the_same_configuration_twice_is_one() -> None:
    (run,) = measured(truth(in_situ=1.2), 1)
    twice = [run, run.model_copy(update={"row_id": "again", "iter_time_s": run.iter_time_s})]
    found = calibrate(twice)
    assert (found.rows, len(found.runs)) == (2, 1)
    assert moved(found) == {"in_situ"}


def test_what_no_run_exercises_stays() -> None:
    """One node, no tensor parallelism, no zero=3."""
    runs = [run.model_copy(update={"tp": 1, "pp": 1, "n_gpus": 8}) for run in plans(5)]
    runs = [
        run.model_copy(update={"iter_time_s": 1.0 + i, "global_batch": 64 * (1 + i)})
        for i, run in enumerate(runs)
    ]
    found = calibrate(runs)
    unused = {name for name, state in states(found).items() if state == "not exercised"}
    assert {"straggler_per_doubling", "exposed_tp", "interference_zero3"} <= unused
    assert found.stack.hidden_tp == BASE.hidden_tp


def test_three_runs_help() -> None:
    right = truth(in_situ=1.2, step_seconds=4.0)
    everything = measured(right, 21, noise=0.02)
    found = calibrate(everything[4:7])
    rows = [row.mapped for row in mapped_rows(everything) if row.mapped is not None]
    times = np.array([run.iter_time_s for run in everything])
    repricing = Repricing(rows, "analytic")
    before, after = (
        np.median(np.abs(repricing.seconds(stack) / times - 1)) for stack in (BASE, found.stack)
    )
    assert after < 0.5 * before


def test_a_mad_row_does_not_decide() -> None:
    runs = measured(truth(in_situ=1.1), 14)
    assert runs[3].iter_time_s is not None
    runs[3] = runs[3].model_copy(update={"iter_time_s": 3 * runs[3].iter_time_s})
    found = calibrate(runs)
    factor = found.stack.in_situ["analytic"] / BASE.in_situ["analytic"]
    assert factor == pytest.approx(1.1, rel=0.03)


def test_a_source_counts_by_the_root_of_its_size() -> None:
    """Of 32 and 8 runs the weights are 2 to 1, and all together count as 40."""
    runs = measured(BASE, 32, source="many") + measured(BASE, 8, source="few")
    found = configurations(priced(mapped_rows(runs)))
    weight = evidence_of(found).weight
    assert weight[:32].sum() == pytest.approx(2 * weight[32:].sum())
    assert weight.sum() == pytest.approx(40)


def test_noise_is_that_of_the_source_and_at_least_five_percent() -> None:
    """Of two runs of the same, 40 % apart: log(1.4) is 1.128 standard deviations."""
    (run,) = measured(BASE, 1, source="loud")
    assert run.iter_time_s is not None
    again = run.model_copy(update={"iter_time_s": 1.4 * run.iter_time_s})
    found = configurations(priced(mapped_rows([run, again, *measured(BASE, 1)])))
    assert evidence_of(found).sd == pytest.approx([math.log(1.4) / 1.128, 0.05])


def test_sources_are_left_out_whole() -> None:
    runs = measured(truth(in_situ=1.4), 6, source="slow")
    runs += measured(truth(in_situ=1.2), 6, source="usual")
    found = calibrate(runs)
    assert [one.source for one in found.sources] == ["slow", "usual"]
    assert found.left_out is not None
    assert found.left_out.mean > found.after.mean
    for one in found.sources:
        assert one.left_out is not None
        assert one.left_out.median == pytest.approx(0.15, abs=0.05)
    assert calibrate(runs[:6]).left_out is None


def test_a_scalar_at_its_bound_is_no_fit() -> None:
    """Steps of work and 0.6 s more, where step_seconds ends at 0.4 s: it is given up.

    With all steps long, the overall factor takes what is left.
    """
    work = np.geomspace(2.0, 40.0, 20)
    scalars = [one for one in scalars_of(BASE, "analytic") if one.name in ("in_situ", STEP)]
    scalars = [
        replace(one, low=0.02 * 8e-3, high=0.4, centre=8e-3) if one.name == STEP else one
        for one in scalars
    ]

    def predict(values: Mapping[str, float]) -> np.ndarray:
        return np.log(values["in_situ"] * (work + values.get(STEP, 8e-3)))

    evidence = Evidence(
        log_seconds=np.log(scalars[0].centre * (work + 0.6)),
        sd=np.full(20, 0.01),
        weight=np.ones(20),
    )
    chosen = choose(predict, evidence, scalars, {})
    assert chosen.stuck == {STEP: 0.4}
    assert set(chosen.solution.values) == {"in_situ"}
    assert chosen.solution.values["in_situ"] > scalars[0].centre


def test_a_bound_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    found = calibrate(measured(truth(in_situ=1.1), 3))
    stuck = replace(found.scalars[2], state="at its bound", bound=0.4, value=8e-3)
    far = replace(found.scalars[1], before=1e-3, value=9e-3, prior=1e-3)
    calibration_text(replace(found, scalars=(found.scalars[0], far, stuck)), "mine.yaml")
    text = capsys.readouterr().out
    assert "step_seconds ran to its bound of 0.4: a fault of the model or of the runs" in text
    assert "launch lies 4.4 times its usual spread from where stacks usually are" in text


@pytest.mark.parametrize(("factor", "bound"), [(2.6, "2"), (0.5, "0.6")])
def test_the_overall_factor_at_its_bound_is_an_error(factor: float, bound: str) -> None:
    runs = measured(truth(in_situ=factor), 21)[7:]
    for some in (runs, runs[:1], runs[:2]):
        with pytest.raises(ValueError, match=f"in_situ ends at its bound of {bound}: these runs"):
            calibrate(some)


def test_a_fit_that_does_not_help_says_so() -> None:
    found = calibrate(measured(BASE, 12, noise=0.05, seed=3))
    assert found.stack.calibration is not None
    assert found.helps is (
        found.stack.calibration.error_after < found.stack.calibration.error_before  # type: ignore[operator]
    )
    assert not found.helps


def test_equal_seeds_give_equal_files() -> None:
    runs = measured(truth(in_situ=1.1), 15, noise=0.05)
    one, other = (stack_yaml(calibrate(runs, seed=7, today=DAY).stack) for _ in range(2))
    assert one == other
    assert "2026-01-02" in one
    assert one != stack_yaml(calibrate(runs, seed=8, today=DAY).stack)


def test_a_stack_calibrated_again_starts_from_itself() -> None:
    runs = measured(truth(in_situ=1.2, step_seconds=5.0), 14)
    once = calibrate(runs, name="once")
    twice = calibrate(runs, stack=once.stack, name="twice")
    assert twice.before == once.after
    assert twice.stack.in_situ["analytic"] == pytest.approx(
        once.stack.in_situ["analytic"], rel=0.01
    )
    assert len(twice.stack.sources["in_situ"]) < 400


@pytest.mark.parametrize("count", [1, 5])
def test_an_interval_alone_moves_no_number(count: int) -> None:
    found = calibrate(measured(truth(in_situ=1.2), count, noise=0.02), interval_only=True)
    assert moved(found) == set()
    assert set(states(found).values()) == {"held"}
    assert found.crossed == found.before == found.after
    assert found.left_out is None
    assert found.stack.uncertainty >= math.expm1(max(abs(one.before) for one in found.runs)) - 1e-3


# Pieces.


@given(st.floats(-3, 3))
def test_the_loss_is_the_square_of_its_residual(error: float) -> None:
    bent, slope = pseudo_huber(np.array([error]))
    loss = 2 * HUBER**2 * (math.sqrt(1 + (error / HUBER) ** 2) - 1)
    assert bent[0] ** 2 == pytest.approx(loss, rel=1e-9, abs=1e-12)
    step = 1e-6
    ahead, _ = pseudo_huber(np.array([error + step]))
    behind, _ = pseudo_huber(np.array([error - step]))
    assert slope[0] == pytest.approx((ahead[0] - behind[0]) / (2 * step), rel=1e-5)


@given(st.integers(0, 60), st.integers(0, 5))
def test_each_run_is_left_out_once(count: int, seed: int) -> None:
    parts = folds(count, seed)
    if count < 2:
        assert parts == []
    else:
        assert sorted(np.concatenate(parts)) == list(range(count))
        assert len(parts) == (count if count <= 12 else 5)


def test_conformal_width_by_hand() -> None:
    """Of nine the eighth; of fewer the largest, or what was assumed."""
    nine = [0.01 * i * (-1) ** i for i in range(1, 10)]
    one = ["llama"] * 20
    assert conformal(nine, one[:9], 0.5) == pytest.approx(math.expm1(0.08))
    assert conformal(nine[:8], one[:8], 0.05) == pytest.approx(math.expm1(0.08))
    assert conformal(nine[:8], one[:8], 0.15) == 0.15
    assert conformal([], [], 0.15) == 0.15
    assert conformal([3.0] * 20, one, 0.15) == 0.9


def test_the_next_model_is_a_draw_among_models() -> None:
    """40 runs of a model 2 % off, four of one that is 10 % off: of two draws the larger holds."""
    sizes = [0.02] * 40 + [0.10, -0.09, 0.11, -0.10]
    models = ["llama"] * 40 + ["gpt"] * 4
    assert conformal(sizes, models, 0.0) == pytest.approx(math.expm1(0.10), rel=0.01)
    assert conformal(sizes, ["llama"] * 44, 0.0) == pytest.approx(math.expm1(0.02))
    # Of nine models the eighth: one that is far off does not decide.
    many = [f"model {n}" for n in range(9) for _ in range(4)]
    spread = [0.01 * (n + 1) if n < 8 else 0.5 for n in range(9) for _ in range(4)]
    assert conformal(spread, many, 0.0) == pytest.approx(math.expm1(0.08))


def test_a_value_outside_its_bounds_starts_from_a_usual_one() -> None:
    odd = replace(
        BASE,
        hidden_tp=0.0,
        gradient_accumulation_traffic=0.0,
        step_seconds=0.0,
        launch_forward=0.0,
        launch_backward=0.0,
    )
    centres = {one.name: one.centre for one in scalars_of(odd, "analytic")}
    assert centres["exposed_tp"] == 0.59
    assert centres["gradient_accumulation_traffic"] == 0.62
    assert centres["step_seconds"] == 8e-3
    assert centres["launch"] == 0.4e-3
    graphs = with_value(odd, "launch", 1e-3, "analytic")
    assert (graphs.launch_forward, graphs.launch_backward) == (1e-3, 1.1e-3)
    for one in scalars_of(odd, "analytic"):
        assert one.low < one.centre < one.high
        assert one.value(-99) == one.low and one.value(99) == one.high
