"""Sweeps: what may vary, what each value means, and answers that move the right way."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from estimator.catalog import load_cluster
from search import contracts
from search.cli.main import run
from search.study import recommend
from search.sweep import MOST_VALUES, Sweep, fields, run_sweep, unit_of, vary
from spaces import Constraints, Problem
from tests.search.fakes import PRICING, problem, small

ASKED = Constraints.parse(fix=["cp=1", "sp=false"], most=["mbs=4", "interleave=2"])
COMMAND = ["search", "--model", "llama-3.1-8b", "--cluster", "h100-sxm:16", "--global-batch", "64"]


def swept(text: str, given: Problem | None = None) -> Any:
    return run_sweep(given or problem(), Sweep.parse(text), constraints=ASKED, pricing=PRICING)


def test_every_field_leads_to_a_number() -> None:
    """A value goes in and comes out at the same place, for every field that is offered."""
    given = problem()
    given = replace(given, cluster=replace(given.cluster, leaf_nodes=16))
    small_values = {
        "cluster.nodes": 3,
        "cluster.memory_margin": 0.25,
        "cluster.leaf_nodes": 1,
        "workload.global_batch": 48,
    }
    for field in fields():
        dtype = field.removeprefix("cluster.device.peaks.")
        if field == "cluster.nics_per_node":
            continue
        if dtype != field and dtype not in given.cluster.device.peaks:
            continue
        value = small_values.get(field, 0.5 if field.startswith("stack") else 16)
        found: Any = vary(given, field, value)
        for name in field.split("."):
            found = found[name] if isinstance(found, dict) else getattr(found, name)
        assert found == value, field


def test_fields_are_numbers_with_their_units() -> None:
    known = fields()
    units = {name: unit_of(kind) for name, kind in known.items()}
    assert units["cluster.scale_out.bandwidth"] == "bytes/s"
    assert units["cluster.device.memory_bytes"] == "bytes"
    assert units["cluster.device.peaks.bf16"] == "FLOP/s"
    assert units["stack.launch_forward"] == "seconds"
    assert units["stack.hiding_dp"] == units["workload.sequence"] == ""
    for absent in ("workload.precision", "workload.dropout", "stack.overlap_tp", "stack.zero"):
        assert absent not in known


def test_values_are_read_in_si() -> None:
    sweep = Sweep.parse("cluster.scale_out.bandwidth=400 Gb/s, 100 GB/s")
    assert sweep.values == (50e9, 100e9)
    assert sweep.texts == ("400 Gb/s", "100 GB/s") and sweep.unit == "bytes/s"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cluster.nodes", "must be written field=value"),
        ("cluster.nic=1", "did you mean cluster.nics_per_node"),
        ("scale_out.bandwidth=1 GB/s", "did you mean cluster.scale_up.bandwidth"),
        ("workload.precision=bf16", "cannot vary 'workload.precision'"),
        ("xyzzy=1", "such as cluster.nodes"),
        ("cluster.nodes=two", "cluster.nodes=two: must be a valid integer"),
        ("cluster.nodes=1.5", "must be a valid integer"),
        ("cluster.nodes=0", "must be greater than or equal to 1"),
        ("cluster.nodes=1,,2", "cluster.nodes=: must be a valid integer"),
        ("cluster.nodes=2,4,2", "has 2 twice"),
        ("cluster.scale_out.bandwidth=100", "no unit; write for example"),
        ("cluster.scale_out.bandwidth=0 GB/s", "must be greater than 0"),
        ("cluster.device.memory_bytes=80 GB/s", "is bytes/s, not bytes"),
        ("stack.hiding_dp=1.5", "must be less than or equal to 1"),
        ("stack.hiding_dp=nan", "must be"),
        ("workload.global_batch=99999999999", "must be less than or equal to"),
        (f"cluster.nodes={','.join(map(str, range(1, MOST_VALUES + 2)))}", "at most 64"),
    ],
)
def test_what_cannot_be_swept_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ValueError, match="--sweep") as error:
        Sweep.parse(text)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_nics_share_the_scale_out_bandwidth_among_the_gpus_of_a_node() -> None:
    given = problem()
    assert given.cluster.scale_out is not None
    own = given.cluster.scale_out.bandwidth
    for nics, share in ((1, 1 / 8), (4, 1 / 2), (8, 1.0), (16, 2.0)):
        changed = vary(given, "cluster.nics_per_node", nics).cluster.scale_out
        assert changed is not None and changed.bandwidth == pytest.approx(share * own)


def test_a_varied_link_is_priced_by_its_numbers() -> None:
    """Fits over NVLink say nothing of another bandwidth, but hold beside other NICs."""
    given = replace(problem(), cluster=load_cluster("h100-sxm:16"))
    fits = given.cluster.collectives
    assert fits
    assert vary(given, "cluster.scale_up.bandwidth", 9e11).cluster.collectives == ()
    assert vary(given, "cluster.scale_out.bandwidth", 9e11).cluster.collectives == fits
    assert vary(given, "cluster.nics_per_node", 4).cluster.collectives == fits


def test_a_node_stays_a_scale_up_domain() -> None:
    changed = vary(problem(), "cluster.gpus_per_node", 4).cluster
    assert (changed.gpus, changed.scale_up_domain) == (8, 4)
    rack = replace(problem().cluster, scale_up_domain=16)
    other = vary(replace(problem(), cluster=rack), "cluster.gpus_per_node", 4).cluster
    assert other.scale_up_domain == 16


def test_a_value_that_contradicts_the_cluster_is_one_line() -> None:
    alone = replace(load_cluster("h100-sxm:8"), scale_out=None)
    given = replace(problem(), cluster=alone)
    for field in ("cluster.nics_per_node", "cluster.scale_out.bandwidth"):
        with pytest.raises(ValueError, match="has no scale_out"):
            vary(given, field, 1e9)
    with pytest.raises(ValueError, match="has peaks for"):
        vary(given, "cluster.device.peaks.fp4", 1e15)


def test_each_point_is_the_search_at_that_value() -> None:
    given = problem()
    found = swept("workload.global_batch=16,32", given)
    space = small(given)
    alone = recommend(
        given.model,
        given.workload,
        given.cluster,
        stack=given.stack,
        space=space,
        pricing=PRICING,
        top=1,
    )
    assert found.points[1].best.estimate == alone.ranked[0].estimate
    assert (found.points[1].legal, found.points[1].fitting) == (alone.legal, alone.fitting)
    assert found.points[0].problem.workload.global_batch == 16


def test_less_memory_never_helps_and_then_nothing_fits() -> None:
    points = swept("cluster.device.memory_bytes=80 GiB,40 GiB,30 GiB,1 GiB").points
    steps = [point.best.estimate.step_seconds for point in points if point.best]
    assert len(steps) >= 2 and steps == sorted(steps)
    assert points[-1].best is None and points[-1].reason == "no plan fits in memory"


def test_a_value_without_legal_plans_says_why() -> None:
    points = swept("workload.sequence=2048,999999").points
    assert points[0].best is not None
    assert points[1].best is None and "is longer than" in points[1].reason


def test_a_problem_without_any_plan_is_an_error() -> None:
    with pytest.raises(ValueError, match="is longer than"):
        swept("workload.sequence=999998,999999")


def test_the_document_keeps_its_contract() -> None:
    found = swept("cluster.device.memory_bytes=80 GiB,1 GiB")
    document = json.loads(json.dumps(contracts.sweep(found), allow_nan=False))
    assert contracts.faults(document, contracts.SCHEMAS[contracts.SWEEP]) == []
    assert document["schema"] == "trainplan.sweep.v1" and document["unit"] == "bytes"
    first, last = document["points"]
    assert contracts.faults(first["best"], contracts.PLAN_COSTS) == []
    assert first["value"] == 80 * 2**30 and last["best"] is None


def test_the_command_sweeps_and_more_nics_never_hurt(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--sweep", "cluster.nics_per_node=1,8", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    one, eight = json.loads(out)["points"]
    assert eight["best"]["step_seconds"] < one["best"]["step_seconds"]
    assert run([*COMMAND, "--sweep", "cluster.nics_per_node=1,8"]) == 0
    table = capsys.readouterr().out
    assert "best plan by cluster.nics_per_node" in table
    assert "Fastest at cluster.nics_per_node=8" in table


def test_the_command_says_where_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--sweep", "cluster.device.memory_bytes=1 GiB,2 GiB"]) == 1
    out, err = capsys.readouterr()
    assert err == "" and "1 GiB: no plan fits in memory" in out
    assert run([*COMMAND, "--sweep", "cluster.nodse=1"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: --sweep") and err.count("\n") == 1
