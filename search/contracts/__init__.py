"""The JSON documents that other tools read. Fields may be added, never renamed; SI units."""

from search.contracts import (
    calibrations,
    catalogs,
    modules,
    plans,
    searches,
    simulations,
    validations,
)
from search.contracts.calibrations import CALIBRATION, calibration
from search.contracts.catalogs import CATALOG, catalog
from search.contracts.files import encode, plain, write
from search.contracts.modules import MODULE, module
from search.contracts.plans import (
    ESTIMATE,
    EXPLANATION,
    PLAN_COSTS,
    budget_of,
    estimate,
    explanation,
)
from search.contracts.searches import RECOMMENDATION, SWEEP, recommendation, sweep
from search.contracts.shapes import Shape, faults
from search.contracts.simulations import SIMULATION, simulation
from search.contracts.validations import VALIDATION, validation

__all__ = [
    "CALIBRATION",
    "CATALOG",
    "ESTIMATE",
    "EXPLANATION",
    "MODULE",
    "PLAN_COSTS",
    "RECOMMENDATION",
    "SCHEMAS",
    "SIMULATION",
    "SWEEP",
    "VALIDATION",
    "budget_of",
    "calibration",
    "catalog",
    "encode",
    "estimate",
    "explanation",
    "faults",
    "module",
    "plain",
    "recommendation",
    "simulation",
    "sweep",
    "validation",
    "write",
]

_DOCUMENTS = (searches, plans, simulations, modules, validations, calibrations, catalogs)
SCHEMAS: dict[str, Shape] = {
    name: shape for document in _DOCUMENTS for name, shape in document.SCHEMAS.items()
}
"""Required fields of each document. A list holds the shape of its items."""
