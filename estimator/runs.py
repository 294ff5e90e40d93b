"""Measured training runs as rows of a CSV: what a row may say, checked, in SI units.

A file needs only a few of the columns. Whatever a row does not say is decided by
:mod:`estimator.mapping`, which records each decision.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from estimator.recipe import from_notes

MAX_BYTES = 200_000_000
MemoryKind = Literal["allocated", "reserved", "device"]
MemoryRank = Literal["max", "first", "last", "unsaid"]

TRUE = {"true", "1", "yes", "y"}
FALSE = {"false", "0", "no", "n"}


def _flag(value: Any) -> Any:
    if isinstance(value, str):
        word = value.strip().lower()
        if word in TRUE | FALSE:
            return word in TRUE
    return value


def _whole(value: Any) -> Any:
    """Whole numbers as spreadsheets write them: 8 and 8.0."""
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        if math.isfinite(number) and number == int(number):
            return int(number)
    return value


Flag = Annotated[bool | None, BeforeValidator(_flag)]
Count = Annotated[Annotated[int, Field(ge=1, le=10**15)] | None, BeforeValidator(_whole)]
Natural = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_whole)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)] | None


class Run(BaseModel):
    """One row. Names, units and meaning of the columns; a blank cell says nothing.

    Batches are global and in sequences, degrees count GPUs. Times are seconds, memory is 1e9
    bytes unless ``mem_kind`` says GiB.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    row_id: str | None = None
    source_id: str | None = None
    role: str | None = None
    """``fit`` (calibrate on it) or ``test`` (report on it only)."""
    choice_group: str | None = None
    """Rows that differ in nothing but the plan."""
    dup_of: str | None = None
    use_time: str | None = None
    use_mem: str | None = None
    config_grade: str | None = None
    workload: str | None = None

    # The machine.
    gpu: str | None = None
    n_gpus: Count = None
    gpus_per_node: Count = None
    inter_net: str | None = None
    """Name of the network, where it tells the cluster."""
    inter_net_gbps_per_gpu: Positive = None
    """Gigabits per second of network per GPU and direction."""

    # The framework and the model.
    framework: str | None = None
    framework_version: str | None = None
    model: str | None = None
    layers: Count = None
    hidden: Count = None
    ffn: Count = None
    heads: Count = None
    kv_heads: Count = None
    head_dim: Count = None
    vocab: Count = None
    gated_mlp: Flag = None
    tied_embeddings: Flag = None
    pos_emb: str | None = None
    moe_experts: Natural = None
    moe_topk: Count = None
    moe_ffn: Count = None
    moe_shared_ffn: Natural = None
    moe_note: str | None = None
    """Words on dense layers and latent attention."""

    # The workload and the plan.
    seq_len: Count = None
    document: Count = None
    """Mean tokens of the documents packed into a sequence, each attending to itself alone."""
    global_batch: Count = None
    precision: str | None = None
    flash_attention: Flag = None
    tp: Count = None
    cp: Count = None
    pp: Count = None
    dp: Count = None
    vpp: Count = None
    ep: Count = None
    etp: Count = None
    sp: Flag = None
    micro_batch: Count = None
    zero_stage: Annotated[Annotated[int, Field(ge=0, le=3)] | None, BeforeValidator(_whole)] = None
    dist_optimizer: Flag = None
    shard_size: Count = None
    """Ranks that ZeRO or FSDP shards over, where fewer than dp x cp."""
    recompute: str | None = None
    offload: str | None = None

    # The recipe; blank ones are looked for in ``notes``.
    overlap_tp: Flag = None
    overlap_ep: Flag = None
    overlap_grad: Flag = None
    overlap_p2p: Flag = None
    compiled: Flag = None
    """Whether a compiler fused element-wise kernels (torch.compile)."""
    cuda_graphs: Flag = None
    """Whether layers are replayed as CUDA graphs, which cost the host no launches."""
    fp8_scaling: str | None = None
    """``row`` or ``tensor``: what has a scale of its own in fp8 products."""
    interleaved: Flag = None
    """Whether stages hold several chunks of layers, where ``vpp`` does not say how many."""

    optimizer: str | None = None

    # What was measured.
    iter_time_s: Positive = None
    tokens_per_s_per_gpu: Positive = None
    samples_per_s: Positive = None
    mem_gb_per_gpu: Positive = None
    mem_kind: str | None = None
    oom: Flag = None
    notes: str | None = None
    source_ref: str | None = None
    """Where it is published, with the title of its section."""

    @model_validator(mode="before")
    @classmethod
    def _recipe(cls, row: Any) -> Any:
        return from_notes(row) if isinstance(row, dict) else row

    @property
    def seconds(self) -> float | None:
        """Seconds per step, from whichever rate the row gives."""
        if self.iter_time_s is not None:
            return self.iter_time_s
        if self.global_batch is None:
            return None
        if self.samples_per_s is not None:
            return self.global_batch / self.samples_per_s
        if self.tokens_per_s_per_gpu is None or self.seq_len is None or self.n_gpus is None:
            return None
        return self.global_batch * self.seq_len / (self.tokens_per_s_per_gpu * self.n_gpus)

    @property
    def peak_bytes(self) -> float | None:
        """Bytes per GPU of the memory that the row gives."""
        if self.mem_gb_per_gpu is None:
            return None
        unit = 2**30 if "gib" in (self.mem_kind or "").lower() else 1e9
        return self.mem_gb_per_gpu * unit

    @property
    def memory_kind(self) -> MemoryKind:
        """What was counted: allocated or reserved by the framework, or seen on the device."""
        text = (self.mem_kind or "").lower()
        if "reserved" in text:
            return "reserved"
        return "allocated" if "alloc" in text else "device"

    @property
    def memory_rank(self) -> MemoryRank:
        """Which rank was looked at."""
        text = (self.mem_kind or "").lower()
        if "rank 0" in text or "first" in text:
            return "first"
        if "last" in text:
            return "last"
        return "max" if "max over ranks" in text or "max reserved" in text else "unsaid"


