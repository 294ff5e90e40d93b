"""Plans that almost fit: by how many bytes they miss, and the smallest change that helps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from estimator.plan import NAMES, IntArray, Plan, Plans, format_value
from search.objective import Pricing
from spaces import Constraints, Problem, TransformerSpace

MOST_GPUS = 64
"""Largest multiple of the cluster that is tried where nothing fits."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A legal plan that does not fit."""

    plan: Plan
    peak_bytes: float
    excess_bytes: float
    change: str | None
    """The smallest change that makes it fit; ``None`` when no single field does."""


def nearest_misses(
    space: TransformerSpace, plans: Plans | None, pricing: Pricing
) -> tuple[Miss, ...]:
    """What to say about each of a few plans that do not fit, shape (P,)."""
    if plans is None:
        return ()
    problem = space.problem
    wide = space
    if space.constraints.fields:
        # A change may well be one that the user has ruled out: better said than hidden.
        wide = TransformerSpace.build(
            problem.model, problem.workload, problem.cluster, problem.stack
        )
    peak = pricing.peak_bytes(problem, plans)
    return tuple(
        Miss(
            plan=plans[row],
            peak_bytes=float(peak[row]),
            excess_bytes=float(peak[row] - problem.cluster.capacity_bytes),
            change=smallest_change(wide, plans[row], pricing),
        )
        for row in range(len(plans))
    )


def smallest_change(space: TransformerSpace, plan: Plan, pricing: Pricing) -> str | None:
    """The one field whose value, moved by the fewest steps, makes ``plan`` fit.

    ``dp`` absorbs a change of the mesh. ``None`` where no single field is enough, or the plan lies
    outside the space's grid.
    """
    try:
        here = int(space.encode(Plans.of([plan]))[0])
    except ValueError:
        return None
    points, steps = _neighbours(space, here)
    legal = space.contains(points)
    if not legal.any():
        return None
    points, steps = points[legal], steps[legal]
    plans = space.plans(points)
    peak = pricing.peak_bytes(space.problem, plans)
    fits = peak <= space.problem.cluster.capacity_bytes
    if not fits.any():
        return None
    # Fewest steps first; among those the one that gives up least memory.
    order = np.lexsort((-peak, steps, ~fits))
    return difference(plan, plans[int(order[0])])


def _neighbours(space: TransformerSpace, point: int) -> tuple[IntArray, IntArray]:
    """Grid points that differ from ``point`` on one axis, and by how many steps."""
    here = space.grid.coordinates(np.array([point]))
    points, steps = [], []
    for name, length in zip(space.grid.axes, space.grid.shape, strict=True):
        now = int(np.asarray(here[name]).reshape(-1)[0])
        others = np.array([i for i in range(length) if i != now], dtype=np.int64)
        points.append(np.broadcast_to(space.grid.points({**here, name: others}), others.shape))
        steps.append(np.abs(others - now))
    return np.concatenate(points), np.concatenate(steps)


def difference(before: Plan, after: Plan) -> str:
    """The fields of ``after`` that differ, as ``field=value``, comma separated."""
    return ",".join(
        f"{name}={format_value(getattr(after, name))}"
        for name in NAMES
        if getattr(before, name) != getattr(after, name)
    )


def gpus_needed(problem: Problem, constraints: Constraints, pricing: Pricing) -> int | None:
    """Fewest GPUs, by doubling the cluster, for which some legal plan fits.

    ``None`` where not even ``MOST_GPUS`` times the cluster is enough.
    """
    if problem.cluster.scale_out is None:
        return None
    factor = 2
    while factor <= MOST_GPUS:
        cluster = replace(problem.cluster, nodes=problem.cluster.nodes * factor)
        larger = replace(problem, cluster=cluster)
        try:
            space = TransformerSpace.build(
                problem.model, problem.workload, cluster, problem.stack, constraints
            )
        except ValueError:
            return None
        for plans in space.blocks():
            if (pricing.peak_bytes(larger, plans) <= cluster.capacity_bytes).any():
                return cluster.gpus
        factor *= 2
    return None
