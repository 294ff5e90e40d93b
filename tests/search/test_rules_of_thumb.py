"""Rules of thumb: legal, in memory, what their names say, and no better than a full search."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from estimator import Plan, Plans
from estimator.catalog import load_stack
from search.cli.main import run
from search.report.table import _rule_words
from search.rules_of_thumb import RULES_OF_THUMB, Baseline, baselines, megatron, pure_fsdp
from search.study import recommend
from spaces import Problem, check
from tests.search.fakes import GIB, PRICING, problem

SMALL = ["search", "--model", "llama-3.1-8b", "--cluster", "h100-sxm:8", "--global-batch", "64"]


def with_memory(given: Problem, gib: float) -> Problem:
    device = replace(given.cluster.device, memory_bytes=gib * GIB)
    return replace(given, cluster=replace(given.cluster, device=device))


@pytest.mark.parametrize("name", RULES_OF_THUMB)
@pytest.mark.parametrize("framework", ["megatron", "fsdp", "nemo"])
def test_a_plan_of_a_rule_is_legal_and_fits(name: str, framework: str) -> None:
    given = replace(problem(gpus=64, batch=256), stack=load_stack(framework))
    plan = RULES_OF_THUMB[name](given, PRICING)
    if plan is None:
        assert (name, framework) in {
            ("pure-fsdp", "megatron"),
            ("pure-fsdp", "nemo"),
            ("size-class", "fsdp"),
            ("megatron", "fsdp"),
        }
        return
    check(given.model, given.workload, given.cluster, given.stack, plan)
    peak = PRICING.peak_bytes(given, Plans.of([plan]))[0]
    assert peak <= given.cluster.capacity_bytes
    if name == "size-class":
        assert plan.tp == plan.pp and plan.tp in (2, 4, 8)
    if name == "pure-fsdp":
        assert (plan.dp, plan.zero) == (64, 3)


def test_megatron_fills_the_node_before_it_adds_stages() -> None:
    meshes = []
    for gib in (150, 72, 24, 8, 6.3):
        plan = megatron(with_memory(problem(gpus=64, batch=256), gib), PRICING)
        assert plan is not None
        meshes.append((plan.tp, plan.pp))
    assert meshes == sorted(meshes), "less memory, more of the model's own parallelism"
    assert all(pp == 1 or tp == 8 for tp, pp in meshes)
    assert {pp for _, pp in meshes} > {1}


def test_recompute_is_the_last_resort() -> None:
    """8 GPUs: 130 / 8 GiB of states, 2 of context, and 9 / 8 of activations or a tenth of that."""
    tight = with_memory(problem(gpus=8, batch=64), 19)
    plan = megatron(tight, PRICING)
    assert plan is not None and plan.recompute == "full"
    assert megatron(with_memory(tight, 1), PRICING) is None


def test_replicas_alone_need_no_sharding() -> None:
    assert pure_fsdp(problem(gpus=64, batch=8), PRICING) is None, "fewer sequences than ranks"


def test_no_rule_beats_looking_at_every_plan() -> None:
    given = problem(gpus=16, batch=64)
    answer = recommend(
        given.model, given.workload, given.cluster, stack=given.stack, pricing=PRICING, top=1
    )
    best = answer.ranked[0].estimate
    found = {rule.name: rule.over(best) for rule in baselines(given, PRICING)}
    assert set(found) == set(RULES_OF_THUMB)
    assert all(over is None or over >= 1 - 1e-12 for over in found.values())
    assert found["megatron"] is not None


def test_rules_are_told_beside_the_best_plan() -> None:
    best = PRICING.estimates(problem(), Plans.of([Plan(dp=2, tp=8)]))[0]
    for factor, words in (
        (1.12, "megatron 1.12x slower"),
        (1.001, "megatron as fast"),
        (0.5, "megatron 2.00x faster, outside what was searched"),
    ):
        other = replace(best, step_seconds=factor * best.step_seconds)
        assert _rule_words(Baseline("megatron", other), best) == words
    assert "no plan" in _rule_words(Baseline("pure-fsdp", None), best)


def test_the_command_tells_what_rules_would_pick(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMALL) == 0
    assert "\nrules of thumb: megatron " in capsys.readouterr().out
    assert run([*SMALL, "--json", "-"]) == 0
    rules = json.loads(capsys.readouterr().out)["rules_of_thumb"]
    assert [rule["name"] for rule in rules] == list(RULES_OF_THUMB)
    assert all(rule["plan"] is None or rule["over_best"] >= 0.995 for rule in rules)
