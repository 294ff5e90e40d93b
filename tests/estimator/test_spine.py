"""Oversubscribed spines: which traffic passes them, and what that costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Cluster, Plan, Plans, Workload, estimate
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.cost.collectives import linear_seconds
from estimator.lower.keys import layer_keys
from estimator.lower.slots import Collective, Columns, above_leaf
from estimator.lower.step import lower_step, step_keys
from estimator.lower.transformer import lower_layers

MODEL, STACK = load_model("llama-3-8b"), load_stack("megatron")
WORKLOAD = Workload(global_batch=256, sequence=4096)
FLAT = load_cluster("h100-sxm:128")


def leaves(nodes: int, oversubscription: float, cluster: Cluster = FLAT) -> Cluster:
    return replace(cluster, leaf_nodes=nodes, oversubscription=oversubscription)


def share(kind: Collective, group: int, inside: float, leaf: float) -> float:
    ranks = np.array([group])
    return float(above_leaf(kind, ranks, np.array([inside]), np.array([leaf]))[0])


def test_shares_by_hand() -> None:
    # 16 nodes, 4 to a leaf; every rank of a node in a ring of its own: of the 32 ranks below a
    # leaf the 8 of one node have their next rank elsewhere, while all 32 leave their node.
    assert share("all_reduce", 16, 1, 4) == 1 / 4
    # One ring through all ranks leaves a leaf of 4 nodes as often as one node.
    assert share("all_gather", 128, 8, 32) == 1 / 4
    # Of 16 ranks, one a node, 12 of the 15 others are below other leaves.
    assert share("all_to_all", 16, 1, 4) == 12 / 15
    assert share("all_reduce", 4, 1, 4) == share("all_to_all", 4, 1, 4) == 0


def lowered(plan: Plan, cluster: Cluster) -> tuple[Columns, Columns]:
    plans = Plans.of([plan])
    keys, _ = layer_keys(plans, STACK)
    shards, _ = step_keys(MODEL, WORKLOAD, plans)
    return (
        lower_layers(MODEL, WORKLOAD, cluster, keys, STACK),
        lower_step(MODEL, WORKLOAD, cluster, shards, STACK),
    )


def above(ops: Columns, name: str) -> float:
    row = next(i for i, slot in enumerate(ops.slots) if slot.name == name)
    return float(ops.above_leaf[row, 0])


def test_groups_are_placed_by_the_order_of_axes() -> None:
    cluster = leaves(4, 8)
    layers, step = lowered(Plan(dp=8, tp=8, pp=2, zero=1), cluster)
    assert above(step, "gradient scatter") == 1 / 4  # 8 consecutive nodes
    assert above(layers, "boundary") == 1  # the next stage is 8 nodes away
    order = Plan(dp=8, tp=8, pp=2, zero=1, order="tp-cp-ep-pp-dp")
    layers, step = lowered(order, cluster)
    assert above(layers, "boundary") == 0  # the next stage is the next node, below the same leaf
    assert above(step, "gradient scatter") == 1 / 2  # every other node


def test_a_spine_slows_what_passes_it() -> None:
    cluster = leaves(4, 8)
    args = np.array([1e9]), np.array([16.0]), np.array([1.0])
    for kind, slower in (("all_reduce", 2.0), ("all_to_all", 6.4)):
        portion = share(kind, 16, 1, 4)  # type: ignore[arg-type]
        flat, passing = (
            linear_seconds(
                kind,  # type: ignore[arg-type]
                *args,
                place,
                between=np.array([1e9]),
                above_leaf=np.array([portion]),
            )[0]
            for place in (FLAT, cluster)
        )
        assert passing / flat == pytest.approx(slower, rel=1e-2)


@given(
    nodes=st.sampled_from([1, 2, 4, 8]),
    ratio=st.floats(1, 16),
    more=st.floats(1, 4),
    plan=st.sampled_from(
        [
            Plan(dp=16, tp=8, zero=1),
            Plan(dp=4, tp=8, pp=4, zero=1),
            Plan(dp=8, tp=2, cp=2, pp=4),
            Plan(dp=128, zero=3),
        ]
    ),
)
def test_steps_do_not_speed_up_with_oversubscription(
    nodes: int, ratio: float, more: float, plan: Plan
) -> None:
    seconds = [
        estimate(MODEL, WORKLOAD, cluster, plan, stack=STACK).step_seconds
        for cluster in (FLAT, leaves(nodes, ratio), leaves(nodes, ratio * more))
    ]
    assert seconds == sorted(seconds)


def test_one_leaf_or_a_full_spine_changes_nothing() -> None:
    plan = Plan(dp=8, tp=8, pp=2, zero=1)
    flat = estimate(MODEL, WORKLOAD, FLAT, plan, stack=STACK).step_seconds
    for cluster in (leaves(16, 8), leaves(4, 1)):
        assert estimate(MODEL, WORKLOAD, cluster, plan, stack=STACK).step_seconds == flat


def test_a_cluster_file_states_its_leaves(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    lines = ["name: mine", "device: h100-sxm", "nodes: 16", "leaf_nodes: 4", "oversubscription: 3"]
    path.write_text("\n".join(lines))
    cluster = load_cluster(str(path))
    assert (cluster.leaf_nodes, cluster.oversubscription, cluster.leaf_ranks) == (4, 3, 32)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("oversubscription: 2", "needs leaf_nodes"),
        ("oversubscription: 0.5\nleaf_nodes: 2", "oversubscription"),
        ("leaf_nodes: 0", "leaf_nodes"),
        ("leaf_nodes: 2\nscale_up_domain: 32", "whole scale-up domains"),
    ],
)
def test_faults_are_one_line(tmp_path: Path, lines: str, says: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"name: mine\ndevice: h100-sxm\nnodes: 16\n{lines}\n")
    with pytest.raises(ValueError) as caught:
        load_cluster(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
