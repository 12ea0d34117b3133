"""The numbers of the predicted step, each with its change against the pinned design."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any, ClassVar, Literal, NamedTuple

import param

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Canvas, PlainData
from meshwave.designer.state.design_session import COMPUTING_PROBLEM, STOPPED_PROBLEM, Session
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.units import duration, quantity

Values = Mapping[str, Any]
Verdict = Literal["better", "worse", "same"]

NOTHING = "–"
NO_SECONDS = ("unit costs: no seconds", "Unit costs are no seconds: choose roofline costs to see this.")
UNPREDICTED = ("not simulated yet", "This design cannot be simulated yet: see its problems.")
SAME = 5e-4  # a change that would be written as 0.0 %


class Figure(NamedTuple):
    """One number of the strip and how to read it."""

    key: str
    label: str
    help: str
    value: Callable[[Values], float | None]
    """None where the design has no such number."""
    written: Callable[[Values, float], str]
    small: Callable[[Values, float], str]
    better: Literal["less", "more"]
    share: bool = False
    """A part of 1: its change is a difference in points, since a percentage of one misleads."""
    detail: Callable[[Values, float], str] = lambda numbers, value: ""
    """What is to be said of this very number after the help."""


def tiles(prediction: Prediction | None, pinned: Prediction | None = None) -> list[dict[str, Any]]:
    """The strip as plain data: a tile a figure, its change None where there is nothing to compare with."""
    now = None if prediction is None else prediction.numbers
    before = None if pinned is None or pinned is prediction else pinned.numbers
    return [_tile(figure, now, before) for figure in FIGURES]


def _tile(figure: Figure, now: Values | None, before: Values | None) -> dict[str, Any]:
    value = None if now is None else figure.value(now)
    if now is None or value is None:
        reason, explained = UNPREDICTED if now is None else NO_SECONDS
        written, small, help = NOTHING, reason, f"{explained}\n{figure.help}"
    else:
        written, small = figure.written(now, value), figure.small(now, value)
        help = "\n".join(filter(None, (figure.help, figure.detail(now, value))))
    return {
        "key": figure.key,
        "label": figure.label,
        "value": written,
        "small": small,
        "help": help,
        "change": None if now is None or before is None else change(figure, now, before),
        **(_memory_bar(now) if figure.key == "memory" and now is not None else {"bar": None, "wrong": ""}),
    }


def _memory_bar(numbers: Values) -> dict[str, Any]:
    """How full the fullest device is, 0 to 1, and the word for it where that is too much."""
    used = max(numbers["peak_memory_bytes"]) / numbers["capacity_bytes"]
    return {"bar": min(used, 1.0), "wrong": "" if numbers["fits"] else "does not fit"}


# ---- the change against the pinned design ----


def change(figure: Figure, now: Values, before: Values) -> dict[str, str] | None:
    """How a figure differs from the pinned design's; None where the two cannot be compared."""
    value, old = figure.value(now), figure.value(before)
    if value is None or old is None or (_timed(figure) and now["unit"] != before["unit"]):
        return None
    amount, size = _difference(figure, value, old)
    verdict: Verdict = "same"
    if size > SAME:
        verdict = "better" if (value < old) == (figure.better == "less") else "worse"
    arrow = "same" if verdict == "same" else ("fall" if value < old else "rise")
    pinned = f"{figure.written(before, old)} of the pinned {before['name']!r}"
    if verdict == "same":
        return {"arrow": arrow, "verdict": verdict, "text": "", "spoken": f"as the {pinned}"}
    words = "less" if arrow == "fall" else "more"
    spoken = f"{amount.replace('pts', 'percentage points')} {words} than the {pinned}: {verdict}"
    return {"arrow": arrow, "verdict": verdict, "text": amount, "spoken": spoken}


def _timed(figure: Figure) -> bool:
    return not figure.share and figure.key != "memory"


