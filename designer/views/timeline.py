"""The timelines of a step, drawn: the Python face of ``static/timeline/timeline.js``."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import param
from numpy.typing import NDArray
from panel.custom import JSComponent

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import plain_text, value_of, whole_numbers
from meshwave.designer.views.timeline_links import pack_links
from meshwave.engine.costs import Costs
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.exports.pictures.palette import as_data, shades, tints
from meshwave.engine.predict.link_flows import LinkFlows
from meshwave.engine.predict.link_lanes import LinkLanes
from meshwave.engine.predict.questions import Inspector, Work, rank_changes
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Floats, Timeline

FORMAT = "meshwave-timeline-view/1"
TICKS = 2**32 - 1  # of the axis: a start or end is an unsigned 32-bit part of the longest timeline
LARGE = 200_000  # rows of a program whose simulation a person begins to wait for
CRITICAL = 0x80  # set in the op of a span that lies on the critical path

Curve = tuple[Floats, Floats]


@dataclass(frozen=True, eq=False)
class Steps:
    """What the spans of a timeline are that are no actions of a program, but steps inside one; their
    ops are colours, a lane is a rank, and (op, lane, microbatch) names a span."""

    kinds: Mapping[Op, str]  # what each colour means
    labels: Sequence[str]
    label: NDArray[np.int32]  # [spans] which of the labels
    bytes: Floats  # [spans] that the step sends
    tones: Sequence[int]  # [lanes] the number of its colour: that of its device


@dataclass(frozen=True, eq=False)
class Layer:
    """One timeline of the chart and what is known beside it."""

    timeline: Timeline
    label: str  # whose it is, as a person would say it: "Open design", "Pinned: 1F1B", "Run 12"
    memory: Sequence[Curve] | None = None  # per rank the times of change and the bytes from then on
    capacity: float | None = None  # bytes of one device
    critical: NDArray[np.bool_] | None = None  # [spans] lies on the critical path
    stages_layers: Sequence[int] | None = None  # how many layers each stage has
    unit: Literal["s", "units"] = "s"
    bytes: Floats | None = None  # [spans] what a transfer carries
    work: Work | None = None  # FLOPs of the computations
    over: bool = False  # drawn in the lanes of the layer before, which then share them half and half
    played: tuple[Program, Costs] | None = None  # what a prediction was made of: it can be played anew, changed
    steps: Steps | None = None  # of the inside of a block
    opens: bool = False  # whether there is a timeline behind each of its computations
    crosses: bool = False  # whether there is a transfer to look at behind each of its arrows
    links: LinkLanes | str | None = None  # the lanes of its links, or why there are none; None where nobody asked
    find_flows: Callable[[], LinkFlows | None] = lambda: None  # what passes the links, to say what holds a mesh up


@dataclass(frozen=True)
class Pin:
    """The span that a person pinned: the layer's number, the rank and the action."""

    layer: int
    rank: int
    action: Action


def pack(layers: Sequence[Layer], crumbs: Sequence[str] = ()) -> bytes:
    """Put the layers, and the words for where they lie, into the form that travels: a JSON header with its length before it, and columns.

    A span takes 17 to 21 bytes; a tick is 1/4,294,967,295 of the longest timeline, so a block of a
    millionth of the step is still drawn to a thousandth of its width. A layer laid over one of
    another program gets lanes of its own.
    """
    if not layers:
        return b""
    columns = _Columns()
    horizon = max((float(layer.timeline.end.max(initial=0.0)) for layer in layers), default=0.0) or 1.0
    packed: list[dict[str, Any]] = []
    row = -1
    for number, layer in enumerate(layers):
        over = number > 0 and layer.over and not packed[-1]["over"] and _same_program(layers[number - 1], layer)
        row += not over
        packed.append(_pack_layer(layer, columns, TICKS / horizon) | {"row": row, "over": over})
    header = {"format": FORMAT, "horizon": horizon, "unit": layers[0].unit, "layers": packed, "crumbs": list(crumbs)}
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return b"".join([len(text).to_bytes(4, "little"), text, *columns.parts])


