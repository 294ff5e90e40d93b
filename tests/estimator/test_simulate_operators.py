"""Operator by operator: the closed form's busy seconds, hidden by order and not by shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Plan, Workload
from estimator.catalog import load_model
from estimator.estimate import TIME_PARTS
from estimator.layer import COMPUTE, CP, DP, EP, PARTS, TP
from estimator.simulate import Simulation, simulate
from estimator.simulate.graph import KINDS
from estimator.simulate.passes import HELD_LAUNCHES
from estimator.simulate.rows import COMPUTE as COMPUTE_STREAM
from estimator.simulate.rows import HOST
from tests.estimator.problems import CLUSTER, MODEL, STACK, plans

SMALL = Workload(global_batch=64, sequence=4096)
MIXTRAL = load_model("mixtral-8x7b")


def ops(plan: Plan, **more: object) -> Simulation:
    plan = replace(plan, micro_batch=min(plan.micro_batch, SMALL.global_batch // plan.dp))
    return simulate(MODEL, SMALL, CLUSTER, plan, stack=STACK, detail="ops", **more)  # type: ignore[arg-type]


def check_busy(value: Simulation) -> None:
    """Seconds by kind and stage: exposed and hidden ones of all micro-batches together.

    What gathering takes from compute is neither.
    """
    work, tasks = value.work, value.tasks
    both = (work.forward + work.backward).sum(axis=1)
    every = work.micro_batches * (both[:, :PARTS] + both[:, PARTS:])
    in_passes, beside = tasks.phase < 2, tasks.names.index("interference")
    for part, kind in ((COMPUTE, "compute"), (TP, "tp"), (CP, "cp"), (EP, "ep"), (DP, "dp")):
        of_kind = in_passes & (tasks.kind == KINDS.index(kind)) & (tasks.name != beside)
        busy = np.bincount(
            value.built.stage[of_kind], tasks.seconds[of_kind], minlength=work.stages
        )
        assert busy.tolist() == pytest.approx(every[:, part].tolist(), rel=1e-9, abs=1e-12), kind


@settings(max_examples=25, deadline=None)
@given(plans(), st.sampled_from([0, 1, 3]))
def test_busy_seconds_are_those_of_the_closed_form(plan: Plan, zero: int) -> None:
    plan = replace(plan, zero=zero if plan.pp == 1 else min(zero, 1))
    value = ops(plan)
    check_busy(value)
    step = value.estimate
    assert sum(step.time.values()) == pytest.approx(value.makespan, rel=1e-9)
    assert all(seconds >= -1e-12 for seconds in (*step.time.values(), *step.hidden.values()))
    assert step.time["compute"] == pytest.approx(value.closed_form.time["compute"], rel=1e-9)
    assert value.memory[0].peak == pytest.approx(
        value.closed_form.stages[0]["allocated_bytes"], rel=1e-9
    )


@pytest.mark.parametrize(
    "plan",
    [
        Plan(dp=8, tp=4, pp=2, ep=4, etp=1, sequence_parallel=True),
        Plan(dp=16, tp=1, pp=4, ep=8, etp=1, interleave=2, recompute="full"),
    ],
)
def test_experts_exchange_what_the_closed_form_says(plan: Plan) -> None:
    value = simulate(MIXTRAL, SMALL, CLUSTER, plan, stack=STACK, detail="ops")
    check_busy(value)
    assert value.estimate.time["ep"] > 0


def test_one_device_alone_is_the_closed_form_but_for_launches() -> None:
    """Nothing to hide: kernels one after the other, launches ahead of them."""
    plan = Plan(dp=64, zero=1, overlap_grad=False, overlap_param=False)
    value = ops(plan)
    closed = value.closed_form
    for part in TIME_PARTS:
        if part != "host":
            assert value.estimate.time[part] == pytest.approx(closed.time[part], rel=1e-9)
    assert value.estimate.time["host"] <= closed.time["host"]


def test_kernels_shorter_than_their_launches_wait_for_the_host() -> None:
    slow = replace(STACK, launch_forward=0.1, launch_backward=0.2)
    plan = Plan(dp=64, zero=1, overlap_grad=False, overlap_param=False)
    value = simulate(MODEL, SMALL, CLUSTER, plan, stack=slow, detail="ops")
    launches = value.work.micro_batches * MODEL.layers * 0.3 * slow.in_situ["analytic"]
    assert value.makespan > launches
    assert value.estimate.time["host"] > 0.5 * launches


def test_a_host_runs_ahead_by_its_queue_and_no_further() -> None:
    value = ops(Plan(dp=8, tp=8, zero=1))
    tasks, timing = value.tasks, value.timing
    launches = np.flatnonzero((tasks.resource == HOST) & (tasks.phase < 2))
    assert len(launches) > HELD_LAUNCHES
    sources, targets = tasks.edges()
    launched = dict(zip(sources.tolist(), targets.tolist(), strict=True))
    ends = timing.end[[launched[int(task)] for task in launches]]
    assert (timing.start[launches[HELD_LAUNCHES:]] >= ends[:-HELD_LAUNCHES]).all()
    assert (timing.start[launches[8:]] < ends[:-8]).any(), "it does run ahead"


def test_weights_are_gathered_beside_the_layer_before() -> None:
    value = ops(Plan(dp=64, zero=3, micro_batch=1))
    weights = value.tasks.names.index("layer weights")
    gathers = np.flatnonzero(value.tasks.name == weights)
    computes = np.flatnonzero(value.tasks.resource == COMPUTE_STREAM)
    starts, ends = value.timing.start[gathers], value.timing.end[gathers]
    busy = np.array(
        [
            np.any((value.timing.start[computes] < b) & (value.timing.end[computes] > a))
            for a, b in zip(starts[1:], ends[1:], strict=True)
        ]
    )
    assert busy.mean() > 0.9
    assert value.estimate.hidden["dp"] > 0


def test_a_row_parallel_collective_is_not_hidden_and_a_column_parallel_one_is() -> None:
    value = ops(Plan(dp=8, tp=8, sequence_parallel=True))
    tasks, timing = value.tasks, value.timing

    def beside(name: str) -> float:
        """Share of a collective's seconds in which its rank computes."""
        mine = np.flatnonzero(tasks.name == tasks.names.index(name))
        computes = np.flatnonzero(tasks.resource == COMPUTE_STREAM)
        both = 0.0
        for a, b in zip(timing.start[mine], timing.end[mine], strict=True):
            overlap = np.minimum(timing.end[computes], b) - np.maximum(timing.start[computes], a)
            both += float(np.maximum(overlap, 0).sum())
        return both / float((timing.end - timing.start)[mine].sum())

    assert beside("attention output output") == pytest.approx(0, abs=1e-9)
    assert beside("mlp up input dx") > 0.9


