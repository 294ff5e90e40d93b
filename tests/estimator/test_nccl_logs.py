"""Readers of collective benchmarks: every layout, broken logs, and numbers that contradict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.collective_tables import MeasuredTable, one_machine
from estimator.nccl_logs import read_log, read_measured

LOGS = Path(__file__).parents[1] / "data" / "nccl"
DEBUG = (LOGS / "debug.log").read_text()


def only(path: Path, kind: str | None = None, domain: int | None = None) -> MeasuredTable:
    (table,) = read_log(path, kind=kind, domain=domain).tables
    return table


def written(tmp_path: Path, text: str, name: str = "some.log") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def refused(path: Path, kind: str | None = None, domain: int | None = None) -> str:
    with pytest.raises(ValueError) as caught:
        read_measured(path, kind=kind, domain=domain)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_debug_lines_between_and_inside_rows() -> None:
    table = only(LOGS / "debug.log")
    assert (table.kind, table.group, table.inside) == ("all_reduce", 8, 8)
    assert table.device == "NVIDIA A100-SXM4-80GB"
    assert table.size.tolist() == [4.0**k for k in range(5, 16)]
    assert table.seconds[0] == pytest.approx(27.08e-6, rel=1e-9)
    assert table.seconds[4] == pytest.approx(29.90e-6, rel=1e-9), "the row that was broken in two"
    assert table.in_place is not None
    assert table.in_place[10] == pytest.approx(8247.67e-6, rel=1e-9)
    assert read_log(LOGS / "debug.log").notes == ()


def test_two_tables_and_a_cut() -> None:
    measured = read_log(LOGS / "two-nodes.log")
    gather, scatter = measured.tables
    assert (gather.kind, gather.group, gather.inside) == ("all_gather", 8, 4)
    assert (scatter.kind, scatter.group, scatter.inside) == ("reduce_scatter", 8, 4)
    assert len(gather.size) == 7 and len(scatter.size) == 5
    assert scatter.seconds[-1] == pytest.approx(129.59e-6, rel=1e-9)
    assert measured.notes == (
        "two-nodes.log: 1 broken rows left out",
        "two-nodes.log: the table at line 44 is cut off; its rows count",
    )


def test_an_old_layout_without_operator_and_root() -> None:
    table = only(LOGS / "all_gather-2019.log")
    assert (table.kind, table.group, len(table.size)) == ("all_gather", 4, 7)
    assert table.seconds[-1] == pytest.approx(847.05e-6, rel=1e-9)


def test_the_first_layout_counts_milliseconds() -> None:
    table = only(LOGS / "all_reduce-2016.log")
    assert (table.group, table.device) == (4, "Tesla P100-SXM2-16GB")
    assert table.seconds[-1] == pytest.approx(2.975e-3, rel=1e-9)
    assert read_log(LOGS / "all_reduce-2016.log").notes == ()


def test_rccl_tests_with_cpu_time_and_timestamps() -> None:
    table = only(LOGS / "sendrecv-rccl.log")
    assert (table.kind, table.group, table.device) == ("send_recv", 2, "AMD Instinct MI300X")
    assert table.seconds[-1] == pytest.approx(5752.44e-6, rel=1e-9)
    assert table.in_place is None


def test_a_domain_larger_than_a_host() -> None:
    tables = read_log(LOGS / "two-nodes.log", domain=72).tables
    assert [table.inside for table in tables] == [8, 8]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(DEBUG)))
def test_a_log_cut_anywhere_gives_the_rows_before_the_cut(tmp_path_factory, cut: int) -> None:  # type: ignore[no-untyped-def]
    whole = only(LOGS / "debug.log")
    path = written(tmp_path_factory.mktemp("cut"), DEBUG[:cut])
    try:
        table = only(path)
    except ValueError as error:
        assert "has no table" in str(error) and "\n" not in str(error)
        return
    # The last row may have been cut inside its last number.
    rows = len(table.size)
    assert np.array_equal(table.seconds, whole.seconds[:rows])
    assert np.array_equal(table.size, whole.size[:rows])


def test_types_and_operators_of_one_run_are_tables_of_their_own(tmp_path: Path) -> None:
    lines = DEBUG.splitlines()
    rows = [
        line for line in lines if line.endswith(" 0") and "float" in line and "NCCL" not in line
    ]
    more = [row.replace("   float", "bfloat16") for row in rows]
    end = next(i for i, line in enumerate(lines) if line.startswith("# Out"))
    path = written(tmp_path, "\n".join([*lines[:end], *more, *lines[end:]]))
    measured = read_log(path)
    assert [len(table.size) for table in measured.tables] == [11, len(more)]
    assert measured.notes == ()


def test_ranks_from_debug_lines_or_bandwidths(tmp_path: Path) -> None:
    unlisted = "\n".join(line for line in DEBUG.splitlines() if "#  Rank" not in line)
    assert only(written(tmp_path, unlisted)).group == 8, "told by NCCL INFO"
    silent = "\n".join(line for line in unlisted.splitlines() if "nRanks" not in line)
    path = written(tmp_path, silent)
    assert "say how they lie with --domain" in refused(path)
    assert only(path, domain=4).group == 8, "told by busbw over algbw"
    assert only(path, domain=4).inside == 4


def test_the_collective_from_the_bandwidths_or_from_the_user(tmp_path: Path) -> None:
    nameless = DEBUG.replace("all_reduce_perf", "x")
    assert only(written(tmp_path, nameless)).kind == "all_reduce"
    two = (LOGS / "sendrecv-rccl.log").read_text()
    path = written(tmp_path, two)
    assert "name --collective" in refused(path)
    assert only(path, kind="broadcast").kind == "broadcast"
    assert "unknown" in refused(path, kind="scan")


def test_a_program_that_is_not_priced_is_left_out(tmp_path: Path) -> None:
    both = DEBUG + (LOGS / "debug.log").read_text().replace("all_reduce", "hypercube")
    measured = read_log(written(tmp_path, both))
    assert len(measured.tables) == 1
    assert measured.notes == ("some.log: hypercube_perf left out; it is no collective here",)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("16777216       4194304", "167772       4194304", "sizes must rise, but 167772 follows"),
        ("  4 [0000:27:00] NVIDIA A100", "  4 [0000:27:00] NVIDIA H100", "two machines in one"),
        ("Rank  5 Group", "Rank  4 Group", "rank 4 is listed twice"),
        ("all_reduce_perf", "all_gather_perf", "busbw is 1.75 x algbw, but all_gather"),
        ("#  Rank  7 Group", "#  Rang  7 Group", "over 7 ranks has 1.714"),
        ("   539.10", "     0.00", "must be above zero"),
    ],
)
def test_a_log_that_contradicts_itself(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in DEBUG
    assert words in refused(written(tmp_path, DEBUG.replace(old, new)))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, len(DEBUG) - 1),
    st.integers(0, 60),
    st.sampled_from(
        ["", "\n", "7", "-", " nan ", "1.2.3", "#", "NCCL INFO ", "\x1b[0m", "é", "9" * 400]
    ),
)
def test_a_damaged_log_is_read_or_refused_in_one_line(  # type: ignore[no-untyped-def]
    tmp_path_factory, at: int, length: int, put: str
) -> None:
    path = written(tmp_path_factory.mktemp("cut"), DEBUG[:at] + put + DEBUG[at + length :])
    try:
        tables = read_log(path).tables
    except ValueError as error:
        assert "\n" not in str(error) and "some.log" in str(error)
        return
    assert all(np.all(table.seconds > 0) and len(table.size) for table in tables)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no table of nccl-tests"),
        ("make: *** no target\n", "has no table of nccl-tests"),
        ("\x00\xff\x1b[31m 8 2 float sum", "has no table of nccl-tests"),
        (DEBUG[: DEBUG.index("        1024           256")], "has no table of nccl-tests"),
    ],
)
def test_a_file_without_a_table(tmp_path: Path, text: str, words: str) -> None:
    assert words in refused(written(tmp_path, text))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "absent.log")
    assert "no such file" in refused(tmp_path)


# CSV

HEADER = "table_id,gpu,n_gpus,n_nodes,collective,size_bytes,time_us,algbw_GBps,busbw_GBps"
ROWS = ["1048576,20,52.4288,78.6432", "4194304,50,83.88608,125.82912", "16777216,170,98.69,148.04"]


def table_csv(rows: list[str], header: str = HEADER, front: str = "T1,A100,4,1,all_reduce") -> str:
    return "\n".join([header, *(f"{front},{row}" for row in rows)]) + "\n"


def test_a_csv_by_hand(tmp_path: Path) -> None:
    measured = read_measured(written(tmp_path, table_csv(ROWS), "mine.csv"))
    (table,) = measured.tables
    assert (table.kind, table.group, table.inside, table.device) == ("all_reduce", 4, 4, "A100")
    assert table.seconds == pytest.approx([20e-6, 50e-6, 170e-6], rel=1e-9)
    assert table.scale_up is None


def test_gloo_needs_four_columns(tmp_path: Path) -> None:
    text = (
        "collective,n_gpus,n_nodes,size_bytes,time_us\nalltoall,2,2,16,117.5\nalltoall,2,2,32,149\n"
    )
    (table,) = read_measured(written(tmp_path, text, "gloo.csv")).tables
    assert (table.kind, table.group, table.inside) == ("all_to_all", 2, 1)


def test_links_of_a_csv(tmp_path: Path) -> None:
    header = HEADER + ",link_intra,inter_net_gbps_per_gpu"
    rows = [row + ",NVLink3 NVSwitch,200" for row in ROWS]
    (table,) = read_measured(written(tmp_path, table_csv(rows, header), "mine.csv")).tables
    assert (table.scale_up, table.scale_out) == (300e9, 25e9)


def test_where_chooses_rows(tmp_path: Path) -> None:
    other = table_csv(ROWS, front="T2,H100,4,1,all_reduce").split("\n", 1)[1]
    path = written(tmp_path, table_csv(ROWS) + other, "mine.csv")
    (table,) = read_measured(path, where={"gpu": "H100"}).tables
    assert table.device == "H100"
    with pytest.raises(ValueError, match="no measured row; check the file and --where"):
        read_measured(path, where={"gpu": "B200"})
    with pytest.raises(ValueError, match="has no column 'vendor'"):
        read_measured(path, where={"vendor": "x"})


def test_a_table_that_does_not_say_how_its_ranks_lie(tmp_path: Path) -> None:
    path = written(tmp_path, table_csv(ROWS, front="T1,A100,4,,all_reduce"), "mine.csv")
    assert read_measured(path).notes == ("T1: left out, it has neither n_nodes nor gpus_per_node",)
    assert read_measured(path, domain=2).tables[0].inside == 2


def scaled(size: float = 1.0, time: float = 1.0, alg: float = 1.0, bus: float = 1.0) -> list[str]:
    rows = []
    for row in ROWS:
        values = [float(v) * f for v, f in zip(row.split(","), (size, time, alg, bus), strict=True)]
        rows.append(",".join(repr(value) for value in values))
    return rows


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (scaled(alg=8, bus=8), "the bandwidths are in bits (Gb/s); write GB/s"),
        (scaled(alg=1e9 / 2**30, bus=1e9 / 2**30), "the bandwidths are in GiB/s"),
        (scaled(size=8), "the sizes are in bits; write bytes"),
        (scaled(size=2.0**-30), "the sizes are in GiB; write bytes"),
        (scaled(size=2.0**-20), "the sizes are in MiB; write bytes"),
        (scaled(time=1e-3), "the times are in milliseconds; write microseconds"),
        (scaled(time=1e-6), "the times are in seconds; write microseconds"),
        (scaled(alg=1.5), "busbw equals algbw"),
        (scaled(alg=1.5, bus=1.5), "algbw is busbw; give algbw as size over time"),
        (scaled(bus=1.1667), "check the collective, the number of ranks"),
        (scaled(alg=3, bus=3), "check the units of size, time and algbw"),
        (list(reversed(ROWS)), "sizes must rise, but 4194304 follows 16777216"),
        ([ROWS[0], ROWS[0]], "sizes must rise"),
        ([ROWS[0], "4194304,0,0,0"], "must be above zero"),
        ([ROWS[0], "4194304,,0,0"], "must be above zero"),
        ([ROWS[0], "4MiB,50,83.9,125.8"], "size_bytes='4MiB' is not a plain number; remove units"),
        ([ROWS[0], "4194304,inf,0,0"], "is not a plain number"),
        ([], "no measured row"),
        (["1048576,1e-9,,", "2097152,1e-9,,"], "is no measurement; check the units"),
    ],
)
def test_a_csv_that_contradicts_itself(tmp_path: Path, rows: list[str], words: str) -> None:
    assert words in refused(written(tmp_path, table_csv(rows), "mine.csv"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("size_bytes", "size_GiB", "has no column 'size_bytes'"),
        ("T1,A100,4", "T1,A100,1", "n_gpus='1' must be 2 or more"),
        ("all_reduce", "scan", "unknown collective 'scan'"),
    ],
)
def test_a_csv_with_a_wrong_word(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert words in refused(written(tmp_path, table_csv(ROWS).replace(old, new), "mine.csv"))


def test_one_machine() -> None:
    table = only(LOGS / "debug.log")
    other = only(LOGS / "all_gather-2019.log")
    assert one_machine([table, table]) == "NVIDIA A100-SXM4-80GB"
    with pytest.raises(ValueError, match="tables of 2 machines"):
        one_machine([table, other])
    with pytest.raises(ValueError, match=r"differ 2\.0-fold on all_reduce over 8 ranks"):
        one_machine([table, replace(table, seconds=2 * table.seconds)])
