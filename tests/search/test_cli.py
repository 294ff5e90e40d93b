"""The command from end to end: answers, exit statuses, and one line for every bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from search import contracts
from search.cli.main import run

HEAVY = ("ray", "torch", "optuna", "plotly", "sklearn", "pandas", "scipy", "numba", "msgspec")
SMALL = ["--model", "llama-3.1-8b", "--cluster", "h100-sxm:8", "--global-batch", "64"]
PLAN = ["--plan", "tp=2,mbs=1,sp=true,zero=1,recompute=full"]
UNFIT = ["--plan", "dp=64,tp=1"]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error of a run that must end with exit status 2."""
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    return err


def document(arguments: list[str], capsys: pytest.CaptureFixture[str], status: int = 0) -> Any:
    """The JSON of a run that writes nothing else to standard output."""
    assert run([*arguments, "--json", "-"]) == status
    out, err = capsys.readouterr()
    assert err == ""
    read = json.loads(out)
    assert contracts.faults(read, contracts.SCHEMAS[read["schema"]]) == []
    return read


def test_search_without_options_answers_its_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search"]) == 0
    out, err = capsys.readouterr()
    assert err == "", "no progress where standard error is not a terminal"
    assert "\x1b" not in out, "plain text where standard output is not a terminal"
    assert out.startswith("llama-3.1-70b on h100-sxm:64")
    assert "Best plan: dp=" in out
    assert "legal" in out and "Left out:" in out


def test_search_writes_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "result.json"
    options = [*SMALL, "--tokens", "1e12", "--top", "3", "--fix", "zero=1", "--max", "tp=4"]
    assert run(["search", *options, "--json", str(target)]) == 0
    table = capsys.readouterr().out
    read = json.loads(target.read_text())
    assert contracts.faults(read, contracts.SCHEMAS[contracts.RECOMMENDATION]) == []
    assert len(read["ranked"]) == 3
    assert all(row["plan"]["zero"] == 1 and row["plan"]["tp"] <= 4 for row in read["ranked"])
    assert "1T tokens take" in table and "$" in table
    assert document(["search", *options], capsys) == read, "the same on standard output"


def test_what_is_trained_reaches_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    whole = document(["estimate", *SMALL, *PLAN], capsys)
    adapters = document(["estimate", *SMALL, *PLAN, "--lora-rank", "16"], capsys)
    everywhere = ["--lora-rank", "16", "--lora-targets", "all"]
    more = document(["estimate", *SMALL, *PLAN, *everywhere], capsys)
    packed = document(["estimate", *SMALL, *PLAN, "--document", "512"], capsys)
    masks = document(["estimate", *SMALL, *PLAN, "--dropout"], capsys)
    forward = document(["estimate", *SMALL, "--plan", "tp=2", "--mode", "forward"], capsys)
    fp8 = ["estimate", *SMALL, *PLAN, "--precision", "fp8"]
    by_tensor = document(fp8, capsys)
    by_row = document([*fp8, "--fp8-scaling", "row"], capsys)
    assert by_tensor["time"]["compute"] < by_row["time"]["compute"] < whole["time"]["compute"]
    assert adapters["memory"]["optimizer"] < 0.1 * whole["memory"]["optimizer"]
    assert more["memory"]["optimizer"] > adapters["memory"]["optimizer"]
    assert packed["time"]["compute"] < whole["time"]["compute"]
    assert masks["memory"]["activations"] > whole["memory"]["activations"]
    assert forward["memory"]["optimizer"] == 0 and forward["time"]["optimizer"] == 0


def test_search_by_samples_is_seeded(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["search", *SMALL, "--strategy", "optuna", "--trials", "40", "--seed", "5"]
    one, again = document(options, capsys), document(options, capsys)
    assert one == again
    assert one["evaluated"] <= 40 < one["legal"]


def test_the_best_of_a_search_is_what_estimate_says_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    search = ["search", *SMALL, "--top", "1", "--finalists", "1"]
    row = document(search, capsys)["ranked"][0]
    text = ",".join(f"{k}={str(v).lower()}" for k, v in row["plan"].items())
    one = document(["estimate", *SMALL, "--plan", text], capsys)
    assert one["fits"] is True
    assert one["plan"] == row["plan"]
    assert one["step_seconds"] == pytest.approx(row["closed_form_seconds"], rel=1e-12)
    run_alone = document(["simulate", *SMALL, "--plan", text], capsys)
    assert run_alone["step_seconds"] == pytest.approx(row["step_seconds"], rel=1e-9)
    assert one["memory"] == pytest.approx(row["memory"], rel=1e-12)


def test_nothing_fits_is_an_answer_with_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["search", "--model", "llama-3.1-405b", "--cluster", "h100-sxm:16"]
    assert run(options) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "Nothing fits." in out and "Nearest misses:" in out
    assert "bytes) over" in out and "plans that fit on" in out
    read = document(options, capsys, status=1)
    assert read["ranked"] == [] and read["fitting"] == 0
    assert all(miss["excess_bytes"] > 0 for miss in read["nearest_misses"])


def test_a_miss_names_the_change_even_where_the_user_ruled_it_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["search", "--fix", "dp=64"]) == 1
    assert "; fits with dp=" in capsys.readouterr().out


