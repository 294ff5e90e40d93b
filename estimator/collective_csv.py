"""Tables of collectives as CSV, for benchmarks other than nccl-tests (Gloo, MPI, a profiler)."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from estimator.catalog.reading import fault, short
from estimator.collective_tables import (
    NAMES,
    Columns,
    Measured,
    MeasuredTable,
    check_columns,
    read_bounded,
)
from estimator.lower.slots import FloatArray

NEEDED = ("collective", "n_gpus", "size_bytes", "time_us")
IDENTITY = (
    *("table_id", "source_ref", "gpu", "collective", "n_gpus", "n_nodes", "gpus_per_node"),
    *("dtype", "nccl_version"),
)
"""Columns that hold one value in all rows of a table."""
NVLINK = {1: 80e9, 2: 150e9, 3: 300e9, 4: 450e9, 5: 900e9}
"""Bytes/s per direction and device by generation: NVIDIA data sheets of P100 to B200, halved."""
PCIE = {3: 15.75e9, 4: 31.5e9, 5: 63e9}
"""Bytes/s per direction of 16 lanes by generation (PCI-SIG, with 128b/130b encoding)."""


def read_csv(
    path: Path, *, domain: int | None = None, where: Mapping[str, str] | None = None
) -> Measured:
    """Read tables with a header line; one row is one size.

    Columns: collective, n_gpus, size_bytes, time_us; n_nodes or gpus_per_node; and if known gpu,
    table_id, algbw_GBps, busbw_GBps, time_us_inplace, link_intra, inter_net_gbps_per_gpu, notes.

    Args:
        path: The file.
        domain: Ranks in one scale-up domain, where it is not the node.
        where: Only rows with these values in these columns.

    Raises:
        ValueError: one line for a missing column, a number that is none, or no row.
    """
    reader = csv.DictReader(io.StringIO(read_bounded(path)))
    names = list(reader.fieldnames or [])
    for column in (*NEEDED, *(where or {})):
        if column not in names:
            raise fault(
                path,
                f"has no column {short(column)}; it has {', '.join(names)[:200] or 'none'} "
                "(sizes are size_bytes, times are time_us)",
            )
    groups: dict[tuple[str, ...], list[tuple[int, dict[str, str]]]] = {}
    for row in reader:
        if all((row[key] or "") == value for key, value in (where or {}).items()):
            key = tuple(row.get(name) or "" for name in IDENTITY)
            groups.setdefault(key, []).append((reader.line_num, row))
    if not groups:
        raise fault(path, "no measured row; check the file" + (" and --where" if where else ""))
    tables, notes = [], []
    for key, rows in groups.items():
        name = key[0] or f"{rows[0][1]['collective']} over {rows[0][1]['n_gpus']}"
        inside = _inside(rows[0][1], domain)
        if inside is None:
            notes.append(f"{name}: left out, it has neither n_nodes nor gpus_per_node")
            continue
        tables.append(_csv_table(path, name, rows, inside))
    return Measured(tables=tuple(tables), notes=tuple(notes))


def _inside(row: Mapping[str, str], domain: int | None) -> int | None:
    """Ranks of the group in one domain; ``None`` where the row does not say."""
    group, nodes, node = (_count(row.get(name)) for name in ("n_gpus", "n_nodes", "gpus_per_node"))
    if group and domain:
        return min(group, domain)
    if group and node:
        return min(group, node)
    return max(group // nodes, 1) if group and nodes else None


def _count(text: str | None) -> int | None:
    """A positive count, also as pandas writes one beside blanks (``2.0``)."""
    match = re.fullmatch(r"([1-9]\d{0,6})(?:\.0)?", (text or "").strip())
    return int(match[1]) if match else None


def _csv_table(
    path: Path, name: str, rows: Sequence[tuple[int, dict[str, str]]], inside: int
) -> MeasuredTable:
    line, first = rows[0]
    kind = NAMES.get(first["collective"])
    group = _count(first["n_gpus"])
    if kind is None:
        known = ", ".join(NAMES)
        raise fault(path, f"line {line}: unknown collective {short(first['collective'])}; {known}")
    if group is None or group < 2:
        raise fault(path, f"line {line}: n_gpus={short(first['n_gpus'])} must be 2 or more")

    def column(header: str) -> FloatArray:
        return np.array([_number(path, line, header, row.get(header)) for line, row in rows])

    columns = Columns(
        size=column("size_bytes"),
        seconds=column("time_us") / 1e6,
        algbw=column("algbw_GBps") if first.get("algbw_GBps") else None,
        busbw=column("busbw_GBps") if first.get("busbw_GBps") else None,
    )
    check_columns(columns, kind, group, path, name)
    in_place = column("time_us_inplace") / 1e6 if first.get("time_us_inplace") else None
    link = re.match(r"(NVLink|PCIe) ?(?:gen)?(\d)", first.get("link_intra") or "")
    rates = {} if link is None else NVLINK if link[1] == "NVLink" else PCIE
    network = (first.get("inter_net_gbps_per_gpu") or "").strip()
    return MeasuredTable(
        kind=kind,
        group=group,
        inside=inside,
        device=first.get("gpu") or "",
        size=columns.size,
        seconds=columns.seconds,
        in_place=in_place if in_place is not None and np.all(in_place > 0) else None,
        scale_up=rates.get(int(link[2])) if link else None,
        scale_out=_number(path, line, "inter_net_gbps_per_gpu", network) * 1e9 / 8
        if network
        else None,
        partial=(first.get("notes") or "").startswith("[excerpt]"),
        source=f"{path.name} {name}",
    )


def _number(path: Path, line: int, column: str, text: str | None) -> float:
    """A plain finite number; blank is nan."""
    try:
        value = float(text) if text and text.strip() else math.nan
    except ValueError:
        value = math.inf
    if math.isinf(value):
        raise fault(
            path, f"line {line}: {column}={short(text)} is not a plain number; remove units"
        )
    return value
