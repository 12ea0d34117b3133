"""Measured timeline inside a block of the pipeline, in the same form as the predicted one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import price_expert_layer
from meshwave.engine.document.meshes import Mesh
from meshwave.engine.experts import StepOp
from meshwave.engine.findings import RunRefusal
from meshwave.engine.predict.block_timeline import (
    COMPUTE,
    DENSE_LAYERS,
    INTER,
    INTRA,
    LANES,
    WHOLE_BLOCK,
    BlockSpan,
    BlockTimeline,
    BlockTimelineBuilder,
    step_label,
)
from meshwave.engine.program.action import Op
from meshwave.engine.runs.recording import LayerPass, LayerSteps, MeasuredLayerSteps


def measured_block_timeline(design: Design, rank: int, op: Op, found: MeasuredLayerSteps) -> BlockTimeline:
    """Return the measured timeline of the layers in a forward or backward, on the devices of the block.

    The devices are those of :func:`~meshwave.engine.predict.block_timeline.representative_places`. A collective whose group
    spans several nodes is on the lane of links between nodes. A collective that overlaps with an earlier one on the
    same links is shown after it. The computation between two expert layers is one span.

    Raises:
        RunError: the recording contains kinds of layer steps that are unknown to this version.
    """
    if unknown := sorted({*found.ops} - {*StepOp}):
        raise RunRefusal("unknown_layer_steps", {"steps": unknown})
    spans = BlockTimelineBuilder(design, rank, op)
    lanes = _read_lanes(design, design.meshes[rank], spans.block)
    zero = min(found.start_ns)
    for device, rows in enumerate(found.steps):
        begins, ends = ((each[device] - zero) / 1e9 for each in (found.start_ns, found.end_ns))
        free = [0.0] * len(LANES)
        for start, end, label, step in _device_steps(rows, found.ops, zero, begins, ends):
            lane = COMPUTE if step is None else lanes[device].get(step, COMPUTE)
            start = max(start, free[lane])
            free[lane] = end = max(start, end)
            spans.add(BlockSpan(device, lane, start, end, label, step, 0.0, spans.last_span(device)))
    return spans.build("measured")


def _device_steps(
    rows: LayerSteps, ops: tuple[str, ...], zero: int, begins: float, ends: float
) -> Iterator[tuple[float, float, str, StepOp | None]]:
    """Yield start, end, label and kind of each layer step of a device, and of the computation between layer steps."""
    now, at = begins, None
    for row in rows:
        start, end = ((int(row[column]) - zero) / 1e9 for column in ("start_ns", "end_ns"))
        layer = int(row["layer"]), row["way"] == LayerPass.FORWARD
        if layer != at and start > now:
            yield now, start, DENSE_LAYERS, None
        step = StepOp(ops[row["op"]])
        yield start, end, step_label(step, layer[0], int(row["chunk"])), step
        now, at = max(now, end), layer
    if ends > now:
        yield now, ends, DENSE_LAYERS if len(rows) else WHOLE_BLOCK, None


def _read_lanes(design: Design, mesh: Mesh, block: tuple[int, ...]) -> list[Mapping[StepOp, int]]:
    """Return the lane index of each collective of an expert layer, one mapping per device."""
    if design.model.moe is None:
        return [{} for _ in block]
    priced = price_expert_layer(design, mesh)
    steps = [costed.step for costed in (*priced.forward, *priced.backward)]
    groups = {step.op: step.group for step in steps if step.collective}
    nodes = [design.cluster.node_of(device) for device in block]

    def lane(group: str, device: int) -> int:
        return INTER if len({nodes[member] for member in priced.layer.members(group, device)}) > 1 else INTRA

    return [{op: lane(group, device) for op, group in groups.items()} for device in range(len(block))]
