"""Amounts with units, as a person types them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.amounts import parse_amount
from meshwave.engine.units import quantity
from tests._findings import refusal

RATE = "1.25 GB/s or 10 Gbit/s"


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
    ("text", "unit", "code", "params"),
    [
        ("10 Gb/s", "B/s", "bits_or_bytes", {"number": "10", "typed": "Gb/s", "prefix": "G"}),
        ("400 gbps", "B/s", "bits_or_bytes", {"number": "400", "typed": "gbps", "prefix": "G"}),
        ("1e999999 GB/s", "B/s", "amount_too_large", {"text": "1e999999 GB/s", "example": RATE}),
        ("1e400", "B/s", "amount_too_large", {"text": "1e400", "example": RATE}),
        ("1e999999 B", "B", "amount_too_large", {"text": "1e999999 B", "example": "80 GB"}),
        ("50 ms", "B/s", "not_an_amount", {"text": "50 ms", "example": RATE, "unit": "B/s"}),
        ("10 Gbit/s", "s", "not_an_amount", {"text": "10 Gbit/s", "example": "50 us", "unit": "s"}),
        ("7 Ms", "s", "not_an_amount", {"text": "7 Ms", "example": "50 us", "unit": "s"}),
        ("1.2.3", "s", "not_an_amount", {"text": "1.2.3", "example": "50 us", "unit": "s"}),
        ("inf", "s", "not_an_amount", {"text": "inf", "example": "50 us"}),
        ("", "B", "not_an_amount", {"text": "", "example": "80 GB"}),
    ],
)
def test_an_invalid_or_ambiguous_amount_is_refused(text: str, unit: str, code: str, params: dict[str, str]) -> None:
    problem = refusal(lambda: parse_amount(text, unit))

    assert (problem.code, problem.params) == (code, params)


def test_a_long_text_is_shortened_in_the_message() -> None:
    problem = refusal(lambda: parse_amount("9" * 50 + " apples", "B"))

    assert problem.message == f"{'9' * 37 + '...'!r} should be an amount such as 80 GB, in B"


def test_a_number_without_a_unit_keeps_the_shown_unit_or_is_refused() -> None:
    assert parse_amount("50", "s", "7 µs") == 5e-5
    assert parse_amount("2.5", "B/s", "1.25 GB/s") == 2.5e9
    assert parse_amount("0", "s", "7 µs") == 0
    assert parse_amount("3e2", "s", "7 s") == 300
    problem = refusal(lambda: parse_amount("5e-5", "s", "7 µs"))
    assert (problem.code, problem.params) == ("ambiguous_unit", {"number": "5e-5", "unit": "s", "shown": "µs"})
    for shown in ("0 s", "none"):
        problem = refusal(lambda shown=shown: parse_amount("50", "s", shown))
        assert (problem.code, problem.params) == ("missing_unit", {"number": "50", "unit": "s", "prefixed": "us"})


@given(value=st.floats(1e-9, 1e18), unit=st.sampled_from(["s", "B/s"]))
def test_an_amount_that_is_shown_is_read_as_the_same(value: float, unit: str) -> None:
    shown = quantity(max(value, 1.0) if unit == "B/s" else value, unit, 6)

    assert quantity(parse_amount(shown, unit), unit, 6) == shown
