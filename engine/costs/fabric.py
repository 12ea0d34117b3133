"""Ports of a cluster: their capacities, and the ports that messages between devices pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.alpha_beta import Message
from meshwave.engine.costs.contention import UNMEASURED_LINK, LinkSharing
from meshwave.engine.costs.port_usage import PORT_KINDS, Floats, Int64s, Messages, Usage, port_codes, ports_of_codes
from meshwave.engine.document import Cluster, Link
from meshwave.engine.program.shared_links import Port, PortKind

MAX_MEASURED_CAPACITY = 2.0
"""Largest total rate that two simultaneous messages can reach, relative to one message.

A switch that carries both messages at full rate may be able to carry more.
"""
NO_PORT = -1


class Fabric:
    """Ports of a cluster, their capacities, and the ports on the path between two devices."""

    def __init__(self, cluster: Cluster, sharing: LinkSharing = UNMEASURED_LINK) -> None:
        self.cluster, self._sharing = cluster, sharing
        self._links: dict[bytes, list[Link]] = {}  # links of usages by the kinds of their ports
        together = sharing.same_node_capacity
        together = None if together is None else max(1.0, min(together, 2 * sharing.same_node_duplex))
        limit = together * cluster.link_inside_node.bandwidth if together and together < MAX_MEASURED_CAPACITY else None
        drawn = [rate for rate in (cluster.node_bandwidth, limit) if rate is not None]
        self._switch = min(drawn, default=None)

    def ports(self, source: int, target: int) -> tuple[Port, ...]:
        """Return the ports on the path from one device to another."""
        path = self._paths(np.array([source]), np.array([target]))
        return tuple(ports_of_codes(path[path != NO_PORT]))

    def _paths(self, source: Int64s, target: Int64s) -> Int64s:
        """Return the codes of the ports on the path of each message, ``[messages, ports]``, with gaps of NO_PORT."""
        one, other = (devices // self.cluster.devices_per_node for devices in (source, target))
        columns = self._path_columns(source, target, one, other)
        return np.stack([np.where(passes, port_codes(kind, numbers), NO_PORT) for kind, numbers, passes in columns], 1)

    def _path_columns(
        self, source: Int64s, target: Int64s, one: Int64s, other: Int64s
    ) -> Iterator[tuple[PortKind, Int64s, NDArray[np.bool_]]]:
        """Yield the kind and the number of each port of the paths, and True for messages that pass it.

        ``one`` and ``other`` are the nodes of the devices ``source`` and ``target``.
        """
        near = one == other
        far = ~near
        yield from (("link-out", source, near), ("link-in", target, near))
        if self._switch is not None:
            yield "switch", one, near
        yield from (("nic-out", one, far), ("nic-in", other, far))
        if self.cluster.nics_per_node > 1:
            yield from (("device-out", source, far), ("device-in", target, far))
        if self._sharing.across_nodes_duplex < 1:
            yield from (("nic-both", one, far), ("nic-both", other, far))
        if uplink := self.cluster.uplink:
            leaves = one // uplink.nodes, other // uplink.nodes
            apart = leaves[0] != leaves[1]
            yield from (("uplink-out", leaves[0], apart), ("uplink-in", leaves[1], apart))

    def capacity(self, port: Port) -> float:
        """Return the capacity of a port in bytes/s."""
        return float(self._capacities[PORT_KINDS.index(port.kind)])

    def capacities(self, kinds: Int64s) -> Floats:
        """Return the capacities of ports in bytes/s, given the indices of their kinds in ``PORT_KINDS``."""
        return self._capacities[kinds]

    @cached_property
    def _capacities(self) -> Floats:
        """Capacity of a port of each kind in bytes/s, ``[kinds]``."""
        nic = self.cluster.link_between_nodes.bandwidth
        nics = nic * max(float(self.cluster.nics_per_node), self._sharing.across_nodes_capacity)
        uplink = self.cluster.uplink.bandwidth if self.cluster.uplink else nic
        link = self.cluster.link_inside_node.bandwidth
        of_kind: dict[PortKind, float] = {
            "nic-out": nics,
            "nic-in": nics,
            "nic-both": 2 * self._sharing.across_nodes_duplex * nics,
            "device-out": nic,
            "device-in": nic,
            "uplink-out": uplink,
            "uplink-in": uplink,
            "switch": self._switch or link,
            "link-out": link,
            "link-in": link,
        }
        return np.array([of_kind[kind] for kind in PORT_KINDS])

    def links_of(self, usage: Usage) -> list[Link]:
        """Return the links of the used ports: the link inside a node, the link between nodes, or both."""
        kinds = usage.kinds.tobytes()
        if kinds not in self._links:
            near = _IS_NEAR[usage.kinds]
            links = (self.cluster.link_inside_node, near.any()), (self.cluster.link_between_nodes, not near.all())
            self._links[kinds] = [link for link, is_used in links if is_used]
        return self._links[kinds]

    def usage(self, messages: Messages | Iterable[Message]) -> Usage:
        """Return the bytes that messages between devices send through each port."""
        found = messages if isinstance(messages, Messages) else Messages.from_list(messages)
        return self.usages([found])[0]

    def usages(self, parts: Sequence[Messages]) -> list[Usage]:
        """Return the bytes that each of several groups of messages sends through each port."""
        joined = Messages.join(parts)
        codes = self._paths(joined.source, joined.destination)
        passed = (codes != NO_PORT) & (joined.source != joined.destination)[:, None]
        counts = np.count_nonzero(passed, axis=1)
        used, sizes = codes[passed], np.repeat(joined.bytes, counts)
        ends = np.cumsum([0, *counts])[np.cumsum([0, *map(len, parts)])].tolist()
        return [
            (Usage.total if len(part) > 1 else Usage)(used[start:end], sizes[start:end])  # a path has different ports
            for part, (start, end) in zip(parts, pairwise(ends), strict=True)
        ]


_IS_NEAR = np.array([kind in ("link-out", "link-in", "switch") for kind in PORT_KINDS])


def ring_messages(group: Sequence[int], size: float, rounds: int = 2) -> Messages:
    """Return the messages of a ring that passes through each node once.

    ``rounds`` is 2 for an all-reduce of ``size`` bytes, and 1 for an all-gather or a reduce-scatter of ``size`` bytes
    in total.
    """
    return equal_ring_messages([group], size, rounds)


def equal_ring_messages(groups: Sequence[Sequence[int]], size: float, rounds: int = 2) -> Messages:
    """Return the messages of several rings of the same number of devices, one ring after another."""
    around = np.sort(np.array(groups, np.int64).reshape(len(groups), -1))  # the devices of a node are consecutive
    n = around.shape[1]
    if n < 2:
        return Messages.from_list(())
    each = rounds * (n - 1) / n * size
    return Messages(around.ravel(), np.roll(around, -1, axis=1).ravel(), np.full(around.size, each))
