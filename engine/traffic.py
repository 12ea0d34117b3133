"""Traffic between devices: the bytes that each sends to each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

MOST_ROWS = 64
"""Largest number of devices whose traffic is listed one by one; of more, the traffic between nodes is."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes from each device, or from each node, to each."""

    unit: Literal["device", "node"]  # of rows and columns
    numbers: tuple[int, ...]  # of the device or node of each row and column
    nodes: tuple[int, ...]  # [rows]
    bytes: NDArray[np.float64]  # [senders, receivers]; what a device keeps is 0; a node has the traffic inside it

    @classmethod
    def between_devices(cls, devices: Sequence[int], nodes: Sequence[int], sent: NDArray[np.float64]) -> Self:
        """Return the traffic of devices from ``sent``, ``[senders, receivers]`` bytes; what a device keeps is left out."""
        moved = sent.copy()
        np.fill_diagonal(moved, 0.0)
        return cls("device", tuple(devices), tuple(nodes), moved)

    @classmethod
    def of_messages(
        cls, devices: Sequence[int], nodes: Sequence[int], messages: Iterable[tuple[int, int, float]]
    ) -> Self:
        """Return the traffic of messages, each with its sender, its receiver and its bytes."""
        row = {device: number for number, device in enumerate(devices)}
        sent = np.zeros((len(devices), len(devices)))
        for source, target, size in messages:
            sent[row[source], row[target]] += size
        return cls.between_devices(devices, nodes, sent)

    @property
    def inside_bytes(self) -> float:
        """Bytes that stay inside nodes."""
        return float(self.bytes[self.is_inside].sum())

    @property
    def between_bytes(self) -> float:
        """Bytes that go from one node to another."""
        return float(self.bytes[~self.is_inside].sum())

    @property
    def is_inside(self) -> NDArray[np.bool_]:
        """``[senders, receivers]`` True if both are on one node."""
        node = np.array(self.nodes)
        return np.asarray(node[:, None] == node[None, :])

    def limit_rows(self) -> Traffic:
        """Return the traffic between nodes if there are more than :data:`MOST_ROWS` devices."""
        if len(self.numbers) <= MOST_ROWS:
            return self
        nodes, row = np.unique(self.nodes, return_inverse=True)
        on_node = np.eye(len(nodes))[row]
        numbers = tuple(nodes.tolist())
        return Traffic("node", numbers, numbers, on_node.T @ self.bytes @ on_node)

    def to_json(self) -> dict[str, Any]:
        """Return the traffic for ``--json``."""
        return {
            "unit": self.unit,
            "numbers": list(self.numbers),
            "nodes": list(self.nodes),
            "bytes": self.bytes.tolist(),
            "inside_bytes": self.inside_bytes,
            "between_bytes": self.between_bytes,
        }