@pytest.mark.parametrize("plan", [Plan(dp=2, tp=2, pp=2), Plan(dp=4, tp=2, cp=1, zero=3)])
def test_one_rank_stands_for_the_equal_ones(plan: Plan) -> None:
    small = Workload(global_batch=8, sequence=1024)
    few, everyone = (
        simulate(MODEL, small, CLUSTER, plan, stack=STACK, detail="ops", all_ranks=all_ranks)
        for all_ranks in (False, True)
    )
    assert everyone.makespan == pytest.approx(few.makespan, rel=1e-12)
    assert len(everyone.tasks) == plan.dp * plan.tp * len(few.tasks)


def test_gathered_weights_are_of_two_layers_at_a_time() -> None:
    """Also from one pass to the next; and before the gradients of the layer that runs leave."""
    plan = Plan(dp=16, pp=4, zero=3, interleave=8, micro_batch=1)
    value = simulate(MODEL, SMALL, CLUSTER, plan, stack=STACK, detail="ops")
    tasks, timing = value.tasks, value.timing
    weights = np.flatnonzero(np.isin(tasks.name, _names(value, "weights")))
    mine = weights[(value.built.stage[weights] == 1) & (tasks.phase[weights] < 2)]
    sources, targets = tasks.edges()
    readers = dict(zip(sources.tolist(), targets.tolist(), strict=True))
    assert len(mine) > 10
    # A layer's gather begins once the layer before the previous one has read its weights.
    reads = timing.start[[readers[int(task)] for task in mine]]
    assert (timing.end[mine] <= reads + 1e-12).all()
    assert (timing.start[mine[2:]] >= reads[:-2]).all()
    one_stage = ops(Plan(dp=64, zero=3, micro_batch=1))
    tasks, timing = one_stage.tasks, one_stage.timing
    backward = (tasks.phase == 1) & (tasks.kind == KINDS.index("dp"))
    gathers = np.flatnonzero(backward & np.isin(tasks.name, _names(one_stage, "weights")))
    scatters = np.flatnonzero(backward & np.isin(tasks.name, _names(one_stage, "gradients")))
    assert len(scatters) == len(gathers)
    inside = timing.start[gathers[1:-1]] < timing.end[scatters[:-2]]
    assert inside.mean() > 0.9, "the next layer's weights do not wait for gradients"


