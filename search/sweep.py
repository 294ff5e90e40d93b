"""What the best plan becomes as one number of the problem changes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from estimator.catalog.schema import (
    Bytes,
    Count,
    Flops,
    Number,
    Rate,
    Seconds,
    StackEntry,
    Watts,
)
from estimator.cluster import Cluster
from estimator.workload import Precision, Workload
from search.objective import Pricing
from search.strategies import Strategy
from search.study import Ranked, recommend
from spaces import Constraints, Problem, TransformerSpace
from spaces.problem import LARGEST

MOST_VALUES = 64
UNITS: dict[str, Any] = {
    "bytes": Bytes,
    "bytes/s": Rate,
    "FLOP/s": Flops,
    "seconds": Seconds,
    "watts": Watts,
}
_WHOLE = Annotated[int, Field(ge=1, le=LARGEST)]
_LINK = {
    "bandwidth": Rate,
    "efficiency": Annotated[float, Field(gt=0, le=1)],
    "latency": Seconds,
    "hop_latency": Seconds,
}
CLUSTER_FIELDS: dict[str, Any] = {
    "nodes": Count,
    "gpus_per_node": Count,
    "nics_per_node": Count,
    "scale_up_domain": Count,
    "leaf_nodes": Count,
    "oversubscription": Annotated[float, Field(ge=1, le=1000)],
    "memory_margin": Annotated[float, Field(ge=0, lt=1)],
    **{
        f"{tier}.{name}": kind for tier in ("scale_up", "scale_out") for name, kind in _LINK.items()
    },
    "device.bandwidth": Rate,
    "device.memory_bytes": Annotated[Bytes, Field(gt=0)],
    "device.l2_bytes": Annotated[Bytes, Field(gt=0)],
    "device.sms": Count,
    "device.dollars_per_hour": Number,
    **{f"device.peaks.{dtype}": Flops for dtype in get_args(Precision)},
}
"""Numbers of a cluster, and what they may be. A cluster has as many NICs as GPUs per node, each
with the GPU's share of ``scale_out``: other ``nics_per_node`` change that share."""


def fields() -> dict[str, Any]:
    """Every field that can be swept, with what its values may be (a type for pydantic)."""
    workload = {name: _number(hint) for name, hint in get_type_hints(Workload).items()}
    stack = get_type_hints(StackEntry, include_extras=True)
    stack = {name: kind if _number(kind) else None for name, kind in stack.items()}
    every = {"workload": workload, "cluster": CLUSTER_FIELDS, "stack": stack}
    return {
        f"{noun}.{name}": kind
        for noun, kinds in every.items()
        for name, kind in kinds.items()
        if kind is not None
    }


def _number(hint: Any) -> Any:
    """What a number of a noun may be; ``None`` where the hint is no number."""
    bare = get_args(hint)[0] if get_args(hint) else hint
    return {int: _WHOLE, float: Number}.get(bare)


def unit_of(kind: Any) -> str:
    """The unit in SI of values of a kind; empty for plain numbers."""
    parts = getattr(kind, "__metadata__", ())
    names = (name for name, known in UNITS.items() if known.__metadata__[0] in parts)
    return next(names, "")


