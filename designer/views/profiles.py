"""Measured machines: the profiles that are kept, measurement against line, and a button that measures this one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, ClassVar, get_args

import numpy as np
import param

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Overlay, plain_text, value_of
from meshwave.designer.state.background_calibration import BackgroundCalibration
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.jobs import Later
from meshwave.engine.costs.contention import ROWS, describe_contention
from meshwave.engine.costs.profile import Block, Pair, Phase, Profile, relative_excess
from meshwave.engine.costs.profile_coverage import coverage_warnings
from meshwave.engine.costs.profile_store import (
    DEFAULT_PROFILE,
    describe_other_machine,
    list_profiles,
    load_stored_profile,
)
from meshwave.engine.errors import InputError
from meshwave.engine.exports.pictures.palette import OPS
from meshwave.engine.units import quantity, speed

COLOURS: Mapping[str, str] = {
    "forward": "F",
    "input_gradient": "I",
    "weight_gradient": "W",
    "backward": "B",
    "recomputed": "STEP",
}
"""Of the phases: those of the actions in the timeline."""
OF_LINES = ("F", "W", "B", "I", "REDUCE_GRAD", "STEP")
"""Of other lines, in turn."""
KINDS = {
    "layer": "Layers",
    "experts": "Layers with experts",
    "joining": "Joining layers",
    "embedding": "Embedding",
    "head": "Head and loss",
}
PAIRS: Mapping[Pair, str] = {
    "same_device": "copy on the device",
    "same_node": "inside the node",
    "across_nodes": "between nodes",
}


def _colours() -> str:
    colours = [f"--op-{op}: light-dark({OPS['light'][op]}, {OPS['dark'][op]});" for op in OF_LINES]
    return f".mw-profile {{ {' '.join(colours)} }}"


class Profiles(Overlay):
    """An overlay with a list of profiles and, of one, its charts and lines."""

    kept = param.List(default=[], doc="See listed().")
    chosen = param.String(default="", doc="The profile that is looked at.")
    machine = param.List(default=[], item_type=str, doc="What it was measured on, in words.")
    charts = param.List(default=[], doc="See charts().")
    warnings = param.List(default=[], item_type=str, doc="Which parts of the open design lie outside of it.")
    used = param.Boolean(default=False, doc="Whether the open design is priced by it.")
    standing = param.Dict(default={}, doc="How a calibration stands: state, name, share, words.")
    usual = param.String(default=DEFAULT_PROFILE.removesuffix(".json"), constant=True, doc="The name to start from.")

    _esm = module("panels/profile.js")
    _stylesheets: ClassVar = [
        read_static("kit/canvas.css"), read_static("kit/shell.css"), read_static("panels/profile.css"), _colours(),
    ]  # fmt: skip
    _gestures = ("close", "look", "use", "measure", "stop")

    def __init__(
        self,
        session: Session,
        calibrating: BackgroundCalibration,
        on_kept: Callable[[], None] = lambda: None,
        later: Later | None = None,
        **params: Any,
    ) -> None:
        """``on_kept`` hears when a profile has come; ``later`` runs something in the page's own turn."""
        super().__init__(**params)
        self._session, self._calibrating, self._on_kept = session, calibrating, on_kept
        self._later = later or (lambda work: work())
        self.end = calibrating.hear(lambda: self._later(self._follow))
        session.param.watch(lambda *_: self._show(), "design")
        self.standing = asdict(calibrating.standing)

    def open(self) -> None:
        """Show the profile of the open design, or that of this machine."""
        names, used = list_profiles(), self._session.design.cost.profile_name
        self.chosen = next((name for name in (used, self.chosen, DEFAULT_PROFILE, *names) if name in names), "")
        self._open()
        self._show()

    def _follow(self) -> None:
        """A calibration stands otherwise."""
        before, standing = self.standing, self._calibrating.standing
        self.standing = asdict(standing)
        if standing.state == "done" and before != self.standing:
            self.chosen = standing.name
            self._on_kept()
            if self._session.design.cost.profile_name == standing.name:
                self._session.renew()
            self._show()

    def _show(self) -> None:
        if not self.shown:
            return
        used = self._session.design.cost.profile_name
        found, why_not = _read(self.chosen) if self.chosen else (None, "")
        self.param.update(
            kept=listed(list_profiles(), used),
            used=bool(self.chosen) and used == self.chosen,
            machine=machine_words(found) if found else [why_not] * bool(why_not),
            charts=charts(found) if found else [],
            warnings=[problem.message for problem in coverage_warnings(self._session.design, found)] if found else [],
        )

    # one method a gesture

    def _on_look(self, gesture: Mapping[str, Any]) -> None:
        self.chosen = value_of(gesture, "name", plain_text)
        self._show()

    def _on_use(self, gesture: Mapping[str, Any]) -> None:
        cost = self._session.design.cost
        kept = {"transfer_model": cost.transfer_model}
        self._session.edit(
            "cost", {"kind": "calibrated", "profile": self.chosen, **kept}, f"costs of {_title(self.chosen)}"
        )

    def _on_measure(self, gesture: Mapping[str, Any]) -> None:
        name = value_of(gesture, "name", plain_text).strip()
        if not name:
            raise InputError(f"give what is measured a name, such as {self.usual}")
        self._calibrating.start(name)

    def _on_stop(self, gesture: Mapping[str, Any]) -> None:
        self._calibrating.stop()


