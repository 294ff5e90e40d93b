"""Looking for the best plan, saying what was found, and learning from measured runs.

Names are imported when first used, so that ``trainplan --help`` stays instant.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from search.calibration import Calibrated, calibrate
    from search.study import Ranked, Recommendation, recommend

__all__ = ["Calibrated", "Ranked", "Recommendation", "calibrate", "recommend"]


def __getattr__(name: str) -> Any:
    """Import a name of the face."""
    if name not in __all__:
        raise AttributeError(f"module 'search' has no attribute {name!r}")
    if name in ("Calibrated", "calibrate"):
        from search import calibration

        return getattr(calibration, name)
    from search import study

    return getattr(study, name)
