"""Numbered flows of one step of a program, and the devices that announce each flow during the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import COLLECTIVES, Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network
from meshwave.engine.program.simulation import flow_bytes

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FlowTable:
    """Flows of one step of a program, and the shared cells in which devices announce them.

    A row of the program has one flow, or several if its communication is split into parts. Each participant of a flow
    has a cell for it: the devices of a mesh, or for a reduction the devices of all meshes that hold the stage.
    """

    network: Network
    kind: Int64s  # [flows]
    size: Floats  # [flows] bytes
    is_message: NDArray[np.bool_]  # [flows]
    after: Int64s  # [flows] flow that must end before this one can be ready, -1 for none
    first: Int64s  # [rows] first flow of each row, -1 for none
    parts: Int64s  # [rows] number of flows
    beside: Int64s  # [rows] first of the flows beside a computation, one for each of its parts; -1 for none
    group: Int64s  # [flows] group of participants; flows of one group share their cells
    cells: Int64s  # [groups + 1] first cell of each group
    made: Mapping[int, tuple[int, ...]]  # flows of the messages that each slot produces, by slot

    @classmethod
    def from_program(cls, program: Program, seconds: Floats, network: Network, lanes: Sequence[int]) -> FlowTable:
        """Return the flow table of a program.

        Args:
            program: the program.
            seconds: ``[rows]`` modelled seconds, as for the simulator.
            network: the shared network.
            lanes: ``[ranks]`` number of devices that announce the messages of a mesh.
        """
        has_flow = (network.row_kind >= 0) & ~(program.is_work & program.fused)
        rows = np.flatnonzero(has_flow)
        parts = np.where(has_flow, network.parts, 0)
        has_beside = np.flatnonzero(network.beside_kind >= 0)
        own, beside = np.repeat(rows, parts[rows]), np.repeat(has_beside, network.parts[has_beside])
        row = np.concatenate((own, beside))
        first_beside = np.full(len(program), -1, np.int64)
        first_beside[has_beside] = len(own) + np.cumsum(network.parts[has_beside]) - network.parts[has_beside]
        first = np.where(has_flow, np.cumsum(parts) - parts, -1)
        sizes = flow_bytes(program, seconds, network)
        after = np.full(len(row), -1, np.int64)
        for op in COLLECTIVES:  # a rank runs those of one kind one after the other
            found = np.flatnonzero(program.op[row] == op)
            same = np.flatnonzero(program.rank[row[found[1:]]] == program.rank[row[found[:-1]]])
            after[found[same + 1]] = found[same]
        group, members = _participant_groups(program, row, lanes)
        return cls(
            network=network,
            kind=np.concatenate((network.row_kind[own], network.beside_kind[beside])),
            size=np.concatenate((sizes[own], network.beside_bytes[beside])) / network.parts[row],
            is_message=program.is_send[row],
            after=after,
            first=first.astype(np.int64),
            parts=parts,
            beside=first_beside,
            group=group,
            cells=np.concatenate(([0], np.cumsum(members))).astype(np.int64),
            made=_produced_flows(program, first),
        )

    def cell(self, flow: int, place: int) -> int:
        """Return the index of the table cell of participant number ``place`` of a flow."""
        return int(self.cells[self.group[flow]]) + place

    def flows_of_row(self, row: int) -> range:
        """Return the indices of the flows of a row, in order."""
        first = int(self.first[row])
        return range(first, first + int(self.parts[row])) if first >= 0 else range(0)

    def flows_beside(self, row: int) -> range:
        """Return the indices of the flows beside the computation of a row, one for each of its parts, in order."""
        first = int(self.beside[row])
        return range(first, first + int(self.network.parts[row])) if first >= 0 else range(0)


def _produced_flows(program: Program, first: Int64s) -> dict[int, tuple[int, ...]]:
    """Return the flows of the messages that each slot produces, by the slot's first row."""
    found: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    for send, maker in zip(*(column.tolist() for column in program.send_rows), strict=True):
        if first[send] >= 0:
            found[int(program.slot[maker])] += (int(first[send]),)
    return dict(found)


def _participant_groups(program: Program, row: Int64s, lanes: Sequence[int]) -> tuple[Int64s, list[int]]:
    """Return the group of each flow, ``[flows]``, and the number of participants of each group, ``[groups]``.

    All copies of a stage announce a reduction together.
    """
    known: dict[object, int] = {}
    members: list[int] = []
    group = np.zeros(len(row), np.int64)
    for flow, at in enumerate(row.tolist()):
        is_reduction = program.op[at] == Op.REDUCE_GRAD
        key: object = (int(program.stage[at]), int(program.bucket[at])) if is_reduction else flow
        if key not in known:
            known[key] = len(known)
            ranks = program.ranks_of(int(program.stage[at])) if is_reduction else [int(program.rank[at])]
            members.append(sum(lanes[rank] for rank in ranks))
        group[flow] = known[key]
    return group, members