def _difference(figure: Figure, value: float, old: float) -> tuple[str, float]:
    """A change in words without its sign, and its size as a part of 1."""
    if figure.share:
        size = abs(value - old)
        return f"{100 * size:.1f} pts", size
    if not old:
        return (NOTHING, 0.0) if not value else ("from none", 1.0)
    ratio = value / old
    if ratio >= 10:
        return f"{ratio:.3g} times", ratio
    return f"{100 * abs(ratio - 1):.1f} %", abs(ratio - 1)


# ---- the figures ----


def _time(numbers: Values, value: float) -> str:
    return duration(value, numbers["unit"])


def _in_seconds(key: str) -> Callable[[Values], float | None]:
    return lambda numbers: numbers[key] if numbers["unit"] == "s" else None


def _percent(numbers: Values, value: float) -> str:
    return f"{100 * value:.1f} %"


def _rate(value: float, unit: str) -> str:
    """``1.2 k tokens/s``: the prefix belongs to the number, not to a kilotoken."""
    return " ".join(quantity(value, f" {unit}").split())


def _fullest(numbers: Values, value: float) -> str:
    held = numbers["peak_memory_bytes"]
    return f"of {quantity(numbers['capacity_bytes'], 'B')}, mesh {numbers['meshes'][held.index(max(held))]}"


def _beside_exposed(numbers: Values, value: float) -> str:
    """What blocks wait for inside, where they do: the two add up."""
    makespan, inside = numbers["makespan_s"], numbers["mean_inside_communication_s"]
    if inside:
        return f"+ {_time(numbers, inside)} inside blocks"
    return f"communication, {_percent(numbers, value / makespan)}" if makespan else "communication"


def _shares_of_waiting(numbers: Values, value: float) -> str:
    makespan, inside = numbers["makespan_s"], numbers["mean_inside_communication_s"]
    if not inside:
        return ""
    exposed, within = (_percent(numbers, each / makespan) for each in (value, inside))
    return f"Of this iteration {exposed} is exposed, and {within} is inside blocks."


def _limit(numbers: Values, value: float) -> str:
    """Return the sentence that says what limits the step; empty where the costs do not know it."""
    words = numbers["bounds"]["words"] if numbers["bounds"] else ""
    return f"{words[0].upper()}{words[1:]}." if words else ""


def _counted(things: Sized, noun: str, plural: str = "s") -> str:
    return f"{len(things)} {noun}{plural * (len(things) != 1)}"


FIGURES = (
    Figure(
        "iteration",
        "Iteration",
        "Time of one training step, from the first start to the last end on any mesh (the makespan).",
        lambda numbers: numbers["makespan_s"],
        _time,
        lambda numbers, value: (
            f"{_counted(numbers['meshes'], 'mesh', 'es')}, {_counted(numbers['layers_per_stage'], 'stage')}"
        ),
        better="less",
        detail=_limit,
    ),
    Figure(
        "throughput",
        "Throughput",
        "Sequences that are trained on in a second: dp × microbatches × micro batch size ÷ iteration time. "
        "Tokens are sequences × their length.",
        _in_seconds("samples_per_s"),
        lambda numbers, value: _rate(value, "seq/s"),
        lambda numbers, value: _rate(numbers["tokens_per_s"], "tokens/s"),
        better="more",
    ),
    Figure(
        "bubble",
        "Bubble",
        "Share of all meshes' time in which they do not compute: 1 − busy ÷ (meshes × iteration time). "
        "The span bubble counts each mesh from its own first start to its own last end.",
        lambda numbers: numbers["bubble_ratio"],
        _percent,
        lambda numbers, value: f"span {_percent(numbers, numbers['span_bubble_ratio'])}",
        better="less",
        share=True,
    ),
    Figure(
        "mfu",
        "MFU",
        "Model FLOPs utilization: FLOPs that the model needs ÷ (peak FLOP/s of all devices used × iteration time). "
        "Recomputing does not count. With calibrated costs the peak is what large matrix products were measured to "
        "reach, where the profile says so.",
        lambda numbers: numbers["mfu"],
        _percent,
        lambda numbers, value: "of the peak FLOP/s",
        better="more",
        share=True,
    ),
    Figure(
        "memory",
        "Peak memory",
        "The most that any device holds at once: weights, gradients, optimizer states, activations in flight "
        "and working space, against the memory of a device.",
        lambda numbers: max(numbers["peak_memory_bytes"]),
        lambda numbers, value: quantity(value, "B"),
        _fullest,
        better="less",
    ),
    Figure(
        "exposed",
        "Exposed",
        "Exposed communication: time in which a mesh has nothing to do but wait for a transfer or a reduction that is "
        "under way; the average over the meshes, as a run and its comparison tell it, and its share of the iteration. "
        "Communication behind compute costs nothing and is not in it.\n"
        "Inside blocks: time in which a forward or a backward itself waits for exchanges of experts or tensor-parallel "
        "reductions; the average too. The bubble counts it as computing.",
        lambda numbers: numbers["mean_exposed_communication_s"],
        _time,
        _beside_exposed,
        better="less",
        detail=_shares_of_waiting,
    ),
)


