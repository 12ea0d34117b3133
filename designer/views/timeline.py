"""Timelines of a step; the Python side of ``static/timeline/timeline.js``."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import param
from numpy.typing import NDArray
from panel.custom import JSComponent

from meshwave.designer.kit.assets import module_code, style_sheets
from meshwave.designer.kit.canvas import parse_integers, plain_text, read_value
from meshwave.designer.kit.defects import defect_text
from meshwave.designer.views.lane_groups import LaneGroups, group_choices, group_columns
from meshwave.designer.views.timeline_links import pack_links
from meshwave.engine.costs import Costs
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.exports.pictures.palette import as_data, shades, tints
from meshwave.engine.findings import Refusal
from meshwave.engine.predict.link_flows import LinkFlows
from meshwave.engine.predict.link_lanes import LinkLanes
from meshwave.engine.predict.questions import Inspector, Work, rank_changes
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.row_order import lexical_order
from meshwave.engine.program.timeline import Floats, Timeline

FORMAT = "meshwave-timeline-view/1"
TICKS = 2**32 - 1  # length of the longest timeline; starts and ends are unsigned 32-bit integers
LARGE_PROGRAM_ROWS = 200_000  # rows from which a simulation takes a noticeable time
CRITICAL = 0x80  # flag in the op of a span on the critical path

Curve = tuple[Floats, Floats]


@dataclass(frozen=True, eq=False)
class BlockSteps:
    """Labels, kinds and bytes of the spans inside a block, each of which is a step of a layer instead of an action.

    The ops of the timeline are colours, a lane is a rank, and (op, lane, microbatch) identifies a span.
    """

    kinds: Mapping[Op, str]  # name of the kind of step for each colour
    labels: Sequence[str]
    label: NDArray[np.int32]  # [spans] index into the labels
    bytes: Floats  # [spans] bytes that the step sends
    tones: Sequence[int]  # [lanes] index of the colour of the lane's device


@dataclass(frozen=True, eq=False)
class Layer:
    """One timeline of the chart and its additional data."""

    timeline: Timeline
    label: str  # such as "Open design", "Pinned: 1F1B" or "Run 12"
    memory: Sequence[Curve] | None = None  # by rank: the times of changes, and the bytes in use after each change
    capacity: float | None = None  # memory of one device in bytes
    critical: NDArray[np.bool_] | None = None  # [spans] True on the critical path
    stages_layers: Sequence[int] | None = None  # number of layers of each stage
    unit: Literal["s", "units"] = "s"
    bytes: Floats | None = None  # [spans] bytes of a transfer
    work: Work | None = None  # FLOPs of the computations
    over: bool = False  # True if drawn in the lower half of the lanes of the previous layer
    played: tuple[Program, Costs] | None = None  # inputs of a prediction, to simulate it with changes
    steps: BlockSteps | None = None  # given if the layer is the inside of a block
    opens: bool = False  # True if the inside of its computations can be shown
    crosses: bool = False  # True if the transfers behind its arrows can be shown
    links: LinkLanes | str | None = None  # lanes of the links, or the reason why there are none; None if not requested
    find_flows: Callable[[], LinkFlows | None] = lambda: None  # flows on the links, to explain delays
    groups: Sequence[LaneGroups] = ()
    port_groups: Mapping[str, Sequence[int]] = field(
        default_factory=dict
    )  # by criterion, the group of each link lane, or -1


@dataclass(frozen=True)
class Pin:
    """The pinned span: index of the layer, rank and action."""

    layer: int
    rank: int
    action: Action


def pack_layers(layers: Sequence[Layer], crumbs: Sequence[str] = ()) -> bytes:
    """Return the layers as bytes: the length of a JSON header, the header, and columns.

    A span takes 15 to 21 bytes. Times are in ticks; a tick is 1/4,294,967,295 of the longest timeline. An overlaid
    layer of another program gets its own lanes. ``crumbs`` are the texts of the navigation path.
    """
    if not layers:
        return b""
    columns = _Columns()
    horizon = max((float(layer.timeline.end.max(initial=0.0)) for layer in layers), default=0.0) or 1.0
    packed: list[dict[str, Any]] = []
    row = -1
    for number, layer in enumerate(layers):
        over = number > 0 and layer.over and not packed[-1]["over"] and _is_same_program(layers[number - 1], layer)
        row += not over
        packed.append(_pack_layer(layer, columns, TICKS / horizon) | {"row": row, "over": over})
    choices = group_choices([layer.groups for layer in layers], is_compared=any(layer["over"] for layer in packed))
    header = {"format": FORMAT, "horizon": horizon, "layers": packed, "crumbs": list(crumbs), "choices": choices}
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return b"".join([len(text).to_bytes(4, "little"), text, *columns.parts])


def _is_same_program(lower: Layer, upper: Layer) -> bool:
    return lower.timeline.digest == upper.timeline.digest and lower.timeline.ranks == upper.timeline.ranks


class _Columns:
    """Consecutive typed arrays, each aligned to eight bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._size = 0

    def append(self, values: NDArray[Any], dtype: str) -> list[Any]:
        """Append a column; return its entry in the header: type, offset, length."""
        data = np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<")).tobytes()
        place = [dtype, self._size, len(values)]
        data += b"\0" * (-len(data) % 8)
        self.parts.append(data)
        self._size += len(data)
        return place


