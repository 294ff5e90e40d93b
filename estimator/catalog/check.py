"""Check what was read against an entry's schema; pydantic's faults become one short line."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from estimator.catalog.reading import fault, short
from estimator.catalog.schema import Entry

E = TypeVar("E", bound=Entry)
_SHOWN = 3


def check(content: dict[str, Any], schema: type[E], path: Path) -> E:
    """The entry that a file's mapping holds.

    Raises:
        ValueError: ``file: field: rule; field: rule`` with the first three faults.
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        faults.sort(key=lambda each: each["type"] == "missing")  # a misspelt field comes first
        lines = [_line(found, schema) for found in faults[:_SHOWN]]
        if len(faults) > _SHOWN:
            lines.append(f"and {len(faults) - _SHOWN} more")
        raise fault(path, "; ".join(lines)) from None


def _line(found: ErrorDetails, schema: type[Entry]) -> str:
    """One fault as ``field: rule, value, remedy``."""
    parts = [str(part) for part in found["loc"] if str(part) not in ("<inline>", "<name>", "[key]")]
    field = ".".join(parts)
    return f"{field}: {_rule(found, schema, parts)}" if field else _rule(found, schema, parts)


def _rule(found: ErrorDetails, schema: type[Entry], parts: list[str]) -> str:
    match found["type"]:
        case "missing":
            return "is missing; add it"
        case "extra_forbidden":
            near = difflib.get_close_matches(parts[-1], schema.model_fields, 1)
            return "is not a field here; " + (f"did you mean {near[0]}?" if near else "remove it")
        case "value_error":
            return str(found["ctx"]["error"])
        case "string_pattern_mismatch":
            return f"must be one word without spaces, not {short(found['input'])}"
        case _:
            message = found["msg"].replace("Input should be", "must be")
            return f"{message[0].lower()}{message[1:]}, not {short(found['input'])}"
