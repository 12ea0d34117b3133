"""Messages about calibration profiles: missing files and missing measurements."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.errors import suggestion_text
from meshwave.engine.messages import Message


def _missing_profile(name: str, known: Sequence[str], suggestion: str | None) -> str:
    hint = suggestion_text(known, suggestion) if known else "Measure this machine with meshwave calibrate."
    return f"there is no profile called {name!r}. {hint}"


MESSAGES: dict[str, Message] = {
    "unwritable_profiles": "cannot store profiles in {folder}: {reason}",
    "unmeasured_layout": "the profile has no measurements for mp={mp} and esp={esp}; it has {measured}",
    "indivisible_groups": "groups of {name}={size} do not divide {ranks} ranks; use a divisor",
    "missing_profile": _missing_profile,
    "invalid_profile_name": "{name!r} is not a valid profile name; use a file name such as laptop.json",
    "invalid_profile": "{name} is not a valid profile ({problem}); measure this machine again with meshwave calibrate",
    "unreadable_profile": "{name} cannot be read: {reason}; use another profile, or roofline costs",
    "missing_phases": "every block of a profile needs one entry per phase; {kind} has none for {missing:list}; measure it again",
}
