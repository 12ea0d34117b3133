"""The Slowdowns tab: stragglers of a run, and simulations of slow devices, slow links and jitter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import param

from meshwave.designer.kit.canvas import Canvas, plain_text, read_value, widget
from meshwave.designer.state.design_session import Session
from meshwave.designer.views._view import FILL, View, views
from meshwave.designer.views.followed_runs import FollowedRuns
from meshwave.designer.views.runs import followed_runs
from meshwave.engine.findings import Problem, Refusal
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.predict.questions import Slowdown, slow_step, slow_timeline
from meshwave.engine.runs.accuracy.stragglers import straggler_slowdown

SIMULATED_ROWS = 400_000
"""Largest product of program rows and simulations with jitter, which take about a second."""
MOST_SAMPLES, LEAST_SAMPLES = 32, 4
DEFAULT_FACTOR = 1.5
NO_SLOWDOWN: Mapping[str, Any] = {
    "device": "", "device_factor": DEFAULT_FACTOR, "link": "", "link_factor": DEFAULT_FACTOR, "jitter_percent": 0,
}  # fmt: skip
"""Initial values of the fields: a device, the two ranks of a link such as ``0:1``, and their slowdown factors."""


@widget("panels/slowdowns.js", "kit/shell.css", "panels/dock.css")
class Slowdowns(Canvas):
    """Widget with the stragglers of the shown run and simulated slowdowns."""

    stragglers = param.List(
        default=[], doc="Code, location and message of each straggler, and the field values that simulate it, if any."
    )
    has_run = param.Boolean(default=False, doc="Whether a run is shown, in which stragglers can be found.")
    links = param.List(default=[], doc="Value and title of each link between meshes that exchange messages.")
    fields = param.Dict(default=dict(NO_SLOWDOWN), doc="Values of the fields of the simulated slowdown.")
    result = param.String(default="", doc="Step time with the slowdown, and the loss of throughput, as text.")

    def __init__(self, session: Session, followed: FollowedRuns, **params: Any) -> None:
        super().__init__(**params)
        self._session, self._followed = session, followed
        session.param.watch(lambda *_: self._follow_design(), "prediction")
        session.param.watch(lambda *_: self._forget_result(), "slowed")
        followed.param.watch(lambda *_: self._list_stragglers(), ["stragglers", "run"])
        self._follow_design()

    def _follow_design(self) -> None:
        prediction = self._session.prediction
        self.links = [] if prediction is None else _link_choices(prediction)
        self._list_stragglers()

    def _forget_result(self) -> None:
        if self._session.slowed is None:
            self.result = ""

    def _list_stragglers(self) -> None:
        shown, prediction = self._followed.shown, self._session.prediction
        is_open = shown is not None and prediction is not None and shown.has_same_program(prediction)
        self.has_run = shown is not None
        self.stragglers = [
            {
                "code": each.code,
                "where": each.where,
                "message": each.message,
                "fields": _straggler_fields(each, prediction) if is_open else None,
            }
            for each in self._followed.stragglers
        ]

    def _on_simulate(self, gesture: Mapping[str, Any]) -> None:
        """Simulate a step with the slowdown of the fields, and draw the step above the predicted one."""
        prediction = self._session.current_prediction("simulate")
        slowdown = _read_fields(gesture, prediction, dict(self.links))
        if slowdown == Slowdown():
            self._session.slowed = None
            raise Refusal("no_slowdown", {})
        samples = max(LEAST_SAMPLES, min(MOST_SAMPLES, SIMULATED_ROWS // len(prediction.program)))
        try:
            found = slow_step(prediction, slowdown, samples)
        except Refusal:
            self._session.slowed = None  # the earlier result is not that of the fields
            raise
        self.fields = {name: gesture[name] for name in NO_SLOWDOWN}
        self._session.slowed = slow_timeline(prediction, slowdown)
        self.result = found.description(prediction.costs.unit)

    def _on_clear(self) -> None:
        self.fields = dict(NO_SLOWDOWN)
        self._session.slowed = None


def _link_choices(prediction: Prediction) -> list[list[str]]:
    """Return the value and the title of each pair of meshes that exchange messages."""
    program, names = prediction.program, [mesh.name for mesh in prediction.design.meshes]
    sends = program.is_send
    pairs = zip(program.rank[sends].tolist(), program.peer[sends].tolist(), strict=True)
    ends = sorted({(min(pair), max(pair)) for pair in pairs})
    return [[f"{one}:{other}", f"{names[one]} and {names[other]}"] for one, other in ends]


def _read_fields(gesture: Mapping[str, Any], prediction: Prediction, known_links: Mapping[str, str]) -> Slowdown:
    device, link = (read_value(gesture, key, plain_text) for key in ("device", "link"))
    devices = {read_value(gesture, "device", int): read_value(gesture, "device_factor", float)} if device else {}
    links = {}
    if link:
        read_value(gesture, "link", known_links.__getitem__)
        one, other = (prediction.design.meshes[int(rank)].name for rank in link.split(":"))
        links[one, other] = read_value(gesture, "link_factor", float)
    return Slowdown(devices, links, read_value(gesture, "jitter_percent", float) / 100)


def _straggler_fields(straggler: Problem, prediction: Prediction) -> dict[str, Any] | None:
    """Return the field values that simulate a straggler; None if the straggler has no location."""
    slowdown, names = straggler_slowdown(straggler, prediction.design), [each.name for each in prediction.design.meshes]
    if slowdown is None:
        return None
    fields = dict(NO_SLOWDOWN)
    for device, factor in slowdown.devices.items():
        fields.update(device=device, device_factor=round(factor, 2))
    for ends, factor in slowdown.links.items():
        one, other = sorted(names.index(end) for end in ends)
        fields.update(link=f"{one}:{other}", link_factor=round(factor, 2))
    return fields


@views.register("slowdowns")
class SlowdownsView(View):
    """Stragglers of the shown run, and the predicted cost of slow devices, slow links and jitter."""

    title: ClassVar = "Slowdowns"
    place: ClassVar = "bottom"
    order: ClassVar = 2

    def make_pane(self) -> Slowdowns:
        """Build the list of stragglers and the form of a simulation."""
        return Slowdowns(self.page.session, followed_runs(self.page), **FILL)
