"""Formatting of amounts with units, such as 3.2 ms, 41.5 GB or 120 k tokens/s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby

KEY_UNITS: Mapping[str, str] = {"_s": "s", "_bytes": "B", "bandwidth": "B/s", "_flops": "FLOP/s"}
"""Units of the amounts in a design, by the end of their key."""
_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def quantity(value: float, unit: str, digits: int = 3) -> str:
    """Format an amount: ``quantity(0.00321, "s")`` is ``3.21 ms``.

    Prefixes below 1 are used for times only.
    """
    steps = _SMALL if unit == "s" else (*_LARGE, (1.0, ""))
    size = abs(value)
    scale, prefix = next(((s, p) for s, p in steps if size >= s * 0.9995), steps[-1] if size else (1.0, ""))
    text = f"{value / scale:.{digits}g}"
    if "e" in text:
        text = f"{value / scale:.0f}" if size >= 1 or unit == "s" else f"{Decimal(text):f}"
    return f"{text} {prefix}{unit}".rstrip()


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """Format a number with its noun: ``format_count(3, "block")`` is ``3 blocks``."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def format_rate(cost: float, unit: str, free: str = "free") -> str:
    """Format the reciprocal of a cost, such as seconds per byte; return ``free`` if the cost is almost 0."""
    return quantity(1 / cost, unit) if cost > 1e-300 else free


def format_number(value: float, digits: int = 3) -> str:
    """Format a number without a unit, such as ``13.3``, ``83,500`` or ``0.02``."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if abs(float(text)) >= 10**digits else text


def format_energy(joules: float) -> str:
    """Format an energy: in joules below 1 kWh, otherwise as ``3.2 kWh`` or ``41.5 MWh``."""
    return quantity(joules, "J") if joules < 3.6e6 else quantity(joules / 3600, "Wh")


def format_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges such as ``0-3, 8``; a dash if there are none."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs) or "–"


def format_units(value: float) -> str:
    """Format a time in units, such as ``1 unit``, ``7.333 units`` or ``27,010 units``, never with an exponent."""
    text = f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"
    return f"{text} unit{'' if value == 1 else 's'}"


def duration(value: float, unit: str) -> str:
    """Format a time in seconds, or in units of unit costs."""
    return quantity(value, unit) if unit == "s" else format_units(value)


def percent(part: float) -> str:
    """Format a share as a percentage, such as ``3.2%`` or ``249%``; a small positive share is ``under 0.1%``.

    ``static/kit/numbers.js`` implements the same rule for the page.
    """
    if 0 < part < 0.0005:
        return "under 0.1%"
    value = 100 * part
    if abs(value) >= 1e21:  # from here on, JavaScript writes an exponent
        return f"{value:g}%"
    digits = Decimal("0.1") if abs(value) < 99.95 else Decimal(1)
    return f"{Decimal(value).quantize(digits, ROUND_HALF_UP):,}%"


def percent_change(part: float) -> str:
    """Format a relative change, such as ``+3.2%``, ``−12.0%`` or ``0.0%``."""
    return f"{'+' if part > 0 else '−'}{percent(abs(part))}" if abs(part) >= 0.0005 else "0.0%"


def format_time(seconds: float, *, exact: bool = False) -> str:
    """Format a time in Unix seconds: 14:05 today, otherwise 12 Mar 14:05; ``exact`` adds the seconds."""
    then, now = datetime.fromtimestamp(seconds), datetime.now()
    time = f"{then:%H:%M:%S}" if exact else f"{then:%H:%M}"
    return time if then.date() == now.date() else f"{then:%d %b} {time}"
