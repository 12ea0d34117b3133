"""Experts of a design in its HTML export: placement, schedule with its reason, and timeline of an expert layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from meshwave.engine.document.expert_layers import COMMON, price_expert_layer
from meshwave.engine.experts import (
    LAYER_OPS,
    Layer,
    LayerTimeline,
    Price,
    Step,
    StepOp,
    device_load,
    dropped_token_share,
    expert_schedules,
    simulate_layer,
)
from meshwave.engine.exports._markup import escape
from meshwave.engine.exports.pictures.palette import Theme
from meshwave.engine.exports.pictures.rows import ShownTimeline
from meshwave.engine.exports.pictures.shapes import Line, Picture, Shape, Text
from meshwave.engine.exports.pictures.sheet import Extent, Sheet, label_width
from meshwave.engine.exports.svg import theme_aware_svg
from meshwave.engine.predict.block_timeline import representative_places
from meshwave.engine.program.action import Op
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.units import format_ranges, percent, quantity

if TYPE_CHECKING:
    from meshwave.engine.document import Design
    from meshwave.engine.predict.prediction import Prediction

LANES = ("compute", "inside the node", "between nodes")
KINDS: Mapping[Op, str] = {
    Op.F: "experts",
    Op.B: "dispatch",
    Op.I: "combine",
    Op.W: "gather and reduce",
    Op.STEP: "gate and order",
}
"""Meaning of the colours of computations in an expert layer, as on the cards of expert schedules."""
MAX_LANES = 24
"""Maximum number of lanes; a layer with more lanes is shown on the device that finishes last."""
MAX_ROWS = 16
"""Maximum number of rows of a placement table that is not folded."""


class _Group(NamedTuple):
    """Expert layer that is equal on several meshes."""

    meshes: tuple[str, ...]
    layers: tuple[int, ...]  # numbers of the layers; COMMON for all without a placement of their own
    devices: tuple[int, ...]  # layer of the first mesh
    price: Price


def experts_section(prediction: Prediction) -> Iterator[str]:
    """Yield the HTML lines of the section; none if the model has no experts."""
    design = prediction.design
    if not design.model.expert_blocks:
        return
    yield '<section id="experts"><h2>Experts</h2>'
    for group in _equal_layers(design):
        yield from _group_lines(design, group)
    yield "</section>"


def _equal_layers(design: Design) -> list[_Group]:
    found: dict[tuple[str, Layer], _Group] = {}
    numbers = (COMMON, *design.experts.own_layers)
    for (rank, mesh), number in product(enumerate(design.meshes), numbers):
        priced = price_expert_layer(design, mesh, number)
        nodes = priced.layer.nodes or ()
        order = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
        alike = priced.name, replace(priced.layer, nodes=tuple(order[node] for node in nodes))
        before = found.get(alike)
        devices = tuple(mesh.ordered_devices[place] for place in representative_places(design, rank))
        names = dict.fromkeys((*(before.meshes if before else ()), mesh.name))
        layers = dict.fromkeys((*(before.layers if before else ()), number))
        found[alike] = _Group((*names,), (*layers,), *(before[2:] if before else (devices, priced)))
    return list(found.values())


def _group_lines(design: Design, group: _Group) -> Iterator[str]:
    layer, price = group.price.layer, group.price
    forward, backward = (simulate_layer(price, way) for way in (price.forward, price.backward))
    yield f"<h3>{escape(_group_title(group))}</h3>"
    yield f"<p>{escape(_describe_choice(design, price))}</p>"
    load = device_load(layer, expert_schedules[price.name].places)
    inside, between = np.sum([costed.sent for costed in price.forward], axis=0).sum(axis=1)
    told = [
        ("schedule", escape(expert_schedules[price.name].title)),
        ("load imbalance (maximum / mean)", f"{load.max() / load.mean():.3g}×"),
        ("forward, backward of a layer", f"{quantity(forward.makespan, 's')}, {quantity(backward.makespan, 's')}"),
        ("sent within nodes (forward)", quantity(float(inside), "B")),
        ("sent between nodes (forward)", quantity(float(between), "B")),
        ("chunks", str(layer.degree)),
    ]
    if layer.capacity_factor is not None:
        told.append(("expected dropped token assignments", percent(dropped_token_share(price.name, layer))))
    yield "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in told) + "</dl>"
    if len(forward.start):
        yield f'<div class="layer">{_layer_drawing(group, forward, backward)}</div>'
    yield from _placement_table(layer, group.devices, load[:: layer.esp].tolist())


def _group_title(group: _Group) -> str:
    layer, names = group.price.layer, group.meshes
    room = "no tokens dropped" if layer.capacity_factor is None else f"capacity factor {layer.capacity_factor:g}"
    where = f"mesh{'es' * (len(names) > 1)} {', '.join(names)}"
    folded = expert_schedules[group.price.name].places == "mp"
    over = f"over tp {layer.mp}" if folded else f"ep {layer.ep}, esp {layer.esp}, tp {layer.mp}"
    size = f"{layer.experts} experts of {layer.hidden} × {layer.ffn_hidden}, top {layer.top_k}, {room}"
    own = ", ".join(str(number) for number in group.layers if number != COMMON)
    of_layers = f"layer {own}; " if own and COMMON not in group.layers else ""
    return f"{of_layers}{size}; on {where}, {over}"


def _describe_choice(design: Design, price: Price) -> str:
    """Return the name of the design's schedule, or the automatic choice and its reason."""
    member = expert_schedules[design.experts.member]
    if price.choice is not None:
        return f"{member.title} chose {expert_schedules[price.name].title}: {price.choice.titled_reason}."
    first, *_ = member.help().split("\n\n")
    return f"{member.title}, set in the design. {' '.join(first.split())}"