def test_estimate_prints_parts_that_are_in_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", *SMALL, *PLAN]) == 0
    out = capsys.readouterr().out
    read = document(["estimate", *SMALL, *PLAN], capsys)
    assert f"compute, optimizer, host {read['origin']['compute']}" in out
    assert set(read["origin"]) == set(read["time"])
    assert "fits: " in out
    for part, seconds in read["time"].items():
        assert any(line.startswith(part) and f"{seconds:.4f}" in line for line in out.splitlines())


def test_estimate_of_a_plan_that_does_not_fit_is_an_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["estimate", *UNFIT]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert document(["estimate", *UNFIT], capsys, status=1)["fits"] is False


def test_explain_says_it_in_words_and_compares_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", *SMALL, *PLAN]) == 0
    words = capsys.readouterr().out
    assert "8 GPUs hold 4 replicas" in words and "limited by" in words
    assert "Backward recomputes every layer" in words
    assert run(["explain", *SMALL, *PLAN, "--plan", "tp=8,mbs=1,sp=true"]) == 0
    both = capsys.readouterr().out
    assert "B - A" in both and " faster" in both
    assert len(document(["explain", *SMALL, *PLAN, *PLAN], capsys)["plans"]) == 2
    assert "3 plans given" in refused(["explain", *SMALL, *PLAN, *PLAN, *PLAN], capsys)


