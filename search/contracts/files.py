"""Values of the nouns as JSON has them, and documents written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from search.files import save


def plain(value: Any) -> Any:
    """Values of the nouns as JSON has them: objects, lists, numbers, words."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def encode(document: Mapping[str, Any]) -> bytes:
    """The text of a document."""
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def write(document: Mapping[str, Any], target: str) -> None:
    """Write a document to a file (whole or not at all) or, for ``-``, to standard output.

    Raises ``ValueError`` where the file cannot be written.
    """
    save(encode(document), target)
