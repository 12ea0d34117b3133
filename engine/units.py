"""Numbers as a person reads them: 3.2 ms, 41.5 GB, 120 k tokens/s."""

from __future__ import annotations

_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def quantity(value: float, unit: str, digits: int = 3) -> str:
    """``quantity(0.00321, "s")`` is ``3.21 ms``; a time may be small, everything else is large."""
    steps = _SMALL if unit == "s" else (*_LARGE, (1.0, ""))
    size = abs(value)
    scale, prefix = next(((s, p) for s, p in steps if size >= s * 0.9995), steps[-1] if size else (1.0, ""))
    text = f"{value / scale:.{digits}g}"
    if "e" in text:
        text = f"{value / scale:.0f}"
    return f"{text} {prefix}{unit}".rstrip()


def number(value: float, digits: int = 3) -> str:
    """``13.3``, ``83,500``, ``0.02``: how many times something is, whatever there is of it."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if abs(float(text)) >= 10**digits else text


def units(value: float) -> str:
    """``1 unit``, ``7.333 units``, ``27,010 units``: never a power of ten."""
    text = f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"
    return f"{text} unit{'' if value == 1 else 's'}"


def duration(value: float, unit: str) -> str:
    """A time in seconds, or in the units of a unit cost."""
    return quantity(value, unit) if unit == "s" else units(value)