@pytest.mark.parametrize("kind", ["models", "devices", "clusters", "stacks"])
def test_catalog_lists_what_is_known(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    from estimator.catalog import names

    assert run(["catalog", kind]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in names(kind))
    read = document(["catalog", kind], capsys)
    assert sorted(entry["name"] for entry in read[kind]) == names(kind)


def test_catalog_checks_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import estimator.catalog

    folder = Path(estimator.catalog.__file__).parent
    kinds = ("models/gpt2-xl", "devices/h100-sxm", "clusters/dgx-h100", "stacks/megatron")
    for name, kind in zip(kinds, ("model", "device", "cluster", "stack"), strict=True):
        assert run(["catalog", "check", str(folder / f"{name}.yaml")]) == 0
        assert f": {kind} {name.split('/')[1]} is well formed" in capsys.readouterr().out
    nothing = tmp_path / "nothing.yaml"
    nothing.write_text("a: 1\n")
    assert "name it with --kind" in refused(["catalog", "check", str(nothing)], capsys)
    assert "kind=tree must be" in refused(
        ["catalog", "check", str(nothing), "--kind", "tree"], capsys
    )


BAD: list[tuple[list[str], str]] = [
    (
        ["estimate", "--plan", "dp=64", "--global-batch", "100"],
        "must divide the global batch of 100",
    ),
    (["estimate", "--plan", "dp=3,tp=4"], "must equal the 64 GPUs"),
    (["estimate", "--plan", "tp=6"], "must divide the 64 GPUs"),
    (["estimate", "--plan", "dp=8,tp=6"], "= 48 must equal the 64 GPUs"),
    (["estimate", "--cluster", "h100-sxm:48", "--plan", "tp=6"], "64 attention heads"),
    (["estimate", "--plan", "tp=banana"], "tp=banana must be a whole number"),
    (["estimate", "--plan", "tp"], "must be written field=value"),
    (["estimate", "--plan", "tpp=2"], "'tpp' is not a field of a plan; did you mean tp"),
    (["estimate", "--plan", "tp=0"], "tp=0 must be a whole number from 1"),
    (["estimate", "--plan", f"tp={10**30},dp=1"], "too large"),
    (["estimate"], "--plan"),
    (["search", "--cluster", "h100-sxm:0"], "0"),
    (["search", "--cluster", "h100-sxm:7"], "nodes of 8"),
    (["search", "--cluster", "h100-sxm:x"], "h100-sxm:x"),
    (["search", "--cluster", "h900:8"], "h900"),
    (["search", "--model", "llama-3.1-7b"], "llama-3.1-70b"),
    (["search", "--stack", "megatronn"], "megatron"),
    (["search", "--seq", "0"], "sequence=0 must be at least 1"),
    (["search", "--seq", "200000"], "longer than the 131072 positions"),
    (["search", "--seq", "many"], "'--seq'"),
    (["search", "--global-batch", "0"], "global_batch=0 must be at least 1"),
    (["search", "--global-batch", str(10**30)], "too large"),
    (["search", "--tokens", "nan"], "token_budget=nan"),
    (["search", "--precision", "fp8", "--cluster", "a100-sxm-80gb:8"], "no fp8 peak"),
    (["search", "--precision", "int4"], "must be one of fp32"),
    (["search", "--attention", "fast"], "must be one of flash, eager"),
    (["search", "--optimizer", "lion"], "must be one of adam"),
    (["search", "--mode", "dream"], "must be one of train, forward"),
    (["search", "--document", "0"], "document=0 must lie from 1 to the 8192 tokens of a sequence"),
    (["search", "--document", "64", "--attention", "eager"], "needs attention flash"),
    (["search", "--fp8-scaling", "block"], "fp8_scaling=block must be one of tensor, row"),
    (["search", "--fp8-scaling", "row"], "fp8_scaling=row needs precision fp8, not bf16"),
    (["search", "--lora-targets", "qkv"], "lora_targets=qkv must be one of attention, all"),
    (["search", "--lora-targets", "all"], "lora_targets=all needs lora_rank"),
    (["search", "--lora-rank", "0"], "lora_rank=0 must be at least 1"),
    (["search", "--precision", "fp32"], "use attention eager"),
    (["search", "--cost", "guess"], "unknown cost model 'guess'"),
    (["search", "--strategy", "luck"], "strategy=luck must be"),
    (["search", "--strategy", "optuna", "--trials", "0"], "trials=0"),
    (["search", "--top", "0"], "top=0"),
    (["search", "--fix", "depth=3"], "'depth' is not a field of a plan"),
    (["search", "--fix", "tp=3"], "must equal the 64 GPUs"),
    (["search", "--fix", "zero=3"], "use one of 0, 1"),
    (["search", "--max", "recompute=full"], "no meaning"),
    (["search", "--wrong"], "--wrong"),
    (["serch"], "serch"),
    (["catalog", "planets"], "planets"),
    (["catalog", "check"], "FILE"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=lambda value: " ".join(value)[:40])
def test_bad_input_is_one_line_and_exit_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(arguments, capsys)


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n"


@pytest.mark.parametrize("option", ["--model", "--cluster", "--stack"])
def test_bad_files_are_one_line(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {
        "bomb.yaml": BOMB,
        "nan.yaml": "name: x\nlayers: .nan\npeaks: {bf16: .nan}\n",
        "code.yaml": "!!python/object/apply:os.system ['true']\n",
        "list.yaml": "- 1\n- 2\n",
        "broken.yaml": "a: [1,\n",
        "empty.yaml": "",
        "bytes.yaml": "\x00\x01",
    }
    for name, text in cases.items():
        (tmp_path / name).write_text(text)
        refused(["search", option, str(tmp_path / name)], capsys)
        if option == "--model":
            refused(["catalog", "check", str(tmp_path / name)], capsys)
    (tmp_path / "folder.yaml").mkdir()
    refused(["search", option, str(tmp_path / "folder.yaml")], capsys)
    refused(["catalog", "check", str(tmp_path / "folder.yaml")], capsys)
    refused(["search", option, str(tmp_path / "missing.yaml")], capsys)


def test_json_to_a_place_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target in (tmp_path, tmp_path / "none" / "x.json"):
        assert "cannot write" in refused(["search", *SMALL, "--json", str(target)], capsys)


def test_text_in_brackets_is_printed_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import estimator.catalog

    text = (Path(estimator.catalog.__file__).parent / "models" / "gpt2-xl.yaml").read_text()
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("gpt2-xl", "'[red]own'", 1))
    options = ["--model", str(own), "--cluster", "h100-sxm:8", "--seq", "1024"]
    assert run(["search", *options, "--global-batch", "64"]) == 0
    assert "[red]own" in capsys.readouterr().out


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from search.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from search.cli.main import run; run(['--help']); run(['search', '--help']);"
        f"print('heavy:', [m for m in {(*HEAVY, 'numpy', 'yaml', 'rich')} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("heavy: []")
    assert "Rank the fastest plans that fit" in done.stdout


def test_the_process_ends_with_the_status_and_without_a_traceback() -> None:
    bad = command("search", "--cluster", "h100-sxm:7")
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)
    good = command("search", *SMALL, "--top", "2", COLUMNS="80", NO_COLOR="1")
    assert good.returncode == 0 and good.stderr == ""
    table = good.stdout.split("\n\n")[1].splitlines()
    assert len(table) >= 3 and all(len(line) <= 80 for line in table[:3])
    unfit = command("estimate", *UNFIT)
    assert unfit.returncode == 1 and unfit.stderr == ""


def test_the_version_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("trainplan ")
    assert run([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_an_interrupt_is_exit_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    import search.study

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search.study, "recommend", interrupt)
    assert run(["search", *SMALL]) == 130
