"""Trace Event JSON: every event valid, slices nested, arrows paired; the picture in letters."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from estimator import Plan
from estimator.simulate import Simulation, simulate
from estimator.simulate.build import build
from estimator.simulate.engine import run
from estimator.simulate.timeline import Trace, picture, trace_json
from tests.estimator.problems import CLUSTER, MODEL, STACK, WORKLOAD
from tests.estimator.test_simulate_orders import pure

REQUIRED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "X": {"name": str, "cat": str, "ts": (int, float), "dur": (int, float), "args": dict},
    "s": {"name": str, "cat": str, "id": int, "ts": (int, float)},
    "f": {"name": str, "cat": str, "id": int, "ts": (int, float), "bp": str},
    "C": {"name": str, "ts": (int, float), "args": dict},
    "M": {"name": str, "args": dict},
}
"""What the Trace Event Format asks of each phase of event, beside ``pid`` and ``tid``."""
PLANS = {
    "1f1b": Plan(dp=8, tp=2, pp=4),
    "interleaved with transfers": Plan(dp=8, tp=2, pp=4, interleave=2, overlap_p2p=True),
    "one stage": Plan(dp=64, zero=1),
    "gpipe": Plan(dp=8, tp=2, pp=4, schedule="gpipe"),
}


@pytest.fixture(scope="module", params=sorted(PLANS))
def value(request: pytest.FixtureRequest) -> Simulation:
    return simulate(MODEL, WORKLOAD, CLUSTER, PLANS[request.param], stack=STACK)


@pytest.fixture(scope="module")
def events(value: Simulation) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(trace_json(value))["traceEvents"]
    return read


def faults(events: list[dict[str, Any]]) -> list[str]:
    found = []
    for event in events:
        required = REQUIRED.get(event.get("ph", ""))
        if required is None:
            found.append(f"unknown phase: {event}")
            continue
        for name, kind in {"pid": int, **required}.items():
            if not isinstance(event.get(name), kind):
                found.append(f"{name} of {event}")
        if event.get("dur", 0) < 0 or event.get("ts", 0) < 0:
            found.append(f"negative: {event}")
    return found


def test_a_fault_is_found() -> None:
    good = {"ph": "C", "name": "allocated", "pid": 0, "ts": 1.0, "args": {"bytes": 1}}
    assert faults([good]) == []
    assert len(faults([{**good, "ts": -1}, {**good, "pid": "0"}, {**good, "ph": "?"}])) == 3


def test_every_event_is_valid(events: list[dict[str, Any]], value: Simulation) -> None:
    assert faults(events) == []
    assert msgspec.json.decode(trace_json(value), type=Trace).displayTimeUnit == "ms"


def test_slices_of_a_thread_follow_each_other(
    events: list[dict[str, Any]], value: Simulation
) -> None:
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(threads) <= named
    for slices in threads.values():
        slices.sort()
        for (_, end), (start, _) in pairwise(slices):
            assert start >= end - 1e-6
    last = max(end for slices in threads.values() for _, end in slices)
    assert last == pytest.approx(value.makespan * 1e6)


def test_arrows_pair_up_and_lie_in_slices(events: list[dict[str, Any]], value: Simulation) -> None:
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == len([e for e in events if e["ph"] == "s"])
    assert bool(starts) is (value.work.stages > 1)
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for id_, start in starts.items():
        end = ends[id_]
        assert start["ts"] <= end["ts"] and start["pid"] != end["pid"]
        for arrow in (start, end):
            around = slices[arrow["pid"], arrow["tid"]]
            assert any(a - 1e-6 <= arrow["ts"] <= b + 1e-6 for a, b in around)


def test_the_memory_counter_reaches_the_peak(
    events: list[dict[str, Any]], value: Simulation
) -> None:
    for stage, memory in enumerate(value.memory):
        counted = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["pid"] == stage]
        assert max(counted) == pytest.approx(memory.peak)
        moments = [e["ts"] for e in events if e["ph"] == "C" and e["pid"] == stage]
        assert moments == sorted(set(moments))


def test_the_picture_has_a_line_per_stage(value: Simulation) -> None:
    lines = picture(value, width=80)
    assert [len(line) for line in lines] == [80] * value.work.stages
    assert lines[0].lstrip(".")[0] == "0", "the first micro-batch comes first"
    assert set("".join(lines)) <= set("0123456789abcdefghij.U")


def test_the_picture_of_a_small_pipeline() -> None:

    work = pure([1.0] * 3, [2.0] * 3, m=3)
    built = build(work, Plan(pp=3))
    one = SimpleNamespace(tasks=built.tasks, built=built, timing=run(built.tasks), work=work)
    assert picture(one, width=15) == [  # type: ignore[arg-type]
        "012....aa.bb.cc",
        ".01..aa2bb.cc..",
        "..0aa1bb2cc....",
    ]
