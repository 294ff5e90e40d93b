"""``trainplan calibrate`` end to end: what it writes and prints, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimator.catalog import load_stack, stack_yaml
from estimator.runs import Run
from search import contracts
from search.cli.main import run as command
from search.scalars import with_value
from tests.search.measured import BASE, measured, write_csv

SLOWER = with_value(BASE, "in_situ", 1.2 * BASE.in_situ["analytic"], "analytic")
RUNS = measured(SLOWER, 14, noise=0.02)
ONE_GPU = {"tp": 1, "pp": 1, "n_gpus": 1, "global_batch": 8}


def with_times(factor: float) -> list[Run]:
    return [
        run.model_copy(update={"iter_time_s": factor * run.iter_time_s})
        for run in RUNS
        if run.iter_time_s is not None
    ]


def test_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "runs.csv", RUNS)
    target, document = tmp_path / "mine.yaml", tmp_path / "mine.json"
    assert command(["calibrate", path, "-o", str(target), "--json", str(document)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("mine: megatron fitted to 14 runs, 14 of them distinct, cost analytic")
    assert "in_situ" in text and "identified" in text and "not exercised" in text
    assert f"use it with --stack {target}" in text

    stack = load_stack(target)
    assert stack.name == "mine"
    assert stack_yaml(stack) == target.read_text()
    assert stack.in_situ["analytic"] == pytest.approx(SLOWER.in_situ["analytic"], rel=0.03)
    assert stack.in_situ["learned"] == BASE.in_situ["learned"]
    assert stack.sources["in_situ"].startswith("analytic: trainplan calibrate, 14 runs of here")
    assert stack.sources["weight_bytes"] == BASE.sources["weight_bytes"]
    calibration = stack.calibration
    assert calibration is not None and calibration.helps
    assert (calibration.rows, calibration.configurations) == (14, 14)
    assert calibration.sources == ("here",)
    assert calibration.devices == ("h100-sxm",)
    assert list(calibration.residuals) == sorted(calibration.residuals)
    assert stack.uncertainty < BASE.uncertainty

    read = json.loads(document.read_text())
    assert contracts.faults(read, contracts.SCHEMAS[contracts.CALIBRATION]) == []
    assert read["helps"] is True
    assert len(read["runs"]) == 14
    assert read["stack"]["calibration"]["rows"] == 14


def test_the_file_goes_wherever_a_stack_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, target = write_csv(tmp_path / "runs.csv", RUNS), str(tmp_path / "mine.yaml")
    assert command(["calibrate", path, "-o", target]) == 0
    problem = ["--model", "llama-3.1-8b", "--cluster", "h100-sxm:16", "--global-batch", "64"]
    plan = ["--plan", "tp=2,pp=2"]
    capsys.readouterr()
    for arguments in (
        ["validate", path, "--stack", target],
        ["estimate", *problem, *plan, "--stack", target],
        ["simulate", *problem, *plan, "--stack", target],
        ["explain", *problem, *plan, "--stack", target],
        ["search", *problem, "--stack", target, "--json", str(tmp_path / "answer.json")],
        ["calibrate", path, "--stack", target, "-o", str(tmp_path / "again.yaml")],
    ):
        assert command(arguments) == 0, capsys.readouterr().err
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert contracts.faults(answer, contracts.SCHEMAS[contracts.RECOMMENDATION]) == []


def test_standard_output_is_the_stack_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "runs.csv", RUNS[:3])
    assert command(["calibrate", path, "-o", "-", "--name", "mine"]) == 0
    target = tmp_path / "out.yaml"
    target.write_text(capsys.readouterr().out)
    assert load_stack(target).name == "mine"


def test_a_file_name_of_many_words_is_one_name(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "runs.csv", RUNS[:1])
    target = tmp_path / "my größter stack.yaml"
    assert command(["calibrate", path, "-o", str(target)]) == 0
    assert load_stack(target).name == "my-gr-ter-stack"


def test_only_and_role_and_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = [
        run.model_copy(update={"framework": "NeMo", "role": "test", "source_id": "there"})
        for run in RUNS[:4]
    ]
    path = write_csv(tmp_path / "runs.csv", [*RUNS, *others])
    target = str(tmp_path / "mine.yaml")
    assert command(["calibrate", path, "-o", target]) == 2
    line = "the rows are of 2 stacks: megatron (14 rows), nemo (4 rows); choose one with --only"
    assert line in capsys.readouterr().err
    for arguments, rows, base in (
        (["--only", "stack=nemo"], 4, "nemo"),
        (["--only", "source=here"], 14, "megatron"),
        (["--role", "test"], 4, "nemo"),
        (["--stack", "megatron"], 18, "megatron"),
        (["--stack", "megatron", "--only", "stack=nemo"], 4, "megatron"),
    ):
        assert command(["calibrate", path, "-o", target, *arguments]) == 0
        assert f"{base} fitted to {rows} runs" in capsys.readouterr().out


def test_rows_that_cannot_be_used_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = [RUNS[0].model_copy(update={"gpu": "TPU v5p"}), RUNS[1].model_copy(update={"tp": 3})]
    path = write_csv(tmp_path / "runs.csv", [*RUNS, *odd])
    assert command(["calibrate", path, "-o", str(tmp_path / "mine.yaml")]) == 0
    text = capsys.readouterr().out
    assert "Not used, 2 rows:" in text
    assert "gpu 'TPU v5p' is not in the catalogue" in text


def test_a_fit_that_does_not_help_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "runs.csv", measured(BASE, 12, noise=0.05, seed=3))
    target = tmp_path / "mine.yaml"
    document = tmp_path / "mine.json"
    assert command(["calibrate", path, "-o", str(target), "--json", str(document)]) == 0
    assert "A fit does not help: on runs left out of it" in capsys.readouterr().out
    stack = load_stack(target)
    assert stack.calibration is not None and not stack.calibration.helps
    assert stack.in_situ == BASE.in_situ
    assert "predicted by megatron as it is" in stack.sources["uncertainty"]
    read = json.loads(document.read_text())
    assert {one["state"] for one in read["scalars"]} <= {"held", "not exercised"}
    errors = read["errors"]
    assert errors["refused"]["median"] >= errors["before"]["median"] == errors["after"]["median"]


def test_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "runs.csv", RUNS[:1])
    target = tmp_path / "mine.yaml"
    assert command(["calibrate", path, "-o", str(target)]) == 0
    text = capsys.readouterr().out
    assert "With fewer than 3 distinct runs only in_situ moves." in text
    assert "what the fit is worth is open" in text
    assert load_stack(target).launch_forward == BASE.launch_forward


@pytest.mark.parametrize(
    ("rows", "arguments", "line"),
    [
        (with_times(1000.0), [], "no row can be used; 1 of 14: a step of "),
        (with_times(1e-3), [], "no row can be used; 1 of 14: a step of "),
        (with_times(20.0), [], "in_situ ends at its bound of 2"),
        ([run.model_copy(update={"iter_time_s": None}) for run in RUNS], [], "no row has a step"),
        ([run.model_copy(update={"gpu": "TPU v5p"}) for run in RUNS], [], "no row can be used; 14"),
        ([run.model_copy(update={"framework": "Foo"}) for run in RUNS], [], "no row can be used"),
        ([run.model_copy(update={"use_time": "no"}) for run in RUNS], [], "no row has a step time"),
        (RUNS, ["--role", "exam"], "no row has role 'exam'; the file has no roles"),
        (RUNS, ["--only", "stack=fsdp"], "no row has stack=fsdp; the rows have megatron (14)"),
        (RUNS, ["--only", "colour"], "cannot keep only 'colour'; write column=value"),
        (RUNS, ["--stack", "megatro"], "unknown stack 'megatro'; nearest: megatron"),
        (RUNS, ["--cost", "banana"], "unknown cost model 'banana'; use one of"),
        (RUNS, ["--cost", "amped"], "cost=amped prices whole plans, not their layers"),
        (RUNS, ["--seed", "-1"], "Invalid value for '--seed'"),
        (RUNS, ["--name", "two words"], "name 'two words' must be one word"),
        (RUNS, ["--name", ""], "name '' must be one word"),
    ],
)
def test_bad_input_is_one_line_and_no_file(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rows: list[Run],
    arguments: list[str],
    line: str,
) -> None:
    path = write_csv(tmp_path / "runs.csv", rows)
    target = tmp_path / "mine.yaml"
    assert command(["calibrate", path, "-o", str(target), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {line}"), error
    assert error.count("\n") == 1
    assert not target.exists()


def test_bad_files_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "runs.csv", RUNS[:3])
    odd = tmp_path / "odd.csv"
    odd.write_text("a,b\n1,2\n")
    for arguments, line in (
        ([path, "-o", str(tmp_path / "x.yaml"), "--json", str(tmp_path / "no" / "x")], "cannot"),
        ([path, "-o", "x", "--json", "x"], "--output and --json both name x; name two files"),
        ([str(tmp_path / "none.csv"), "-o", str(tmp_path / "x.yaml")], "does not exist"),
        ([str(odd), "-o", str(tmp_path / "x.yaml")], "none of the columns of a run"),
        ([path, "-o", str(tmp_path / "no" / "x.yaml")], "cannot write"),
        ([path], "Missing option '--output'"),
    ):
        assert command(["calibrate", *arguments]) == 2
        error = capsys.readouterr().err
        assert line in error and error.count("\n") == 1
    assert not (tmp_path / "x.yaml").exists()
