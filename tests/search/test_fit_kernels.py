"""``trainplan fit kernels``: from samples to a price, what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from estimator import Workload
from estimator.catalog import load_cluster, load_stack
from estimator.cost.composite import composite
from estimator.cost.parameters import load_kernels
from estimator.lower.keys import layer_keys
from estimator.lower.transformer import lower_layers
from estimator.operators import operators
from estimator.samples import samples
from search import kernels
from search.cli.main import run
from tests.estimator.problems import MODEL, many

PLAN = ["estimate", "--plan", "tp=8,pp=4,sp=true,zero=1", "--json", "-"]


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Products of H100 at a third of the peak and 3 us, far slower than any real ones."""
    lines = ["kind,dtype,m,n,k,device,microseconds"]
    for m in (512, 1024, 2048, 4096, 8192, 16384):
        for n in (1024, 4096, 8192):
            time = 3 + 1e6 * 2 * m * n * 4096 / 330e12
            lines.append(f"linear,bf16,{m},{n},4096,h100-sxm,{time}")
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def step_seconds(cost: str, capsys: pytest.CaptureFixture[str]) -> float:
    assert run([*PLAN, "--cost", cost]) == 0
    return float(json.loads(capsys.readouterr().out)["step_seconds"])


def test_from_samples_to_a_price(measured, tmp_path, capsys) -> None:
    output = tmp_path / "mine.npz"
    assert run(["fit", "kernels", str(measured), "-o", str(output)]) == 0
    said = capsys.readouterr().out
    assert "fitted on 18 of 18 samples" in said and "h100-sxm: 18" in said
    ops = operators("linear", dtype="bf16", m=4096, n=4096, k=4096)
    cluster = load_cluster("h100-sxm:64")
    priced = load_kernels(output).seconds(ops, cluster.device)[0]
    assert priced == pytest.approx(3e-6 + 2 * 4096**3 / 330e12, rel=0.01)
    # Products are most of a step, and these are less than half as fast as the shipped ones.
    assert step_seconds(str(output), capsys) > 1.4 * step_seconds("learned", capsys)


def test_the_same_samples_give_the_same_file(measured, tmp_path) -> None:
    for name in ("a.npz", "b.npz"):
        assert (
            run(["fit", "kernels", str(measured), "-o", str(tmp_path / name), "--seed", "1"]) == 0
        )
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_evaluation_is_of_rows_left_out(measured, capsys) -> None:
    assert run(["fit", "kernels", str(measured), "--evaluate"]) == 0
    said = capsys.readouterr().out
    assert "largest" in said and "shapes" in said and "errors in %" in said


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "nothing to do"),
        (["-o", "mine.txt"], "must end in .npz"),
        (["-o", "out.npz", "--form", "trees"], "use one of regression, surfaces, tiles"),
        (["-o", "out.npz", "--form", "tiles"], "no fp32 forward sample"),
        (["-o", "out.npz", "--hold-out-device", "h999"], "unknown device 'h999'"),
        (["-o", "out.npz", "--hold-out-device", "b200"], "b200 has no samples; they are of h100"),
        (["-o", "out.npz", "--hold-out-device", "h100-sxm"], "no samples to fit"),
        (["-o", "none/out.npz"], "cannot write none/out.npz"),
        (["other.csv", "-o", "out.npz"], "other.csv is not a file"),
    ],
)
def test_bad_input_is_one_line(words, fault, measured, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["fit", "kernels", str(measured), *words]) == 2
    error = capsys.readouterr().err
    assert fault in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_a_bad_file_of_parameters_is_one_line(tmp_path, capsys) -> None:
    (tmp_path / "text.npz").write_text("hello", encoding="utf-8")
    for name in ("none.npz", "text.npz"):
        assert run([*PLAN, "--cost", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert name in error and error.count("\n") == 1


def test_no_row_is_scored_by_a_model_that_saw_it() -> None:
    """A model that remembers its rows scores zero rows exactly: every split must hold them out."""
    draw = np.random.default_rng(0)
    ops = operators(
        "linear", dtype="bf16", m=draw.integers(64, 9999, 60), n=draw.integers(64, 99, 60), k=512
    )
    devices = np.array(["h100-sxm", "b200", "a100-sxm-80gb"] * 20)
    table = samples(ops, device=devices, seconds=np.full(60, 1e-3))
    seen: list[set[tuple[object, ...]]] = []

    def rows(part: object, device: object) -> set[tuple[object, ...]]:
        columns = zip(part.m, part.n, np.broadcast_to(device, len(part)), strict=True)  # type: ignore[attr-defined, arg-type]
        return {(float(m), float(n), str(name)) for m, n, name in columns}

    class Memory:
        name = "memory"

        def __init__(self, fitted):
            seen.append(rows(fitted.ops, fitted.device))

        def covers(self, ops, device):
            return np.ones(len(ops), dtype=bool)

        def seconds(self, ops, device):
            assert not rows(ops, device.name) & seen[-1]
            return np.full(len(ops), 2e-3)

    scores = kernels.evaluate(table, Memory)  # type: ignore[arg-type]
    assert {score.split for score in scores} == {"shapes", "largest", "device"}
    assert all(score.bias == pytest.approx(1.0) for score in scores)
    assert sum(score.rows for score in scores if score.split == "device") == 60


def test_the_composite_says_where_each_price_is_from() -> None:
    cluster, stack = load_cluster("h100-sxm:64"), load_stack("megatron")
    workload = Workload(global_batch=256, sequence=4096)
    keys, _ = layer_keys(many(4), stack)
    ops = lower_layers(MODEL, workload, cluster, keys, stack)
    names = composite(cluster.device).origins(ops, workload, cluster, stack)
    assert set(np.unique(names[ops.rows("memory")])) == {"analytic"}
    assert "learned" in names[ops.rows("gemm")] and "learned" in names[ops.rows("attention")]
