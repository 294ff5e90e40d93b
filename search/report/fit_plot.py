"""A page of fitted collectives: measured points, the curve and its joints, as plain SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from estimator.collective_tables import MeasuredTable
from estimator.cost.fitted import FittedCollective
from estimator.cost.sigmoid import Line, Sigmoid, fit_line
from estimator.lower.slots import FloatArray

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 26, 34
SHOWN_POINTS = 400
"""Of one table; more cannot be told apart."""

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px; background: #fff; color: #222 }
main { display: flex; flex-wrap: wrap; gap: 16px }
svg { border: 1px solid #ddd; border-radius: 4px }
text { font: 11px system-ui, sans-serif; fill: #444 }
text.title { font-size: 13px; fill: #111 }
.grid { stroke: #eee } .joint { stroke: #b36b00; stroke-dasharray: 4 3 }
.peak { stroke: #a00; stroke-dasharray: 1 3 } .fit { stroke: #1a5fb4; stroke-width: 2; fill: none }
.line { stroke: #999; stroke-dasharray: 6 3; fill: none } .point { fill: #222 }
""".strip()


def page(tables: Sequence[MeasuredTable], fits: Sequence[FittedCollective], device: str) -> str:
    """An HTML page that needs nothing else: one panel per collective and group."""
    panels = [panel(table, fitted) for table, fitted in zip(tables, fits, strict=True)]
    title = f"Collectives{f' of {device}' if device else ''}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            f"<h1>{escape(title)}</h1>",
            "<p>Bus bandwidth by size. Dots are measurements, the solid line is the fit, vertical "
            "lines are its two joints (end of latency, start of bandwidth); the grey dashes are "
            "a straight line (latency plus bytes over bandwidth), the red dots the peak.</p>",
            "<main>",
            *panels,
            "</main></html>\n",
        ]
    )


def panel(table: MeasuredTable, fitted: FittedCollective) -> str:
    """One SVG: bus bandwidth over size, both logarithmic."""
    step = max(1, -(-len(table.size) // SHOWN_POINTS))
    size, seconds = table.size[::step], table.seconds[::step]
    bus = fitted.factor * size / seconds
    grid = np.geomspace(table.size.min(), table.size.max(), 200)
    curve = fitted.factor * grid / fitted.seconds(grid)
    line = fit_line(table.size, table.seconds, fitted.factor, fitted.peak)
    straight = fitted.factor * grid / line.seconds(grid, fitted.factor)
    frame = _Frame(grid, np.concatenate([bus, curve, [fitted.peak]]))
    parts = [
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(table.source)}</title>",
        f'<text class="title" x="{LEFT}" y="17">{escape(table.name)}</text>',
        *frame.ticks(),
        frame.across("peak", fitted.peak),
    ]
    if not isinstance(fitted.parameters, Line):
        parts += _joints(frame, fitted.parameters)
        parts.append(frame.path("line", grid, straight))
    parts.append(frame.path("fit", grid, curve))
    for x, y in zip(frame.x(size), frame.y(bus), strict=True):
        parts.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>')
    return "\n".join([*parts, "</svg>"])


def _joints(frame: _Frame, curve: Sigmoid) -> list[str]:
    ends = (curve.latency_bytes, curve.saturation_bytes)
    return [frame.down("joint", end) for end in ends if frame.holds(end)]


class _Frame:
    """From bytes and bytes/s to the pixels of a panel."""

    def __init__(self, size: FloatArray, bus: FloatArray) -> None:
        self.low = np.log10(np.array([size.min(), bus.min()]))
        self.high = np.log10(np.array([size.max(), bus.max() * 1.15]))

    def x(self, size: FloatArray) -> FloatArray:
        share = (np.log10(size) - self.low[0]) / (self.high[0] - self.low[0])
        return np.asarray(LEFT + share * (WIDTH - LEFT - RIGHT), np.float64)

    def y(self, bus: FloatArray) -> FloatArray:
        share = (np.log10(bus) - self.low[1]) / (self.high[1] - self.low[1])
        return np.asarray(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), np.float64)

    def holds(self, size: float) -> bool:
        return bool(self.low[0] <= math.log10(size) <= self.high[0])

    def down(self, style: str, size: float) -> str:
        x = float(self.x(np.array([size]))[0])
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"'
        return f'<line class="{style}" {ends}/>'

    def across(self, style: str, bus: float) -> str:
        y = float(self.y(np.array([bus]))[0])
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        return f'<line class="{style}" {ends}/>'

    def path(self, style: str, size: FloatArray, bus: FloatArray) -> str:
        inside = np.maximum(bus, 10 ** self.low[1])
        points = " ".join(
            f"{x:.1f},{y:.1f}" for x, y in zip(self.x(size), self.y(inside), strict=True)
        )
        return f'<polyline class="{style}" points="{points}"/>'

    def ticks(self) -> list[str]:
        """Grid lines with their labels, at powers of ten of bytes and of GB/s."""
        parts = []
        for power in range(math.ceil(self.low[0]), math.floor(self.high[0]) + 1):
            x = float(self.x(np.array([10.0**power]))[0])
            parts.append(self.down("grid", 10.0**power))
            label = _size(power)
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{label}</text>')
        for power in range(math.ceil(self.low[1]), math.floor(self.high[1]) + 1):
            y = float(self.y(np.array([10.0**power]))[0]) + 4
            parts.append(self.across("grid", 10.0**power))
            label = f"{10.0 ** (power - 9):g}"
            parts.append(f'<text x="{LEFT - 6}" y="{y:.1f}" text-anchor="end">{label}</text>')
        parts.append(
            f'<text x="4" y="17">GB/s</text><text x="{LEFT}" y="{HEIGHT - 5}">bytes</text>'
        )
        return parts


def _size(power: int) -> str:
    return f"{10 ** (power % 3)}{('', 'k', 'M', 'G', 'T', 'P')[power // 3]}"
