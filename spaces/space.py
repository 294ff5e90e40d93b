"""A raw grid of choices, the user's narrowing of it, and which of its points are legal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.plan import ALIASES, CHOICES, FLAGS, NAMES, IntArray, Plans, code, parse_value
from spaces.problem import Problem, Rule, check_size

CHUNK = 1 << 17
"""Raw points looked at together: large enough for numpy, small enough for the cache."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the user asks of every plan, by field. Values are those of :class:`Plan`."""

    fix: Mapping[str, Any] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    forbid: Mapping[str, frozenset[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.fix, *self.most, *self.forbid):
            if name not in NAMES:
                raise ValueError(
                    f"{name!r} is not a field of a plan; use one of {', '.join(NAMES)}"
                )
        for name, value in (*self.fix.items(), *self.most.items()):
            check_size(name, value)
        for name, value in self.most.items():
            if name in CHOICES or name in FLAGS or value is None:
                raise ValueError(f"max {name} has no meaning for words; use fix or forbid")

    @classmethod
    def parse(
        cls, *, fix: Iterable[str] = (), most: Iterable[str] = (), forbid: Iterable[str] = ()
    ) -> Constraints:
        """Read ``field=value`` items; ``forbid`` may name a field more than once.

        Raises ``ValueError`` for an unknown field or a value of the wrong kind.
        """
        forbidden: dict[str, frozenset[Any]] = {}
        for name, value in _items("--forbid", forbid):
            forbidden[name] = forbidden.get(name, frozenset()) | {value}
        return cls(
            fix=_once("--fix", fix),
            most=_once("--max", most),
            forbid=forbidden,
        )

    def keeps(self, name: str, column: IntArray) -> NDArray[np.bool_]:
        """Which values of a column satisfy what is asked of its field, shape (P,)."""
        keep = np.ones(np.shape(column), dtype=bool)
        if name in self.fix:
            keep &= column == code(name, self.fix[name])
        if name in self.most:
            keep &= column <= self.most[name]
        if name in self.forbid:
            keep &= ~np.isin(column, [code(name, value) for value in self.forbid[name]])
        return keep

    @property
    def fields(self) -> frozenset[str]:
        """Fields that are asked for."""
        return frozenset((*self.fix, *self.most, *self.forbid))


def _items(option: str, texts: Iterable[str]) -> Iterable[tuple[str, Any]]:
    for text in texts:
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, separator, value = (part.strip() for part in item.partition("="))
            if not separator:
                raise ValueError(f"{option} {item!r} must be written field=value")
            name = ALIASES.get(name, name)
            if name not in NAMES:
                raise ValueError(
                    f"{option} {item}: {name!r} is not a field of a plan; "
                    f"use one of {', '.join(NAMES)}"
                )
            yield name, parse_value(name, value)


def _once(option: str, texts: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in _items(option, texts):
        if name in found:
            raise ValueError(f"{option} {name} is given twice")
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class Grid:
    """Ordered axes; a point is one flat index over their product, last axis fastest."""

    axes: Mapping[str, Sequence[Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Values per axis."""
        return tuple(len(values) for values in self.axes.values())

    @property
    def size(self) -> int:
        """All points."""
        return math.prod(self.shape)

    def coordinates(self, points: IntArray) -> dict[str, IntArray]:
        """Position on each axis of the given points, each of shape (P,)."""
        positions: dict[str, IntArray] = {}
        rest = points
        for name, length in reversed(list(zip(self.axes, self.shape, strict=True))):
            if length == 1:
                positions[name] = np.zeros((), dtype=np.int64)
            else:
                rest, positions[name] = np.divmod(rest, length)
        return positions

    def points(self, positions: Mapping[str, IntArray | int]) -> IntArray:
        """Flat indices of positions on each axis: the inverse of :meth:`coordinates`."""
        flat: IntArray = np.zeros((), dtype=np.int64)
        for name, length in zip(self.axes, self.shape, strict=True):
            flat = flat * length + positions[name]
        return flat


@dataclass(frozen=True, slots=True)
class Stage:
    """Axes that are expanded together, and the rules that they make decidable."""

    axes: tuple[str, ...]
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Raw points charged to one rule, and one of them to explain it by."""

    rule: Rule
    points: int
    example: int


def enumerate_legal(
    problem: Problem,
    grid: Grid,
    stages: Sequence[Stage],
    decode: Callable[[IntArray], Plans],
) -> tuple[IntArray, dict[str, LeftOut]]:
    """Legal points of ``grid`` in order, and what is left out per rule code.

    Stages follow the order of the axes. A point that a stage rejects is never expanded further;
    all raw points below it are charged to the rule it broke first. So the legal points and all
    charges add up to ``grid.size``.
    """
    left_out: dict[str, LeftOut] = {}
    prefixes = np.zeros(1, dtype=np.int64)
    below = grid.size
    for stage in stages:
        width = math.prod(len(grid.axes[name]) for name in stage.axes)
        below //= width
        survivors = []
        step = max(1, CHUNK // width)
        for start in range(0, len(prefixes), step):
            expanded = prefixes[start : start + step, None] * width + np.arange(width)
            points = expanded.reshape(-1)
            plans = decode(points * below)
            alive = np.ones(len(points), dtype=bool)
            for rule in stage.rules:
                kept = alive & rule.legal(problem, plans)
                broken = int(alive.sum() - kept.sum())
                if broken:
                    example = int(points[np.argmax(alive & ~kept)]) * below
                    before = left_out.get(rule.code, LeftOut(rule, 0, example))
                    left_out[rule.code] = replace(before, points=before.points + broken * below)
                alive = kept
            survivors.append(points[alive])
        prefixes = np.concatenate(survivors) if survivors else prefixes[:0]
    order = [rule.code for stage in stages for rule in stage.rules]
    return prefixes, {code: left_out[code] for code in dict.fromkeys(order) if code in left_out}