def _same_program(lower: Layer, upper: Layer) -> bool:
    return lower.timeline.digest == upper.timeline.digest and lower.timeline.ranks == upper.timeline.ranks


class _Columns:
    """Typed arrays one after the other, each at a multiple of eight bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._size = 0

    def add(self, values: NDArray[Any], dtype: str) -> list[Any]:
        """Append a column; return what the header says of it: type, offset, length."""
        data = np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<")).tobytes()
        place = [dtype, self._size, len(values)]
        data += b"\0" * (-len(data) % 8)
        self.parts.append(data)
        self._size += len(data)
        return place


def _pack_layer(layer: Layer, columns: _Columns, ticks: float) -> dict[str, Any]:
    timeline = layer.timeline
    order, bounds = _order(timeline)
    place = np.empty(len(order) + 1, np.int32)
    place[order], place[-1] = np.arange(len(order), dtype=np.int32), -1
    op = timeline.op.astype(np.uint8)
    if layer.critical is not None:
        op = op | np.where(layer.critical, CRITICAL, 0).astype(np.uint8)
    shade = shades(timeline) if layer.steps is None else np.zeros((timeline.ranks, timeline.ranks), np.uint8)
    moves = order[bounds[2 * timeline.ranks] :]
    halves = _halves(timeline.fused[order])
    stored = {
        "bounds": columns.add(bounds, "int32"),
        "start": columns.add(_to_ticks(timeline.start[order], ticks), "uint32"),
        "end": columns.add(_to_ticks(timeline.end[order], ticks), "uint32"),
        "cause": columns.add(place[timeline.cause[order]], "int32"),
        "op": columns.add(op[order], "uint8"),
        "stage": columns.add(timeline.stage[order], _integers(timeline.stage)),
        "microbatch": columns.add(timeline.microbatch[order], _integers(timeline.microbatch)),
        "peer": columns.add(timeline.peer[moves], "int16" if timeline.ranks < 2**15 else "int32"),
        "shade": columns.add(shade.ravel(), "uint8"),
    }
    if (timeline.other[moves] >= 0).any():
        stored["other"] = columns.add(timeline.other[moves], _integers(timeline.other))
    if halves.any():
        stored["half"] = columns.add(halves, "uint8")
    if layer.bytes is not None:
        stored["bytes"] = columns.add(layer.bytes[moves], "float32")
    if layer.work is not None:
        stored["placement"] = columns.add(layer.work.placement.ravel(), _integers(layer.work.placement))
        stored["flops"] = columns.add(layer.work.flops.ravel(), "float32")
    if layer.memory is not None:
        stored |= _pack_memory(layer.memory, columns, ticks)
    links = None
    if layer.links is not None:
        links, of_links = pack_links(layer.links, place, ticks, columns.add)
        stored |= of_links
    steps: dict[str, Any] = {}
    if layer.steps is not None:
        stored["text"] = columns.add(layer.steps.label[order], "int32")
        stored["carried"] = columns.add(layer.steps.bytes[order], "float32")
        kinds = {op.name: words for op, words in layer.steps.kinds.items()}
        steps = {"labels": list(layer.steps.labels), "kinds": kinds, "tones": list(layer.steps.tones)}
    return {
        **steps,
        "opens": layer.opens,
        "crosses": layer.crosses,
        "label": layer.label,
        "digest": timeline.digest,
        "source": timeline.source,
        "unit": layer.unit,
        "meshes": list(timeline.meshes),
        "stages": shade.shape[1],
        "microbatches": int(timeline.microbatch.max(initial=-1)) + 1,
        "makespan": timeline.makespan,
        "tints": tints(shade),
        "capacity": layer.capacity,
        "stages_layers": list(layer.stages_layers) if layer.stages_layers is not None else None,
        "critical": layer.critical is not None,
        "links": links,
        "columns": stored,
    }


def _order(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The spans by kind (blocks, reductions, transfers), rank and start; and where each rank of a kind begins.

    Blocks of a rank follow one another, so that the page can search them; a reduction goes on
    beside them, and a transfer beside everything.
    """
    kind = (timeline.op == Op.REDUCE_GRAD) + 2 * timeline.is_transfer.astype(np.int64)
    lane = kind * timeline.ranks + timeline.rank
    order = np.argsort(lane, kind="stable")
    sorted_lane, start = lane[order], timeline.start[order]
    if not ((np.diff(start) >= 0) | (np.diff(sorted_lane) > 0)).all():
        order = np.lexsort((timeline.start, lane))
    return order, np.searchsorted(sorted_lane, np.arange(3 * timeline.ranks + 1))


