"""Predictions scored on measured runs."""

from __future__ import annotations

from typing import Any

from search.accuracy import Validation
from search.contracts.files import plain
from search.contracts.shapes import MAYBE, NUMBER, Shape
from search.validate import Scored
from search.versions import versions

VALIDATION = "trainplan.validation.v1"
SCHEMAS: dict[str, Shape] = {
    VALIDATION: {
        "schema": str,
        "rows": [
            {
                "row_id": (str, type(None)),
                "measured_seconds": MAYBE,
                "predicted_seconds": NUMBER,
                "low_seconds": NUMBER,
                "high_seconds": NUMBER,
                "measured_bytes": MAYBE,
                "predicted_bytes": NUMBER,
                "oom": (bool, type(None)),
                "predicted_fits": bool,
                "time": dict,
                "plan": dict,
                "assumed": dict,
            }
        ],
        "unmapped": [{"row_id": (str, type(None)), "reason": str}],
        "groups": [
            {"by": str, "key": str, "rows": int, "mapped": int}
            | dict.fromkeys(("mape", "median", "p90", "bias", "noise"), MAYBE)
        ],
        "choices": [
            {
                "choice_group": str,
                "plans": int,
                "concordance": MAYBE,
                "regret": NUMBER,
                "regret_random": NUMBER,
                "regret_rule_of_thumb": NUMBER,
            }
        ],
        "memory": {"kinds": list, "oom": dict},
        "interval": {"coverage": MAYBE, "width": MAYBE},
        "versions": dict,
    },
}


def validation(report: Validation) -> dict[str, Any]:
    """The document ``trainplan.validation.v1``."""
    every = report.overall
    return {
        "schema": VALIDATION,
        "rows": [_scored(row) for row in report.rows if row.predicted is not None],
        "unmapped": [
            {"row_id": row.run.row_id, "reason": row.reason}
            for row in report.rows
            if row.reason is not None
        ],
        "groups": [plain(group) for group in (every, *report.groups)],
        "choices": [plain(choice) for choice in report.choices],
        "memory": {
            "kinds": [plain(kind) for kind in report.memory],
            "oom": plain(report.oom)
            | {"precision": report.oom.precision, "recall": report.oom.recall},
        },
        "interval": {"coverage": every.coverage, "width": every.width},
        "versions": versions(),
    }


def _scored(row: Scored) -> dict[str, Any]:
    value, mapped = row.predicted, row.mapped
    assert value is not None and mapped is not None
    return {
        "row_id": row.run.row_id,
        "measured_seconds": row.seconds,
        "predicted_seconds": value.step_seconds,
        "low_seconds": value.low_seconds,
        "high_seconds": value.high_seconds,
        "measured_bytes": row.bytes,
        "predicted_bytes": row.predicted_bytes,
        "oom": row.run.oom,
        "predicted_fits": value.fits,
        "time": dict(value.time),
        "plan": mapped.plan.to_dict(),
        "assumed": dict(mapped.assumed),
    }
