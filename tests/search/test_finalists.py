"""The funnel: who is simulated, and that the ranking is then by the simulation."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from estimator.simulate import simulate
from search.cli.main import run
from search.finalists import simulated
from search.rules_of_thumb import baselines
from search.study import Recommendation, recommend
from tests.search.fakes import problem, small

SMALL = small()
COMMAND = ["search", "--model", "llama-3.1-8b", "--cluster", "h100-sxm:16", "--global-batch", "64"]


def search(**options: Any) -> Recommendation:
    p = SMALL.problem
    return recommend(p.model, p.workload, p.cluster, stack=p.stack, space=SMALL, **options)


def test_finalists_are_ranked_by_their_simulation() -> None:
    p = SMALL.problem
    result = search(top=8, finalists=8)
    assert result.fidelity == "simulated"
    for row in result.ranked:
        alone = simulate(p.model, p.workload, p.cluster, row.estimate.plan, stack=p.stack)
        assert row.estimate.step_seconds == pytest.approx(alone.makespan, rel=1e-12)
    seconds = [row.estimate.step_seconds for row in result.ranked]
    assert seconds == sorted(seconds)
    assert [row.rank for row in result.ranked] == list(range(1, 9))


def test_the_same_plans_lead_in_another_order_at_most() -> None:
    closed, funnel = search(top=8), search(top=8, finalists=8)
    assert closed.fidelity == "closed form"
    assert {r.estimate.plan for r in closed.ranked} == {r.estimate.plan for r in funnel.ranked}
    assert closed.front == funnel.front


def test_more_finalists_than_rows_can_bring_others_up() -> None:
    """Rows are the first of all finalists, not of those that the closed form would show."""
    wide, narrow = search(top=16, finalists=16), search(top=4, finalists=16)
    assert narrow.ranked == wide.ranked[:4]


def test_only_what_may_be_the_best_is_simulated() -> None:
    """Plans whose interval lies beyond the leader's keep their closed form."""
    rows = [row.estimate for row in search(top=100).ranked]
    near = [row for row in rows if row.low_seconds <= rows[0].high_seconds]
    assert 1 < len(near) < len(rows)
    found = simulated(SMALL.problem, rows, "analytic", 64)
    assert len(found) == len(rows)
    kept = {each.plan for each in rows if each in found}
    assert {each.plan for each in rows[len(near) :]} <= kept
    assert all(a.step_seconds <= b.step_seconds for a, b in pairwise(found))


@pytest.mark.parametrize("finalists", [-1, 65])
def test_their_number_is_bounded(finalists: int) -> None:
    with pytest.raises(ValueError, match="must lie from 0 to 64"):
        search(finalists=finalists)


def test_a_model_of_whole_plans_has_no_finalists() -> None:
    p = problem()
    with pytest.raises(ValueError, match="cost=amped prices whole plans"):
        recommend(p.model, p.workload, p.cluster, stack=p.stack, cost="amped", finalists=2)


def test_the_command_says_that_it_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--finalists", "4", "--top", "4"]) == 0
    assert "finalists were simulated" in capsys.readouterr().out
    assert run([*COMMAND, "--finalists", "4", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["fidelity"] == "simulated"
    assert run([*COMMAND, "--finalists", "4", "--sweep", "cluster.nodes=1,2"]) == 2
    assert "--finalists goes with one search" in capsys.readouterr().err


def test_rows_carry_the_closed_form_beside(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--finalists", "10", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["ranked"]
    assert run([*COMMAND, "--top", "10", "--json", "-"]) == 0
    closed = json.loads(capsys.readouterr().out)["ranked"]
    for row in closed:
        assert row["closed_form_seconds"] == row["step_seconds"]
    seconds = {json.dumps(row["plan"]): row["step_seconds"] for row in closed}
    assert len(found) == len(seconds) == 10
    for row in found:
        assert row["closed_form_seconds"] == seconds[json.dumps(row["plan"])]


def test_rules_of_thumb_are_simulated_beside_simulated_finalists() -> None:
    p = SMALL.problem
    plain, whole = (baselines(p, simulate=each) for each in (False, True))
    for closed, rule in zip(plain, whole, strict=True):
        assert (closed.estimate is None) == (rule.estimate is None)
        if rule.estimate is not None:
            alone = simulate(p.model, p.workload, p.cluster, rule.estimate.plan, stack=p.stack)
            assert rule.estimate.step_seconds == pytest.approx(alone.makespan, rel=1e-9)
            assert closed.estimate.step_seconds == alone.closed_form.step_seconds
    assert any(rule.estimate is not None for rule in whole)