@dataclass(frozen=True, slots=True)
class Sweep:
    """One field and the values that it takes in turn."""

    field: str
    unit: str
    values: tuple[float, ...]
    """In SI."""
    texts: tuple[str, ...]
    """The same as they were written."""

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Read ``field=value,value,...``; values of a dimension carry units.

        Raises:
            ValueError: one line, for an unknown field (naming the nearest), a value that its field
                cannot take, a repeated one, or more than ``MOST_VALUES``.
        """
        name, separator, listed = (part.strip() for part in text.partition("="))
        if not separator:
            raise ValueError(f"--sweep {text!r} must be written field=value,value,...")
        known = fields()
        if name not in known:
            raise ValueError(f"--sweep cannot vary {name!r}; {_nearest(name, known)}")
        texts = tuple(part.strip() for part in listed.split(","))
        if len(texts) > MOST_VALUES:
            raise ValueError(f"--sweep {name} has {len(texts)} values; give at most {MOST_VALUES}")
        values = tuple(_value(name, one, known[name]) for one in texts)
        for place, value in enumerate(values):
            if value in values[:place]:
                raise ValueError(f"--sweep {name} has {texts[place]} twice; give each value once")
        return cls(name, unit_of(known[name]), values, texts)

    def problems(self, problem: Problem) -> list[Problem]:
        """The problem with each of the values; ``ValueError`` where one contradicts the rest."""
        return [vary(problem, self.field, value) for value in self.values]


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    asked = name.rpartition(".")[2]
    close = [field for field in known if asked and field.rpartition(".")[2].startswith(asked)]
    close += difflib.get_close_matches(name, known, 3)
    if close:
        return f"did you mean {' or '.join(list(dict.fromkeys(close))[:3])}?"
    return "name a number of workload, cluster or stack, such as cluster.nodes"


def _value(name: str, text: str, kind: Any) -> float:
    try:
        value: float = TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        if found["type"] == "value_error":
            rule = str(found["ctx"]["error"])
        else:
            rule = found["msg"].replace("Input should be", "must be").split(",")[0]
        raise ValueError(f"--sweep {name}={text}: {rule}") from None
    return value


def vary(problem: Problem, field: str, value: float) -> Problem:
    """The problem with one number changed.

    A scale-up domain that is a node stays one when ``gpus_per_node`` changes. Collectives fitted
    over a link that is varied no longer hold, and go by its nominal numbers.
    """
    noun, _, path = field.partition(".")
    if noun != "cluster":
        return replace(problem, **{noun: _changed(getattr(problem, noun), path, value)})
    cluster = problem.cluster
    if path == "nics_per_node":
        _changed(cluster, "scale_out.bandwidth", value)  # says so where there is no such link
        assert cluster.scale_out is not None
        share = value / cluster.gpus_per_node * cluster.scale_out.bandwidth
        changed: Cluster = _changed(cluster, "scale_out.bandwidth", share)
    elif path == "gpus_per_node" and cluster.scale_up_domain == cluster.gpus_per_node:
        changed = replace(cluster, gpus_per_node=int(value), scale_up_domain=int(value))
    else:
        changed = _changed(cluster, path, value)
    if path.startswith("scale_up."):
        changed = replace(changed, collectives=())
    elif path == "nics_per_node" or path.startswith("scale_out."):
        near = tuple(fitted for fitted in changed.collectives if fitted.domains == 1)
        changed = replace(changed, collectives=near)
    gpus = f"{changed.gpus} x {changed.device.name}"
    return replace(problem, cluster=replace(changed, name=f"{gpus} ({path}={value:g})"))


def _changed(noun: Any, path: str, value: float) -> Any:
    """A noun with the number at the end of a dotted path replaced."""
    name, _, rest = path.partition(".")
    inner = getattr(noun, name)
    if not rest:
        return replace(noun, **{name: value})
    if inner is None:
        raise ValueError(f"--sweep {path}: {noun.name} has no {name}; take a cluster that has one")
    if not isinstance(inner, Mapping):
        return replace(noun, **{name: _changed(inner, rest, value)})
    if rest not in inner:
        raise ValueError(f"--sweep {path}: {noun.name} has {name} for {', '.join(inner)} only")
    return replace(noun, **{name: {**inner, rest: value}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The answer at one value; without ``best``, ``reason`` says why."""

    value: float
    text: str
    problem: Problem
    legal: int = 0
    fitting: int = 0
    best: Ranked | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The answers of a sweep, in the order of its values."""

    problem: Problem
    cost: str
    sweep: Sweep
    points: tuple[Point, ...]


def run_sweep(
    problem: Problem,
    sweep: Sweep,
    *,
    constraints: Constraints | None = None,
    pricing: Pricing | None = None,
    strategy: Callable[[TransformerSpace], Strategy | None] | None = None,
) -> Swept:
    """Search once per value.

    A value at which no plan can run or fits is an answer. Raises ``ValueError`` where that is so
    of every value for reasons other than memory: then the problem itself is wrong.
    """
    pricing = pricing or Pricing()
    asked = constraints or Constraints()
    points = []
    varied = sweep.problems(problem)
    for value, text, one in zip(sweep.values, sweep.texts, varied, strict=True):
        try:
            space = TransformerSpace.build(one.model, one.workload, one.cluster, one.stack, asked)
            found = recommend(
                one.model,
                one.workload,
                one.cluster,
                stack=one.stack,
                space=space,
                strategy=strategy(space) if strategy else None,
                pricing=pricing,
                top=1,
            )
        except ValueError as error:
            points.append(Point(value=value, text=text, problem=one, reason=str(error)))
            continue
        points.append(
            Point(
                value=value,
                text=text,
                problem=one,
                legal=found.legal,
                fitting=found.fitting,
                best=found.ranked[0] if found.ranked else None,
                reason=None if found.ranked else "no plan fits in memory",
            )
        )
    if not any(point.legal for point in points):
        raise ValueError(points[0].reason)
    return Swept(problem=problem, cost=pricing.cost, sweep=sweep, points=tuple(points))
