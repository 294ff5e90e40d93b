"""Runs that nobody measured: step times of the estimator under a stack of our choice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from estimator.catalog import load_stack
from estimator.runs import Run
from estimator.stack import Stack
from search.validate import forced, mapped_rows, priced

BASE = load_stack("megatron")
MODELS = ("llama-3.2-1b", "llama-3.1-8b", "llama-2-13b")
PLANS = ((1, 1, 8), (2, 1, 16), (4, 1, 8), (8, 1, 64), (2, 2, 32), (4, 2, 128), (8, 4, 256))
"""tp, pp and GPUs."""


def plans(count: int, source: str = "here", batch: int = 1) -> list[Run]:
    """Distinct runs without a time: small and large models, 1 to 32 nodes.

    ``batch`` sequences per GPU and step, more from the 22nd on.
    """
    found = []
    for i in range(count):
        tp, pp, gpus = PLANS[i % len(PLANS)]
        found.append(
            Run(
                row_id=f"{source}-{i}",
                source_id=source,
                model=MODELS[i // len(PLANS) % len(MODELS)],
                gpu="H100-SXM5-80GB",
                n_gpus=gpus,
                framework="Megatron-LM",
                global_batch=gpus * (batch + i // 21),
                seq_len=2048,
                tp=tp,
                pp=pp,
                zero_stage=1,
            )
        )
    return found


def measured(
    stack: Stack,
    count: int,
    *,
    noise: float = 0.0,
    seed: int = 0,
    source: str = "here",
    batch: int = 1,
) -> list[Run]:
    """The runs with the step times that they would have under ``stack``, noise log-normal."""
    runs = plans(count, source, batch)
    scatter = np.exp(noise * np.random.default_rng(seed).standard_normal(count))
    rows = priced(forced(mapped_rows(runs), stack))
    seconds = [row.predicted.step_seconds for row in rows if row.predicted is not None]
    assert len(seconds) == count
    return [
        run.model_copy(update={"iter_time_s": float(time)})
        for run, time in zip(runs, np.array(seconds) * scatter, strict=True)
    ]


def write_csv(path: Path, rows: Sequence[Run]) -> str:
    """The rows as a file, with the columns that some row uses."""
    columns = [name for name in Run.model_fields if any(getattr(r, name) is not None for r in rows)]
    lines = [",".join(columns)]
    for row in rows:
        values = (getattr(row, name) for name in columns)
        lines.append(",".join("" if value is None else str(value) for value in values))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)