def _halves(fused: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """``[spans]`` 1 and 2 for the two that share a slot: the upper and the lower half of the lane; else 0."""
    halves = np.where(fused, 2, 0).astype(np.uint8)
    halves[np.flatnonzero(fused) - 1] = 1
    return halves


def _to_ticks(seconds: Floats, ticks: float) -> NDArray[np.uint32]:
    return np.clip(seconds * ticks, 0, TICKS).astype(np.uint32)


def _integers(values: NDArray[Any]) -> str:
    return "int16" if values.max(initial=0) < 2**15 else "int32"


def _pack_memory(memory: Sequence[Curve], columns: _Columns, ticks: float) -> dict[str, Any]:
    times, held = (np.concatenate([np.asarray(curve[part], float) for curve in memory]) for part in (0, 1))
    return {
        "memory_bounds": columns.add(np.cumsum([0, *(len(times) for times, _ in memory)]), "int32"),
        "memory_time": columns.add(_to_ticks(times, ticks), "uint32"),
        "memory_bytes": columns.add(held, "float32"),
    }


class TimelineChart(JSComponent):
    """Timelines over one another on one axis: a lane a mesh, memory below, everything by hover and key.

    Columns go down as bytes in one parameter; what a person pins comes up as a message.
    """

    packed = param.Bytes(default=b"", doc="What pack() makes of the layers; nothing shows the empty words.")
    stale = param.String(default="", doc="Why what is shown is not of the design as it stands; empty when it is.")
    empty = param.String(default="Draw a mesh to see its timeline")
    show_memory = param.Boolean(default=True)
    show_critical = param.Boolean(default=False)
    show_transfers = param.Boolean(default=True)
    show_links = param.Boolean(default=False, doc="Lanes of NICs and links, with what each message has of them.")
    show_device_links = param.Boolean(default=False, doc="Beside the lanes of nodes those of every device.")
    can_edit = param.Boolean(default=False, doc="Whether the order of the open design can be edited by hand.")
    palette = param.Dict(default=as_data(), constant=True)

    _esm = module("timeline/timeline.js")
    _stylesheets: ClassVar = [
        read_static("kit/canvas.css"), *(read_static(f"timeline/{part}.css") for part in ("timeline", "edit", "depth")),
    ]  # fmt: skip

    def __init__(
        self,
        on_pin: Callable[[Pin | None], None] | None = None,
        on_open: Callable[[Pin | None], None] | None = None,
        **params: Any,
    ) -> None:
        """``on_pin`` hears what a person pins, and None when the pin is taken off; ``on_open`` into which block
        a person wants to look, and None when they want to go back."""
        super().__init__(**params)  # type: ignore[no-untyped-call]
        self._on_pin, self._on_open = on_pin, on_open
        self.on_order: Callable[[Mapping[str, Any]], None] | None = None  # hears what is asked in edit mode
        self._asked: list[tuple[Layer, Inspector]] = []

    def show(self, layers: Sequence[Layer], stale: str = "", crumbs: Sequence[str] = ()) -> None:  # type: ignore[override]
        """Draw ``layers``; the view stays where it is where that still makes sense. ``crumbs`` lead from the
        iteration to the inside of a block, where that is what they are."""
        self._asked = [
            (layer, Inspector(layer.timeline, layer.bytes, layer.unit, layer.find_flows)) for layer in layers
        ]
        self.param.update(packed=pack(layers, crumbs), stale=stale)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message to the page."""
        self._send_msg(dict(message))

    def _handle_msg(self, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "ask":
            self._send_msg({"type": "told", "ask": message.get("ask"), **self._tell(message)})
        elif kind == "unpin" and self._on_pin is not None:
            self._on_pin(None)
        elif kind == "pin" and self._on_pin is not None:
            self._on_pin(_read_pin(message))
        elif kind == "order" and self.on_order is not None:
            self.on_order(message)
        elif kind in ("open", "back") and self._on_open is not None:
            self._open(message)

    def _open(self, message: Mapping[str, Any]) -> None:
        """Look into a block, or back; why that cannot be is said on the page."""
        assert self._on_open is not None
        try:
            self._on_open(_read_pin(message) if message["type"] == "open" else None)
        except MeshwaveError as error:
            self.tell({"type": "not-opened", "words": str(error)})

    def _tell(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What is found, or the sentence that says why nothing is."""
        try:
            number = value_of(question, "layer", int)
            if not 0 <= number < len(self._asked):
                return {"refused": "that timeline is no longer shown"}
            return {"found": value_of(question, "what", QUESTIONS.__getitem__)(*self._asked[number], question)}
        except InputError as error:
            return {"refused": str(error)}
        except Exception as error:  # a defect of ours: the page must not fall silent
            traceback.print_exc()
            return {"refused": f"that went wrong inside Meshwave ({error!r}); the terminal says more"}


def _area(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any]:
    ranks = value_of(question, "ranks", whole_numbers)
    return ask.measure_area(value_of(question, "start", float), value_of(question, "end", float), ranks).as_data()


def _idle(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any] | None:
    rank = value_of(question, "rank", int)
    found = ask.explain_idle(rank, value_of(question, "at", float)) if 0 <= rank < layer.timeline.ranks else None
    return found.as_data() if found else None


def _path(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any]:
    timeline = layer.timeline
    bubbles = {"bubble_ratio": timeline.bubble_ratio, "span_bubble_ratio": timeline.span_bubble_ratio}
    return {**ask.path.as_data(), **bubbles, "by_port_s": ask.seconds_by_port(), "can_change": layer.played is not None}


def _what_if(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> list[dict[str, Any]]:
    if layer.played is None:
        raise InputError("only a prediction can be played anew with other costs")
    program, costs = layer.played
    faster = value_of(question, "faster", float)
    if not 0 < faster < 1:
        raise InputError("something can be faster by more than nothing and less than all of its time")
    most = 8 if len(program) < LARGE else 4
    return [answer.as_data() for answer in rank_changes(program, costs, ask.path, faster, most)]


def _find(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any]:
    return ask.parse_query(value_of(question, "text", plain_text)).as_data()


def _limit(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> str:
    """Return the words for the port that limits a message or an exchange; empty where none is known."""
    timeline = layer.timeline
    names = ("rank", "op", "stage", "microbatch", "other")
    columns = (timeline.rank, timeline.op, timeline.stage, timeline.microbatch, timeline.other)
    same = np.all(
        [column == value_of(question, name, int) for name, column in zip(names, columns, strict=True)], axis=0
    )
    found = [
        ask.find_limit(span, value_of(question, "start", float), value_of(question, "end", float))
        for span in np.flatnonzero(same)[:1].tolist()
    ]
    words = (
        f"it is {limit.description}" if limit.is_delayed else "no other message slows it down"
        for limit in found
        if limit
    )
    return next(words, "")


Question = Callable[[Layer, Inspector, Mapping[str, Any]], Any]

QUESTIONS: Mapping[str, Question] = {
    "area": _area, "idle": _idle, "path": _path, "what_if": _what_if, "find": _find, "limit": _limit,
}  # fmt: skip
"""What the page may ask of a layer; answers are plain data. Nothing that has to be worked out is worked out there."""


def _read_pin(message: Mapping[str, Any]) -> Pin:
    stage, microbatch, layer, rank = (value_of(message, key, int) for key in ("stage", "microbatch", "layer", "rank"))
    other = value_of({"other": -1, **message}, "other", int)  # of a message that skips stages
    return Pin(layer, rank, Action(value_of(message, "op", Op.__getitem__), stage, microbatch, other=other))
