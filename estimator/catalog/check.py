"""Check what was read against an entry's schema; pydantic's faults become one short line."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from estimator.catalog.reading import one_line, short
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
        lines = [_line(fault, schema) for fault in faults[:_SHOWN]]
        if len(faults) > _SHOWN:
            lines.append(f"and {len(faults) - _SHOWN} more")
        raise ValueError(one_line(f"{path}: {'; '.join(lines)}")) from None


def _line(fault: ErrorDetails, schema: type[Entry]) -> str:
    """One fault as ``field: rule, value, remedy``."""
    parts = [str(part) for part in fault["loc"] if str(part) not in ("<inline>", "<name>", "[key]")]
    field = ".".join(parts)
    return f"{field}: {_rule(fault, schema, parts)}" if field else _rule(fault, schema, parts)


def _rule(fault: ErrorDetails, schema: type[Entry], parts: list[str]) -> str:
    match fault["type"]:
        case "missing":
            return "is missing; add it"
        case "extra_forbidden":
            near = difflib.get_close_matches(parts[-1], schema.model_fields, 1)
            return "is not a field here; " + (f"did you mean {near[0]}?" if near else "remove it")
        case "value_error":
            return str(fault["ctx"]["error"])
        case "string_pattern_mismatch":
            return f"must be one word without spaces, not {short(fault['input'])}"
        case _:
            message = fault["msg"].replace("Input should be", "must be")
            return f"{message[0].lower()}{message[1:]}, not {short(fault['input'])}"