def _pack_layer(layer: Layer, columns: _Columns, ticks: float) -> dict[str, Any]:
    timeline = layer.timeline
    order, bounds = _span_order(timeline)
    place = np.full(len(timeline) + 1, -1, np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    op = timeline.op.astype(np.uint8)
    if layer.critical is not None:
        op = op | np.where(layer.critical, CRITICAL, 0).astype(np.uint8)
    shade = shades(timeline) if layer.steps is None else np.zeros((timeline.ranks, timeline.ranks), np.uint8)
    moves = order[bounds[2 * timeline.ranks] :]
    halves = _lane_halves(timeline.fused[order])
    stored = {
        "bounds": columns.append(bounds, "int32"),
        "start": columns.append(_to_ticks(timeline.start[order], ticks), "uint32"),
        "end": columns.append(_to_ticks(timeline.end[order], ticks), "uint32"),
        "cause": columns.append(place[timeline.cause[order]], "int32"),
        "op": columns.append(op[order], "uint8"),
        "stage": columns.append(timeline.stage[order], _integer_dtype(timeline.stage)),
        "microbatch": columns.append(timeline.microbatch[order], _integer_dtype(timeline.microbatch)),
        "peer": columns.append(timeline.peer[moves], _integer_dtype(timeline.peer)),
        "shade": columns.append(shade.ravel(), "uint8"),
    }
    if (timeline.other[moves] >= 0).any():
        stored["other"] = columns.append(timeline.other[moves], _integer_dtype(timeline.other))
    if halves.any():
        stored["half"] = columns.append(halves, "uint8")
    if layer.bytes is not None:
        stored["bytes"] = columns.append(layer.bytes[moves], "float32")
    if layer.work is not None:
        stored["placement"] = columns.append(layer.work.placement.ravel(), _integer_dtype(layer.work.placement))
        stored["flops"] = columns.append(layer.work.flops.ravel(), "float32")
    if layer.memory is not None:
        stored |= _pack_memory(layer.memory, columns, ticks)
    links = None
    if layer.links is not None:
        links, of_links = pack_links(layer.links, place, ticks, columns.append)
        links["groups"] = {by: list(of) for by, of in layer.port_groups.items()}
        stored |= of_links
    steps: dict[str, Any] = {}
    if layer.steps is not None:
        stored["text"] = columns.append(layer.steps.label[order], "int32")
        stored["carried"] = columns.append(layer.steps.bytes[order], "float32")
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
        "groups": group_columns(layer.groups),
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


def _span_order(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of the spans by kind (blocks, collectives, transfers), rank and start, and offsets of the ranks.

    Blocks of a rank do not overlap, so the page can search them; collectives and transfers overlap blocks. A RESHARD
    takes no time and is not drawn.
    """
    kind = timeline.is_collective + 2 * timeline.is_transfer.astype(np.int64)
    lane = kind * timeline.ranks + timeline.rank
    order = lexical_order((timeline.start, lane))
    order = order[timeline.op[order] != Op.RESHARD]
    return order, np.searchsorted(lane[order], np.arange(3 * timeline.ranks + 1))


def _lane_halves(fused: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the half of the lane that each span occupies: 1 upper, 2 lower, 0 the whole lane."""
    halves = np.where(fused, 2, 0).astype(np.uint8)
    halves[np.flatnonzero(fused) - 1] = 1
    return halves


def _to_ticks(seconds: Floats, ticks: float) -> NDArray[np.uint32]:
    return np.clip(seconds * ticks, 0, TICKS).astype(np.uint32)


def _integer_dtype(values: NDArray[Any]) -> str:
    """Return the narrowest integer type for values of at least -1."""
    return str(np.min_scalar_type(-1 - int(values.max(initial=0))))


def _pack_memory(memory: Sequence[Curve], columns: _Columns, ticks: float) -> dict[str, Any]:
    times, held = (np.concatenate([np.asarray(curve[part], float) for curve in memory]) for part in (0, 1))
    return {
        "memory_bounds": columns.append(np.cumsum([0, *(len(times) for times, _ in memory)]), "int32"),
        "memory_time": columns.append(_to_ticks(times, ticks), "uint32"),
        "memory_bytes": columns.append(held, "float32"),
    }


class TimelineChart(JSComponent):
    """Widget with timelines on a common axis, a lane per mesh, and the memory below.

    Columns are sent as bytes in one parameter; pins are received as messages.
    """

    packed = param.Bytes(default=b"", doc="Packed columns of the timeline; if empty, the placeholder text is shown.")
    stale = param.String(default="", doc="Reason why the timeline is not of the current design; empty if it is.")
    empty = param.String(default="Draw a mesh to see its timeline")
    show_memory = param.Boolean(default=True)
    show_critical = param.Boolean(default=False)
    show_transfers = param.Boolean(default=True)
    show_links = param.Boolean(default=False, doc="Show lanes of NICs and links with the share of each message.")
    show_device_links = param.Boolean(default=False, doc="Show the lanes of each device in addition to those of nodes.")
    flags = param.List(default=[], doc="Rank, op, stage and microbatch of marked blocks, with a colour and a text.")
    notes = param.List(default=[], doc="Notes on times and areas; see ``timeline_notes``.")
    can_note = param.Boolean(default=False, doc="True if notes can be added on this page.")
    opened = param.Integer(
        default=0, doc="Counter of opened documents; when it changes, all lanes are shown and unpinned."
    )
    can_edit = param.Boolean(default=False, doc="True if the order of the open design can be edited by hand.")
    slow_lanes = param.Dict(default={}, doc="By mesh, why a run is slow there; its measured lanes are marked.")
    shown_rows = param.Dict(default={}, doc="Rows of the open design that the page shows; see ``read_shown_rows``.")
    palette = param.Dict(default=as_data(), constant=True)

    _esm = module_code("timeline/timeline.js")
    _stylesheets: ClassVar = style_sheets(
        "kit/shell.css", "timeline/timeline.css", "timeline/edit.css", "timeline/depth.css"
    )

    def __init__(
        self,
        on_pin: Callable[[Pin | None], None] | None = None,
        on_open: Callable[[Pin | None], None] | None = None,
        **params: Any,
    ) -> None:
        """Create the chart.

        Args:
            on_pin: called with the pinned span, and with None when it is unpinned.
            on_open: called with the block whose inside should be shown, and with None to go back.
            **params: parameters of the widget.
        """
        super().__init__(**params)  # type: ignore[no-untyped-call]
        self._on_pin, self._on_open = on_pin, on_open
        self.on_order: Callable[[Mapping[str, Any]], None] | None = None  # handles requests of the edit mode
        self.on_note: Callable[[Mapping[str, Any]], str] | None = None  # adds a note; returns why it is refused
        self._inspectors: list[tuple[Layer, Inspector]] = []

    def show(self, layers: Sequence[Layer], stale: str = "", crumbs: Sequence[str] = ()) -> None:  # type: ignore[override]
        """Draw layers; the visible range stays the same if possible.

        ``stale`` is the reason why the layers are not of the current design, ``crumbs`` is the navigation path from
        the iteration to the inside of a block.
        """
        self._inspectors = [
            (layer, Inspector(layer.timeline, layer.bytes, layer.unit, layer.find_flows)) for layer in layers
        ]
        self.param.update(packed=pack_layers(layers, crumbs), stale=stale)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the page."""
        self._send_msg(dict(message))

    def _handle_msg(self, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "ask":
            self._send_msg({"type": "told", "ask": message.get("ask"), **self._answer(message)})
        elif kind == "unpin" and self._on_pin is not None:
            self._on_pin(None)
        elif kind == "pin" and self._on_pin is not None:
            self._on_pin(_read_pin(message))
        elif kind == "order" and self.on_order is not None:
            self.on_order(message)
        elif kind in ("open", "back") and self._on_open is not None:
            self._open_block(message)
        elif kind == "note" and self.on_note is not None:
            self.send({"type": "noted", "refused": self.on_note(message)})

    def _open_block(self, message: Mapping[str, Any]) -> None:
        """Show the inside of a block, or the step again; a refusal is sent to the page."""
        assert self._on_open is not None
        try:
            self._on_open(_read_pin(message) if message["type"] == "open" else None)
        except MeshwaveError as error:
            self.send({"type": "not-opened", "words": str(error)})

    def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question of the page, or the reason why there is none."""
        try:
            number = read_value(question, "layer", int)
            if not 0 <= number < len(self._inspectors):
                return {"refused": "that timeline is no longer shown"}
            return {"found": read_value(question, "what", QUESTIONS.__getitem__)(*self._inspectors[number], question)}
        except InputError as error:
            return {"refused": str(error)}
        except Exception as error:  # an internal error must not leave the page waiting
            traceback.print_exc()
            return {"refused": defect_text(error)}


def _selection_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any]:
    ranks = read_value(question, "ranks", parse_integers)
    return ask.summarize_area(read_value(question, "start", float), read_value(question, "end", float), ranks).as_data()


def _idle_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any] | None:
    rank = read_value(question, "rank", int)
    found = ask.explain_idle(rank, read_value(question, "at", float)) if 0 <= rank < layer.timeline.ranks else None
    return found.as_data() if found else None


