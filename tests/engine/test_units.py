"""Numbers as a person reads and types them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.errors import InputError
from meshwave.engine.units import number, parse_amount, percent, quantity


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00321, "s", "3.21 ms"),
        (1.5, "s", "1.5 s"),
        (90.0, "s", "90 s"),
        (1234.0, "s", "1234 s"),
        (4.2e-5, "s", "42 µs"),
        (3e-9, "s", "3 ns"),
        (1e-10, "s", "0.1 ns"),
        (0.0, "s", "0 s"),
        (-0.002, "s", "-2 ms"),
        (41.5e9, "B", "41.5 GB"),
        (80e9, "B", "80 GB"),
        (999.7e6, "B", "1 GB"),
        (999.4e6, "B", "999 MB"),
        (120_000, "tokens/s", "120 ktokens/s"),
        (312e12, "FLOP/s", "312 TFLOP/s"),
        (2e15, "FLOP/s", "2 PFLOP/s"),
        (5e19, "B", "50000 PB"),
        (12.0, "B", "12 B"),
        (0.5, "B", "0.5 B"),
        (0, "B", "0 B"),
        (48.0, "", "48"),
        (0.0, "", "0"),
    ],
)
def test_reads_well(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@given(value=st.floats(1e-8, 1e20), unit=st.sampled_from(["s", "B"]))
def test_three_digits_say_it_to_half_a_percent(value: float, unit: str) -> None:
    value = max(value, 1.0) if unit == "B" else value
    number, _, prefixed = quantity(value, unit).partition(" ")
    scale = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}

    assert math.isclose(float(number) * scale.get(prefixed.removesuffix(unit), 1), value, rel_tol=0.0051)


def test_a_part_that_is_not_nothing_never_reads_as_nothing() -> None:
    assert [percent(part) for part in (0.0, 1e-9, 4e-4, 6e-4, 0.0316, 1.0)] == [
        "0.0%",
        "under 0.1%",
        "under 0.1%",
        "0.1%",
        "3.2%",
        "100.0%",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(40.0, "40"), (13.333, "13.3"), (0.02, "0.02"), (83_456.0, "83,500"), (999.6, "1,000"), (1.0, "1")],
)
def test_how_many_times_is_never_a_power_of_ten(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1.25 GB/s", "B/s", 1.25e9),
        ("10 Gbit/s", "B/s", 1.25e9),
        ("800Mbit/s", "B/s", 1e8),
        ("1.6 tbits/s", "B/s", 2e11),
        ("10 GBps", "B/s", 10e9),
        ("25 G", "B/s", 25e9),
        ("3 KiB/s", "B/s", 3072),
        ("80e9", "B", 80e9),
        ("80 GiB", "B", 80 * 2**30),
        (".5 kB", "B", 500),
        ("312 TFLOP/s", "FLOP/s", 312e12),
        ("50 us", "s", 5e-5),
        ("50 μs", "s", 5e-5),
        ("7m", "s", 0.007),
        ("-2 ms", "s", -0.002),
        ("90", "s", 90),
    ],
)
def test_amounts_are_read_exactly_in_the_units_of_their_kind(text: str, unit: str, value: float) -> None:
    assert parse_amount(text, unit) == value


@pytest.mark.parametrize(
    ("text", "unit", "words"),
    [
        ("10 Gb/s", "B/s", "10 Gb/s could be bits or bytes: write 10 Gbit/s or 10 GB/s"),
        ("400 gbps", "B/s", "write 400 Gbit/s or 400 GB/s"),
        ("1e999999 GB/s", "B/s", "is too large"),
        ("1e400", "B/s", "'1e400' is too large; use an amount such as 1.25 GB/s or 10 Gbit/s"),
        ("1e999999 B", "B", "is too large"),
        ("50 ms", "B/s", "'50 ms' should be an amount such as 1.25 GB/s or 10 Gbit/s, in B/s"),
        ("10 Gbit/s", "s", "should be an amount such as 50 us, in s"),
        ("7 Ms", "s", "should be an amount such as 50 us, in s"),
        ("1.2.3", "s", "should be an amount such as 50 us"),
        ("inf", "s", "should be an amount such as 50 us"),
        ("", "B", "should be an amount such as 80 GB"),
    ],
)
def test_what_is_no_amount_or_could_be_two_is_refused_in_words(text: str, unit: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_amount(text, unit)

    assert words in str(refused.value)


def test_a_number_alone_keeps_the_unit_that_is_shown_or_both_readings_are_told() -> None:
    assert parse_amount("50", "s", "7 µs") == 5e-5
    assert parse_amount("2.5", "B/s", "1.25 GB/s") == 2.5e9
    assert parse_amount("0", "s", "7 µs") == 0
    assert parse_amount("3e2", "s", "7 s") == 300
    with pytest.raises(InputError, match="5e-5 could be 5e-5 s or 5e-5 µs; write its unit too"):
        parse_amount("5e-5", "s", "7 µs")
    for shown in ("0 s", "none"):
        with pytest.raises(InputError, match="50 has no unit; write 50 s or 50 us"):
            parse_amount("50", "s", shown)


@given(value=st.floats(1e-9, 1e18), unit=st.sampled_from(["s", "B/s"]))
def test_an_amount_that_is_shown_is_read_as_the_same(value: float, unit: str) -> None:
    shown = quantity(max(value, 1.0) if unit == "B/s" else value, unit, 6)

    assert quantity(parse_amount(shown, unit), unit, 6) == shown
