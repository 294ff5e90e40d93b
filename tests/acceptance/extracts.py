"""Small extracts of published measurements under ``tests/data``."""

from __future__ import annotations

import csv
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"


def rows(name: str, file: str = "runs.csv") -> list[dict[str, str]]:
    """Rows of ``tests/data/NAME/FILE``; its SOURCE.md says where they come from."""
    with (DATA / name / file).open(encoding="utf-8") as opened:
        return list(csv.DictReader(opened))