@dataclass(frozen=True, slots=True)
class RunsFile:
    """The rows of a file and which columns it has."""

    runs: list[Run]
    columns: tuple[str, ...]
    unknown_columns: tuple[str, ...]


def read_runs(path: str | Path) -> RunsFile:
    """Read and check a CSV of runs.

    Raises:
        ValueError: one line: no such file, not a CSV, no rows, or the first cells that are wrong.
    """
    name = Path(path)
    if not name.is_file():
        kind = "is a directory" if name.is_dir() else "does not exist"
        raise ValueError(f"{name} {kind}; give a CSV of measured runs")
    if name.stat().st_size > MAX_BYTES:
        raise ValueError(f"{name} is larger than {MAX_BYTES // 10**6} MB; split it")
    try:
        with name.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = tuple(reader.fieldnames or ())
            _check_columns(name, columns)
            runs = list(_rows(name, reader))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{name} is not a CSV of text in UTF-8: {error}") from None
    if not runs:
        raise ValueError(f"{name} has no rows; it needs one measured run per row")
    unknown = tuple(column for column in columns if column not in Run.model_fields)
    return RunsFile(runs=runs, columns=columns, unknown_columns=unknown)


def _check_columns(name: Path, columns: tuple[str, ...]) -> None:
    if not set(columns) & set(Run.model_fields):
        raise ValueError(
            f"{name} has none of the columns of a run; its first line must name them, for example "
            "model,gpu,n_gpus,global_batch,seq_len,tp,pp,micro_batch,iter_time_s"
        )
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise ValueError(f"{name} names column {twice[0]} twice")


def _rows(name: Path, reader: csv.DictReader[str]) -> Iterator[Run]:
    for row in reader:
        if None in row:
            raise ValueError(f"{name} line {reader.line_num} has more cells than the first line")
        said = {key: cell.strip() for key, cell in row.items() if cell is not None and cell.strip()}
        try:
            yield Run.model_validate(said)
        except ValidationError as error:
            first = error.errors()[0]
            column = str(first["loc"][0])
            raise ValueError(
                f"{name} line {reader.line_num}: {column}={said[column][:40]!r}: "
                f"{first['msg'][0].lower()}{first['msg'][1:]}"
            ) from None
