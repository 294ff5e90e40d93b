"""``trainplan fit collectives`` from end to end: files, errors, and one line for bad input."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from estimator.catalog import load_collectives
from estimator.collective_tables import MeasuredTable
from search.cli.main import run
from search.collectives import (
    by_decade,
    fit,
    geometric_mean,
    left_out_groups,
    peak_of,
    pooled,
    score_fit,
    score_left_out,
)

LOGS = Path(__file__).parents[1] / "data" / "nccl"
DEBUG, NODES = str(LOGS / "debug.log"), str(LOGS / "two-nodes.log")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["fit", "collectives", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    return err


def table(
    kind: str = "all_reduce", group: int = 8, latency: float = 2e-5, rows: int = 20
) -> MeasuredTable:
    size = 2.0 ** np.arange(10, 10 + rows)
    factor = 2 * (group - 1) / group
    return MeasuredTable(
        kind="all_reduce" if kind == "all_reduce" else "send_recv",
        group=group,
        inside=group,
        device="made up",
        size=size,
        seconds=latency * group + factor * size / 2e11,
        source=f"{kind} {group}",
    )


def test_a_fit_is_written_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, page = tmp_path / "a100.yaml", tmp_path / "a100.html"
    arguments = ["fit", "collectives", DEBUG, "-o", str(target), "--plot", str(page)]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("1 table, 11 rows, 1 collective fitted")
    assert "errors of the fit, %" in out and "1.25 x the best measured" in out
    (fitted,) = load_collectives(target)
    assert (fitted.kind, fitted.group, fitted.inside) == ("all_reduce", 8, 8)
    assert fitted.seconds(np.array([268435456.0]))[0] == pytest.approx(2087.2e-6, rel=0.02)
    assert fitted.source == "debug.log line 22"
    assert "source: 'NVIDIA A100-SXM4-80GB: debug.log line 22'" in target.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a100.html", "a100.yaml"]


def test_the_page_holds_points_curve_and_joints(tmp_path: Path) -> None:
    page = tmp_path / "nodes.html"
    assert run(["fit", "collectives", NODES, "--plot", str(page)]) == 0
    text = page.read_text()
    panels = [f"<svg{part.split('</svg>')[0]}</svg>" for part in text.split("<svg")[1:]]
    assert len(panels) == 2
    for panel, rows in zip(panels, (7, 5), strict=True):
        root = ElementTree.fromstring(panel)
        marks = [element.get("class") for element in root]
        assert marks.count("point") == rows
        assert marks.count("fit") == 1 and marks.count("line") == 1 and marks.count("peak") == 1
        assert 1 <= marks.count("joint") <= 2
        for element in root.iter("circle"):
            assert 0 <= float(element.get("cx", "nan")) <= 420
            assert 0 <= float(element.get("cy", "nan")) <= 300


def test_what_a_log_says_is_escaped_in_the_page(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(Path(DEBUG).read_text().replace("NVIDIA A100-SXM4-80GB", "<script>1</script>"))
    page = tmp_path / "x.html"
    assert run(["fit", "collectives", str(log), "--plot", str(page)]) == 0
    assert "<script>" not in page.read_text()


def test_a_cluster_gives_the_peak_and_refuses_what_exceeds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a100.yaml"
    assert run(["fit", "collectives", DEBUG, "--cluster", "dgx-a100", "-o", str(target)]) == 0
    (fitted,) = load_collectives(target)
    assert fitted.peak == pytest.approx(300e9 * 1.75)
    assert "peak: dgx-a100" in capsys.readouterr().out
    target.unlink()
    error = refused([DEBUG, "--cluster", "pcie-box", "-o", str(target)], capsys)
    assert "of its links; check the units and the cluster" in error
    assert not target.exists()


def test_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = []
    for flags in ([], ["--in-place"]):
        target = tmp_path / f"{len(flags)}.yaml"
        assert run(["fit", "collectives", DEBUG, "-o", str(target), *flags]) == 0
        seconds.append(load_collectives(target)[0].seconds(np.array([1024.0]))[0])
    assert seconds[1] < seconds[0]
    capsys.readouterr()
    error = refused([str(LOGS / "sendrecv-rccl.log"), "--in-place"], capsys)
    assert "no in-place time" in error


def test_evaluate_leaves_sizes_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "collectives", DEBUG, str(LOGS / "sendrecv-rccl.log"), "--evaluate"]) == 0
    out = capsys.readouterr().out
    assert "every third size left out, %" in out
    assert "2 tables: median" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([DEBUG, str(LOGS / "all_gather-2019.log")], "tables of 2 machines"),
        (["absent.log"], "no such file"),
        ([DEBUG, "--where", "gpu=A100"], "is a log; --where chooses rows of a CSV"),
        ([DEBUG, "--where", "gpu"], "must be column=value"),
        ([DEBUG, "--domain", "0"], "domain=0 must be 1 or more"),
        ([DEBUG, "--domain", "3"], "8 ranks do not divide into domains of 3"),
        ([DEBUG, "--collective", "scan"], "collective 'scan' is unknown"),
        ([DEBUG, "--cluster", "nowhere"], "nowhere"),
        ([NODES, "--evaluate"], "no whole table has 8 sizes"),
        ([], "LOGS"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluating = "--evaluate" in arguments
    target = [] if evaluating else ["-o", str(tmp_path / "out.yaml")]
    assert words in refused([*arguments, *target], capsys)
    assert list(tmp_path.iterdir()) == []


def test_one_bad_table_of_many_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.log"
    bad.write_text(Path(DEBUG).read_text().replace("  539.10", "53910.00"))
    bits = tmp_path / "bits.csv"
    bits.write_text(
        "collective,n_gpus,n_nodes,size_bytes,time_us,algbw_GBps\n"
        "all_gather,8,1,1048576,20,419.4\nall_gather,8,1,16777216,160,838.9\n"
    )
    target = tmp_path / "out.yaml"
    error = refused([DEBUG, str(bits), "-o", str(target)], capsys)
    assert "the bandwidths are in bits (Gb/s)" in error
    assert not target.exists()


def test_a_file_that_cannot_be_written_leaves_the_other_unwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.yaml"
    error = refused(
        [DEBUG, "-o", str(target), "--plot", str(tmp_path / "absent" / "p.html")], capsys
    )
    assert "cannot write" in error
    assert list(tmp_path.iterdir()) == []


# Scores


def test_left_out_sizes_are_every_third_and_were_not_fitted() -> None:
    made = table(rows=21)
    score = score_left_out(made)
    assert score.size.tolist() == made.size[1::3].tolist()
    assert np.max(np.abs(score.sigmoid)) < 0.05
    assert np.max(np.abs(score.line)) < 0.01, "the truth is a line"


def test_decades_by_hand() -> None:
    made = table(rows=4)  # 1024 to 8192 bytes
    (row,) = by_decade([score_fit(made, fit(made))])
    assert (row.kind, row.decade, row.points) == ("all_reduce", 3, 4)


def test_geometric_mean_by_hand() -> None:
    assert geometric_mean(np.array([0.01, -0.04])) == pytest.approx(0.02)
    assert geometric_mean(np.array([0.0, 0.01])) == pytest.approx(1e-3)


def test_repeated_tables_are_pooled() -> None:
    (both,) = pooled([table(), table(latency=2.2e-5)])
    assert len(both.size) == 40 and np.all(np.diff(both.size) >= 0)
    assert both.source == "all_reduce 8, all_reduce 8"
    assert fit(both).seconds(np.array([1024.0]))[0] == pytest.approx(1.68e-4, rel=0.03)


def test_groups_left_out_are_predicted_from_the_others() -> None:
    groups = left_out_groups([table(group=n) for n in (2, 4, 6, 8)])
    assert {g.table.group: g.between for g in groups} == {2: False, 4: True, 6: True, 8: False}
    assert max(g.error for g in groups if g.between) < 0.05
    assert left_out_groups([table(group=n) for n in (2, 4)]) == []


def test_a_peak_needs_named_links() -> None:
    assert peak_of(table()) is None


def test_tables_without_a_place_are_nothing_to_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "unplaced.csv"
    log.write_text("collective,n_gpus,size_bytes,time_us\nall_reduce,8,1024,10\n")
    assert "nothing to fit: all_reduce over 8: left out" in refused([str(log)], capsys)
