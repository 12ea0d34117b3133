"""Messages about the main cause of a prediction error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwave.engine.messages import Message, join_list
from meshwave.engine.units import duration, format_count, format_number, percent

MANY_TIMES = 2.0
"""Smallest ratio that is shown as a factor."""
COMPENSATED = 1.05
"""Smallest share of the error at which other parts are reported to compensate for it."""


def part_name(
    measure: str,
    transfers: bool = False,
    kind: str = "",
    activities: Sequence[str] = (),
    stage: int | None = None,
    mesh: str = "",
    target: str = "",
) -> str:
    """Return the name of a part of a step, such as "transfers of activations from mesh A to mesh B"."""
    what = _measured_part(measure, transfers, kind, activities, "" if stage is None else f" of stage {stage}")
    if target:
        return f"{what} from mesh {mesh} to mesh {target}"
    return f"{what} on mesh {mesh}" if mesh else what


def _measured_part(measure: str, transfers: bool, kind: str, activities: Sequence[str], place: str) -> str:
    if not kind and measure == "waiting":
        return "waiting for exchanges of expert layers"
    if not kind:
        return join_list(activities, "and") + place
    what = f"transfers of {kind}s" if transfers else kind
    if measure == "waiting":
        return f"waiting for exchanges of expert layers in the {what}{place}"
    return f"computation of the {what}{place}" if measure == "computation" else what + place


def _part_of_error(part: Mapping[str, Any], times: float | None, measured: float, unit: str, share: float) -> str:
    plural = part.get("measure") == "time" and (part.get("transfers", False) or len(part.get("activities", ())) > 1)
    took = f"{duration(measured, unit)} although nothing was predicted" if times is None else _ratio(times)
    name = part_name(**part)
    if plural:
        return f"{name} took {took}; they account for {_share(share)}"
    return f"{name} took {took}; it accounts for {_share(share)}"


def _time_between_actions(share: float) -> str:
    return (
        "the time between the actions, in which processes post messages and wait for a core, "
        f"accounts for {_share(share)}; the actions themselves took about as long as predicted"
    )


def _ratio(times: float) -> str:
    if times >= MANY_TIMES:
        return f"{format_number(times)} times what was predicted"
    return f"{percent(abs(times - 1))} {'longer' if times >= 1 else 'less'} than predicted"


def _share(share: float) -> str:
    if share >= MANY_TIMES:
        return f"{format_number(share)} times the error of the step, mostly offset by errors elsewhere"
    compensated = ", partly offset by errors elsewhere" if share > COMPENSATED else ""
    return f"{percent(share)} of the error of the step{compensated}"


def _contention_of_error(processes: int, cores: int, share: float) -> str:
    turns = f"{processes} processes take turns on {format_count(cores, 'core')}"
    return f"{turns}; this contention accounts for {_share(share)}"


def _kind_name(kind: str, transfers: bool) -> str:
    name = part_name("time", transfers, kind)
    return name[0].upper() + name[1:]


MESSAGES: dict[str, Message] = {
    "error_of_contention": "Contention for cores ({processes} processes on {cores})",
    "error_of_kind": _kind_name,
    "error_between_actions": "Time between actions",
    "error_of_other_parts": "Smaller parts",
    "contention_of_error": _contention_of_error,
    "part_of_error": _part_of_error,
    "time_between_actions": _time_between_actions,
}
