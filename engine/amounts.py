"""Parsing of amounts with units, such as 50 us, 80 GB or 10 Gbit/s."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from meshwave.engine.findings import Refusal

_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d{1,6})?\s*([^\d\s].*)?", re.ASCII)
_POWERS = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_EXAMPLES = {"s": "50 us", "B": "80 GB", "B/s": "1.25 GB/s or 10 Gbit/s", "FLOP/s": "312 TFLOP/s"}


def parse_amount(text: str, unit: str, shown: str = "") -> float:
    """Parse an amount: ``parse_amount("10 Gbit/s", "B/s")`` is 1.25e9.

    A number without a unit has the unit of ``shown``, the text that it replaces; if ``shown`` is empty, it is in
    ``unit``.

    Raises:
        Refusal: the text is not an amount in this unit, or is ambiguous; the error's parameters list alternatives.
    """
    params = {"text": text, "example": _EXAMPLES.get(unit, "80e9")}
    match = _AMOUNT.fullmatch(text.strip())
    if not match:
        raise Refusal("not_an_amount", params)
    digits, power, typed = match[1], match[2] or "", " ".join((match[3] or "").split())
    if not typed:
        typed = _implied_unit(digits + power, unit, shown)
    factor = _unit_factor(typed, unit)
    if factor is None:
        _refuse_bits(digits + power, typed, unit)
        raise Refusal("not_an_amount", {**params, "unit": unit})
    try:
        value = float(Decimal(digits + power) * factor)  # a product of floats would have rounding errors
    except ArithmeticError:  # beyond the range of decimals
        value = math.inf
    if not math.isfinite(value):
        raise Refusal("amount_too_large", params)
    return value


def _implied_unit(number: str, unit: str, shown: str) -> str:
    """Return the unit of a number that was typed without one: that of the text that it replaces, or ``unit``."""
    value, _, before = shown.strip().partition(" ")
    if not shown or not Decimal(number):
        return unit
    if not before or not float(value):  # a shown 0 has no unit
        prefixed = f"{'u' if unit == 's' else 'G'}{unit}"
        raise Refusal("missing_unit", {"number": number, "unit": unit, "prefixed": prefixed})
    if before != unit and "e" in number.lower():
        raise Refusal("ambiguous_unit", {"number": number, "unit": unit, "shown": before})
    return before


def _unit_factor(typed: str, unit: str) -> Decimal | None:
    """Return the factor from the typed unit to ``unit``; None if they measure different quantities."""
    if unit == "B/s":
        typed = re.sub(r"(?<=B)ps$", "/s", typed)
        if bits := re.fullmatch(r"(\w?)bits?(?:/s| per second)", typed, re.IGNORECASE):
            power = _prefix_power(bits[1], unit)
            return None if power is None else Decimal(10) ** power / 8
    if binary := re.fullmatch(r"([kmgtp])i(B|B/s)", typed, re.IGNORECASE):
        return Decimal(1024) ** ("kmgtp".index(binary[1].lower()) + 1) if binary[2] == unit else None
    power = _prefix_power(
        typed.removesuffix(unit) if _prefix_power(typed, unit) is None else typed, unit
    )  # 1.25 G is accepted
    return None if power is None else Decimal(10) ** power


def _prefix_power(prefix: str, unit: str) -> int | None:
    """Return the power of ten of a prefix; ``m`` means ``M`` for all units except seconds."""
    if unit == "s":
        power = _POWERS.get({"µ": "u", "μ": "u"}.get(prefix, prefix))
        return None if power is None or power > 0 else power
    return _POWERS.get(prefix.lower() if prefix in "kK" else prefix.upper())


def _refuse_bits(number: str, typed: str, unit: str) -> None:
    """Check that a rate is not ``10 Gb/s`` or ``10 Gbps``, which may mean bits or bytes.

    Raises:
        Refusal: the rate is ambiguous.
    """
    match = re.fullmatch(r"([kKmMgGtTpP]?)b(?:/s|ps)", typed)
    if match and unit == "B/s":
        prefix = "k" if match[1] in ("k", "K") else match[1].upper()
        raise Refusal("bits_or_bytes", {"number": number, "typed": typed, "prefix": prefix})
