"""Where each part of a price is from: what most of its seconds are."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import Plan, Plans, Workload, estimate
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.estimate import TIME_PARTS

MODEL, STACK = load_model("llama-3.1-8b"), load_stack("megatron")
WORKLOAD = Workload(global_batch=64, sequence=4096)
H100 = load_cluster("h100-sxm:32")


def _origins(text, cluster=H100, cost="analytic", model=MODEL):
    plan = Plan.parse(text, world=cluster.gpus)
    return estimate(model, WORKLOAD, cluster, plan, stack=STACK, cost=cost).origin


def test_collectives_inside_a_measured_node_are_measured_and_the_rest_linear():
    found = _origins("tp=8,pp=2,mbs=1,sp=true,zero=1")
    assert found["tp"] == "measured-fit"
    assert found["pp"] == found["dp"] == "linear"
    assert found["compute"] == found["bubble"] == found["optimizer"] == "analytic"


def test_without_fitted_collectives_all_are_linear():
    found = _origins("tp=8,pp=2,mbs=1", replace(H100, collectives=()))
    assert {found[part] for part in ("tp", "pp", "dp")} == {"linear"}


def test_a_part_that_takes_no_time_is_of_nothing():
    found = _origins("tp=8,mbs=1", load_cluster("h100-sxm:8"))
    assert {part for part in TIME_PARTS if found[part] == "none"} == {
        "cp",
        "ep",
        "pp",
        "bubble",
        "dp",
    }


@pytest.mark.parametrize(
    ("device", "cost", "expected"),
    [
        ("h100-sxm", "learned", "learned"),
        ("gb300", "learned", "extrapolated"),
        ("gb300", "analytic", "extrapolated"),
        ("h100-sxm", "analytic", "analytic"),
    ],
)
def test_compute_is_from_what_most_of_it_is(device, cost, expected):
    found = _origins("tp=4,mbs=1", load_cluster(f"{device}:8"), cost)
    assert found["compute"] == expected
    assert found["optimizer"] in ("analytic", "extrapolated")


def test_experts_exchange_over_measured_or_linear_links():
    found = _origins("tp=1,ep=8,mbs=1", model=load_model("mixtral-8x7b"))
    assert found["ep"] in ("measured-fit", "linear") and found["dp"] != "none"


def test_plans_of_one_block_differ_in_origin():
    one = Plan.parse("tp=1,mbs=1", world=32)
    many = Plan.parse("tp=8,mbs=1,sp=true", world=32)
    both = estimate(MODEL, WORKLOAD, H100, Plans.of([one, many]), stack=STACK)
    assert [both[i].origin["tp"] for i in range(2)] == ["none", "measured-fit"]
    assert both[1].origin == estimate(MODEL, WORKLOAD, H100, many, stack=STACK).origin


def test_amped_is_analytic_whole():
    assert set(_origins("tp=8,mbs=1", cost="amped").values()) == {"analytic"}


def test_measured_seconds_are_where_origins_say_so():
    from estimator.cost.roofline import roofline
    from estimator.lower.keys import layer_keys
    from estimator.lower.transformer import lower_layers

    plans = Plans.of([Plan.parse(f"tp={tp},mbs=1", world=32) for tp in (2, 4, 8, 16)])
    keys, _ = layer_keys(plans, STACK)
    ops = lower_layers(MODEL, WORKLOAD, H100, keys, STACK)
    model = roofline(H100.device)
    names = model.origins(ops, WORKLOAD, H100, STACK)
    linear = model.seconds(ops, WORKLOAD, replace(H100, collectives=()), STACK)
    changed = model.seconds(ops, WORKLOAD, H100, STACK) != linear
    assert (names[changed] == "measured-fit").all() and changed.any()
    assert not np.isin(names[ops.rows("gemm")], ("measured-fit", "linear")).any()
