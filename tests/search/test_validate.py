"""Scores of runs against hand-worked statistics, and the command end to end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.runs import Run
from search import contracts, ledger
from search.accuracy import choices, group_errors, memory_errors, out_of_memory, validation
from search.cli.main import run as command
from search.validate import Scored, score

BASE = Run(
    row_id="a",
    source_id="here",
    model="llama-3.1-8b",
    gpu="H100-SXM5-80GB",
    n_gpus=16,
    framework="Megatron-LM",
    global_batch=128,
    seq_len=8192,
    tp=2,
    iter_time_s=5.0,
)


def runs(*changes: dict[str, object]) -> list[Run]:
    return [BASE.model_copy(update=change) for change in changes]


def predicted(**change: object) -> float:
    (row,) = score(runs(change))
    assert row.predicted is not None
    return row.predicted.step_seconds


def test_errors_are_relative_and_signed() -> None:
    right = predicted()
    rows = score(runs({"iter_time_s": right * 2}, {"iter_time_s": right / 1.25, "tp": 4}))
    assert rows[0].error == pytest.approx(-0.5)
    exact = predicted(tp=4)
    assert rows[1].error == pytest.approx(exact / (right / 1.25) - 1)


def test_group_statistics_by_hand() -> None:
    """Errors of -20 %, 0 and +25 %: median 20, mean 15, bias 5/3."""
    times = [predicted(tp=tp) / (1 + e) for tp, e in ((1, -0.2), (2, 0.0), (4, 0.25))]
    rows = score(
        runs(*({"tp": tp, "iter_time_s": t} for tp, t in zip((1, 2, 4), times, strict=True)))
    )
    (group,) = group_errors(rows, "all")
    assert (group.rows, group.mapped, group.configurations) == (3, 3, 3)
    assert group.median == pytest.approx(0.2)
    assert group.mape == pytest.approx(0.15)
    assert group.bias == pytest.approx(0.05 / 3)
    assert group.p90 == pytest.approx(0.2 + 0.8 * 0.05)
    assert group.coverage == pytest.approx(1 / 3)


def test_the_same_configuration_counts_once_by_its_median() -> None:
    right = predicted()
    rows = score(runs(*({"row_id": str(f), "iter_time_s": right * f} for f in (1.0, 1.1, 2.0))))
    (group,) = group_errors(rows, "all")
    assert (group.rows, group.configurations) == (3, 1)
    assert group.median == pytest.approx(1 - 1 / 1.1)
    assert group.noise == pytest.approx(1.0)


def test_choices_by_hand() -> None:
    """Three plans; the predicted order is reversed, and two measured times are too close."""
    by_time = sorted((predicted(tp=tp), tp) for tp in (1, 2, 4))
    measured = {tp: 10.0 * f for (_, tp), f in zip(by_time, (2.0, 1.02, 1.0), strict=True)}
    rows = score(
        runs(*({"tp": tp, "iter_time_s": t, "choice_group": "g"} for tp, t in measured.items()))
    )
    (choice,) = choices(rows)
    assert (choice.plans, choice.pairs) == (3, 2)
    assert choice.concordance == 0.0
    assert choice.regret == pytest.approx(1.0)
    assert choice.regret_random == pytest.approx((2 + 1.02 + 1) / 3 - 1)
    assert choice.regret_rule_of_thumb == pytest.approx(measured[4] / 10 - 1)


@given(st.permutations([1, 2, 4]))
def test_a_perfect_ranking_has_no_regret(order: list[int]) -> None:
    rows = score(
        runs(*({"tp": tp, "iter_time_s": predicted(tp=tp), "choice_group": "g"} for tp in order))
    )
    (choice,) = choices(rows)
    assert choice.regret == 0
    assert choice.concordance in (None, 1.0)


def test_frameworks_are_not_mixed_in_a_choice() -> None:
    rows = score(
        runs(
            {"choice_group": "g", "framework": "Megatron-LM"},
            {"choice_group": "g", "framework": "torchtitan"},
        )
    )
    assert choices(rows) == []


def test_memory_is_compared_kind_by_kind() -> None:
    (row,) = score(runs({"mem_gb_per_gpu": 50.0, "mem_kind": "max over ranks, allocated"}))
    assert row.predicted is not None
    assert row.predicted_bytes == pytest.approx(row.predicted.allocated_bytes)
    (device,) = score(runs({"mem_gb_per_gpu": 50.0, "mem_kind": "nvidia-smi"}))
    assert device.predicted is not None
    assert device.predicted_bytes == pytest.approx(device.predicted.peak_bytes)
    (group,) = memory_errors([row])
    assert group.worst == pytest.approx(row.predicted.allocated_bytes / 50e9 - 1)


def test_out_of_memory_counts() -> None:
    said = BASE.model_copy(update={"recompute": "none"})
    big = {"model": "llama-3.1-70b", "tp": 1, "iter_time_s": 100.0}
    changes = ({**big, "oom": True, "iter_time_s": None}, {"oom": True, "tp": 4}, big, {"tp": 4})
    rows = score([*(said.model_copy(update=change) for change in changes), BASE])
    counts = out_of_memory(rows)
    assert counts.assumed == 1
    assert (counts.caught, counts.missed, counts.false_alarms, counts.fitting) == (1, 1, 1, 1)
    assert counts.precision == counts.recall == 0.5


def test_physics_flags_units() -> None:
    (fast,) = score(runs({"iter_time_s": 0.005}))
    assert fast.reason is not None
    assert "faster than the peak allows; check the unit" in fast.reason
    (slow,) = score(runs({"iter_time_s": 5000.0}))
    assert slow.reason is not None
    assert "is the time in milliseconds?" in slow.reason


def test_files_may_mark_rows_as_unusable() -> None:
    rows = score(runs({"use_time": "no"}, {"config_grade": "C"}, {"use_time": "weak"}, {}))
    assert [row.seconds is None for row in rows] == [True, True, True, False]


def csv(tmp_path: Path, rows: list[Run]) -> str:
    columns = [name for name in Run.model_fields if any(getattr(r, name) is not None for r in rows)]
    lines = [",".join(columns)]
    for row in rows:
        values = (getattr(row, name) for name in columns)
        lines.append(",".join("" if value is None else str(value) for value in values))
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = csv(tmp_path, runs({"role": "fit"}, {"tp": 4, "role": "test"}, {"gpu": "TPU v5p"}))
    assert command(["validate", path, "--by", "gpu,framework"]) == 0
    text = capsys.readouterr().out
    assert "3 rows, 3 with a measured time; of these 2 mapped (66.7 %)" in text
    assert "gpu 'TPU v5p' is not in the catalogue" in text
    target = tmp_path / "answer.json"
    assert command(["validate", path, "--role", "test", "--json", str(target)]) == 0
    document = json.loads(target.read_text())
    assert contracts.faults(document, contracts.SCHEMAS[contracts.VALIDATION]) == []
    assert [row["plan"]["tp"] for row in document["rows"]] == [4]


def test_only_keeps_rows_of_a_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values of one column add up, columns narrow; a forced stack does not hide the row's own."""
    path = csv(
        tmp_path,
        runs({}, {"tp": 4}, {"tp": 8}, {"framework": "torchtitan"}, {"source_id": "there"}),
    )
    target = tmp_path / "answer.json"

    def degrees(*arguments: str) -> list[int]:
        assert command(["validate", path, *arguments, "--json", str(target)]) == 0
        return [row["plan"]["tp"] for row in json.loads(target.read_text())["rows"]]

    assert degrees("--only", "tp=2", "--only", "tp=4") == [2, 4, 2, 2]
    assert degrees("--only", "tp=2", "--only", "source=there") == [2]
    assert degrees("--only", "stack=megatron", "--stack", "nemo") == [2, 4, 8, 2]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--only", "tp=2", "--log", "x.md"], "--log is for all rows of a role; leave out --only"),
        (["--only", "tp"], "cannot keep only 'tp'; write column=value with one of the columns so"),
        (["--only", "all=all"], "cannot keep only 'all=all'; write column=value"),
        (["--only", "colour=red"], "cannot keep only 'colour=red'; write column=value"),
        (["--only", "tp=3"], "no row has tp=3; the rows have 2 (1)"),
        (["--role", "exam"], "no row has role 'exam'; the file has fit"),
        (["--by", "colour"], "cannot group by 'colour'; use all, source"),
        (["--stack", "megatro"], "unknown stack 'megatro'; nearest: megatron"),
        (["--cost", "banana"], "unknown cost model 'banana'; use one of"),
    ],
)
def test_bad_usage_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert command(["validate", csv(tmp_path, runs({"role": "fit"})), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {line}")
    assert error.count("\n") == 1


def test_nothing_measured_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["validate", csv(tmp_path, runs({"iter_time_s": None}))]) == 2
    assert "no row has a measured time or memory" in capsys.readouterr().err


def test_ledger_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "commit", lambda: ("2026-01-02", "abc1234"))
    report = validation(score(runs({"iter_time_s": 2 * predicted()})))
    target = tmp_path / "ACCURACY.md"
    target.write_text("# Accuracy\n\nWords.\n", encoding="utf-8")
    ledger.append(report, str(target))
    ledger.append(report, str(target), "learned")
    lines = target.read_text().splitlines()
    assert lines[0] == "# Accuracy"
    assert lines[-1] == lines[-2].replace("abc1234", "abc1234, learned")
    assert lines[-2].startswith(
        "| 2026-01-02 | abc1234 | 1 | 100.0 % | 1 | 50.0 | 50.0 | 50.0 | -50.0 |"
    )
    assert sum("| date | commit |" in line for line in lines) == 1


