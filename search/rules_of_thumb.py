"""Plans that people pick without a search, to say what a search is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from estimator.estimate import Estimate
from estimator.plan import CHOICES, UNSET, Plan, Plans
from search.finalists import simulations
from search.objective import Pricing
from spaces import Problem
from spaces.problem import divisors
from spaces.rules import broken_rule
from spaces.stages import end_stages

MICRO_BATCHES = (1, 2, 4, 8)
Mesh = tuple[int, int, int]
"""tp, pp and zero; dp is what is left."""


def megatron(problem: Problem, pricing: Pricing | None = None) -> Plan | None:
    """Tensor parallel up to the node, then stages until it fits, then replicas.

    Takeaways 1 to 3 of Narayanan et al. (arXiv 2104.04473, section 3).
    """
    node = divisors(problem.cluster.gpus_per_node)
    stages = divisors(problem.cluster.gpus // node[-1], problem.model.layers)
    meshes = [(tp, 1) for tp in node] + [(node[-1], pp) for pp in stages[1:]]
    return _first_that_fits(problem, [(tp, pp, _zero(problem, pp)) for tp, pp in meshes], pricing)


def size_class(problem: Problem, pricing: Pricing | None = None) -> Plan | None:
    """Two, four or eight ways for both tensor and pipeline, by the size of the model.

    The class is the first that fits; replicas take the rest.
    """
    meshes = [(way, way, _zero(problem, way)) for way in (2, 4, 8)]
    return _first_that_fits(problem, meshes, pricing)


def pure_fsdp(problem: Problem, pricing: Pricing | None = None) -> Plan | None:
    """Everything sharded over all devices, nothing else parallel (ZeRO-3, arXiv 1910.02054)."""
    return _first_that_fits(problem, [(1, 1, 3)], pricing)


RULES_OF_THUMB: dict[str, Callable[[Problem, Pricing | None], Plan | None]] = {
    "megatron": megatron,
    "size-class": size_class,
    "pure-fsdp": pure_fsdp,
}
"""By name: a legal plan that fits, or ``None`` where the rule gives none."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a rule of thumb picks, and what that costs."""

    name: str
    estimate: Estimate | None
    """``None`` where its plans are not legal or do not fit."""

    def over(self, best: Estimate) -> float | None:
        """Step time over that of the best plan found."""
        if self.estimate is None:
            return None
        return self.estimate.step_seconds / best.step_seconds


def baselines(
    problem: Problem, pricing: Pricing | None = None, *, simulate: bool = False
) -> tuple[Baseline, ...]:
    """Every rule of thumb, priced; simulated where what it is held against is."""
    pricing = pricing or Pricing()
    chosen = {name: rule(problem, pricing) for name, rule in RULES_OF_THUMB.items()}
    legal = [plan for plan in chosen.values() if plan is not None]
    costs = iter(_costs(problem, Plans.of(legal), pricing, simulate) if legal else [])
    return tuple(
        Baseline(name, None if plan is None else next(costs)) for name, plan in chosen.items()
    )


def _costs(problem: Problem, plans: Plans, pricing: Pricing, simulate: bool) -> list[Estimate]:
    if simulate:
        return simulations(problem, plans, pricing.cost)
    priced = pricing.estimates(problem, plans)
    return [priced[row] for row in range(len(plans))]


def _zero(problem: Problem, pp: int) -> int:
    """Optimizer states sharded where the framework offers it."""
    stack = problem.stack
    offered = stack.zero if pp == 1 else stack.pipeline_zero
    return 1 if 1 in offered and 1 in stack.zero else 0


def _first_that_fits(
    problem: Problem, meshes: Iterable[Mesh], pricing: Pricing | None
) -> Plan | None:
    """The fastest micro-batch on the first mesh where any fits, in order of the meshes.

    Recompute is the last resort: all meshes are tried without it first. That micro-batches need
    measuring is takeaway 3; here they are compared by the estimate.
    """
    pricing = pricing or Pricing()
    meshes = list(meshes)
    for recompute in sorted(problem.stack.recompute, key=CHOICES["recompute"].index):
        rows = [
            (place, plan)
            for place, mesh in enumerate(meshes)
            for plan in _candidates(problem, mesh, recompute)
        ]
        if not rows:
            continue
        plans = Plans.of(plan for _, plan in rows)
        fits = pricing.peak_bytes(problem, plans) <= problem.cluster.capacity_bytes
        if fits.any():
            places = np.array([place for place, _ in rows])
            chosen = plans[np.flatnonzero(fits & (places == places[fits].min()))]
            seconds = pricing.estimates(problem, chosen).step_seconds
            return chosen[int(np.argmin(seconds))]
    return None


def _candidates(problem: Problem, mesh: Mesh, recompute: str) -> Iterator[Plan]:
    """Legal plans of a mesh, by micro-batch; nothing is sharded where there is one replica.

    End stages are one layer short where that makes the split come out; experts are shared within
    the scale-up domain, as far as they divide.
    """
    tp, pp, zero = mesh
    dp = problem.cluster.gpus // (tp * pp)
    ends = end_stages(
        problem.model.layers, np.array([pp]), np.array([1]), problem.stack.uneven_stages
    )
    first, last = (None if end[0] == UNSET else int(end[0]) for end in ends)
    ep = 1
    if problem.model.experts is not None:
        inside = divisors(problem.model.experts.count, problem.cluster.scale_up_domain)
        ep = max(n for n in inside if (dp * tp) % n == 0) if dp else 1
    for micro_batch in MICRO_BATCHES if dp else ():
        plan = Plan(
            dp=dp,
            tp=tp,
            pp=pp,
            ep=ep,
            etp=1 if ep > 1 else None,
            first_stage_layers=first,
            last_stage_layers=last,
            micro_batch=micro_batch,
            sequence_parallel=tp > 1,
            zero=zero if dp > 1 or zero == 3 else 0,
            recompute=recompute,  # type: ignore[arg-type]
        )
        if broken_rule(problem, plan) is None:
            yield plan
