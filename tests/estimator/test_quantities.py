"""Quantities: units by hand, what is refused, and a round trip."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.catalog.quantities import EXAMPLES, UNITS, parse, render

BY_HAND = [
    ("80 GB", "bytes", 80e9),
    ("80 GiB", "bytes", 85_899_345_920.0),
    ("40 MiB", "bytes", 41_943_040.0),
    ("2 B", "bytes", 2.0),
    ("2039 GB/s", "bytes/s", 2.039e12),
    ("4.8 TB/s", "bytes/s", 4.8e12),
    ("400 Gb/s", "bytes/s", 50e9),
    ("312 TFLOP/s", "FLOP/s", 312e12),
    ("312 TFLOPS", "FLOP/s", 312e12),
    ("989.4 TFLOP/s", "FLOP/s", 989.4e12),
    ("20 us", "seconds", 20e-6),
    ("20 µs", "seconds", 20e-6),
    ("1.2 ms", "seconds", 1.2e-3),
    ("0 s", "seconds", 0.0),
    ("700 W", "watts", 700.0),
    ("80GB", "bytes", 80e9),
    ("  8e1   GB ", "bytes", 80e9),
    (".5 kB", "bytes", 500.0),
]

REFUSED = [
    (80, "bytes", "80 has no unit; write for example '80 GB'"),
    ("80", "bytes", "80 has no unit; write for example '80 GB'"),
    (float("nan"), "bytes", "nan has no unit"),
    ("80 GB", "bytes/s", "'80 GB' is bytes, not bytes/s; write for example '2039 GB/s'"),
    ("80 Gb", "bytes", "'80 Gb' is bits, not bytes"),
    ("2039 GB/s", "bytes", "'2039 GB/s' is bytes/s, not bytes"),
    ("20 us", "watts", "'20 us' is seconds, not watts"),
    ("80 gb", "bytes", "unknown unit 'gb'"),
    ("80 GX", "bytes", "unknown unit 'GX'"),
    ("-1 GB", "bytes", "is negative"),
    ("nan GB", "bytes", "is not a finite number"),
    ("inf GB", "bytes", "is not a finite number"),
    ("1e999 GB", "bytes", "is not a finite number"),
    ("1e99999999 GB", "bytes", "is not a number with a unit"),
    ("GB", "bytes", "is not a number with a unit"),
    ("1,5 GB", "bytes", "is not a number with a unit"),
    ("1 GB\n2 GB", "bytes", "is not a number with a unit"),
    ("٨ GB", "bytes", "is not a number with a unit"),
    ("9" * 500 + " GB", "bytes", "is not a number with a unit"),
    ("", "bytes", "is not a number with a unit"),
    (True, "bytes", "is not a number with a unit"),
    (None, "bytes", "is not a number with a unit"),
    (10**5000, "bytes", "has no unit"),
    ({"a": "b" * 1000}, "bytes", "is not a number with a unit"),
]


@pytest.mark.parametrize(("text", "dimension", "value"), BY_HAND)
def test_units_by_hand(text, dimension, value):
    assert parse(text, dimension) == pytest.approx(value, rel=1e-15, abs=0)


@pytest.mark.parametrize(("text", "dimension", "rule"), REFUSED, ids=range(len(REFUSED)))
def test_refused_in_one_short_line(text, dimension, rule):
    with pytest.raises(ValueError) as error:
        parse(text, dimension)
    line = str(error.value)
    assert rule in line
    assert f"write for example '{EXAMPLES[dimension]}'" in line
    assert "\n" not in line
    assert len(line) < 200


@pytest.mark.parametrize("dimension", EXAMPLES)
@given(value=st.floats(0, 1e30))
def test_rendered_numbers_read_back_exactly(dimension, value):
    assert parse(render(value, dimension), dimension) == value


@given(
    number=st.floats(0, 1e15),
    unit=st.sampled_from([(n, kind) for n, (kind, _) in UNITS.items() if kind != "bits"]),
)
def test_a_number_scales_by_its_unit(number, unit):
    name, dimension = unit
    expected = number * parse(f"1 {name}", dimension)
    assert parse(f"{number!r} {name}", dimension) == pytest.approx(expected, rel=1e-15)


def test_rendered_in_the_unit_people_use():
    assert render(80e9, "bytes") == "80 GB"
    assert render(2.0 * 2**30, "bytes") == "2 GiB"
    assert render(4e-4, "seconds") == "0.4 ms"
    assert render(3.12e14, "FLOP/s") == "312 TFLOP/s"
    assert render(25e9, "bytes/s") == "25 GB/s"
