"""Which software gave an answer."""

from __future__ import annotations

import platform
from importlib import metadata


def versions() -> dict[str, str]:
    """Versions that a result may depend on, by name."""
    try:
        own = metadata.version("trainplan")
    except metadata.PackageNotFoundError:  # run from a source tree
        own = "source"
    return {
        "trainplan": own,
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
    }
