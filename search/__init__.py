"""Looking for the best plan, and saying what was found.

Names are imported when first used, so that ``trainplan --help`` stays instant.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from search.study import Ranked, Recommendation, recommend

__all__ = ["Ranked", "Recommendation", "recommend"]


def __getattr__(name: str) -> Any:
    """Import a name of the face."""
    if name not in __all__:
        raise AttributeError(f"module 'search' has no attribute {name!r}")
    from search import study

    return getattr(study, name)