def _read(name: str) -> tuple[Profile | None, str]:
    """A profile; or none, why it cannot be read, and what to do."""
    try:
        return load_stored_profile(name), ""
    except InputError as error:
        return None, f"{name} cannot be read: {error}. Measure this machine under that name, or look at another one"


# ---- plain functions ----


def listed(names: Iterable[str], used: str) -> list[dict[str, Any]]:
    """A line a profile: its name, a note on where it is from, and whether the open design uses it."""
    return [{"name": name, "title": _title(name), "note": _note(name), "used": name == used} for name in names]


def _title(name: str) -> str:
    return name.removesuffix(".json")


def _note(name: str) -> str:
    found, _ = _read(name)
    if found is None:
        return "cannot be read"
    made = found.machine.made_s
    when = datetime.fromtimestamp(made).strftime("%d %b %Y, %H:%M") if made else ""
    return ", ".join(filter(None, (found.machine.device or found.machine.backend, when)))


def machine_words(profile: Profile) -> list[str]:
    """What it was measured on."""
    machine = profile.machine
    told = [
        describe_other_machine(profile),
        machine.network,
        machine.software,
        f"of {machine.run}" if machine.run else "",
    ]
    told += [f"large products of {rate.precision}: {quantity(rate.flops, 'FLOP/s')}" for rate in profile.matrix]
    if machine.cores is not None and machine.load_before is not None and machine.load_before > 0.7:
        told.append(f"others' work wanted {machine.load_before:.1f} of {machine.cores} cores meanwhile")
    return [words for words in told if words]


def charts(profile: Profile) -> list[dict[str, Any]]:
    """Each with points of what was measured, lines, axes in decades, and a table of the lines; one without series
    has a note and a table."""
    found = [_of_block(block, several=_precisions(profile) > 1) for block in profile.blocks]
    lines: Lines = [
        (PAIRS[link.pair], link.samples, link.seconds, link.alpha_s, link.beta_s_per_byte, link.r2)
        for link in profile.links
    ]
    found += [_of_lines("links", "Messages", "B", lines)] if lines else []
    lines = [
        (f"{each.optimizer} {each.precision}{', clipped' * each.clipped}", each.samples, each.seconds, each.alpha_s, each.s_per_parameter, each.r2)
        for each in profile.optimizer
    ]  # fmt: skip
    found += [_of_lines("optimizer", "Update", " parameters", lines)] if lines else []
    lines = [
        (f"{each.size} ranks", each.samples, each.seconds, each.alpha_s, each.beta_s_per_byte, each.r2)
        for each in sorted(profile.collectives, key=lambda each: each.size)
        if each.collective == "all_reduce" and each.group == "mp"
    ]
    found += [_of_lines("all_reduce", "All-reduce", "B", lines)] if lines else []
    return [*found, *_contention_table(profile), *_of_actions(profile)]


def _precisions(profile: Profile) -> int:
    return len({block.precision for block in profile.blocks})


def _of_block(block: Block, *, several: bool) -> dict[str, Any]:
    """What was measured over what the lines say: on the diagonal where they agree."""
    series: list[dict[str, Any]] = []
    rows = []
    for phase in get_args(Phase):
        points = [[line, seconds, _size(sample, seconds, line)] for sample, seconds, line in block.points(phase)]
        series.append({"name": _words(phase), "colour": COLOURS[phase], "points": points, "line": []})
        rows.append([_words(phase), *_row(block, phase)])
    every = [point[at] for each in series for point in each["points"] for at in (0, 1) if point[at] > 0]
    ends = min(every), max(every)
    return {
        "key": f"{block.kind}-{block.precision}",
        "title": f"{KINDS[block.kind]}{f' {block.precision}' if several else ''}",
        "x": axis("seconds by the line", ends, "s"),
        "y": axis("seconds measured", ends, "s"),
        "series": series,
        "diagonal": [[ends[0], ends[0]], [ends[1], ends[1]]],
        "head": ["", "at all", "products", "attention", "bytes", "r²", "worst off"],
        "rows": rows,
    }


