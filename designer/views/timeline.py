"""The timelines of a step, drawn: the Python face of ``static/timeline.js``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import param
from numpy.typing import NDArray
from panel.custom import JSComponent

from designer.canvases._canvas import read_static, shared_modules
from engine.errors import InputError
from engine.palette import as_data, shades, tints
from engine.program.action import Action, Op
from engine.timeline import Floats, Timeline

FORMAT = "meshwave-timeline-view/1"
TICKS = 2**32 - 1  # of the axis: a start or end is an unsigned 32-bit part of the longest timeline
CRITICAL = 0x80  # set in the op of a span that lies on the critical path

Curve = tuple[Floats, Floats]


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
    over: bool = False  # drawn in the lanes of the layer before, which then share them half and half


@dataclass(frozen=True)
class Pin:
    """The span that a person pinned: the layer's number, the rank and the action."""

    layer: int
    rank: int
    action: Action


def pack(layers: Sequence[Layer]) -> bytes:
    """Put the layers into the form that travels: a JSON header with its length before it, and columns.

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
    header = {"format": FORMAT, "horizon": horizon, "unit": layers[0].unit, "layers": packed}
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
    shade = shades(timeline)
    moves = order[bounds[2 * timeline.ranks] :]
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
    if layer.bytes is not None:
        stored["bytes"] = columns.add(layer.bytes[moves], "float32")
    if layer.memory is not None:
        stored |= _pack_memory(layer.memory, columns, ticks)
    return {
        "label": layer.label,
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
    palette = param.Dict(default=as_data(), constant=True)

    _esm = read_static("timeline.js")
    _importmap: ClassVar = shared_modules(
        "canvas.js", "palette.js", "timeline_data.js", "timeline_memory.js", "timeline_paint.js", "timeline_words.js"
    )  # fmt: skip
    _stylesheets: ClassVar = [read_static("canvas.css"), read_static("timeline.css")]

    def __init__(self, on_pin: Callable[[Pin | None], None] | None = None, **params: Any) -> None:
        """``on_pin`` hears what a person pins, and None when the pin is taken off."""
        super().__init__(**params)  # type: ignore[no-untyped-call]
        self._on_pin = on_pin

    def show(self, layers: Sequence[Layer], stale: str = "") -> None:  # type: ignore[override]
        """Draw ``layers``; the view stays where it is where that still makes sense."""
        self.param.update(packed=pack(layers), stale=stale)

    def _handle_msg(self, message: Mapping[str, Any]) -> None:
        if self._on_pin is None:
            return
        if message.get("type") == "unpin":
            self._on_pin(None)
        elif message.get("type") == "pin":
            self._on_pin(_read_pin(message))


def _read_pin(message: Mapping[str, Any]) -> Pin:
    try:
        action = Action(Op[str(message["op"])], int(message["stage"]), int(message["microbatch"]))
        return Pin(int(message["layer"]), int(message["rank"]), action)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the page sent a pin that names no action: {dict(message)!r}") from error
