"""The three-region model: its laws hold for any fit, and it finds what it was made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.catalog import collectives_yaml, load_collectives
from estimator.cost.fitted import (
    FittedCollective,
    FittedKind,
    bus_factor,
    bus_peak,
    fit_collective,
    fitted_seconds,
)
from estimator.cost.sigmoid import Line, Sigmoid, fit_line, impossible
from estimator.lower.slots import FloatArray

SIZES = 2.0 ** np.arange(9, 31)
SLOPE = 0.3 / 0.25
"""Height times steepness below which time rises: log10(2) over the steepest slope of 1/4."""


def curve(
    *, latency: float = 9e-6, first: float = 2.0**13, doublings: float = 14.0, k: float = 0.35
) -> Sigmoid:
    """A continuous curve for a bus factor of 1 that rises from its midpoint on."""
    height, midpoint = 0.99 * SLOPE / k, float(np.log2(first))
    floor = float(np.log10(first / latency)) - height / 2
    last = first * 2**doublings
    reached = 10 ** (floor + height / (1 + np.exp(-k * doublings)))
    return Sigmoid(
        latency=latency,
        latency_bytes=first,
        saturation_bytes=last,
        bandwidth=1.1 * float(reached),
        height=height,
        midpoint=midpoint,
        steepness=k,
        floor=floor,
    )


def check_laws(fitted: FittedCollective) -> None:
    """Time never falls with size, the peak is never passed, and the joints meet."""
    grid = np.geomspace(1, 1e13, 3000)
    seconds = fitted.seconds(grid)
    assert np.all(np.diff(seconds) >= -1e-9 * seconds[1:])
    assert np.all(fitted.factor * grid / seconds <= fitted.peak * (1 + 1e-6))
    if isinstance(fitted.parameters, Sigmoid):
        for joint in (fitted.parameters.latency_bytes, fitted.parameters.saturation_bytes):
            sides = fitted.seconds(joint * np.array([1 - 1e-9, 1 + 1e-9]))
            assert sides[1] / sides[0] - 1 < 1e-5


@settings(max_examples=25, deadline=None)
@given(
    latency=st.floats(1e-6, 1e-3),
    bandwidth=st.floats(1e8, 1e12),
    low=st.integers(0, 22),
    rows=st.integers(4, 24),
    scatter=st.floats(0, 0.5),
    headroom=st.sampled_from([None, 1.0, 3.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_fit_obeys_the_laws(
    latency: float,
    bandwidth: float,
    low: int,
    rows: int,
    scatter: float,
    headroom: float | None,
    seed: int,
) -> None:
    size = 2.0 ** np.arange(low, low + rows)
    noise = np.exp(np.random.default_rng(seed).normal(0, scatter, rows))
    seconds = (latency + size / bandwidth) * noise
    peak = None if headroom is None else headroom * float(np.max(size / seconds))
    check_laws(fit_collective("send_recv", 2, 2, size, seconds, peak=peak))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=12))
def test_nonsense_is_fitted_within_the_laws(times: list[float]) -> None:
    size = 4.0 ** np.arange(5, 5 + len(times))
    check_laws(fit_collective("all_reduce", 8, 8, size, np.array(times)))


@pytest.mark.parametrize("k", [0.25, 0.35, 0.6])
def test_a_curve_is_found_again(k: float) -> None:
    truth = curve(k=k)
    assert impossible(truth, 1.0, np.inf) is None
    fitted = fit_collective("send_recv", 2, 2, SIZES, truth.seconds(SIZES, 1.0))
    between = SIZES[:-1] * 1.4
    errors = fitted.seconds(between) / truth.seconds(between, 1.0) - 1
    assert np.max(np.abs(errors)) < 0.012
    assert isinstance(fitted.parameters, Sigmoid)
    assert fitted.parameters.latency == pytest.approx(truth.latency, rel=0.01)


def test_intervals_hold_what_they_promise() -> None:
    truth = curve()
    random = np.random.default_rng(7)
    held = []
    for _ in range(30):
        seconds = truth.seconds(SIZES, 1.0) * np.exp(random.normal(0, 0.02, len(SIZES)))
        fitted = fit_collective("send_recv", 2, 2, SIZES, seconds)
        for name in ("latency", "bandwidth", "latency_bytes"):
            ends = fitted.intervals[name]
            held.append(ends is None or ends[0] <= getattr(truth, name) <= ends[1])
    assert np.mean(held) >= 0.8


def test_what_was_not_measured_is_not_determined() -> None:
    truth = curve()
    large = SIZES[SIZES >= 2**24]
    seen = fit_collective("send_recv", 2, 2, SIZES, truth.seconds(SIZES, 1.0)).intervals
    unseen = fit_collective("send_recv", 2, 2, large, truth.seconds(large, 1.0)).intervals
    assert seen["latency"] is not None and seen["bandwidth"] is not None
    width = seen["latency"][1] / seen["latency"][0]
    assert unseen["latency"] is None or unseen["latency"][1] / unseen["latency"][0] > width


def test_an_outlier_does_not_bend_the_curve() -> None:
    truth = curve().seconds(SIZES, 1.0)
    hit = truth.copy()
    hit[5] *= 4
    fitted = fit_collective("send_recv", 2, 2, SIZES, hit)
    assert np.median(np.abs(fitted.seconds(SIZES) / truth - 1)) < 0.01


def test_a_curve_beats_a_line_on_a_transition() -> None:
    seconds = curve().seconds(SIZES, 1.0)
    fitted = fit_collective("send_recv", 2, 2, SIZES, seconds)
    line = fit_line(SIZES, seconds, 1.0, fitted.peak)
    worst = np.max(np.abs(line.seconds(SIZES, 1.0) / seconds - 1))
    assert np.max(np.abs(fitted.seconds(SIZES) / seconds - 1)) < 0.1 * worst


def test_three_sizes_are_a_line_and_one_is_none() -> None:
    size = np.array([1e3, 1e6, 1e9])
    fitted = fit_collective("all_reduce", 8, 8, size, 20e-6 + 1.75 * size / 200e9)
    assert isinstance(fitted.parameters, Line) and fitted.intervals == {}
    assert fitted.parameters.latency == pytest.approx(20e-6, rel=1e-3)
    assert fitted.parameters.bandwidth == pytest.approx(200e9, rel=1e-3)
    with pytest.raises(ValueError, match="has 1 size, which tells latency and bandwidth"):
        fit_collective("all_reduce", 8, 8, size[:1], size[:1])


def test_regions_by_hand() -> None:
    flat = Sigmoid(
        latency=1e-5,
        latency_bytes=1e5,
        saturation_bytes=1e6,
        bandwidth=2e10,
        height=0.0,
        midpoint=18.0,
        steepness=1.0,
        floor=10.0,
    )
    size = np.array([1.0, 1e5, 5e5, 1e6, 3e6])
    wanted = [1e-5, 1e-5, 5e-5, 1e-4, 1e-4 + 2e6 / 2e10]
    assert flat.seconds(size, 1.0) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"latency": 2e-5}, "do not meet"),
        ({"bandwidth": 1e13}, "exceeds the peak"),
        ({"bandwidth": float("nan")}, "not finite"),
        ({"latency": -1.0}, "above zero"),
        ({"saturation_bytes": 10.0}, "below saturation_bytes"),
        ({"steepness": 0.0}, "steepness must be above zero"),
        ({"height": 9.0, "floor": 4.0}, "time falls with size|do not meet|above the peak"),
    ],
)
def test_a_broken_law_is_named(change: dict[str, float], words: str) -> None:
    broken = replace(curve(), **change)
    assert impossible(curve(), 1.0, 1e12) is None
    with pytest.raises(ValueError, match=words):
        FittedCollective(
            kind="send_recv",
            group=2,
            inside=2,
            parameters=broken,
            peak=1e12,
            low_bytes=512,
            high_bytes=1e9,
        )


def test_falling_time_is_refused() -> None:
    steep = Sigmoid(
        latency=2.0**13 / 1e9,
        latency_bytes=2.0**13,
        saturation_bytes=2.0**20,
        bandwidth=1e11,
        height=4.0,
        midpoint=16.0,
        steepness=1.0,
        floor=9 - 4 / (1 + np.exp(3.0)),
    )
    assert "time falls with size" in str(impossible(steep, 1.0, 1e15))


# Groups


def fitted(
    group: int, inside: int, latency: float = 1e-5, kind: FittedKind = "all_reduce"
) -> FittedCollective:
    factor = float(bus_factor(kind, group))
    return fit_collective(kind, group, inside, SIZES, latency * group + factor * SIZES / 1e11)


def one(kind: str, size: float, group: int, inside: int, table: list[FittedCollective]) -> float:
    columns = [np.array([float(value)]) for value in (size, group, inside)]
    return float(fitted_seconds(kind, *columns, table)[0])


def test_a_measured_group_is_its_own_curve() -> None:
    table = [fitted(n, n) for n in (8, 2, 4)]
    assert one("all_reduce", 1e6, 4, 4, table) == table[2].seconds(np.array([1e6]))[0]


def test_a_group_between_two_lies_between_them() -> None:
    table = [fitted(4, 4), fitted(8, 8)]
    for size in (1e3, 1e7, 1e9):
        wanted = 6e-5 + 2 * (5 / 6) * size / 1e11
        assert one("all_reduce", size, 6, 6, table) == pytest.approx(wanted, rel=0.02)


def test_domains_between_two_lie_between_them() -> None:
    table = [fitted(16, 8), fitted(64, 8)]
    wanted = 32e-5 + 2 * (31 / 32) * 1e9 / 1e11
    assert one("all_reduce", 1e9, 32, 8, table) == pytest.approx(wanted, rel=0.03)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 8), st.floats(9, 40))
def test_between_groups_the_laws_hold(group: int, doublings: float) -> None:
    table = [fitted(2, 2), fitted(8, 8)]
    size = 2.0**doublings
    now, larger = (one("all_reduce", s, group, group, table) for s in (size, 1.1 * size))
    assert now <= larger
    factor = float(bus_factor("all_reduce", group))
    assert factor * size / now <= max(f.peak for f in table) * (1 + 1e-6)


def test_what_is_not_covered_is_nan() -> None:
    table = [fitted(4, 4), fitted(8, 8), fitted(16, 8), fitted(64, 8)]
    assert np.isnan(one("all_reduce", 1e6, 2, 2, table)), "fewer ranks than measured"
    assert np.isnan(one("all_reduce", 1e6, 128, 8, table)), "more domains than measured"
    assert np.isnan(one("all_reduce", 1e6, 16, 4, table)), "another spread over domains"
    assert np.isnan(one("all_gather", 1e6, 8, 8, table)), "another collective"
    assert np.isnan(one("all_reduce", 1e6, 8, 8, [])), "no table"
    assert one("all_reduce", 1e6, 32, 8, table) > one("all_reduce", 1e6, 16, 8, table)
    assert one("all_reduce", 1e6, 1, 1, table) == 0.0


def test_small_sizes_follow_only_from_a_latency_that_was_seen() -> None:
    seen = fitted(8, 8)
    assert one("all_reduce", 8, 8, 8, [seen]) == pytest.approx(8e-5, rel=0.02)
    large = SIZES[SIZES >= 2**24]
    unseen = fit_collective("all_reduce", 8, 8, large, 8e-5 + 1.75 * large / 1e11)
    assert np.isnan(one("all_reduce", 8, 8, 8, [unseen]))
    assert one("all_reduce", 2.0**40, 8, 8, [unseen]) == pytest.approx(
        1.75 * 2**40 / 1e11, rel=0.05
    )


def test_columns_broadcast() -> None:
    table = [fitted(4, 4), fitted(8, 8)]
    size = np.array([[1e4, 1e5, 1e6], [1e7, 1e8, 1e9]])
    group = np.array([4.0, 8.0, 16.0])
    seconds = fitted_seconds("all_reduce", size, group, group, table)
    assert seconds.shape == (2, 3)
    assert np.array_equal(np.isnan(seconds), [[False, False, True]] * 2)
    assert seconds[1, 1] == one("all_reduce", 1e8, 8, 8, table)


@pytest.mark.parametrize(
    ("kind", "group", "inside", "wanted"),
    [
        ("all_gather", 8, 8, 450e9),
        ("all_reduce", 2, 2, 450e9),
        ("all_reduce", 8, 8, 1.75 * 450e9),  # switches add: the buffer passes a port once
        ("send_recv", 2, 1, 50e9),
        ("all_to_all", 16, 8, 50e9 * (15 / 16) / (8 / 16)),
        ("all_reduce", 16, 8, 400e9 * 15 / 8),
        ("all_gather", 16, 8, 450e9 + 50e9 * 15 / 16),
    ],
)
def test_peaks_by_hand(kind: FittedKind, group: int, inside: int, wanted: float) -> None:
    peak = bus_peak(kind, group, inside, 450e9, 50e9)
    assert peak == pytest.approx(min(wanted, bus_peak(kind, group, group, 450e9, None) + 50e9 * 2))


# The file


def test_the_file_reads_back(tmp_path: Path) -> None:
    table = [fitted(4, 4), fitted(16, 8, kind="all_to_all")]
    size = np.array([1e6, 1e8])
    table.append(fit_collective("broadcast", 8, 8, size, 1e-5 + size / 1e11))
    path = tmp_path / "mine.yaml"
    path.write_text(collectives_yaml(table, "eight made-up GPUs"))
    back = load_collectives(path)
    for before, after in zip(table, back, strict=True):
        assert (after.kind, after.group, after.inside) == (before.kind, before.group, before.inside)
        assert after.seconds(SIZES) == pytest.approx(before.seconds(SIZES), rel=1e-5)
        assert after.peak == pytest.approx(before.peak, rel=1e-7)
        assert after.intervals.keys() == before.intervals.keys()
        check_laws(after)
    assert back[0].source == "eight made-up GPUs"


GOOD = collectives_yaml([fitted(4, 4)], "made up")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("collective: all_reduce", "collective: all_reduced", "must be 'all_reduce'"),
        ("group: 4", "group: 1", "greater than or equal to 2"),
        ("inside: 4", "inside: 9", "inside=9"),
        ("smallest: 512 B", "smallest: 512", "has no unit"),
        ("  peak:", "  top:", "is not a field here"),
        ("  peak:", "  peak: 1 GB/s\n  largest_:", "is not a field here"),
        ("    height:", "    # height:", "lack height; give all eight"),
        ("collectives:\n", "collectives: []\nother:\n", "not a field here"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "bad.yaml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ValueError, match=words) as caught:
        load_collectives(path)
    assert "\n" not in str(caught.value) and "bad.yaml" in str(caught.value)


def test_a_curve_above_its_peak_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fast.yaml"
    lines = ["  peak: 1 MB/s" if "peak:" in line else line for line in GOOD.splitlines()]
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="exceeds the peak"):
        load_collectives(path)


def test_an_entry_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text(collectives_yaml([fitted(4, 4), fitted(4, 4)], "made up"))
    with pytest.raises(ValueError, match="is given twice; keep one"):
        load_collectives(path)


def test_pricing_needs_no_scipy(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    code = (
        "import sys, numpy as np\n"
        "from estimator.catalog import load_collectives\n"
        "from estimator.cost.fitted import fitted_seconds\n"
        f"table = load_collectives({str(path)!r})\n"
        "x = np.array([1e6]), np.array([4.0]), np.array([4.0])\n"
        "assert fitted_seconds('all_reduce', *x, table)[0] > 0\n"
        "assert 'scipy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_bus_factors_by_hand() -> None:
    group: FloatArray = np.array([2.0, 4.0, 8.0])
    assert bus_factor("all_reduce", group) == pytest.approx([1.0, 1.5, 1.75])
    assert bus_factor("all_gather", group) == pytest.approx([0.5, 0.75, 0.875])
    assert bus_factor("broadcast", group) == pytest.approx([1.0, 1.0, 1.0])
