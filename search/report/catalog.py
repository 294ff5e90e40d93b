"""What is known by name, as a table; and what a file of the user's is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from estimator.catalog import (
    load_cluster,
    load_collectives,
    load_device,
    load_model,
    load_stack,
    names,
)
from search.report.units import console, gib, large

LOADERS: dict[str, Callable[[str], Any]] = {
    "model": load_model,
    "device": load_device,
    "cluster": load_cluster,
    "stack": load_stack,
}


def entries(kind: str) -> list[Any]:
    """Every catalogue entry of a kind (``models``, ``devices``, ``clusters``, ``stacks``)."""
    return [LOADERS[kind.removesuffix("s")](name) for name in names(kind)]


def catalog_text(kind: str, found: list[Any]) -> None:
    """Print one line per entry."""
    columns: dict[str, dict[str, Callable[[Any], str]]] = {
        "models": {
            "parameters": lambda m: large(m.parameters),
            "active": lambda m: large(m.active_parameters),
            "layers": lambda m: str(m.layers),
            "hidden": lambda m: str(m.hidden),
            "heads": lambda m: f"{m.heads}/{m.kv_heads}",
            "experts": lambda m: f"{m.experts.top_k}/{m.experts.count}" if m.experts else "-",
            "positions": lambda m: str(m.max_positions),
        },
        "devices": {
            "memory GiB": lambda d: gib(d.memory_bytes),
            "bytes/s": lambda d: large(d.bandwidth),
            "peak FLOP/s": lambda d: ", ".join(f"{k} {large(v)}" for k, v in d.peaks.items()),
            "$/h": lambda d: "-" if d.dollars_per_hour is None else f"{d.dollars_per_hour:.2f}",
        },
        "clusters": {
            "device": lambda c: c.device.name,
            "GPUs": lambda c: str(c.gpus),
            "per node": lambda c: str(c.gpus_per_node),
            "scale-up": lambda c: c.scale_up.name,
            "scale-out": lambda c: "-" if c.scale_out is None else c.scale_out.name,
            "collectives": lambda c: f"{len(c.collectives)} fitted" if c.collectives else "nominal",
        },
        "stacks": {
            "zero": lambda s: ", ".join(str(z) for z in s.zero),
            "recompute": lambda s: ", ".join(s.recompute),
            "most tp/cp/pp": lambda s: f"{s.max_tp}/{s.max_cp}/{s.max_pp}",
            "interleaving": lambda s: "yes" if s.interleaving else "no",
        },
    }
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("name", no_wrap=True)
    for name in columns[kind]:
        table.add_column(name)
    for entry in found:
        table.add_row(entry.name, *(cell(entry) for cell in columns[kind].values()))
    console().print(table)


def check_file(file: str, kind: str | None) -> str:
    """Read a file as its kind would be read, and say what it is; ``ValueError`` if it is bad."""
    kind = kind or _kind(file)
    if kind == "collectives":
        return f"{file}: {len(load_collectives(file))} fitted collectives are well formed"
    if kind not in LOADERS:
        raise ValueError(f"kind={kind} must be one of {', '.join(LOADERS)}, collectives")
    return f"{file}: {kind} {LOADERS[kind](file).name} is well formed"


def _kind(file: str) -> str:
    """The kind of a file, told from a field that only that kind has."""
    from estimator.catalog.reading import read_mapping

    content = read_mapping(Path(file))
    for field, kind in (
        ("device", "cluster"),
        ("collectives", "collectives"),
        ("peaks", "device"),
        ("heads", "model"),
        ("extends", "stack"),
        ("launch_forward", "stack"),
    ):
        if field in content:
            return kind
    raise ValueError(f"{file} is no model, device, cluster, stack or fit; name it with --kind")
