"""Small extracts of published measurements under ``tests/data``."""

from __future__ import annotations

import csv
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"


def rows(name: str) -> list[dict[str, str]]:
    """Rows of ``tests/data/NAME/runs.csv``; its SOURCE.md says where they come from."""
    with (DATA / name / "runs.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
