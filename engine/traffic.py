"""Traffic between devices: the bytes that each device sends to each other device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

MOST_ROWS = 64
"""Maximum number of devices whose traffic is listed; with more devices, the traffic between nodes is listed."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes that each device, or each node, sends to each other one."""

    unit: Literal["device", "node"]  # of rows and columns
    numbers: tuple[int, ...]  # of the device or node of each row and column
    nodes: tuple[int, ...]  # [rows]
    bytes: NDArray[np.float64]  # [senders, receivers]; what a device keeps is 0; a node has the traffic inside it

    @classmethod
    def between_devices(cls, devices: Sequence[int], nodes: Sequence[int], sent: NDArray[np.float64]) -> Self:
        """Return the traffic between devices from the bytes in ``sent``, ``[senders, receivers]``.

        Bytes that a device keeps are set to 0.
        """
        moved = sent.copy()
        np.fill_diagonal(moved, 0.0)
        return cls("device", tuple(devices), tuple(nodes), moved)

    @classmethod
    def from_messages(
        cls, devices: Sequence[int], nodes: Sequence[int], messages: Iterable[tuple[int, int, float]]
    ) -> Self:
        """Return the traffic of messages, given as sender, receiver and bytes."""
        row = {device: number for number, device in enumerate(devices)}
        sent = np.zeros((len(devices), len(devices)))
        for source, target, size in messages:
            sent[row[source], row[target]] += size
        return cls.between_devices(devices, nodes, sent)

    @property
    def bytes_inside_nodes(self) -> float:
        """Bytes sent within nodes."""
        return float(self.bytes[self.is_inside].sum())

    @property
    def bytes_between_nodes(self) -> float:
        """Bytes sent between nodes."""
        return float(self.bytes[~self.is_inside].sum())

    @property
    def is_inside(self) -> NDArray[np.bool_]:
        """True if sender and receiver are on the same node, ``[senders, receivers]``."""
        node = np.array(self.nodes)
        return np.asarray(node[:, None] == node[None, :])

    def limit_rows(self) -> Traffic:
        """Return the traffic between nodes if there are more than :data:`MOST_ROWS` devices, otherwise unchanged."""
        if len(self.numbers) <= MOST_ROWS:
            return self
        nodes, row = np.unique(self.nodes, return_inverse=True)
        on_node = np.eye(len(nodes))[row]
        numbers = tuple(nodes.tolist())
        return Traffic("node", numbers, numbers, on_node.T @ self.bytes @ on_node)

    def to_json(self) -> dict[str, Any]:
        """Return the traffic as a JSON object for ``--json``."""
        return {
            "unit": self.unit,
            "numbers": list(self.numbers),
            "nodes": list(self.nodes),
            "bytes": self.bytes.tolist(),
            "inside_bytes": self.bytes_inside_nodes,
            "between_bytes": self.bytes_between_nodes,
        }
