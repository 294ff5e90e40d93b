"""The plans of a Transformer: a declared raw grid, and the points of it that can run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from estimator.cluster import Cluster
from estimator.model import Transformer
from estimator.plan import NAMES, UNSET, IntArray, Plans
from estimator.stack import Stack
from estimator.workload import Workload
from spaces.axes import DERIVED, Recomputing, declared_axes, narrow
from spaces.problem import BoolArray, Problem, Rule, check_problem
from spaces.rules import RULES, SPACE_ONLY
from spaces.run_rules import FULL, SELECTIVE
from spaces.space import Constraints, Grid, LeftOut, Stage, enumerate_legal
from spaces.stages import end_stages, fullest_stage

MESH = ("tp", "cp", "pp", "ep", "etp")
SPLIT = ("micro_batch", "interleave")


@dataclass(frozen=True, slots=True, eq=False)
class TransformerSpace:
    """Legal plans of one problem; build it with :meth:`build`.

    The law: ``legal == considered - sum(left_out.values())``.
    """

    problem: Problem
    constraints: Constraints
    grid: Grid
    points: IntArray
    """Flat grid indices of the legal plans, ascending, shape (legal,)."""
    charges: dict[str, LeftOut]
    """Raw points that are not legal, by the code of the first rule each breaks."""

    @classmethod
    def build(
        cls,
        model: Transformer,
        workload: Workload,
        cluster: Cluster,
        stack: Stack,
        constraints: Constraints | None = None,
    ) -> TransformerSpace:
        """Enumerate the space.

        Raises ``ValueError`` where the problem admits no plan at all (precision, sequence) or the
        constraints leave an axis without values. An empty space is not an error: ``left_out``
        says why.
        """
        check_problem(model, workload, cluster, stack)
        problem = Problem(model, workload, cluster, stack)
        asked = constraints or Constraints()
        grid = Grid(narrow(declared_axes(problem), asked))
        decode = partial(_decode, problem, asked, grid)
        points, charges = enumerate_legal(problem, grid, _stages(grid, asked), decode)
        return cls(problem, asked, grid, points, charges)

    @property
    def considered(self) -> int:
        """Size of the declared raw grid."""
        return self.grid.size

    @property
    def legal(self) -> int:
        """Plans that can run."""
        return len(self.points)

    @property
    def left_out(self) -> dict[str, int]:
        """How many raw points each rule leaves out, by code, in the order rules are applied."""
        return {code: charge.points for code, charge in self.charges.items()}

    def why_empty(self) -> str:
        """One line for a space without a legal plan: what the points that came furthest break."""
        charge = list(self.charges.values())[-1]
        example = self.plans(np.array([charge.example]))[0]
        return (
            f"no plan of {self.considered:,} can run {self.problem.model.name} on "
            f"{self.problem.cluster.name} as asked; {charge.rule.explain(self.problem, example)}"
        )

    def plans(self, points: IntArray) -> Plans:
        """The plans at the given flat grid indices, shape (P,)."""
        return _decode(self.problem, self.constraints, self.grid, points)

    def blocks(self, size: int = 1 << 16) -> Iterator[Plans]:
        """Every legal plan once, in grid order, at most ``size`` at a time."""
        for start in range(0, self.legal, size):
            yield self.plans(self.points[start : start + size])

    def sample(self, count: int, seed: int = 0) -> Plans:
        """``count`` distinct legal plans (all, if there are fewer), uniformly, in grid order."""
        draw = np.random.default_rng(seed)
        chosen = draw.choice(self.legal, size=min(count, self.legal), replace=False)
        return self.plans(self.points[np.sort(chosen)])

    def encode(self, plans: Plans) -> IntArray:
        """Flat grid indices of plans, shape (P,): the inverse of :meth:`plans`.

        Raises ``ValueError`` for a plan outside the grid.
        """
        fullest = fullest_stage(self.problem.model.layers, plans)
        positions: dict[str, IntArray] = {}
        for name, values in self.grid.axes.items():
            codes = [v.recompute if isinstance(v, Recomputing) else v for v in values]
            match = getattr(plans, name)[:, None] == np.array(codes)
            if name == "recompute":
                every = np.arange(len(codes))[None, :]
                counted = _recomputed(self.grid, every, fullest[:, None])
                match = match & (plans.recompute_layers[:, None] == counted)
            if not match.any(axis=1).all():
                row = int(np.argmin(match.any(axis=1)))
                raise ValueError(f"{name} of plan {plans[row]} is not on the grid of this space")
            positions[name] = np.argmax(match, axis=1)
        return self.grid.points(positions)

    def contains(self, points: IntArray) -> BoolArray:
        """Which flat grid indices are legal plans, shape (P,)."""
        found = np.searchsorted(self.points, points)
        inside = found < self.legal
        inside[inside] = self.points[found[inside]] == points[inside]
        return inside

    def nearest(self, point: int) -> int:
        """The legal point next to ``point``: nearest mesh first, then nearest within it.

        Distance is counted in steps along the axes; ties go to the smaller index. Raises
        ``ValueError`` in an empty space.
        """
        if not self.legal:
            raise ValueError("the space has no legal plan")
        below = self.grid.size // int(np.prod(self.grid.shape[: len(MESH)]))
        meshes = np.unique(self.points // below)
        mesh = int(meshes[np.argmin(self._distance(meshes * below, point, MESH))])
        start, stop = np.searchsorted(self.points, [mesh * below, (mesh + 1) * below])
        inside = self.points[start:stop]
        rest = tuple(name for name in self.grid.axes if name not in MESH)
        return int(inside[np.argmin(self._distance(inside, point, rest))])

    def _distance(self, points: IntArray, target: int, axes: tuple[str, ...]) -> IntArray:
        here = self.grid.coordinates(points)
        there = self.grid.coordinates(np.asarray(target))
        steps: IntArray = np.sum(
            np.broadcast_arrays(points * 0, *(np.abs(here[a] - there[a]) for a in axes)), axis=0
        )
        return steps


def _decode(problem: Problem, asked: Constraints, grid: Grid, points: IntArray) -> Plans:
    """Columns of the plans at flat grid indices; derived fields follow from the others."""
    positions = grid.coordinates(points)
    columns: dict[str, IntArray] = {}
    for name, values in grid.axes.items():
        codes = [v.recompute if isinstance(v, Recomputing) else v for v in values]
        columns[name] = np.array(codes, dtype=np.int64)[positions[name]]
    world, layers = problem.cluster.gpus, problem.model.layers
    columns["dp"] = np.maximum(world // (columns["tp"] * columns["cp"] * columns["pp"]), 1)
    first, last = end_stages(
        layers, columns["pp"], columns["interleave"], problem.stack.uneven_stages
    )
    given = [asked.fix.get(name) for name in ("first_stage_layers", "last_stage_layers")]
    if given != [None, None]:
        first, last = (np.asarray(UNSET if end is None else end) for end in given)
    columns["first_stage_layers"], columns["last_stage_layers"] = first, last
    shape = points.shape
    plans = Plans(
        **{name: np.broadcast_to(columns.get(name, np.asarray(UNSET)), shape) for name in NAMES}
    )
    fullest = fullest_stage(layers, plans)
    columns["recompute_layers"] = _recomputed(grid, positions["recompute"], fullest)
    return Plans(**{name: np.broadcast_to(columns[name], shape) for name in NAMES})


def _recomputed(grid: Grid, position: IntArray, fullest: IntArray) -> IntArray:
    choices: tuple[Recomputing, ...] = tuple(grid.axes["recompute"])
    quarters = np.array([c.quarters for c in choices])[position]
    given = np.array([UNSET if c.layers is None else c.layers for c in choices])[position]
    share = np.where(quarters == 4, UNSET, -(-quarters * fullest // 4))
    counted: IntArray = np.where(given != UNSET, given, share)
    return counted


def _stages(grid: Grid, asked: Constraints) -> tuple[Stage, ...]:
    """Three expansions, each with the rules whose fields are known by then.

    The order of the rules is kept, so that "the first rule a point breaks" means the same here and
    in a check of one plan; reasons of the space's own come last.
    """
    rest = tuple(name for name in grid.axes if name not in MESH + SPLIT)
    known = {name for name in rest if len(grid.axes[name]) == 1}
    waiting = list(RULES)
    stages: list[Stage] = []
    for axes, derived in ((MESH, ("dp",)), (SPLIT, ("first_stage_layers", "last_stage_layers"))):
        known.update((*axes, *derived))
        ready = tuple(itertools.takewhile(lambda rule: known.issuperset(rule.fields), waiting))
        waiting = waiting[len(ready) :]
        stages.append(Stage(axes, ready))
    return (*stages, Stage(rest, (*waiting, *_space_rules(grid, asked))))


def _space_rules(grid: Grid, asked: Constraints) -> tuple[Rule, ...]:
    """Reasons to leave out plans that could run: constraints, and plans not worth a look."""
    first_order = grid.axes["order"][0]
    shares = sorted(c.quarters for c in grid.axes["recompute"] if c.recompute == FULL)

    def same_order(problem: Problem, plans: Plans) -> BoolArray:
        # Where tp x cp fill whole scale-up domains, dp and pp both go between domains either way.
        apart = plans.tp * plans.cp % problem.cluster.scale_up_domain == 0
        distinct = (plans.pp > 1) & (plans.dp > 1) & ~apart
        kept: BoolArray = (plans.order == first_order) | distinct
        return kept

    def same_expert_tp(problem: Problem, plans: Plans) -> BoolArray:
        # Unset follows tp, so that etp=1 says the same where tp is 1.
        kept: BoolArray = (plans.etp == UNSET) | (plans.tp > 1)
        return kept if problem.model.experts is not None else np.ones(len(plans), dtype=bool)

    def same_recompute(problem: Problem, plans: Plans) -> BoolArray:
        fullest = fullest_stage(problem.model.layers, plans)
        repeated = np.zeros(len(plans), dtype=bool)
        for less, more in itertools.pairwise(shares):
            # Where two shares round to one count, the larger (all layers: unset) stands for both.
            repeated |= (plans.recompute_layers == -(-less * fullest // 4)) & (
                -(-less * fullest // 4) == -(-more * fullest // 4)
            )
        return ~repeated

    def needless(problem: Problem, plans: Plans) -> BoolArray:
        flash = problem.workload.attention == "flash" and "recompute" not in asked.fix
        kept: BoolArray = (plans.recompute != SELECTIVE) | (not flash)
        return kept

    def constrained(name: str, problem: Problem, plans: Plans) -> BoolArray:
        return asked.keeps(name, getattr(plans, name))

    reads = ("pp", "first_stage_layers", "last_stage_layers", "recompute", "recompute_layers")
    rules = [
        *(
            _space_rule("constraint", (name,), partial(constrained, name))
            for name in DERIVED
            if name in asked.fields
        ),
        _space_rule("duplicate", ("dp", "tp", "cp", "pp", "order"), same_order),
        _space_rule("duplicate", ("tp", "etp"), same_expert_tp),
        _space_rule("redundant", ("recompute",), needless),
        _space_rule("duplicate", reads, same_recompute),
    ]
    return tuple(rules)


def _space_rule(code: str, fields: tuple[str, ...], legal: Any) -> Rule:
    return Rule(code, SPACE_ONLY[code], fields, legal, lambda problem, plan: SPACE_ONLY[code])
