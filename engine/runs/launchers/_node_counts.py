"""Nodes of a launch target, and whether jobs run on them now."""

from __future__ import annotations

from typing import NamedTuple

IDLE = {"idle", "idle~", "idle#"}
"""States of free nodes as sinfo names them; those with ``~`` are powered off and start with a job."""


class NodeCounts(NamedTuple):
    """Nodes of a target."""

    total: int
    free: int | None = None
    """Number of nodes on which no job runs now; None if unknown."""
    states: tuple[tuple[str, bool], ...] = ()
    """Name of each node, and True if no job runs on it now; empty if unknown."""

    def limit(self, nodes: int | None) -> NodeCounts:
        """Return the counts of a target that uses at most a number of nodes at the same time."""
        return self if nodes is None else self._replace(total=min(self.total, nodes))


def nodes_of_partition(output: str, partition: str | None) -> NodeCounts | None:
    """Return the nodes of a partition, by default of the default partition, from the output of sinfo.

    Args:
        output: lines of a partition, marked with ``*`` if it is the default, the name of a node, and its state.
        partition: the partition; None for the default.
    """
    states = tuple(
        (node, state in IDLE)
        for name, node, state in (line.split() for line in output.splitlines())
        if name.rstrip("*") == partition or (partition is None and name.endswith("*"))
    )
    return NodeCounts(len(states), sum(is_free for _, is_free in states), states) if states else None
