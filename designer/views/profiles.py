"""Calibration profiles: stored profiles, their measurements with fitted lines, and the calibration of this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, get_args

import numpy as np
import param

from meshwave.designer.kit.assets import colour_rule
from meshwave.designer.kit.canvas import Overlay, widget
from meshwave.designer.state.background_calibration import BackgroundCalibration
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.jobs import Later
from meshwave.engine.costs.contention import ROWS, describe_contention
from meshwave.engine.costs.profile import Block, Pair, Phase, Profile, is_exact, relative_excess
from meshwave.engine.costs.profile_coverage import coverage_warnings
from meshwave.engine.costs.profile_store import (
    DEFAULT_PROFILE,
    describe_other_machine,
    list_profiles,
    load_stored_profile,
)
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal
from meshwave.engine.people.people_file import OWNER, Role, User
from meshwave.engine.units import format_rate, percent_change, quantity

COLOURS: Mapping[str, str] = {
    "forward": "F",
    "input_gradient": "I",
    "weight_gradient": "W",
    "backward": "B",
    "recomputed": "STEP",
}
"""Colours of the phases, which are those of the actions in the timeline."""
LINE_COLOURS = ("F", "W", "B", "I", "REDUCE_GRAD", "STEP")
"""Colours of other lines, used cyclically."""
KINDS = {
    "layer": "Layers",
    "experts": "Expert layers",
    "joining": "Skip-connection layers",
    "embedding": "Embedding",
    "head": "Head and loss",
}
PAIRS: Mapping[Pair, str] = {
    "same_device": "on one device",
    "same_node": "inside a node",
    "across_nodes": "between nodes",
}


@widget("panels/profile.js", "kit/shell.css", rules=colour_rule(".mw-profile", {f"op-{op}": op for op in LINE_COLOURS}))
class Profiles(Overlay):
    """An overlay with the list of profiles, and charts and tables of one of them."""

    kept = param.List(default=[], doc="An entry per stored profile, as profile_entries() returns them.")
    chosen = param.String(default="", doc="The selected profile.")
    machine = param.List(default=[], item_type=str, doc="Description of the machine that was measured.")
    charts = param.List(default=[], doc="Charts of the selected profile, as profile_charts() returns them.")
    warnings = param.List(default=[], item_type=str, doc="Parts of the open design that the profile does not cover.")
    used = param.Boolean(default=False, doc="True if the open design uses the profile.")
    standing = param.Dict(default={}, doc="Status of a calibration: state, profile name, completed fraction, message.")
    usual = param.String(default=DEFAULT_PROFILE.removesuffix(".json"), constant=True, doc="Default name of a profile.")

    def __init__(
        self,
        session: Session,
        calibration: BackgroundCalibration,
        on_stored: Callable[[], None] = lambda: None,
        later: Later | None = None,
        user: User = OWNER,
        **params: Any,
    ) -> None:
        """Create the overlay.

        Args:
            session: the open design.
            calibration: the calibration of this machine.
            on_stored: called after a profile was stored.
            later: schedules a callback in the page's event loop.
            user: the person who has opened the page.
            **params: parameters of the widget.
        """
        super().__init__(**params)
        self._session, self._calibration, self._on_stored = session, calibration, on_stored
        self._user = user
        self._later = later or (lambda work: work())
        self._unsubscribe = calibration.subscribe(lambda: self._later(self._show_status))
        session.param.watch(lambda *_: self._update_panel(), "design")
        self.standing = asdict(calibration.status)

    def stop_jobs(self) -> None:
        """Stop following the calibration."""
        self._unsubscribe()

    def open(self) -> None:
        """Show the profile of the open design, or that of this machine."""
        names, used = list_profiles(), self._session.design.cost.profile_name
        self.chosen = next((name for name in (used, self.chosen, DEFAULT_PROFILE, *names) if name in names), "")
        self._open()
        self._update_panel()

    def _show_status(self) -> None:
        """Show the new status of a calibration."""
        before, standing = self.standing, self._calibration.status
        self.standing = asdict(standing)
        if standing.state == "done" and before != self.standing:
            self.chosen = standing.name
            self._on_stored()
            if self._session.design.cost.profile_name == standing.name:
                self._session.predict_again()
            self._update_panel()

    def _update_panel(self) -> None:
        if not self.shown:
            return
        used = self._session.design.cost.profile_name
        found, why_not = _read_profile(self.chosen) if self.chosen else (None, "")
        self.param.update(
            kept=profile_entries(list_profiles(), used),
            used=bool(self.chosen) and used == self.chosen,
            machine=describe_machine(found) if found else [why_not] * bool(why_not),
            charts=profile_charts(found) if found else [],
            warnings=[problem.message for problem in coverage_warnings(self._session.design, found)] if found else [],
        )

    # ---- gestures ----

    def _on_look(self, name: str) -> None:
        self.chosen = name
        self._update_panel()

    def _on_use(self) -> None:
        cost = self._session.design.cost
        kept = {"transfer_model": cost.transfer_model}
        self._session.edit(
            "cost", {"kind": "calibrated", "profile": self.chosen, **kept}, f"use profile {_profile_title(self.chosen)}"
        )

    def _on_measure(self, name: str) -> None:
        self._session.check_editable()
        name = name.strip()
        if not name:
            raise Refusal("profile_without_name", {"example": self.usual})
        self._user.check(Role.ADMIN, "calibrate")
        self._calibration.start(name)

    def _on_stop(self) -> None:
        self._session.check_editable()
        self._user.check(Role.ADMIN, "calibrate")
        self._calibration.stop()


def _read_profile(name: str) -> tuple[Profile | None, str]:
    """Return a profile, or None with the reason why it cannot be read."""
    try:
        return load_stored_profile(name), ""
    except InputError as error:
        return (
            None,
            f"{name} cannot be read: {error}. Calibrate this machine under that name, or select another profile",
        )


# ---- functions ----


def profile_entries(names: Iterable[str], used: str) -> list[dict[str, Any]]:
    """Return an entry per profile: its name, a note on its machine, and whether the open design uses it."""
    return [
        {"name": name, "title": _profile_title(name), "note": _profile_note(name), "used": name == used}
        for name in names
    ]


def _profile_title(name: str) -> str:
    return name.removesuffix(".json")


def _profile_note(name: str) -> str:
    found, _ = _read_profile(name)
    if found is None:
        return "cannot be read"
    made = found.machine.made_s
    when = datetime.fromtimestamp(made).strftime("%d %b %Y, %H:%M") if made else ""
    return ", ".join(filter(None, (found.machine.device or found.machine.backend, when)))


def describe_machine(profile: Profile) -> list[str]:
    """Return descriptions of the machine that was measured."""
    machine = profile.machine
    words = [
        describe_other_machine(profile),
        machine.network,
        machine.software,
        f"run {machine.run}" if machine.run else "",
    ]
    words += [f"large {rate.precision} matrix products: {quantity(rate.flops, 'FLOP/s')}" for rate in profile.matrix]
    if machine.cores is not None and machine.load_before is not None and machine.load_before > 0.7:
        words.append(f"other processes used {machine.load_before:.1f} of {machine.cores} cores")
    return [each for each in words if each]


def profile_charts(profile: Profile) -> list[dict[str, Any]]:
    """Return charts of measurements and fitted lines, each with a table of the fits."""
    found = [_block_chart(block, several=_precisions(profile) > 1) for block in profile.blocks]
    lines: Lines = [
        (PAIRS[link.pair], link.samples, link.seconds, link.alpha_s, link.beta_s_per_byte, link.r2)
        for link in profile.links
    ]
    found += [_line_chart("links", "Messages", "B", lines)] if lines else []
    lines = [
        (f"{each.optimizer} {each.precision}{', clipped' * each.clipped}", each.samples, each.seconds, each.alpha_s, each.s_per_parameter, each.r2)
        for each in profile.optimizer
    ]  # fmt: skip
    found += [_line_chart("optimizer", "Optimizer step", " parameters", lines)] if lines else []
    lines = [
        (f"{each.size} ranks", each.samples, each.seconds, each.alpha_s, each.beta_s_per_byte, each.r2)
        for each in sorted(profile.collectives, key=lambda each: each.size)
        if each.collective == "all_reduce" and each.group == "mp"
    ]
    found += [_line_chart("all_reduce", "All-reduce", "B", lines)] if lines else []
    return [*found, *_contention_table(profile), *_action_chart(profile)]


def _precisions(profile: Profile) -> int:
    return len({block.precision for block in profile.blocks})


def _block_chart(block: Block, *, several: bool) -> dict[str, Any]:
    """Return the chart of a block: measured times over fitted times, on the diagonal where they agree."""
    series: list[dict[str, Any]] = []
    rows = []
    for phase in get_args(Phase):
        points = [[line, seconds, _point_text(sample, seconds, line)] for sample, seconds, line in block.points(phase)]
        series.append({"name": _phase_name(phase), "colour": COLOURS[phase], "points": points, "line": []})
        rows.append([_phase_name(phase), *_fit_cells(block, phase)])
    every = [point[at] for each in series for point in each["points"] for at in (0, 1) if point[at] > 0]
    ends = min(every), max(every)
    return {
        "key": f"{block.kind}-{block.precision}",
        "title": f"{KINDS[block.kind]}{f' {block.precision}' if several else ''}",
        "x": log_axis("fitted time", ends, "s"),
        "y": log_axis("measured time", ends, "s"),
        "series": series,
        "diagonal": [[ends[0], ends[0]], [ends[1], ends[1]]],
        "head": ["", "fixed", "products", "attention", "bytes", "r²", "max error"],
        "rows": rows,
    }


def _phase_name(phase: str) -> str:
    return phase.replace("_", " ")


def _point_text(sample: Any, seconds: float, line: float) -> str:
    """Return the text of a point: its size, measured time and fitted time."""
    blocks = f"{sample.blocks} x " if sample.blocks > 1 else ""
    size = f"{blocks}hidden {sample.hidden}, {sample.batch} x {sample.sequence} tokens"
    return f"{size}: {quantity(seconds, 's')} measured, {quantity(line, 's')} fitted"


def _fit_cells(block: Block, phase: Phase) -> Iterator[str]:
    per = block.fits[phase].per
    yield quantity(per.get("action", 0.0) + per.get("block", 0.0), "s")
    for term, unit in (("products", "FLOP/s"), ("attention", "FLOP/s"), ("bytes", "B/s")):
        taken = per.get(term, 0.0)  # type: ignore[call-overload]
        yield format_rate(taken, unit, "–")
    yield from _quality_cells(is_exact(block.points(phase), per.values()), block.fits[phase].r2, block.residuals(phase))


def _quality_cells(is_exact: bool, r2: float, residuals: Iterable[float]) -> tuple[str, str]:
    """Return r² and the largest error of a fit as text; dashes if the fit is exact by construction."""
    return ("–", "–") if is_exact else (f"{r2:.3f}", percent_change(max(residuals, key=abs)))


LINE_POINTS = 32
"""Number of points of a fitted line, which is curved on logarithmic axes."""
Lines = Sequence[tuple[str, Sequence[tuple[float, float]], Callable[[float], float], float, float, float]]
"""Name, samples, fitted seconds, alpha, beta and r2 of each line."""


def _line_chart(key: str, title: str, unit: str, lines: Lines) -> dict[str, Any]:
    """Return the chart of measured and fitted times over a size, in bytes or parameters."""
    series: list[dict[str, Any]] = []
    rows = []
    for number, (name, samples, seconds, alpha, beta, r2) in enumerate(lines):
        points = [[size, took, f"{name}, {quantity(size, unit)}: {quantity(took, 's')}"] for size, took in samples]
        least, most = min(size for size, _ in samples), max(size for size, _ in samples)
        drawn = [[size, max(seconds(size), 1e-9)] for size in np.geomspace(least, most, LINE_POINTS).tolist()]
        series.append(
            {"name": name, "colour": LINE_COLOURS[number % len(LINE_COLOURS)], "points": points, "line": drawn}
        )
        rate = format_rate(beta, f"{unit.strip()}/s", "–")
        residuals = [relative_excess(took, seconds(size)) for size, took in samples]
        exact = is_exact({size for size, _ in samples}, (alpha, beta))
        rows.append([name, quantity(alpha, "s"), rate, *_quality_cells(exact, r2, residuals)])
    every = [point for each in series for point in (*each["points"], *each["line"])]
    xs, ys = ([point[at] for point in every] for at in (0, 1))
    return {
        "key": key,
        "title": title,
        "x": log_axis(unit.strip().replace("B", "bytes") or "bytes", (min(xs), max(xs)), unit),
        "y": log_axis("measured time", (min(ys), max(ys)), "s"),
        "series": series,
        "diagonal": [],
        "head": ["", "alpha", "1 / beta", "r²", "max error"],
        "rows": rows,
    }


def _contention_table(profile: Profile) -> list[dict[str, Any]]:
    """Return the table of contention, with a row per measurement and a column per kind of link."""
    if not profile.contention:
        return []
    columns = [describe_contention(each) for each in profile.contention]
    repetitions = min(len(each.alone_samples_s) for each in profile.contention)
    return [
        {
            "key": "contention",
            "title": "Contention",
            "note": "Time of messages and collectives that start at the same time on one link, relative to the same "
            f"message alone. Medians of {repetitions} repetition{'s' * (repetitions != 1)}; IQR is the interquartile range.",
            "series": [],
            "diagonal": [],
            "head": ["", *(PAIRS[each.pair] for each in profile.contention)],
            "rows": [
                [name, *(words or "not measured" for words in row)] for name, *row in zip(ROWS, *columns, strict=True)
            ],
        }
    ]


def _action_chart(profile: Profile) -> list[dict[str, Any]]:
    """Return the chart of the actions of a run: measured times over roofline times."""
    if not profile.actions:
        return []
    series: list[dict[str, Any]] = [
        {
            "name": op,
            "colour": op if op in LINE_COLOURS else "STEP",
            "points": [
                [each.roofline_s, each.seconds, f"{op} of {each.layers} layers: {quantity(each.seconds, 's')} measured"]
                for each in profile.actions
                if each.op == op
            ],
            "line": [],
        }
        for op in dict.fromkeys(each.op for each in profile.actions)
    ]
    every = [point[at] for each in series for point in each["points"] for at in (0, 1)]
    ends = min(every), max(every)
    return [
        {
            "key": "actions",
            "title": "Actions of a run",
            "x": log_axis("roofline time", ends, "s"),
            "y": log_axis("measured time", ends, "s"),
            "series": series,
            "diagonal": [[ends[0], ends[0]], [ends[1], ends[1]]],
            "head": [],
            "rows": [],
        }
    ]


def log_axis(label: str, ends: tuple[float, float], unit: str) -> dict[str, Any]:
    """Return a logarithmic axis: its label, range and ticks."""
    low, high = math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1]))
    high = max(high, low + 1)
    each = max(1, math.ceil((high - low) / 6))
    ticks = [[10.0**power, quantity(10.0**power, unit)] for power in range(low, high + 1, each)]
    return {"label": label, "from": 10.0**low, "to": 10.0**high, "ticks": ticks}
