"""Numbers formatted for people."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.units import format_number, percent, percent_change, quantity


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
        (2.349e-5, "seq/s", "0.0000235 seq/s"),
        (48.0, "", "48"),
        (0.0, "", "0"),
    ],
)
def test_amounts_are_formatted_with_units(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@given(value=st.floats(1e-8, 1e20), unit=st.sampled_from(["s", "B"]))
def test_three_digits_are_accurate_to_half_a_percent(value: float, unit: str) -> None:
    value = max(value, 1.0) if unit == "B" else value
    number, _, prefixed = quantity(value, unit).partition(" ")
    scale = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}

    assert math.isclose(float(number) * scale.get(prefixed.removesuffix(unit), 1), value, rel_tol=0.0051)


CASES = Path(__file__).parents[1] / "static" / "percentages.json"
"""Shares and their texts, which the tests of the page's JavaScript read too."""


def test_a_share_is_formatted_equally_in_python_and_on_the_page() -> None:
    for part, text in json.loads(CASES.read_text()):
        assert percent(part) == text


def test_a_relative_change_has_a_sign_unless_it_is_zero() -> None:
    assert [percent_change(part) for part in (0.004, -0.12, 2.485, -4e-4, 0.0)] == [
        "+0.4%",
        "−12.0%",
        "+249%",
        "0.0%",
        "0.0%",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(40.0, "40"), (13.333, "13.3"), (0.02, "0.02"), (83_456.0, "83,500"), (999.6, "1,000"), (1.0, "1")],
)
def test_ratios_are_formatted_without_an_exponent(value: float, text: str) -> None:
    assert format_number(value) == text
