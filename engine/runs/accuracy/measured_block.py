"""The measured inside of a block of the pipeline, as the predicted one is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import price_expert_layer
from meshwave.engine.document.meshes import Mesh
from meshwave.engine.errors import RunError
from meshwave.engine.experts import StepOp
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
from meshwave.engine.runs.recording import LayerSteps, MeasuredInside, Way

# ---- measured ----


def measured_inside(design: Design, rank: int, op: Op, found: MeasuredInside) -> BlockTimeline:
    """What a run has measured of a forward or a backward, on the devices of :func:`~meshwave.engine.predict.block_timeline.block_places`.

    A collective lies on the links between nodes where its group touches several; one that shares its
    links with an earlier one is shown from when that was there. What is computed between the layers of
    experts is one span, from when one is done to when the next begins.

    Raises:
        RunError: it has steps that this version does not know.
    """
    if unknown := sorted({*found.ops} - {*StepOp}):
        raise RunError(f"the run recorded steps of layers that this version does not know: {', '.join(unknown)}")
    spans = BlockTimelineBuilder(design, rank, op)
    lanes = _lanes(design, design.meshes[rank], spans.block)
    zero = min(found.start_ns)
    for device, rows in enumerate(found.steps):
        begins, ends = ((each[device] - zero) / 1e9 for each in (found.start_ns, found.end_ns))
        free = [0.0] * len(LANES)
        for start, end, words, step in _in_order(rows, found.ops, zero, begins, ends):
            lane = COMPUTE if step is None else lanes[device].get(step, COMPUTE)
            start = max(start, free[lane])
            free[lane] = end = max(start, end)
            spans.add(BlockSpan(device, lane, start, end, words, step, 0.0, spans.last_span(device)))
    return spans.build("measured")


def _in_order(
    rows: LayerSteps, ops: tuple[str, ...], zero: int, begins: float, ends: float
) -> Iterator[tuple[float, float, str, StepOp | None]]:
    """The steps of one device and what is dense between its layers: start, end, words, step."""
    now, at = begins, None
    for row in rows:
        start, end = ((int(row[column]) - zero) / 1e9 for column in ("start_ns", "end_ns"))
        layer = int(row["layer"]), row["way"] == Way.FORWARD
        if layer != at and start > now:
            yield now, start, DENSE_LAYERS, None
        step = StepOp(ops[row["op"]])
        yield start, end, step_label(step, layer[0], int(row["chunk"])), step
        now, at = max(now, end), layer
    if ends > now:
        yield now, ends, DENSE_LAYERS if len(rows) else WHOLE_BLOCK, None


def _lanes(design: Design, mesh: Mesh, block: tuple[int, ...]) -> list[Mapping[StepOp, int]]:
    """[devices] the lane of each collective of an expert layer."""
    if design.model.moe is None:
        return [{} for _ in block]
    priced = price_expert_layer(design, mesh)
    steps = [costed.step for costed in (*priced.forward, *priced.backward)]
    groups = {step.op: step.group for step in steps if step.collective}
    nodes = [design.cluster.node_of(device) for device in block]

    def lane(group: str, device: int) -> int:
        return INTER if len({nodes[member] for member in priced.layer.members(group, device)}) > 1 else INTRA

    return [{op: lane(group, device) for op, group in groups.items()} for device in range(len(block))]