# ---- the widget ----


class Numbers(Canvas):
    """The strip of numbers, and the button that pins the design to compare with."""

    tiles = param.String(default=PlainData([]), doc="See tiles().")
    stale = param.Dict(default={}, doc="Title and detail, where the numbers are of an earlier design; empty else.")
    pinned = param.List(
        default=[], item_type=str, doc="Names of the pinned designs; changes are told against the first."
    )
    is_pinned = param.Boolean(default=False, doc="Whether the design as it stands is one of them.")
    can_pin = param.Boolean(default=False, doc="Whether the numbers are of the design as it stands.")

    _esm = module("panels/numbers.js")
    _stylesheets: ClassVar = [
        read_static("kit/canvas.css"),
        read_static("kit/shell.css"),
        read_static("panels/numbers.css"),
    ]
    _gestures = ("pin", "compare", "end")

    def __init__(self, session: Session, on_compare: Callable[[], Any] | None = None, **params: Any) -> None:
        """``on_compare`` opens the table of the pinned designs."""
        super().__init__(**params)
        self._session, self._open_comparison = session, on_compare
        session.param.watch(lambda *_: self._show(), ["design", "prediction", "problems", "pinned"])
        self._show()

    def _show(self) -> None:
        session = self._session
        prediction, pinned = session.prediction, session.pinned
        self.param.update(
            tiles=PlainData(tiles(prediction, pinned[0] if pinned else None)),
            stale=staleness(session),
            is_pinned=any(each.design == session.design for each in pinned),
            pinned=[each.design.name for each in pinned],
            can_pin=not session.stale,
        )

    def preview(self, tried: Prediction | None) -> None:
        """Show the numbers of what is tried while a gesture is under way; None shows them as they stand."""
        if tried is None:
            self._show()
        else:
            pinned = self._session.pinned
            self.tiles = PlainData(tiles(tried, pinned[0] if pinned else None))

    def _on_pin(self, gesture: Mapping[str, Any]) -> None:
        self._session.pin()

    def _on_end(self, gesture: Mapping[str, Any]) -> None:
        self._session.end_comparison()

    def _on_compare(self, gesture: Mapping[str, Any]) -> None:
        if self._open_comparison is not None:
            self._open_comparison()


def staleness(session: Session) -> dict[str, str]:
    """What to say where the numbers are not of the design as it stands; empty where they are."""
    if not session.stale or (session.is_computing and not session.progress):
        return {}
    if session.progress:
        kept = "These are the numbers of the last good design." if session.prediction is not None else "No numbers yet."
        title = "Computing …" if session.is_computing else "Computation stopped"
        return {
            "title": title,
            "detail": f"{kept} {COMPUTING_PROBLEM.message if session.is_computing else STOPPED_PROBLEM.message}",
        }
    errors = session.errors
    reasons = "\n".join(map(str, errors[:3]))
    count = f"{len(errors)} error{'' if len(errors) == 1 else 's'} to mend"
    if session.prediction is None:
        return {"title": "Not simulated yet", "detail": f"{count}:\n{reasons}"}
    name = session.prediction.design.name
    return {
        "title": "Last good design",
        "detail": f"These are the numbers of the last good design, {name!r}; {count}:\n{reasons}",
    }