def test_ledger_refuses_a_dirty_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"status": " M search/validate.py", "log": "2026-01-02 abc1234"}

    def git(command: tuple[str, ...], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, stdout=answers[command[3]], stderr="")

    monkeypatch.setattr(subprocess, "run", git)
    with pytest.raises(ValueError, match="needs a clean commit, but search/validate"):
        ledger.commit()
    answers["status"] = " M ACCURACY.md"
    assert ledger.commit() == ("2026-01-02", "abc1234")


def test_rows_of_one_problem_are_priced_together_and_alike() -> None:
    jean_zay = {
        "inter_net": "Jean Zay",
        "flash_attention": False,
        "precision": "fp16",
        "iter_time_s": 300.0,
    }
    gpus = ({**jean_zay, "gpu": f"V100-SXM2-{size}GB", "gpus_per_node": 4} for size in (16, 32))
    together = score(runs({"tp": 1}, {"tp": 2}, {"tp": 4}, *gpus))
    capacities = {row.predicted.capacity_bytes for row in together if row.predicted}
    assert len(capacities) == 3
    for row in together:
        (alone,) = score([row.run])
        assert isinstance(row, Scored)
        assert row.predicted is not None and alone.predicted is not None
        assert row.predicted.step_seconds == pytest.approx(alone.predicted.step_seconds)
