"""Amounts with units: formatted as text such as 3.2 ms, 41.5 GB or 120 k tokens/s, and parsed from text."""

from __future__ import annotations

import math
import re
from datetime import datetime
from decimal import Decimal

from meshwave.engine.errors import InputError

_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def quantity(value: float, unit: str, digits: int = 3) -> str:
    """Format an amount: ``quantity(0.00321, "s")`` is ``3.21 ms``. Prefixes below 1 are used for times only."""
    steps = _SMALL if unit == "s" else (*_LARGE, (1.0, ""))
    size = abs(value)
    scale, prefix = next(((s, p) for s, p in steps if size >= s * 0.9995), steps[-1] if size else (1.0, ""))
    text = f"{value / scale:.{digits}g}"
    if "e" in text:
        text = f"{value / scale:.0f}"
    return f"{text} {prefix}{unit}".rstrip()


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """Format a number with its noun: ``format_count(3, "block")`` is ``3 blocks``."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def speed(cost: float, unit: str, free: str = "free") -> str:
    """Format the reciprocal of a cost, such as seconds per byte; ``free`` if the cost is almost 0."""
    return quantity(1 / cost, unit) if cost > 1e-300 else free


def number(value: float, digits: int = 3) -> str:
    """Format a number without a unit: ``13.3``, ``83,500``, ``0.02``."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if abs(float(text)) >= 10**digits else text


def units(value: float) -> str:
    """Format a time in units: ``1 unit``, ``7.333 units``, ``27,010 units``, never with an exponent."""
    text = f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"
    return f"{text} unit{'' if value == 1 else 's'}"


def duration(value: float, unit: str) -> str:
    """Format a time in seconds, or in the units of unit costs."""
    return quantity(value, unit) if unit == "s" else units(value)


def percent(part: float) -> str:
    """Format a share as a percentage: ``3.2%``; a small positive one is ``under 0.1%``."""
    return "under 0.1%" if 0 < part < 0.0005 else f"{part:.1%}"


# ---- parsing ----

_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d{1,6})?\s*([^\d\s].*)?", re.ASCII)
_POWERS = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_LIKE = {"s": "50 us", "B": "80 GB", "B/s": "1.25 GB/s or 10 Gbit/s", "FLOP/s": "312 TFLOP/s"}


def parse_amount(text: str, unit: str, shown: str = "") -> float:
    """Parse an amount: ``amount("10 Gbit/s", "B/s")`` is 1.25e9.

    A number without a unit has the unit of ``shown``, the text that it replaces; without that, it is in ``unit``.

    Raises:
        InputError: the text is not an amount of this unit, or is ambiguous; the message has the alternatives.
    """
    like = f"an amount such as {_LIKE.get(unit, '80e9')}"
    match = _AMOUNT.fullmatch(text.strip())
    if not match:
        raise InputError(f"{_quote(text)} should be {like}")
    digits, power, typed = match[1], match[2] or "", " ".join((match[3] or "").split())
    if not typed:
        typed = _implied_unit(digits + power, unit, shown)
    factor = _factor(typed, unit)
    if factor is None:
        _refuse_bits(digits + power, typed, unit)
        raise InputError(f"{_quote(text)} should be {like}, in {unit}")
    try:
        value = float(Decimal(digits + power) * factor)  # a product of floats would have rounding errors
    except ArithmeticError:  # beyond the range of decimals
        value = math.inf
    if not math.isfinite(value):
        raise InputError(f"{_quote(text)} is too large; use {like}")
    return value


def _implied_unit(number: str, unit: str, shown: str) -> str:
    """Return the unit of a number that was typed without one."""
    value, _, before = shown.strip().partition(" ")
    if not shown or not Decimal(number):
        return unit
    if not before or not float(value):  # a shown 0 has no unit to keep
        usual = f"{'u' if unit == 's' else 'G'}{unit}"
        raise InputError(f"{number} has no unit; write {number} {unit} or {number} {usual}")
    if before != unit and "e" in number.lower():
        raise InputError(f"{number} could be {number} {unit} or {number} {before}; write its unit too")
    return before


def _factor(typed: str, unit: str) -> Decimal | None:
    """Return the factor from the typed unit to ``unit``; None if they measure different things."""
    if unit == "B/s":
        typed = re.sub(r"(?<=B)ps$", "/s", typed)
        if bits := re.fullmatch(r"(\w?)bits?(?:/s| per second)", typed, re.IGNORECASE):
            power = _power(bits[1], unit)
            return None if power is None else Decimal(10) ** power / 8
    if binary := re.fullmatch(r"([kmgtp])i(B|B/s)", typed, re.IGNORECASE):
        return Decimal(1024) ** ("kmgtp".index(binary[1].lower()) + 1) if binary[2] == unit else None
    power = _power(typed.removesuffix(unit) if _power(typed, unit) is None else typed, unit)  # 1.25 G is enough
    return None if power is None else Decimal(10) ** power


def _power(prefix: str, unit: str) -> int | None:
    """Return the power of ten of a prefix; for units other than seconds ``m`` means ``M``."""
    if unit == "s":
        power = _POWERS.get({"µ": "u", "μ": "u"}.get(prefix, prefix))
        return None if power is None or power > 0 else power
    return _POWERS.get(prefix.lower() if prefix in "kK" else prefix.upper())


def _refuse_bits(number: str, typed: str, unit: str) -> None:
    """Check that a rate is not ``10 Gb/s`` or ``10 Gbps``, which may be bits or bytes.

    Raises:
        InputError: it is.
    """
    match = re.fullmatch(r"([kKmMgGtTpP]?)b(?:/s|ps)", typed)
    if match and unit == "B/s":
        prefix = "k" if match[1] in ("k", "K") else match[1].upper()
        raise InputError(
            f"{number} {typed} could be bits or bytes: write {number} {prefix}bit/s or {number} {prefix}B/s"
        )


def _quote(text: str) -> str:
    """Return a typed text in quotes, shortened."""
    text = text.strip()
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def format_time(seconds: float, *, exact: bool = False) -> str:
    """Format a time in Unix seconds: 14:05 today, else 12 Mar 14:05; ``exact`` adds the seconds."""
    then, now = datetime.fromtimestamp(seconds), datetime.now()
    time = f"{then:%H:%M:%S}" if exact else f"{then:%H:%M}"
    return time if then.date() == now.date() else f"{then:%d %b} {time}"
