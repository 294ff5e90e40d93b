"""A stack fitted to measured runs: its scalars, and what they are worth."""

from __future__ import annotations

from typing import Any

from search.calibration import Calibrated, FittedRun
from search.contracts.files import plain
from search.contracts.shapes import MAYBE, NUMBER, Shape
from search.versions import versions

CALIBRATION = "trainplan.calibration.v1"
_ERRORS = {"median": NUMBER, "mean": NUMBER}
SCHEMAS: dict[str, Shape] = {
    CALIBRATION: {
        **dict.fromkeys(("schema", "base", "cost"), str),
        **dict.fromkeys(("rows", "configurations", "folds"), int),
        "stack": dict,
        "unmapped": dict,
        "helps": bool,
        "scalars": [
            dict.fromkeys(("name", "state", "suspects"), str)
            | dict.fromkeys(("before", "value", "prior", "prior_sd", "sd"), NUMBER)
            | {"bound": MAYBE}
        ],
        "errors": {
            "before": _ERRORS,
            "after": _ERRORS,
            "crossed": (dict, type(None)),
            "left_out": (dict, type(None)),
            "refused": (dict, type(None)),
        },
        "sources": [
            {"source": str, "configurations": int, "before": _ERRORS, "after": _ERRORS}
            | dict.fromkeys(("crossed", "left_out"), (dict, type(None)))
        ],
        "runs": [
            {"row_ids": list, "source": (str, type(None)), "measured_seconds": NUMBER}
            | dict.fromkeys(("before", "after"), NUMBER)
            | {"crossed": MAYBE, "time": dict, "plan": dict}
        ],
        "versions": dict,
    }
}


def calibration(value: Calibrated) -> dict[str, Any]:
    """The document ``trainplan.calibration.v1``; errors of runs are logarithms, with sign."""
    return {
        "schema": CALIBRATION,
        "base": value.base.name,
        "cost": value.cost,
        "rows": value.rows,
        "configurations": len(value.runs),
        "folds": value.folds,
        "stack": plain(value.stack),
        "unmapped": dict(value.unmapped),
        "helps": value.helps,
        "scalars": [plain(one) for one in value.scalars],
        "errors": {
            "before": plain(value.before),
            "after": plain(value.after),
            "crossed": plain(value.crossed),
            "left_out": plain(value.left_out),
            "refused": plain(value.refused),
        },
        "sources": [plain(one) for one in value.sources],
        "runs": [_run(one) for one in value.runs],
        "versions": versions(),
    }


def _run(one: FittedRun) -> dict[str, Any]:
    first = one.configuration.rows[0]
    assert first.mapped is not None
    return {
        "row_ids": [row.run.row_id for row in one.configuration.rows],
        "source": first.run.source_id,
        "measured_seconds": one.configuration.seconds,
        "before": one.before,
        "after": one.after,
        "crossed": one.crossed,
        "time": dict(one.parts),
        "plan": first.mapped.plan.to_dict(),
    }
