"""``trainplan simulate`` from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from search import contracts
from search.cli.main import run

SMALL = ["--model", "llama-3.1-8b", "--cluster", "h100-sxm:8", "--global-batch", "32"]
PLAN = ["--plan", "tp=2,pp=2,mbs=1,sp=true,zero=1,recompute=full"]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["simulate", *SMALL, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    return err


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert run(["simulate", *SMALL, *arguments, "--json", "-"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert contracts.faults(read, contracts.SCHEMAS[contracts.SIMULATION]) == []
    return read


def test_it_says_where_a_step_waits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *SMALL, *PLAN]) == 0
    out = capsys.readouterr().out
    for words in ("on the critical path", "closed form", "without synchronisation", "peak GiB"):
        assert words in out
    assert all(len(line) <= 110 for line in out.splitlines()[-2:])


def test_the_document_has_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    read = document(PLAN, capsys)
    assert read["schema"] == "trainplan.simulation.v1"
    assert sum(read["time"].values()) == pytest.approx(read["step_seconds"], rel=1e-9)
    assert [rank["stage"] for rank in read["ranks"]] == [0, 1]
    path = read["critical_path"]
    assert sum(task["seconds"] for task in path) == pytest.approx(read["step_seconds"], rel=1e-9)
    for memory in read["memory_over_time"]:
        assert max(memory["allocated_bytes"]) == memory["peak_bytes"]


def test_a_slow_rank_and_noise(capsys: pytest.CaptureFixture[str]) -> None:
    even = document(PLAN, capsys)["step_seconds"]
    slow = document([*PLAN, "--slow-rank", "3=1.5", "--slow-rank", "0=1.1"], capsys)
    noisy = document([*PLAN, "--noise", "0.05", "--seed", "1"], capsys)["step_seconds"]
    again = document([*PLAN, "--noise", "0.05", "--seed", "1"], capsys)["step_seconds"]
    assert slow["step_seconds"] > 1.3 * even
    assert noisy == again != even
    everyone = document([*PLAN, "--all-ranks", "--slowdown", "0.1"], capsys)
    assert len(everyone["ranks"]) == 8
    ops = document([*PLAN, "--detail", "ops"], capsys)
    assert "tp" in ops["ranks"][0]["idle_seconds"]


def test_a_timeline_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "timeline.json"
    assert run(["simulate", *SMALL, *PLAN, "-o", str(file)]) == 0
    assert "on the critical path" in capsys.readouterr().out
    assert len(json.loads(file.read_text("utf-8"))["traceEvents"]) > 100
    assert run(["simulate", *SMALL, *PLAN, "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["displayTimeUnit"] == "ms"


def test_a_plan_that_does_not_fit_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *SMALL, "--plan", "mbs=4"]) == 1
    assert "does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--plan"),
        (["--plan", "tp=3"], "must divide the 8 GPUs"),
        ([*PLAN, "--slow-rank", "3"], "slow-rank=3 must be written rank=factor"),
        ([*PLAN, "--slow-rank", "x=1.2"], "slow-rank=x=1.2 must be written rank=factor"),
        ([*PLAN, "--slow-rank", "1=1.2", "--slow-rank", "1=2"], "each rank once"),
        ([*PLAN, "--slow-rank", "8=1.2"], "slow rank 8 must be a rank of the world, 0 to 7"),
        ([*PLAN, "--slow-rank", "1=nan"], "factor nan of slow rank 1 must be"),
        ([*PLAN, "--slow-rank", "1=inf"], "factor inf of slow rank 1 must be"),
        ([*PLAN, "--noise", "-1"], "noise=-1.0 must be from 0"),
        ([*PLAN, "--noise", "nan"], "noise=nan must be from 0"),
        ([*PLAN, "--seed", "-1"], "seed=-1 must not be negative"),
        ([*PLAN, "--slowdown", "-1"], "slowdown=-1.0 must be from 0"),
        ([*PLAN, "--detail", "atoms"], "detail=atoms must be one of stages, ops"),
        ([*PLAN, "--cost", "amped"], "cost=amped prices whole plans"),
        ([*PLAN, "-o", "/nowhere/timeline.json"], "cannot write /nowhere/timeline.json"),
        ([*PLAN, "-o", "-", "--json", "-"], "only one of --timeline and --json"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(arguments, capsys)