def _path_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any]:
    timeline = layer.timeline
    bubbles = {"bubble_ratio": timeline.bubble_ratio, "span_bubble_ratio": timeline.span_bubble_ratio}
    return {**ask.path.as_data(), **bubbles, "by_port_s": ask.seconds_by_port(), "can_change": layer.played is not None}


def _what_if_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> list[dict[str, Any]]:
    if layer.played is None:
        raise Refusal("measured_what_if")
    program, costs = layer.played
    faster = read_value(question, "faster", float)
    if not 0 < faster < 1:
        raise Refusal("saved_share_out_of_range", {"share": faster})
    most = 8 if len(program) < LARGE_PROGRAM_ROWS else 4
    return [answer.as_data() for answer in rank_changes(program, costs, ask.path, faster, most)]


def _search_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any]:
    return ask.parse_query(read_value(question, "text", plain_text)).as_data()


def _limit_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> str:
    """Return a description of the port that limits a message or an exchange; empty if unknown."""
    timeline = layer.timeline
    names = ("rank", "op", "stage", "microbatch", "other")
    columns = (timeline.rank, timeline.op, timeline.stage, timeline.microbatch, timeline.other)
    same = np.all(
        [column == read_value(question, name, int) for name, column in zip(names, columns, strict=True)], axis=0
    )
    found = [
        ask.find_limit(span, read_value(question, "start", float), read_value(question, "end", float))
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
    "area": _selection_answer, "idle": _idle_answer, "path": _path_answer, "what_if": _what_if_answer, "find": _search_answer, "limit": _limit_answer,
}  # fmt: skip
"""Questions that the page can ask about a layer; the answers are plain data, computed in Python."""


def _read_pin(message: Mapping[str, Any]) -> Pin:
    stage, microbatch, layer, rank = (read_value(message, key, int) for key in ("stage", "microbatch", "layer", "rank"))
    other = read_value({"other": -1, **message}, "other", int)  # the target stage of a message that skips stages
    return Pin(layer, rank, Action(read_value(message, "op", Op.__getitem__), stage, microbatch, other=other))
