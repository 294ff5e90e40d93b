"""``trainplan estimate --module``: a user's own code, and one line for all that can go wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search import contracts
from search.cli.main import run
from search.module import parse_input

pytest.importorskip("torch")

CODE = """
import sys
import torch
from torch import nn

print("importing the user's code")
LIMIT = 3
ready = nn.Linear(4, 4)


def mlp():
    assert torch.empty(1).device.type == "meta"
    layers = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    return layers, torch.zeros(8, 512, 1024)


def bare():
    return nn.Linear(16, 16)


def keywords():
    return nn.MultiheadAttention(16, 2), dict.fromkeys(("query", "key", "value"), torch.ones(3, 16))


def strange():
    class Strange(nn.Module):
        def forward(self, x):
            return torch.linalg.qr(x)[0] if (x == x).all() else x

    return Strange(), torch.zeros(8, 8)


def fails():
    raise RuntimeError("first line\\nsecond line")


def leaves():
    sys.exit(3)


def nothing():
    return None
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's code in the current folder, which is not on the path of the console script."""
    (tmp_path / "own_network.py").write_text(CODE)
    (tmp_path / "broken_network.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delenv("COLUMNS", raising=False)
    yield
    sys.modules.pop("own_network", None)


def priced(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert run(["estimate", *options, "--json", "-"]) == 0
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert contracts.faults(read, contracts.SCHEMAS[contracts.MODULE]) == []
    return read


def test_the_document_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    read = priced(capsys, "--module", "own_network:mlp")
    assert read["schema"] == "trainplan.module.v1" and read["module"] == "own_network:mlp"
    assert read["device"]["name"] == "h100-sxm" and read["cost"] == "analytic"
    assert read["mode"] == "train" and not read["fused"]
    assert read["parameters"] == 2 * 1024 * 4096 + 4096 + 1024
    assert read["seconds"] == pytest.approx(read["forward_seconds"] + read["backward_seconds"])
    for part in ("seconds", "flops", "bytes"):
        whole = sum(row[part] for row in read["operators"])
        assert sum(row[part] for row in read["kinds"]) == pytest.approx(whole, rel=1e-12)
    assert sum(row["seconds"] for row in read["operators"]) == pytest.approx(read["seconds"])
    linear = {row["kind"]: row for row in read["kinds"]}["linear"]
    # Two products forward; the input needs no gradient, so three backward.
    assert linear["flops"] == 5 * 2 * 4096 * 1024 * 4096 and linear["calls"] == 5
    backward = sum(row["seconds"] for row in read["operators"] if row["in_backward"])
    assert backward == pytest.approx(read["backward_seconds"])
    assert {row["origin"] for row in read["operators"]} == {"analytic"}


def test_forward_alone_on_another_device(capsys: pytest.CaptureFixture[str]) -> None:
    train = priced(capsys, "--module", "own_network:mlp")
    options = ["--module", "own_network:mlp", "--mode", "forward"]
    forward = priced(capsys, *options)
    assert forward["backward_seconds"] == 0
    assert forward["forward_seconds"] == pytest.approx(train["forward_seconds"])
    slower = priced(capsys, *options, "--device", "l4")
    assert slower["seconds"] > forward["seconds"]
    assert {row["origin"] for row in slower["operators"]} == {"extrapolated"}


def test_tf32_is_for_products_alone(capsys: pytest.CaptureFixture[str]) -> None:
    read = priced(capsys, "--module", "own_network:mlp", "--tf32")
    dtypes = {(row["kind"], row["dtype"]) for row in read["operators"]}
    assert dtypes == {("linear", "tf32"), ("elementwise", "fp32")}


def test_fused_chains_are_fewer_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--module", "own_network:keywords", "--mode", "forward"]
    apart, fused = priced(capsys, *options), priced(capsys, *options, "--fuse")
    assert not apart["fused"] and fused["fused"]
    assert sum(row["calls"] for row in fused["kinds"]) <= sum(r["calls"] for r in apart["kinds"])
    assert fused["seconds"] <= apart["seconds"]


def test_what_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--module", "own_network:mlp"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("own_network:mlp on h100-sxm: 8.39M parameters, 9 kernels\n")
    assert "forward 0.0" in out and "backward 0.0" in out and "without the optimizer" in out
    assert "4096 x 4096 x 1024" in out and "Priced by analytic: 100.0% analytic" in out
    assert "\x1b" not in out and "Not recognised" not in out
    assert err == "importing the user's code\n", "standard output is the answer's alone"


def test_what_is_not_known_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--module", "own_network:strange", "--mode", "forward"]) == 0
    out = capsys.readouterr().out
    assert "Not recognised, counted as copies of what they read and write: linalg_qr x1" in out
    assert "Asked of tensors that have no values, all() taken to hold, any() not: all() x1" in out
    read = priced(capsys, "--module", "own_network:strange", "--mode", "forward")
    assert read["unrecognised"] == {"linalg_qr": 1} and read["assumed"] == {"all": 1}


def test_inputs_by_shape(capsys: pytest.CaptureFixture[str]) -> None:
    """They stand for the arguments in order, whatever the factory gives."""
    read = priced(capsys, "--module", "own_network:ready", "--input", "6,4", "--mode", "forward")
    assert [(row["m"], row["n"], row["k"]) for row in read["operators"]] == [(6, 4, 4)]
    read = priced(capsys, "--module", "own_network:mlp", "--input", "2,1024", "--mode", "forward")
    assert [row["m"] for row in read["operators"]] == [2, 2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("own_network:bare", "own_network:bare gives a module without inputs; add --input"),
        ("own_network:ready", "own_network:ready gives a module without inputs; add --input"),
        ("own_network:bare --input 8,0", "input=8,0: size '0' must be a positive integer"),
        ("own_network:bare --input 8,x", "input=8,x: size 'x' must be a positive integer"),
        ("own_network:bare --input 8,16:int9", "dtype int9 must be one of float32"),
        ("own_network:bare --input 8,17", "forward of the module raised RuntimeError"),
        ("own_network:bare --input 8,16:int64", "addmm in int64: matrix products are priced in"),
        ("own_network:fails", "own_network:fails raised RuntimeError: first line\n"),
        ("own_network:leaves", "own_network:leaves raised SystemExit: 3"),
        ("own_network:nothing", "own_network:nothing returned a NoneType; it must return a torch"),
        ("own_network:LIMIT", "own_network:LIMIT is a int; it must be a torch.nn.Module"),
        ("own_network:absent", "own_network has no absent; it has sys, torch, nn, LIMIT, ready"),
        ("absent_network:mlp", "importing absent_network raised ModuleNotFoundError: No module"),
        ("broken_network:f", "importing broken_network raised SyntaxError"),
        ("own_network", "module=own_network must be package:factory"),
        ("own_network:mlp --device h900", "unknown device 'h900'"),
        ("own_network:mlp --mode test", "mode=test must be one of train, forward"),
        ("own_network:mlp --cost amped", "cost=amped prices plans of a --model alone"),
        ("own_network:mlp --plan tp=2", "--plan is for plans of a --model; leave it out"),
        ("own_network:mlp --model gpt2", "--model is for plans of a --model; leave it out"),
        ("own_network:mlp --seq 16", "--seq is for plans of a --model; leave it out"),
        ("own_network:mlp --tf32 --device v100-sxm-16gb", "v100-sxm-16gb has no tf32 peak"),
    ],
)
def test_bad_input_is_one_line(
    options: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "answer.json"
    assert run(["estimate", "--module", *options.split(), "--json", str(target)]) == 2
    out, err = capsys.readouterr()
    said = err.removeprefix("importing the user's code\n")
    assert out == "" and said.startswith("error: ") and said.count("\n") == 1
    assert message in said and not target.exists()


@pytest.mark.parametrize("option", ["--device l4", "--fuse", "--tf32", "--input 8,16"])
def test_options_of_a_module_need_one(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--plan", "tp=8", *option.split()]) == 2
    assert f"{option.split()[0]} needs --module" in capsys.readouterr().err


def test_a_plan_or_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate"]) == 2
    assert "no plan: add --plan" in capsys.readouterr().err


def test_without_torch_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["estimate", "--module", "own_network:mlp"]) == 2
    expected = "error: torch is not installed: pip install 'trainplan[learn]'\n"
    assert capsys.readouterr().err == expected


def test_help_says_that_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--help"]) == 0
    assert "THIS RUNS YOUR CODE" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [("8,1024:int64", (8, 1024), "int64"), ("3", (3,), "float32"), ("2, 4", (2, 4), "float32")],
)
def test_shapes_are_read(text: str, shape: tuple[int, ...], dtype: str) -> None:
    assert parse_input(text) == (shape, dtype)
