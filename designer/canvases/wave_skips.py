"""The skip connections of a model as the wave canvas draws them: between which stages, and what travels."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwave.engine.costs import Costs
from meshwave.engine.costs.device_sizes import workload
from meshwave.engine.document import Design
from meshwave.engine.lowering.transfers import skips_by_stages
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.units import duration, quantity


def skips(design: Design, program: Program, costs: Costs) -> list[dict[str, Any]]:
    """One arc for the tensors that skip ``from`` a stage ``to`` a later one in a ``replica`` of the model; none for a
    model without skip connections.

    Their ``way`` is ``sent`` straight there, ``beside`` what the next stage takes anyway, or ``kept`` on the mesh
    that holds both stages; ``words`` say what travels.
    """
    sends = _sends(program) if len(program.skips) else {}
    arcs, blocks = [], skips_by_stages(design.model.skips, costs.layers)
    for source, target, units in program.skips.tolist():
        tensors = len(blocks.get((source, target), ()))
        for replica, route in enumerate(program.placement.tolist()):
            row = sends.get((source, target, replica))
            ends = {"from": source, "to": target, "replica": replica}
            if route[source] == route[target]:
                arcs.append(
                    {**ends, "way": "kept", "words": _kept(design, route[source], (source, target), tensors, units)}
                )
            elif row is not None:  # a replica may have no microbatch
                way = "sent" if program.other[row] >= 0 else "beside"
                arcs.append({**ends, "way": way, "words": _sent(design, program, costs, row, target, tensors)})
    return arcs


def _sends(program: Program) -> dict[tuple[int, int, int], int]:
    """The row of the message from a stage to another one in each replica, that of its first microbatch."""
    _, first = np.unique(program.replica, return_index=True)
    rows = np.flatnonzero((program.op == Op.SEND_F) & np.isin(program.microbatch, first))
    stage, other = program.stage[rows], program.other[rows]
    ends = (stage, np.where(other >= 0, other, stage + 1), program.replica[program.microbatch[rows]])
    return dict(zip(zip(*(end.tolist() for end in ends), strict=True), rows.tolist(), strict=True))


def _sent(design: Design, program: Program, costs: Costs, row: int, target: int, tensors: int) -> str:
    """Of tensors that change meshes, by the message that holds them."""
    meshes = [design.meshes[int(rank)] for rank in (program.rank[row], program.peer[row])]
    size = f"{quantity(float(costs.bytes[row]), 'B')} {_of_each(len(meshes[0].devices))}"
    took = duration(float(costs.seconds[row]), costs.unit)
    from_to = f"from mesh {meshes[0].name} to mesh {meshes[1].name}, {took} on the link"
    said = f"{_tensors(tensors)} from stage {int(program.stage[row])} to stage {target}"
    if program.other[row] >= 0:
        way = f"{size}, in one message straight {from_to}"
    else:
        way = f"they travel beside its input, {size} with it, in one message {from_to}"
    return f"{said}: {way}; their gradients come back the same way"


def _kept(design: Design, rank: int, ends: tuple[int, int], tensors: int, units: int) -> str:
    """Of tensors whose two stages lie on one mesh, and which hold so many units of a message."""
    mesh, (source, target) = design.meshes[rank], ends
    size = f"{quantity(units * workload(design, mesh).hidden_bytes, 'B')} {_of_each(len(mesh.devices))}"
    return f"{_tensors(tensors)} from stage {source} to stage {target}: both are on mesh {mesh.name}, which keeps {size}; nothing is sent"


def _tensors(number: int) -> str:
    return "1 tensor skips" if number == 1 else f"{number} tensors skip"


def _of_each(devices: int) -> str:
    return "a microbatch" if devices == 1 else "a device and microbatch"