def _names(value: Simulation, ending: str) -> list[int]:
    return [i for i, name in enumerate(value.tasks.names) if ending in name.split()]


def test_gathering_beside_compute_takes_from_it_what_the_closed_form_says() -> None:
    plan = Plan(dp=64, zero=3, micro_batch=1)
    value, still = (
        simulate(MODEL, SMALL, CLUSTER, plan, stack=stack, detail="ops")
        for stack in (STACK, replace(STACK, interference_zero3=0.0))
    )
    closed = value.closed_form.step_seconds - still.closed_form.step_seconds
    assert closed > 0
    assert value.makespan - still.makespan == pytest.approx(closed, rel=0.05)


def test_layers_with_experts_are_launched_slower() -> None:
    plan = Plan(dp=8, tp=8, ep=8, etp=1, sequence_parallel=True)
    slow = replace(STACK, launch_experts=0.05)
    usual, slower = (
        simulate(MIXTRAL, SMALL, CLUSTER, plan, stack=stack, detail="ops")
        for stack in (STACK, slow)
    )
    passes = 2 * usual.work.micro_batches * MIXTRAL.layers
    assert slower.makespan > passes * slow.launch_experts > 2 * usual.makespan


@pytest.mark.parametrize("detail", ["stages", "ops"])
def test_end_chunks_are_short_where_layers_are_missing(detail: str) -> None:
    """Of 30 layers in 32 chunks the first holds the embedding alone and the last the head."""
    short = replace(MODEL, layers=30, vocab=8192)
    workload = replace(SMALL, global_batch=128)
    plan = Plan(dp=8, pp=8, interleave=4, micro_batch=1, first_stage_layers=3, last_stage_layers=3)
    value = simulate(short, workload, CLUSTER, plan, stack=STACK, detail=detail)
    assert value.work.shares[0].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    assert value.work.shares[-1].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert value.work.shares[1:-1].tolist() == [[0.25] * 4] * 6
    tasks = value.tasks
    passes = (tasks.resource == COMPUTE_STREAM) & (tasks.phase < 2) & (value.built.chunk == 0)
    first, middle = (tasks.seconds[passes & (value.built.stage == s)].sum() for s in (0, 1))
    assert first < 0.3 * middle
    for memory in value.memory:
        assert memory.allocated[-1] == pytest.approx(memory.allocated[0], rel=1e-9)
    # The closed form spreads layers evenly; the fullest stage has none missing.
    peaks = [memory.peak for memory in value.memory]
    assert max(peaks) == peaks[1] == pytest.approx(max(value.closed_form_bytes), rel=1e-9)