# ---- placement ----


def _placement_table(layer: Layer, devices: Sequence[int], load: Sequence[float]) -> Iterator[str]:
    placement = layer.experts_by_place(layer.ep)
    copies = sum(map(len, placement)) - layer.experts
    words = f"Placement: {len(placement)} places" + (f", {copies} replica{'s' * (copies != 1)}" if copies else "")
    yield f"<details{' open' * (len(placement) <= MAX_ROWS)}><summary>{words}</summary><table><thead><tr>"
    heads = (
        "devices" if layer.esp > 1 else "device",
        "experts",
        "load relative to an even share",
        "share of all tokens",
    )
    yield "".join(f'<th scope="col">{head}</th>' for head in heads) + "</tr></thead><tbody>"
    for place, (held, part) in enumerate(zip(placement, load, strict=True)):
        own = devices[place * layer.esp : (place + 1) * layer.esp]
        cells = (format_ranges(held), f"{part:.3g}×", percent(part / layer.ep))
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        yield f'<tr><th scope="row">{format_ranges(own)}</th>{row}</tr>'
    yield "</tbody></table></details>"


# ---- timeline of a layer ----


def _layer_drawing(group: _Group, forward: LayerTimeline, backward: LayerTimeline) -> str:
    """Return a drawing of the forward followed by the backward, on all devices or on the one that finishes last."""
    light, dark = (_layer_picture(group, forward, backward, theme) for theme in ("light", "dark"))
    return theme_aware_svg(light, dark, "One expert layer")


def _layer_picture(group: _Group, forward: LayerTimeline, backward: LayerTimeline, theme: Theme) -> Picture:
    used = {(device, lane) for way in (forward, backward) for device, lane in zip(way.device, way.lane, strict=True)}
    lanes = sorted((int(device), int(lane)) for device, lane in used)
    last = int(forward.device[np.argmax(forward.end)])
    if len(lanes) > MAX_LANES:
        lanes = [each for each in lanes if each[0] == last]
    shown = len({device for device, _ in lanes})
    which = "" if shown == group.price.layer.devices else f" on device {group.devices[last]}, which finishes last"
    sheet = LayerSheet.from_timelines(group.devices, lanes, forward, backward, theme)
    return sheet.picture(f"One layer, forward and backward{which}", dense=False)


