"""Logs of nccl-tests and rccl-tests, as people have them: pasted, interleaved, cut off."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from estimator.catalog.reading import fault, one_line, short
from estimator.collective_csv import read_csv
from estimator.collective_tables import (
    NAMES,
    Columns,
    Measured,
    MeasuredTable,
    check_columns,
    read_bounded,
)
from estimator.cost.fitted import FittedKind
from estimator.lower.slots import FloatArray

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LAUNCHER = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:|\d+:(?=\s))")
"""What mpirun --tag-output and srun --label put before a line."""
_DEBUG = re.compile(r"(?:\S*\d:\d+ \[\d+\] )?NCCL (?:INFO|WARN|ERROR)")
_PROGRAM = re.compile(r"\b([a-z_]+?)_perf\b")
_RANK = re.compile(
    r"#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+"
    r"device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
_COMMUNICATOR = re.compile(r"\brank \d+ n[rR]anks (\d+)\b(?: nNodes (\d+))?")
_TIMESTAMP = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_VALUE = re.compile(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?|-?nan|inf|N/A")
_TIMES = ("time", "cputime")
LONGEST_LINE = 4096
"""Characters that are looked at; a row has two hundred."""
_FIRST = 3
"""Columns before anything optional: size, count, type."""


@dataclass(slots=True)
class _Header:
    """The column layout of a table, by the names from the first time on."""

    leading: int
    """Columns before the first time."""
    tail: list[str]
    unit: float | None
    """Seconds of a unit of time; ``None`` until the line of units (the first layout has none)."""

    def at(self, name: str, half: int) -> int | None:
        """The column of a name in the out-of-place (0) or in-place (1) half."""
        starts = [i for i, word in enumerate(self.tail) if word in _TIMES]
        if half >= len(starts):
            return None
        end = starts[half + 1] if half + 1 < len(starts) else len(self.tail)
        names = _TIMES if name == "time" else (name,)
        return next((i for i in range(starts[half], end) if self.tail[i] in names), None)


@dataclass(slots=True)
class _Table:
    """Rows of one collective, one type and one operator."""

    header: _Header
    identity: tuple[str, ...]
    program: str
    ranks: list[tuple[str, str, str, str]]
    communicator: tuple[int, int] | None
    line: int
    rows: list[list[str]] = field(default_factory=list)
    ended: bool = False


@dataclass(slots=True)
class _State:
    """What a scan of the lines has seen so far."""

    program: str = ""
    ranks: list[tuple[str, str, str, str]] = field(default_factory=list)
    communicator: tuple[int, int] | None = None
    header: _Header | None = None
    pending: list[str] = field(default_factory=list)
    tables: list[_Table] = field(default_factory=list)
    dropped: int = 0


def read_measured(
    path: Path,
    *,
    kind: str | None = None,
    domain: int | None = None,
    where: Mapping[str, str] | None = None,
) -> Measured:
    """Read the tables of a file: a CSV with a header, or a log of nccl-tests or rccl-tests.

    Args:
        path: The file.
        kind: The collective, where the log does not name it.
        domain: Ranks in one scale-up domain; the ranks of a host where left out.
        where: Only rows of a CSV with these values.

    Raises:
        ValueError: one line, for a file without tables or with numbers that contradict each other.
    """
    if path.suffix.lower() == ".csv":
        return read_csv(path, domain=domain, where=where)
    if where:
        raise fault(path, "is a log; --where chooses rows of a CSV")
    return read_log(path, kind=kind, domain=domain)


def read_log(path: Path, *, kind: str | None = None, domain: int | None = None) -> Measured:
    """Read every table of a log; see :func:`read_measured`."""
    if kind is not None and kind not in NAMES:
        raise ValueError(f"collective {short(kind)} is unknown; use one of {', '.join(NAMES)}")
    state = _State()
    for number, line in enumerate(read_bounded(path).splitlines(), 1):
        _scan(state, number, line, path)
    state.dropped += bool(state.pending)
    notes = [f"{path.name}: {state.dropped} broken rows left out"] if state.dropped else []
    tables = []
    for table in state.tables:
        named = _kind(table, kind, path)
        if named is None:
            notes.append(f"{path.name}: {table.program}_perf left out; it is no collective here")
            continue
        if not table.ended:
            notes.append(f"{path.name}: the table at line {table.line} is cut off; its rows count")
        tables.append(_measured(table, named, domain, path))
    if not tables:
        raise fault(path, "has no table of nccl-tests with a row; name a log that has one")
    return Measured(tables=tuple(tables), notes=tuple(notes))


def _scan(state: _State, number: int, raw: str, path: Path) -> None:
    """Take in one line."""
    line = _LAUNCHER.sub("", _ANSI.sub("", raw[:LONGEST_LINE]))
    debug = _DEBUG.search(line)
    if debug:
        found = _COMMUNICATOR.search(line)
        if found:
            state.communicator = int(found[1]), int(found[2] or 0)
            if state.tables and state.tables[-1].header is state.header:
                state.tables[-1].communicator = state.communicator
        line = line[: debug.start()]  # a row may have begun before the message broke in
    program = _PROGRAM.search(line)
    if program:
        state.program = program[1]
    text = line.strip()
    if text.startswith(("#", "Avg bus", "Out of bounds")):
        _comment(state, text, path)
    elif text:
        _row(state, number, _TIMESTAMP.sub("", line).split())


def _comment(state: _State, text: str, path: Path) -> None:
    rank = _RANK.match(text)
    if rank:
        if any(rank[1] == known[0] and (rank[2] or "") == known[1] for known in state.ranks):
            raise fault(
                path,
                f"rank {rank[1]} is listed twice: processes that did not join; "
                "build nccl-tests with MPI=1, or keep one run to a file",
            )
        state.ranks.append((rank[1], rank[2] or "", rank[3], rank[4].strip()))
        return
    words = text.strip("# ").split()
    if "Using devices" in text or words[:1] == ["nThread"]:
        state.ranks, state.communicator, state.header = [], None, None
    elif "busbw" in words and any(word in _TIMES for word in words):
        start = next(i for i, word in enumerate(words) if word in _TIMES)
        tail = [word for word in words[start:] if word != "timestamp"]
        state.header = _Header(start, tail, None)
    elif state.header and "(us)" in words:
        state.header.unit = 1e-6
    elif words[:2] in (["Avg", "bus"], ["Out", "of"]) and state.tables:
        state.tables[-1].ended = True


def _row(state: _State, number: int, tokens: list[str]) -> None:
    """A row, the start of one, or the rest of one that a message broke in two."""
    if state.header is None:
        return
    begins = len(tokens) >= 2 and tokens[0].isdigit() and tokens[1].isdigit()
    if begins:
        state.dropped += bool(state.pending)
    elif state.pending and all(_is_value(token) for token in tokens):
        tokens = state.pending + tokens
    else:
        return
    state.pending = []
    middle = len(tokens) - len(state.header.tail)
    if middle < _FIRST:
        state.pending = tokens
        return
    words, values = tokens[:middle], tokens[middle:]
    # An operator may be blank; a row that lost its end looks alike, with the root for a time.
    shifted = middle < state.header.leading and values[0].strip("-01") == ""
    named = words[2][0].isalpha() and middle <= state.header.leading
    if shifted or not named or not all(map(_is_value, values)):
        state.dropped += 1
        return
    identity = tuple(words[2:])
    last = state.tables[-1] if state.tables else None
    if last is None or last.header is not state.header or last.identity != identity:
        if last is not None and last.header is state.header:
            last.ended = True  # another type or operator of the same run follows
        last = _Table(
            state.header, identity, state.program, list(state.ranks), state.communicator, number
        )
        state.tables.append(last)
    last.rows.append([words[0], *values])


def _is_value(token: str) -> bool:
    return _VALUE.fullmatch(token) is not None


def _kind(table: _Table, given: str | None, path: Path) -> FittedKind | None:
    """The collective: given, named by the program or the file, or told by the bandwidths."""
    if given:
        return NAMES[given]
    if table.program:
        return NAMES.get(table.program)
    stem = path.stem.lower().replace("-", "_")
    named = [name for name in NAMES if name in stem]
    if named:
        return NAMES[max(named, key=len)]
    ratio = _ratio(table)
    if ratio > 1.01:
        return "all_reduce"
    if "sum" in table.identity and ratio < 0.99:
        return "reduce_scatter"
    raise fault(path, f"line {table.line}: no word on which collective this is; name --collective")


def _column(table: _Table, name: str, half: int = 0) -> FloatArray | None:
    at = table.header.at(name, half)
    if at is None:
        return None
    return np.array([float("nan" if row[1 + at] == "N/A" else row[1 + at]) for row in table.rows])


def _ratio(table: _Table) -> float:
    """Bus bandwidth over algbw; the tables of two ranks and of one-way collectives have 1."""
    alg, bus = _column(table, "algbw"), _column(table, "busbw")
    if alg is None or bus is None:
        return 1.0
    top = int(np.argmax(np.nan_to_num(alg)))
    ratio = float(bus[top] / alg[top]) if alg[top] > 0 else 1.0
    return ratio if 0 < ratio < 2 else 1.0


def _measured(table: _Table, kind: FittedKind, domain: int | None, path: Path) -> MeasuredTable:
    where = f"line {table.line}"
    size = np.array([float(row[0]) for row in table.rows])
    seconds, in_place = _column(table, "time"), _column(table, "time", 1)
    algbw, busbw = _column(table, "algbw"), _column(table, "busbw")
    assert seconds is not None  # a header has a time
    kept = size > 0  # eight bytes over sixteen ranks are none each
    group, inside, device = _group(table, kind, domain, path)
    unit = table.header.unit or 1e-3  # the first layout printed milliseconds, and no units
    columns = Columns(
        size=size[kept],
        seconds=seconds[kept] * unit,
        algbw=None if algbw is None else algbw[kept],
        busbw=None if busbw is None else busbw[kept],
    )
    check_columns(columns, kind, group, path, where)
    also = None if in_place is None else in_place[kept] * unit
    return MeasuredTable(
        kind=kind,
        group=group,
        inside=inside,
        device=device,
        size=columns.size,
        seconds=columns.seconds,
        in_place=also if also is not None and np.all(also > 0) else None,
        source=f"{path.name} {where}",
    )


def _group(table: _Table, kind: FittedKind, domain: int | None, path: Path) -> tuple[int, int, str]:
    """Ranks, ranks in one domain, and the device: by the list of ranks, else debug lines, ratio."""
    listed = [rank for rank in table.ranks if rank[1] == table.ranks[0][1]]
    devices = sorted({rank[3] for rank in listed})
    if len(devices) > 1:
        raise fault(path, f"two machines in one table: {', '.join(devices)}; keep one to a file")
    hosts = Counter(rank[2] for rank in listed)
    nodes = len(hosts)
    group = len(listed)
    if not group and table.communicator:
        group, nodes = table.communicator
    if not group and kind == "all_reduce":
        group = round(2 / (2 - min(_ratio(table), 1.999)))
    if not group:
        raise fault(path, f"line {table.line}: no list of ranks; keep the lines '# Rank ...'")
    if group < 2:
        raise fault(path, f"line {table.line}: one rank moves nothing; measure 2 or more")
    if len(set(hosts.values())) > 1:
        raise fault(path, f"hosts hold {_counts(hosts)} ranks; measure with equal numbers on each")
    if domain is None and not nodes:
        raise fault(path, f"line {table.line}: no list of ranks; say how they lie with --domain")
    inside = min(group, domain or group // nodes)
    if group % inside:
        raise fault(path, f"{group} ranks do not divide into domains of {inside}; check --domain")
    return group, inside, one_line(devices[0])[:80] if devices else ""


def _counts(hosts: Mapping[str, int]) -> str:
    return ", ".join(str(count) for count in sorted(set(hosts.values())))
