"""Optuna's samplers as a strategy, for spaces or costs too large to look at every plan.

Every trial is legal by construction: a suggested point is moved to the nearest legal one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from estimator.plan import Plans
from search.objective import Scores
from spaces import TransformerSpace

if TYPE_CHECKING:
    from optuna.trial import Trial

BATCH = 8
"""Trials asked for before any is told."""
UNFIT = 1e9
"""Seconds told for a plan that does not fit; its constraint says by how many bytes."""


class OptunaSampling:
    """Tree-structured Parzen estimation over the space's axes, seeded.

    Needs two trials at least per axis to be of use. Repeated suggestions are answered from what
    is known and count as trials, so a small space ends early. ``study`` holds all trials for
    Optuna's plots and dashboard.
    """

    def __init__(self, space: TransformerSpace, trials: int = 400, seed: int = 0) -> None:
        import optuna
        from optuna.distributions import BaseDistribution, IntDistribution

        if trials < 1:
            raise ValueError(f"trials={trials} must be at least 1")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._left = trials
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self._axes: dict[str, BaseDistribution] = {
            name: IntDistribution(0, len(values) - 1)
            for name, values in space.grid.axes.items()
            if len(values) > 1
        }
        self._known: dict[int, tuple[float, float]] = {}
        self._asked: list[tuple[Trial, int]] = []
        self._points: list[int] = []

    def propose(self) -> Plans | None:
        """The plans of the next trials that are not known yet."""
        while self._left and len(self._known) < self._space.legal:
            self._asked = [self._ask() for _ in range(min(BATCH, self._left))]
            self._left -= len(self._asked)
            points = dict.fromkeys(point for _, point in self._asked)
            self._points = [point for point in points if point not in self._known]
            if self._points:
                return self._space.plans(np.array(self._points))
            self._tell()
        return None

    def feedback(self, plans: Plans, scores: Scores) -> None:
        """Tell the trials what their plans cost."""
        for point, seconds, excess in zip(
            self._points, scores.seconds, scores.excess_bytes, strict=True
        ):
            self._known[point] = (min(float(seconds), UNFIT), float(excess))
        self._tell()

    def _ask(self) -> tuple[Trial, int]:
        trial = self.study.ask(self._axes)
        positions = {name: 0 for name in self._space.grid.axes} | trial.params
        return trial, self._space.nearest(int(self._space.grid.points(positions)))

    def _tell(self) -> None:
        for trial, point in self._asked:
            seconds, excess = self._known[point]
            trial.set_constraint("memory", excess)
            self.study.tell(trial, seconds)
