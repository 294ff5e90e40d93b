"""Half widths of intervals: by hand, and wider wherever less is known."""

from dataclasses import replace

import pytest

from estimator import Plan, Workload, estimate
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.cost.roofline import roofline
from estimator.intervals import (
    EXPERTS,
    EXTRAPOLATED,
    LINKS,
    OTHER_COLLECTIVES,
    OTHER_COST,
    WIDEST,
    calibration_widening,
    collectives_of,
    half_width,
)
from estimator.stack import Calibration

CLUSTER = load_cluster("h100-sxm:64")
ALL = (*collectives_of(CLUSTER), LINKS)
DENSE = load_model("llama-3.1-8b")
STACK = replace(load_stack("megatron", calibrated=False), uncertainty=0.1)


def calibration(cost="analytic", collectives=ALL):
    return Calibration(
        cost=cost,
        collectives=collectives,
        devices=("h100-sxm",),
        precisions=("bf16",),
        sources=("here",),
        rows=3,
        configurations=3,
        scalars={},
        error_before=0.2,
        error_after=0.1,
        residuals=(),
    )


def test_a_stack_that_was_not_calibrated_keeps_its_width():
    pricer = roofline(CLUSTER.device)
    assert half_width(STACK, DENSE, CLUSTER, pricer) == pytest.approx(0.1)
    guessed = replace(pricer, origin="extrapolated")
    assert half_width(STACK, DENSE, CLUSTER, guessed) == pytest.approx(0.1 * EXTRAPOLATED)
    assert half_width(replace(STACK, uncertainty=0.8), DENSE, CLUSTER, guessed) == WIDEST
    # Runs on the very device have measured it.
    seen = replace(STACK, calibration=calibration())
    assert half_width(seen, DENSE, CLUSTER, guessed) == pytest.approx(0.1)


def test_experts_and_noisy_machines_widen():
    pricer = roofline(CLUSTER.device)
    experts = load_model("mixtral-8x7b")
    assert half_width(STACK, experts, CLUSTER, pricer) == pytest.approx(0.1 * EXPERTS)
    # 3, 4, 5: what is not known and what scatters are independent.
    noisy = replace(CLUSTER, noise=0.4)
    wide = replace(STACK, uncertainty=0.3)
    assert half_width(wide, DENSE, noisy, pricer) == pytest.approx(0.5)


def test_use_under_what_it_was_not_fitted_with_widens():
    linear = replace(CLUSTER, collectives=())
    mine = calibration()
    assert calibration_widening(mine, CLUSTER, "analytic") == 1
    assert calibration_widening(mine, linear, "analytic") == 1
    assert calibration_widening(mine, CLUSTER, "learned") == OTHER_COST
    fitted_only = calibration(collectives=collectives_of(CLUSTER))
    assert calibration_widening(fitted_only, linear, "analytic") == OTHER_COLLECTIVES
    both = calibration_widening(fitted_only, linear, "learned")
    assert both == pytest.approx(OTHER_COST * OTHER_COLLECTIVES)


def test_estimates_carry_it():
    model, plan = load_model("llama-3.1-8b"), Plan.parse("tp=2", world=64)
    workload = Workload(global_batch=64, sequence=4096)
    stack = replace(STACK, calibration=calibration())
    for cost, factor in (("analytic", 1.0), ("learned", OTHER_COST)):
        answer = estimate(model, workload, CLUSTER, plan, stack=stack, cost=cost)
        assert answer.high_seconds / answer.step_seconds == pytest.approx(1 + 0.1 * factor)
