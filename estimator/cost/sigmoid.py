"""The three-region model of a collective's time: latency, transition, bandwidth.

The eight parameters are those of the Universal Performance Model (arXiv 2404.12674; code:
facebookresearch/ml_perf_model): four that are seen in a plot (latency, two joints, bandwidth) and
four of a sigmoid between the joints. There each region is fitted by itself and the curve jumps at
the joints; here one fit of all three makes it continuous and monotone, and keeps it under a peak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields

import numpy as np

from estimator.lower.slots import FloatArray

LN2 = float(np.log(2.0))
NOISE = 0.03
"""Relative scatter of a repeated measurement (the median of repeated published tables is 1 to 5 %);
larger residuals pull with constant force only."""
FEWEST_SIZES = 4
"""Below this a straight line is all that the data can tell."""
QUANTILE = 1.645
"""Of the normal distribution, for a two-sided interval of 90 %."""
UNKNOWN = 3.0
"""Standard error, relative or of the sigmoid, from which measurements determine nothing."""

Interval = tuple[float, float] | None
"""90 % confidence; ``None`` where the measurements do not determine the parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sigmoid:
    """Seconds of a collective by size, over three regions.

    ``bus(size) = 10 ** (floor + height / (1 + exp(-steepness * (log2(size) - midpoint))))`` is the
    bus bandwidth between the joints; what ``factor`` is, nccl-tests' PERFORMANCE.md says.

    - up to ``latency_bytes``: ``latency``
    - up to ``saturation_bytes``: ``factor * size / bus(size)``
    - beyond: what that gives at the joint, plus ``factor * further bytes / bandwidth``
    """

    latency: float
    """Seconds of the smallest collectives."""
    latency_bytes: float
    """The first joint."""
    saturation_bytes: float
    """The second joint."""
    bandwidth: float
    """Bytes/s of bus bandwidth at which each further byte moves."""
    height: float
    """Decades between the sigmoid's two levels."""
    midpoint: float
    """Binary logarithm of bytes."""
    steepness: float
    """Per doubling of the size."""
    floor: float
    """Decimal logarithm of the lower level in bytes/s."""

    def bus(self, size: FloatArray) -> FloatArray:
        """Bus bandwidth of the transition in bytes/s, at any size from 1 byte."""
        rise = 1 / (1 + np.exp(-self.steepness * (np.log2(size) - self.midpoint)))
        return np.asarray(10 ** (self.floor + self.height * rise), np.float64)

    def seconds(self, size: FloatArray, factor: FloatArray | float) -> FloatArray:
        """Seconds at each size in bytes; the shapes of ``size`` and ``factor`` broadcast."""
        between = np.clip(size, self.latency_bytes, self.saturation_bytes)
        beyond = np.maximum(size - self.saturation_bytes, 0.0) / self.bandwidth
        moving = factor * (between / self.bus(between) + beyond)
        return np.where(size <= self.latency_bytes, self.latency, moving)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Latency plus bytes over bandwidth (alpha-beta), where there are too few sizes for more."""

    latency: float
    """Seconds."""
    bandwidth: float
    """Bytes/s of bus bandwidth."""

    def seconds(self, size: FloatArray, factor: FloatArray | float) -> FloatArray:
        """Seconds at each size in bytes; the shapes of ``size`` and ``factor`` broadcast."""
        return np.asarray(self.latency + factor * size / self.bandwidth, np.float64)


PHYSICAL = ("latency", "latency_bytes", "saturation_bytes", "bandwidth")
"""Positive parameters with units; their errors are relative."""


def impossible(curve: Sigmoid | Line, factor: float, peak: float) -> str | None:
    """The law that a curve breaks: continuity, time that rises with size, or the link's peak.

    Args:
        curve: What is judged.
        factor: Bus bandwidth over size per second.
        peak: Bytes/s of bus bandwidth that the link cannot exceed.
    """
    slack = 1 + 1e-6
    if not all(np.isfinite(value) for value in astuple(curve)):
        return "a parameter is not finite"
    if curve.latency <= 0 or curve.bandwidth <= 0:
        return "latency and bandwidth must be above zero"
    if curve.bandwidth > peak * slack:
        return f"bandwidth {curve.bandwidth:.4g} bytes/s exceeds the peak {peak:.4g}"
    if isinstance(curve, Line):
        return None
    if not 1 <= curve.latency_bytes < curve.saturation_bytes:
        return "latency_bytes must be at least 1 and below saturation_bytes"
    if curve.height < 0 or curve.steepness <= 0:
        return "height must not be negative and steepness must be above zero"
    ends = np.array([curve.latency_bytes, curve.saturation_bytes])
    with np.errstate(over="ignore"):
        low, high = curve.bus(ends)
    if not high <= peak * slack:
        return f"the transition reaches {high:.4g} bytes/s, above the peak {peak:.4g}"
    if abs(factor * curve.latency_bytes / low / curve.latency - 1) > 1e-4:
        return "latency and transition do not meet at latency_bytes"
    start = curve.steepness * (np.log2(curve.latency_bytes) - curve.midpoint)
    steepest = curve.height * np.log(10) * curve.steepness * _slope(max(start, 0.0))
    if steepest > LN2 * slack:
        return "time falls with size in the transition; height * steepness is too large"
    return None


def fit_sigmoid(
    size: FloatArray, seconds: FloatArray, factor: float, peak: float
) -> tuple[Sigmoid, dict[str, Interval]]:
    """Fit the eight parameters to one table, robustly on the logarithm of time.

    Seven are free: continuity at the first joint takes one. The search runs over parameters whose
    bounds are the laws themselves (monotone time, bandwidths under the peak), so that every
    candidate is physical. Weak priors, worth less than one measurement, settle what a table leaves
    open, for instance the latency in a table of large sizes only.

    Args:
        size: Bytes, at least four of them.
        seconds: The measured times.
        factor: Bus bandwidth over size per second.
        peak: Bytes/s of bus bandwidth that no fit may exceed.

    Returns:
        The curve, and the 90 % interval of each parameter.
    """
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    x, y = np.log2(size), np.log(seconds / factor)
    low, high = _bounds(x, y, float(np.log(peak)))

    def residuals(theta: FloatArray) -> FloatArray:
        return np.concatenate([_robust((_log_time(theta, x) - y) / NOISE), _prior(theta)])

    fits = [
        least_squares(
            residuals,
            np.clip(start, low + 1e-3, high - 1e-3),
            bounds=(low, high),
            x_scale=[1.0, 1.0, 0.1, 0.1, 0.2, 0.3, 1.0],
            max_nfev=60,
        )
        for start in _starts(x, y)
    ]
    best = min(fits, key=lambda fit: float(fit.cost))
    theta = np.asarray(best.x, np.float64)
    covariance = _covariance(np.asarray(best.jac, np.float64), residuals(theta), len(x))
    return _stated(theta, factor), _intervals(theta, factor, covariance)


def fit_line(size: FloatArray, seconds: FloatArray, factor: float, peak: float) -> Line:
    """Fit latency and bandwidth, on the same robust errors as :func:`fit_sigmoid`."""
    from scipy.optimize import least_squares

    x, y = np.log2(size), np.log(seconds / factor)
    cap = float(np.log(peak))
    bus = float(np.max(x * LN2 - y))

    def residuals(theta: FloatArray) -> FloatArray:
        return _robust((np.logaddexp(theta[0], x * LN2 - theta[1]) - y) / NOISE)

    fits = [
        least_squares(
            residuals,
            [start, min(bus, cap - 1e-3)],
            bounds=([y.min() - 20, bus - 10], [y.max() + 1, cap]),
        )
        for start in (y.min(), y.min() - 2)
    ]
    best = min(fits, key=lambda fit: float(fit.cost))
    return Line(latency=float(np.exp(best.x[0]) * factor), bandwidth=float(np.exp(best.x[1])))


# The search space, theta: binary log of the first joint; doublings to the second; natural log of
# the bus bandwidth there, and of the bandwidth beyond; slope of log bandwidth where it is steepest
# over the slope of constant time; log of the steepness; the sigmoid's argument at the first joint.


def _sigmoid(z: FloatArray | float) -> FloatArray | float:
    return 1 / (1 + np.exp(-z))


def _slope(z: float) -> float:
    rise = float(_sigmoid(z))
    return rise * (1 - rise)


def _log_time(theta: FloatArray, x: FloatArray) -> FloatArray:
    """Natural logarithm of seconds over the bus factor, at binary logarithms of bytes."""
    first, doublings, bus, bandwidth, share, log_steepness, argument = theta
    steepness = np.exp(log_steepness)
    height = LN2 * share / (_slope(max(argument, 0.0)) * steepness)
    between = np.clip(x, first, first + doublings)
    fall = _sigmoid(argument + steepness * doublings) - _sigmoid(
        argument + steepness * (between - first)
    )
    beyond = np.maximum(np.exp2(x) - np.exp2(first + doublings), 0.0) * np.exp(-bandwidth)
    return np.asarray(np.log(np.exp(between * LN2 - bus + height * fall) + beyond), np.float64)


def _stated(theta: FloatArray, factor: float) -> Sigmoid:
    """The eight parameters of a point of the search space."""
    first, doublings, bus, bandwidth, share, log_steepness, argument = (float(v) for v in theta)
    steepness = float(np.exp(log_steepness))
    height = LN2 * share / (_slope(max(argument, 0.0)) * steepness)
    return Sigmoid(
        latency=float(np.exp(_log_time(theta, np.array([first]))[0])) * factor,
        latency_bytes=2.0**first,
        saturation_bytes=2.0 ** (first + doublings),
        bandwidth=float(np.exp(bandwidth)),
        height=height / float(np.log(10)),
        midpoint=first - argument / steepness,
        steepness=steepness,
        floor=(bus - height * float(_sigmoid(argument + steepness * doublings)))
        / float(np.log(10)),
    )


def _bounds(x: FloatArray, y: FloatArray, cap: float) -> tuple[FloatArray, FloatArray]:
    best = min(float(np.max(x * LN2 - y)), cap)
    span = max(float(x.max() - x.min()), 1.0)
    low = [max(x.min() - 1, 0.0), 0.5, best - 6, best - 3, 0.02, np.log(0.05), -6.0]
    return np.array(low), np.array([x.max(), span + 6, cap, cap, 1.0, np.log(5.0), 4.0])


def _starts(x: FloatArray, y: FloatArray) -> list[FloatArray]:
    """Three guesses: a short latency, a slow rise, a sharp corner."""
    best, low, span = float(np.max(x * LN2 - y)), float(x.min()), float(x.max() - x.min())
    return [
        np.array([low + a * span, (b - a) * span, best - 0.1, best, 0.9, np.log(k), u])
        for a, b, k, u in ((0.3, 0.9, 0.4, 1.0), (0.1, 0.6, 0.3, 0.0), (0.5, 1.0, 0.8, 2.0))
    ]


def _robust(z: FloatArray) -> FloatArray:
    """Residuals whose squares are the soft L1 loss: quadratic near zero, linear far away."""
    return np.asarray(np.sign(z) * np.sqrt(2 * (np.sqrt(1 + z * z) - 1)), np.float64)


def _prior(theta: FloatArray) -> FloatArray:
    """Weak beliefs about the shape, in standard deviations."""
    return np.array(
        [
            theta[5] - np.log(0.5),
            (theta[6] - 1) / 3,
            (theta[4] - 0.9) / 0.5,
            (theta[3] - theta[2] - 0.05) / 0.3,
        ]
    )


def _covariance(jacobian: FloatArray, residual: FloatArray, measured: int) -> FloatArray:
    """Of the search parameters, with the scatter that the fit leaves (never under a tenth)."""
    freedom = max(measured - jacobian.shape[1], 1)
    scatter = max(float(np.sum(residual[:measured] ** 2)) / freedom, 0.01)
    data, prior = jacobian[:measured], jacobian[measured:]
    information = data.T @ data / scatter + prior.T @ prior
    return np.asarray(np.linalg.pinv(information, hermitian=True), np.float64)


def _intervals(theta: FloatArray, factor: float, covariance: FloatArray) -> dict[str, Interval]:
    """The 90 % interval of each stated parameter, by its gradient in the search space."""

    def values(at: FloatArray) -> FloatArray:
        curve = _stated(at, factor)
        return np.array([_scaled(f.name, getattr(curve, f.name)) for f in fields(Sigmoid)])

    steps = 1e-4 * np.eye(len(theta))
    gradient = np.array([(values(theta + s) - values(theta - s)) / 2e-4 for s in steps]).T
    errors = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", gradient, covariance, gradient), 0.0))
    centre = values(theta)
    return {
        field.name: _interval(field.name, float(middle), float(error))
        for field, middle, error in zip(fields(Sigmoid), centre, errors, strict=True)
    }


def _scaled(name: str, value: float) -> float:
    return float(np.log(value)) if name in PHYSICAL else value


def _interval(name: str, middle: float, error: float) -> Interval:
    if not error < UNKNOWN:
        return None
    ends = middle - QUANTILE * error, middle + QUANTILE * error
    back: Callable[[float], float] = (lambda v: float(np.exp(v))) if name in PHYSICAL else float
    return back(ends[0]), back(ends[1])


def parameters(curve: Sigmoid | Line) -> Mapping[str, float]:
    """The parameters by name, in the order they are declared."""
    return {field.name: float(getattr(curve, field.name)) for field in fields(curve)}
