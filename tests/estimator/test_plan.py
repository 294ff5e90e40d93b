"""Plans as text, as rows and as columns; nouns that refuse nonsense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Plan, Plans, Workload
from estimator.plan import CHOICES, FLAGS, NAMES, OPTIONAL
from tests.estimator.problems import CLUSTER, MODEL


@st.composite
def any_plan(draw: st.DrawFn) -> Plan:
    """Any plan that the noun allows, legal on some cluster or not."""
    fields: dict[str, Any] = {}
    for name in NAMES:
        if name in CHOICES:
            value = st.sampled_from(CHOICES[name])
        elif name in FLAGS:
            value = st.booleans()
        elif name == "zero":
            value = st.integers(0, 3)
        else:
            value = st.integers(1, 4096)
        fields[name] = draw(st.none() | value if name in OPTIONAL else value)
    return Plan(**fields)


@given(any_plan())
def test_text_round_trip(plan: Plan) -> None:
    assert Plan.parse(str(plan)) == plan
    assert Plan(**plan.to_dict()) == plan


@given(st.lists(any_plan(), min_size=1, max_size=5))
def test_columns_round_trip(rows: list[Plan]) -> None:
    table = Plans.of(rows)
    assert list(table) == rows
    assert list(Plans.concat([table, table[::-1]])) == rows + rows[::-1]
    np.testing.assert_array_equal(table.world, [row.world for row in rows])


def test_aliases_and_the_derived_degree() -> None:
    plan = Plan.parse("tp=4, pp=8, vpp=2, mbs=1, sp=true", world=128)
    assert plan == Plan(dp=4, tp=4, pp=8, interleave=2, micro_batch=1, sequence_parallel=True)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tp=banana", "tp=banana must be a whole number"),
        ("tp=0", "tp=0 must be a whole number from 1"),
        ("tp=-4", "tp=-4 must be a whole number from 1"),
        ("tp", "plan item 'tp' must be written field=value"),
        ("tp=2,tp=4", "plan field tp is given twice"),
        ("mbs=1,micro_batch=2", "plan field micro_batch is given twice"),
        ("pipeline=2", "'pipeline' is not a field of a plan"),
        ("micro_bach=2", "'micro_bach' is not a field of a plan; did you mean micro_batch"),
        ("recompute=some", "recompute=some must be one of none, selective, mlp, full"),
        ("sp=maybe", "sequence_parallel=maybe must be true or false"),
        ("zero=4", "zero=4 must be 0, 1, 2 or 3"),
        ("tp=3", "tp x cp x pp = 3 must divide the 64 GPUs of the cluster"),
    ],
)
def test_bad_plans_are_one_line(text: str, line: str) -> None:
    with pytest.raises(ValueError) as error:
        Plan.parse(text, world=64)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_columns_refuse_unknown_fields() -> None:
    with pytest.raises(ValueError, match="speed is not a field of a plan"):
        Plans.build(speed=3)
    with pytest.raises(ValueError, match="no plan given"):
        Plans.of([])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"global_batch": 0}, "global_batch=0 must be at least 1"),
        ({"sequence": -1}, "sequence=-1 must be at least 1"),
        ({"token_budget": float("nan")}, "token_budget=nan must be a positive number of tokens"),
        ({"precision": "fp32"}, "flash attention runs in half precision, not fp32; use attention"),
    ],
)
def test_bad_workloads(change: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError) as error:
        replace(Workload(global_batch=8, sequence=128), **change)
    assert str(error.value).startswith(line)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"heads": 0}, "heads=0 of llama-3.1-8b must be at least 1"),
        ({"kv_heads": 5}, "kv_heads=5 must divide the 32 attention heads of llama-3.1-8b"),
        ({"max_positions": 0}, "max_positions=0 of llama-3.1-8b must be at least 1"),
        ({"norms_per_layer": 1}, "norms_per_layer=1 of llama-3.1-8b needs parallel_residual"),
    ],
)
def test_bad_models(change: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError) as error:
        replace(MODEL, **change)
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"nodes": 0}, "has 0 nodes of 8 GPUs; it needs at least one GPU"),
        ({"scale_up_domain": 0}, "scale_up_domain=0 of"),
        ({"scale_out": None}, "no scale_out link between them; name one"),
    ],
)
def test_bad_clusters(change: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError) as error:
        replace(CLUSTER, **change)
    assert line in str(error.value)


def test_a_missing_peak_is_an_error() -> None:
    with pytest.raises(ValueError, match="h100-sxm has no fp4 peak; use one of"):
        CLUSTER.peak("fp4")
