"""Timelines as bytes: a header and columns, which ``static/timeline/data.js`` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwave.designer.kit.memory_labels import memory_label
from meshwave.designer.views.lane_groups import LaneGroups, group_choices, group_columns
from meshwave.designer.views.timeline_links import pack_links
from meshwave.engine.costs import Costs
from meshwave.engine.exports.pictures.palette import shades, tints
from meshwave.engine.predict.link_flows import LinkFlows
from meshwave.engine.predict.link_lanes import LinkLanes
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.predict.questions import Work
from meshwave.engine.program.action import COLLECTIVES, SENDS, Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.row_order import lexical_order
from meshwave.engine.program.timeline import Floats, Timeline

FORMAT = "meshwave-timeline-view/1"
TICKS = 2**32 - 1  # length of the longest timeline; starts and ends are unsigned 32-bit integers
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
    memory_parts: Sequence[tuple[Floats, Mapping[str, Floats]]] = ()  # memory by category, if the meshes are few
    capacity: float | None = None  # memory of one device in bytes
    critical: NDArray[np.bool_] | None = None  # [spans] True on the critical path
    stages_layers: Sequence[int] | None = None  # number of layers of each stage
    unit: Literal["s", "units"] = "s"
    bytes: Floats | None = None  # [spans] bytes of a transfer
    work: Work | None = None  # FLOPs of the computations
    over: bool = False  # True if drawn in the lower half of the lanes of the previous layer
    priced: tuple[Program, Costs] | None = None  # inputs of a prediction, to simulate it with changes
    steps: BlockSteps | None = None  # given if the layer is the inside of a block
    opens: bool = False  # True if the inside of its computations can be shown
    crosses: bool = False  # True if the transfers behind its arrows can be shown
    links: LinkLanes | str | None = None  # lanes of the links, or the reason why there are none; None if not requested
    blocked: NDArray[np.bool_] | None = None  # [spans] True for actions that a deadlock blocks
    prediction: Prediction | None = None  # drawn with its memory and links in exported pictures
    find_flows: Callable[[], LinkFlows | None] = lambda: None  # flows on the links, to explain delays
    groups: Sequence[LaneGroups] = ()
    port_groups: Mapping[str, Sequence[int]] = field(
        default_factory=dict
    )  # by criterion, the group of each link lane, or -1

    @property
    def memory_categories(self) -> list[str]:
        """Categories of :attr:`memory_parts`."""
        return list(self.memory_parts[0][1]) if self.memory_parts else []


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
    if layer.blocked is not None:
        stored["blocked"] = columns.append(layer.blocked[order], "uint8")
    if layer.bytes is not None:
        stored["bytes"] = columns.append(layer.bytes[moves], "float32")
    if layer.work is not None:
        stored["placement"] = columns.append(layer.work.placement.ravel(), _integer_dtype(layer.work.placement))
        stored["flops"] = columns.append(layer.work.flops.ravel(), "float32")
    stored |= _pack_memory(layer, columns, ticks)
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
        "microbatches": timeline.microbatches,
        "makespan": timeline.makespan,
        "tints": tints(shade),
        "capacity": layer.capacity,
        "memory_kinds": [memory_label(category) for category in layer.memory_categories],
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
    kind = _LANE_KINDS[timeline.op]
    order = lexical_order((timeline.start, timeline.rank, kind))
    order = order[: len(order) - np.count_nonzero(timeline.op == Op.RESHARD)]
    lanes = np.bincount(
        kind[order].astype(np.int32) * timeline.ranks + timeline.rank[order], minlength=3 * timeline.ranks
    )
    return order, np.concatenate(([0], np.cumsum(lanes)))


_LANE_KINDS = np.zeros(len(Op), np.int8)  # of the spans of each op; RESHARD last
_LANE_KINDS[[*COLLECTIVES, *SENDS, Op.RESHARD]] = [*(1 for _ in COLLECTIVES), *(2 for _ in SENDS), 3]


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


def _pack_memory(layer: Layer, columns: _Columns, ticks: float) -> dict[str, Any]:
    if layer.memory is None:
        return {}
    times, held = (np.concatenate([np.asarray(curve[part], float) for curve in layer.memory]) for part in (0, 1))
    parts = [np.concatenate([of_rank[kind] for _, of_rank in layer.memory_parts]) for kind in layer.memory_categories]
    return {
        "memory_bounds": columns.append(np.cumsum([0, *(len(times) for times, _ in layer.memory)]), "int32"),
        "memory_time": columns.append(_to_ticks(times, ticks), "uint32"),
        "memory_bytes": columns.append(held, "float32"),
        **{f"memory_part_{number}": columns.append(part, "float32") for number, part in enumerate(parts)},
    }
