"""Formatting of times (in seconds or units of cost), counts and lists."""

from __future__ import annotations

from typing import Literal

from meshwave.engine.units import quantity

Unit = Literal["s", "units"]


def format_amount(value: float, unit: Unit) -> str:
    """Format a time such as ``3.1 ms``, or ``3.1`` if costs are in units."""
    return quantity(value, "s") if unit == "s" else f"{value:.3g}"


def join_in_order(parts: list[str]) -> str:
    """Join phrases in order of time, such as ``a, b, then c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])}, then {parts[-1]}"
