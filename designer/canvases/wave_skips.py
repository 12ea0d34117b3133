"""The skip connections of a model on the wave canvas: their stages, tensors and messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwave.engine.costs import Costs
from meshwave.engine.costs.device_sizes import device_workload
from meshwave.engine.document import Design
from meshwave.engine.lowering.transfers import skips_by_stages
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.units import duration, quantity


def skip_arcs(design: Design, program: Program, costs: Costs) -> list[dict[str, Any]]:
    """Return an arc per replica and pair of stages between which tensors skip stages.

    ``way`` is ``sent`` for a direct message, ``beside`` for tensors that travel with the input of the next stage, or
    ``kept`` if one mesh holds both stages. ``words`` is a sentence about the tensors.
    """
    sends = _first_messages(program) if len(program.skips) else {}
    arcs, blocks = [], skips_by_stages(design.model.skips, costs.layers)
    for source, target, units in program.skips.tolist():
        tensors = len(blocks.get((source, target), ()))
        for replica, route in enumerate(program.placement.tolist()):
            row = sends.get((source, target, replica))
            ends = {"from": source, "to": target, "replica": replica}
            if route[source] == route[target]:
                arcs.append(
                    {
                        **ends,
                        "way": "kept",
                        "words": _describe_local(design, route[source], (source, target), tensors, units),
                    }
                )
            elif row is not None:  # a replica may have no microbatch
                way = "sent" if program.other[row] >= 0 else "beside"
                arcs.append(
                    {**ends, "way": way, "words": _describe_message(design, program, costs, row, target, tensors)}
                )
    return arcs


def _first_messages(program: Program) -> dict[tuple[int, int, int], int]:
    """Return the program row of the first message of each replica between two stages."""
    _, first = np.unique(program.replica, return_index=True)
    rows = np.flatnonzero((program.op == Op.SEND_F) & np.isin(program.microbatch, first))
    stage, other = program.stage[rows], program.other[rows]
    ends = (stage, np.where(other >= 0, other, stage + 1), program.replica[program.microbatch[rows]])
    return dict(zip(zip(*(end.tolist() for end in ends), strict=True), rows.tolist(), strict=True))


def _describe_message(design: Design, program: Program, costs: Costs, row: int, target: int, tensors: int) -> str:
    """Describe the skip tensors of a message to another mesh."""
    meshes = [design.meshes[int(rank)] for rank in (program.rank[row], program.peer[row])]
    size = f"{quantity(float(costs.bytes[row]), 'B')} {_per_device_text(len(meshes[0].devices))}"
    took = duration(float(costs.seconds[row]), costs.unit)
    from_to = f"from mesh {meshes[0].name} to mesh {meshes[1].name}, {took} on the link"
    subject = f"{_tensor_count_text(tensors)} from stage {int(program.stage[row])} to stage {target}"
    if program.other[row] >= 0:
        way = f"{size}, in one direct message {from_to}"
    else:
        way = f"sent with the stage input in one message {from_to} ({size} in total)"
    return f"{subject}: {way}; the gradients return the same way"


def _describe_local(design: Design, rank: int, ends: tuple[int, int], tensors: int, units: int) -> str:
    """Describe the skip tensors between two stages of one mesh."""
    mesh, (source, target) = design.meshes[rank], ends
    size = f"{quantity(units * device_workload(design, mesh).hidden_bytes, 'B')} {_per_device_text(len(mesh.devices))}"
    return (
        f"{_tensor_count_text(tensors)} from stage {source} to stage {target}: both stages are on mesh {mesh.name}, which stores "
        f"{size}; nothing is sent"
    )


def _tensor_count_text(number: int) -> str:
    return "1 skip tensor" if number == 1 else f"{number} skip tensors"


def _per_device_text(devices: int) -> str:
    return "per microbatch" if devices == 1 else "per device and microbatch"