class LayerSheet(Sheet):
    """Sheet of one expert layer, with the lanes of its devices during a forward and a backward."""

    gutter: ClassVar = 118
    turn: float
    """Start of the backward in seconds."""
    _words: list[str]
    _hues: list[int]

    @classmethod
    def from_timelines(
        cls,
        devices: Sequence[int],
        lanes: list[tuple[int, int]],
        forward: LayerTimeline,
        backward: LayerTimeline,
        theme: Theme,
    ) -> LayerSheet:
        rows: list[tuple[int, int, float, float, int]] = []
        words: list[str] = []
        for way, began in ((forward, 0.0), (backward, forward.makespan)):
            for span in range(len(way.start)):
                at = int(way.device[span]), int(way.lane[span])
                if at in lanes:
                    op, chunk = LAYER_OPS[way.op[span]], int(way.chunk[span])
                    times = began + float(way.start[span]), began + float(way.end[span])
                    rows.append((lanes.index(at), int(_palette_op(op)), *times, max(chunk, 0)))
                    words.append(op.value + (f", chunk {chunk}" if chunk >= 0 else ""))
        names = tuple(f"{devices[device]} {LANES[lane]}" for device, lane in lanes)
        timeline = _spans_as_timeline(names, rows)
        extent = Extent(0.0, float(timeline.end.max()), 1440, theme=theme)
        sheet = cls(timeline, extent, ShownTimeline(timeline).drawn_rows)
        places = list(dict.fromkeys(device for device, _ in lanes))
        sheet.turn, sheet._words, sheet._hues = forward.makespan, words, [places.index(device) for device, _ in lanes]
        return sheet

    def shapes(self, title: str, dense: bool) -> Iterator[Shape]:
        yield from super().shapes(title, dense)
        x = float(self.x(self.turn))
        yield Line(x, self.top - 6, x, self.bottom, self.colours["text"], 1)
        yield Text(x + 4, self.bottom + 7, "backward", self.colours["muted"], 10.5)

    def heading_figures(self) -> str:
        return f"predicted, {self.time(self.turn)} + {self.time(self.timeline.makespan - self.turn)}"

    def legend_text(self, op: Op) -> str:
        return KINDS[op]

    def colour_index(self, rank: int) -> int:
        return self._hues[rank]

    def tooltip(self, span: int) -> str:
        t = self.timeline
        start, took = self.time(float(t.start[span])), self.time(float(t.end[span] - t.start[span]))
        return f"{self._words[span]} on {t.meshes[t.rank[span]]}: starts at {start}, takes {took}"

    def label(self, span: int, room: float, shortest: float) -> str:
        words = self._words[span]
        return words if label_width(words) <= room else ""


def _spans_as_timeline(names: tuple[str, ...], rows: Sequence[tuple[int, int, float, float, int]]) -> Timeline:
    n = len(rows)
    rank, op, start, end, chunk = (np.array([row[column] for row in rows]) for column in range(5))
    return Timeline(
        source="predicted",
        digest="",
        meshes=names,
        rank=rank.astype(np.int32),
        peer=np.full(n, -1, np.int32),
        op=op.astype(np.int8),
        stage=np.zeros(n, np.int32),
        microbatch=chunk.astype(np.int32),
        fused=np.zeros(n, np.bool_),
        start=start.astype(np.float64),
        end=end.astype(np.float64),
        cause=np.full(n, -1, np.int64),
    )


def _palette_op(op: StepOp) -> Op:
    known = {StepOp.EXPERTS: Op.F, StepOp.DISPATCH: Op.B, StepOp.COMBINE: Op.I}
    return known.get(op, Op.W if Step(op).collective else Op.STEP)