def _words(phase: str) -> str:
    return phase.replace("_", " ")


def _size(sample: Any, seconds: float, line: float) -> str:
    """A point in words."""
    blocks = f"{sample.blocks} x " if sample.blocks > 1 else ""
    size = f"{blocks}hidden {sample.hidden}, {sample.batch} x {sample.sequence} tokens"
    return f"{size}: {quantity(seconds, 's')} measured, {quantity(line, 's')} by the line"


def _row(block: Block, phase: Phase) -> Iterator[str]:
    per = block.fits[phase].per
    yield quantity(per.get("action", 0.0) + per.get("block", 0.0), "s")
    for term, unit in (("products", "FLOP/s"), ("attention", "FLOP/s"), ("bytes", "B/s")):
        taken = per.get(term, 0.0)  # type: ignore[call-overload]
        yield speed(taken, unit, "–")
    yield f"{block.fits[phase].r2:.3f}"
    yield f"{max(block.residuals(phase), key=abs, default=0.0):+.0%}"


DRAWN = 32
"""Points of a line, which is none on axes of decades."""
Lines = Sequence[tuple[str, Sequence[tuple[float, float]], Callable[[float], float], float, float, float]]
"""Each a name, its samples, its seconds, alpha, beta and r2."""


def _of_lines(key: str, title: str, unit: str, lines: Lines) -> dict[str, Any]:
    """Seconds over bytes, or parameters."""
    series: list[dict[str, Any]] = []
    rows = []
    for number, (name, samples, seconds, alpha, beta, r2) in enumerate(lines):
        points = [[size, took, f"{name}, {quantity(size, unit)}: {quantity(took, 's')}"] for size, took in samples]
        least, most = min(size for size, _ in samples), max(size for size, _ in samples)
        drawn = [[size, max(seconds(size), 1e-9)] for size in np.geomspace(least, most, DRAWN).tolist()]
        series.append({"name": name, "colour": OF_LINES[number % len(OF_LINES)], "points": points, "line": drawn})
        rate = speed(beta, f"{unit.strip()}/s", "–")
        worst = max((relative_excess(took, seconds(size)) for size, took in samples), key=abs)
        rows.append([name, quantity(alpha, "s"), rate, f"{r2:.3f}", f"{worst:+.0%}"])
    every = [point for each in series for point in (*each["points"], *each["line"])]
    xs, ys = ([point[at] for point in every] for at in (0, 1))
    return {
        "key": key,
        "title": title,
        "x": axis(unit.strip().replace("B", "bytes") or "bytes", (min(xs), max(xs)), unit),
        "y": axis("seconds measured", (min(ys), max(ys)), "s"),
        "series": series,
        "diagonal": [],
        "head": ["", "alpha", "1 / beta", "r²", "worst off"],
        "rows": rows,
    }


def _contention_table(profile: Profile) -> list[dict[str, Any]]:
    """A tab without axes: a row for each measurement, a column for each kind of link."""
    if not profile.contention:
        return []
    columns = [describe_contention(each) for each in profile.contention]
    repetitions = min(len(each.alone_samples_s) for each in profile.contention)
    return [
        {
            "key": "contention",
            "title": "Contention",
            "note": "Messages and collectives that start at the same time over one link, relative to the same message "
            f"alone. Medians of {repetitions} repetition{'s' * (repetitions != 1)}; IQR is the interquartile range.",
            "series": [],
            "diagonal": [],
            "head": ["", *(PAIRS[each.pair] for each in profile.contention)],
            "rows": [
                [name, *(words or "not measured" for words in row)] for name, *row in zip(ROWS, *columns, strict=True)
            ],
        }
    ]


def _of_actions(profile: Profile) -> list[dict[str, Any]]:
    """What a run measured over what roofline costs say."""
    if not profile.actions:
        return []
    series: list[dict[str, Any]] = [
        {
            "name": op,
            "colour": op if op in OF_LINES else "STEP",
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
            "x": axis("seconds by roofline", ends, "s"),
            "y": axis("seconds measured", ends, "s"),
            "series": series,
            "diagonal": [[ends[0], ends[0]], [ends[1], ends[1]]],
            "head": [],
            "rows": [],
        }
    ]


def axis(label: str, ends: tuple[float, float], unit: str) -> dict[str, Any]:
    """An axis of decades: what it shows, from where to where, and its ticks with their words."""
    low, high = math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1]))
    high = max(high, low + 1)
    each = max(1, math.ceil((high - low) / 6))
    ticks = [[10.0**power, quantity(10.0**power, unit)] for power in range(low, high + 1, each)]
    return {"label": label, "from": 10.0**low, "to": 10.0**high, "ticks": ticks}
