"""Each rule by an example that breaks it, with the line that a user reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.plan import Plan, Plans
from spaces import RULES, Problem, check, check_problem, rule_text
from spaces.rules import SPACE_ONLY, broken_rule
from tests.spaces.problems import STACK, problem, sparse

EVEN = replace(STACK, name="even", uneven_stages=False, interleaving=False)
NARROW = replace(STACK, name="narrow", recompute=("none", "full"), zero=(0, 1), pipeline_zero=(0,))
BROKEN = [
    ("world", problem(), "dp=2,tp=8", "dp=2 x tp=8 x cp=1 x pp=1 = 16 must equal the 64 GPUs"),
    ("world", problem(), "dp=2,tp=8", "try dp=8"),
    ("heads", problem(24), "dp=4,tp=6", "tp=6 must divide the 64 attention heads"),
    ("tp-limit", problem(stack=replace(STACK, max_tp=4)), "dp=8,tp=8", "use at most 4"),
    ("cp-limit", problem(stack=replace(STACK, max_cp=1)), "dp=8,cp=8", "use at most 1"),
    ("pp-limit", problem(stack=replace(STACK, max_pp=4)), "dp=8,pp=8", "use at most 4"),
    ("pp-layers", problem(128, batch=128), "pp=128", "80 layers of llama-3.1-70b"),
    (
        "experts",
        sparse(96),
        "dp=96,ep=3",
        "ep=3 must divide the 8 experts of sparse; try 1, 2, 4, 8",
    ),
    ("expert-ranks", sparse(), "dp=4,pp=16,ep=8", "ep=8 x etp=1 must divide the dp x tp x cp = 4"),
    ("expert-ffn", sparse(80), "dp=80,etp=5", "etp=5 must divide the width 1536 of an expert"),
    ("expert-sequence", sparse(), "dp=32,tp=2,ep=8", "need sequence_parallel=true"),
    ("sequence-cp", problem(sequence=8200), "dp=4,cp=16", "multiple of 2 x cp=32"),
    ("batch", problem(batch=100), "dp=64", "must divide the global batch of 100"),
    ("batch", problem(batch=100), "dp=64", "a batch of 64 or 128"),
    ("batch", problem(batch=96), "dp=32,tp=2,micro_batch=2", "micro_batch: try 1, 3"),
    ("layers", problem(48, batch=48), "dp=16,pp=3", "pp=3 x interleave=1 must divide"),
    ("layers", problem(48, batch=48), "dp=16,pp=3", "add last_stage_layers=26"),
    ("layers", problem(48, stack=EVEN, batch=48), "dp=16,pp=3", "pp: try 1, 2, 4, 5"),
    ("layers", problem(), "dp=16,pp=4,first_stage_layers=19", "first_stage_layers=19 leaves"),
    (
        "uneven-stages",
        problem(stack=EVEN),
        "dp=16,pp=4,first_stage_layers=19,last_stage_layers=19",
        "even stages only",
    ),
    ("interleave", problem(), "dp=64,interleave=2", "needs pp > 1"),
    ("interleave", problem(), "dp=16,pp=4,vpp=2,schedule=gpipe", "needs schedule=1f1b"),
    ("interleave", problem(stack=EVEN), "dp=16,pp=4,interleave=2", "not offered by stack even"),
    ("interleave-batches", problem(batch=32), "dp=16,pp=4,interleave=2", "at least pp=4 micro-b"),
    ("dense", problem(), "dp=64,ep=2", "llama-3.1-70b has none"),
    ("sequence-parallel", problem(), "dp=64,sp=true", "needs tp > 1"),
    ("sequence-tp", problem(sequence=8190), "dp=16,tp=4,sp=true", "to divide sequence=8190"),
    ("zero", problem(stack=NARROW), "dp=64,zero=3", "use one of 0, 1"),
    ("zero-pipeline", problem(stack=NARROW), "dp=16,pp=4,zero=1", "use pp=1 or one of zero=0"),
    ("zero-alone", problem(8), "tp=8,zero=1", "use zero=0"),
    ("shard-size", problem(), "dp=64,zero=1,shard_size=7", "must divide dp x cp = 64"),
    ("shard-size", problem(), "dp=64,shard_size=8", "needs zero"),
    ("recompute", problem(stack=NARROW), "dp=64,recompute=selective", "use one of none, full"),
    ("recompute-layers", problem(), "dp=64,recompute_layers=2", "needs recompute=full"),
    ("recompute-layers", problem(), "dp=16,pp=4,recompute=full,recompute_layers=21", "at most 20"),
    ("forward", problem(mode="forward"), "dp=64,recompute=full", "use recompute=none"),
    ("forward", problem(mode="forward"), "dp=64,zero=1", "zero=0 or 3"),
    ("offload", problem(mode="forward"), "dp=64,offload=optimizer", "mode is forward"),
    ("offload", problem(), "dp=64,offload=checkpoints", "use recompute=full"),
    ("offload", problem(device="mi300x"), "dp=64,offload=optimizer", "the host of mi300x"),
    (
        "order",
        problem(stack=replace(STACK, rank_orders=("tp-cp-ep-dp-pp",))),
        "dp=16,pp=4,order=tp-cp-ep-pp-dp",
        "use one of tp-cp-ep-dp-pp",
    ),
]


@pytest.mark.parametrize(("code", "given", "text", "words"), BROKEN)
def test_an_illegal_plan_is_one_line_with_rule_value_and_remedy(
    code: str, given: Problem, text: str, words: str
) -> None:
    plan = Plan.parse(text)
    rule = broken_rule(given, plan)
    assert rule is not None
    assert rule.code == code
    with pytest.raises(ValueError) as error:
        check(given.model, given.workload, given.cluster, given.stack, plan)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_every_rule_has_an_example_here() -> None:
    shown = {code for code, *_ in BROKEN} | {"ffn", "kv-heads"}  # those two: below
    assert shown == {rule.code for rule in RULES}


def test_kv_heads_may_be_divided_or_replicated_but_not_torn() -> None:
    given = problem(24)
    torn = replace(given, model=replace(given.model, heads=60, kv_heads=10))
    codes = {tp: broken_rule(torn, Plan(dp=24 // tp, tp=tp)) for tp in (1, 2, 4, 12)}
    assert codes[4] is not None and codes[4].code == "kv-heads"
    assert "10 key/value heads" in codes[4].explain(torn, Plan(dp=6, tp=4))
    replicated = replace(given, model=replace(given.model, heads=48, kv_heads=4))
    rule = broken_rule(replicated, Plan(dp=3, tp=8))
    assert rule is None or rule.code != "kv-heads"


def test_ffn_width_must_divide() -> None:
    given = problem(8)
    odd = replace(given, model=replace(given.model, ffn=28676))
    rule = broken_rule(odd, Plan(tp=8))
    assert rule is not None and rule.code == "ffn"
    assert "try 1, 2, 4" in rule.explain(odd, Plan(tp=8))


@pytest.mark.parametrize(
    "text",
    [
        "dp=8,tp=8",
        "dp=2,tp=4,pp=8,interleave=5,sp=true,zero=1",
        "dp=16,pp=4,first_stage_layers=17,last_stage_layers=21",
        "dp=16,pp=4,first_stage_layers=26",
        "dp=16,pp=4,recompute=full,recompute_layers=20",
        "dp=16,pp=4,order=tp-cp-ep-pp-dp,recompute=selective",
    ],
)
def test_a_legal_plan_passes(text: str) -> None:
    given = problem()
    check(given.model, given.workload, given.cluster, given.stack, Plan.parse(text))


def test_llama_3_405b_splits_its_126_layers_as_published() -> None:
    # The Llama 3 paper (arXiv 2407.21783, section 3.3.2) takes one layer from each end stage.
    given = problem(16384, model="llama-3.1-405b", batch=2048)
    plan = "dp=128,tp=8,pp=16,interleave=8,first_stage_layers=7,last_stage_layers=7,sp=true"
    check(given.model, given.workload, given.cluster, given.stack, Plan.parse(plan))


def test_rules_are_applied_to_columns_as_to_single_plans() -> None:
    given = problem()
    plans = [Plan.parse(text) for text in ("dp=8,tp=8", "dp=64,sp=true", "tp=3,dp=21")]
    columns = Plans.of(plans)
    for rule in RULES:
        together = rule.legal(given, columns)
        alone = [bool(rule.legal(given, Plans.of([plan])).all()) for plan in plans]
        assert list(together) == alone


def test_a_problem_without_any_legal_plan_is_named() -> None:
    given = problem()
    cases = [
        (problem(sequence=131073), "longer than the 131072 positions of llama-3.1-70b"),
        (problem(8, device="a100-sxm-80gb", precision="fp8"), "a100-sxm-80gb has no fp8 peak"),
        (problem(batch=2**31), "global_batch=2147483648 is too large"),
        (replace(given, stack=replace(STACK, zero=())), "list at least one"),
    ]
    for bad, words in cases:
        with pytest.raises(ValueError, match=words):
            check_problem(bad.model, bad.workload, bad.cluster, bad.stack)


def test_numbers_beyond_a_column_are_refused() -> None:
    given = problem()
    with pytest.raises(ValueError, match="tp=1000000000000 is too large"):
        check(given.model, given.workload, given.cluster, given.stack, Plan(tp=10**12))


def test_every_code_has_a_sentence() -> None:
    codes = [rule.code for rule in RULES]
    assert len(set(codes)) == len(codes)
    assert all(rule_text(code) for code in (*codes, *SPACE_ONLY))


def codes(given: Problem, plan: Plan) -> set[str]:
    """Every rule that a plan breaks."""
    columns = Plans.of([plan])
    return {rule.code for rule in RULES if not rule.legal(given, columns).all()}


@pytest.mark.parametrize(("heads", "kv_heads"), [(12, 12), (12, 4), (12, 2), (60, 10), (7, 7)])
def test_tp_against_the_heads_number_by_number(heads: int, kv_heads: int) -> None:
    given = problem()
    shaped = replace(given, model=replace(given.model, heads=heads, kv_heads=kv_heads, ffn=120))
    for tp in range(1, 61):
        broken = codes(shaped, Plan(tp=tp))
        assert ("heads" in broken) == (heads / tp != heads // tp)
        shared = kv_heads // tp * tp == kv_heads or tp // kv_heads * kv_heads == tp
        assert ("kv-heads" in broken) != shared
        assert ("ffn" in broken) == (
            tp not in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60)
        )


def test_zero_shards_over_context_parallel_ranks_too() -> None:
    given = problem(8)
    assert "zero-alone" not in codes(given, Plan(cp=2, tp=4, zero=1))
    assert "zero-alone" not in codes(given, Plan(dp=2, tp=4, zero=1))
    assert "zero-alone" in codes(given, Plan(tp=8, zero=1))
