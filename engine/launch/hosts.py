"""Emulated hosts: who of a run sits where, and what the links between them carry on this machine."""

from __future__ import annotations

from collections import Counter

from engine.design import Design
from engine.errors import InputError, RunError
from engine.launch.bundle import process_count
from engine.launch.options import Hosts, Options
from engine.network import LEAST_RATE, PAYLOAD, Topology, missing
from engine.rehearse import AS_IT_IS_S, Rehearsal
from engine.units import number, quantity

CARRIED = 5e8
"""Bytes/s that a link is held to at most. Faster ones cannot be emulated: what is sent, cores have to copy
from link to link, and two of them get to about twice this through all links together."""


def drawn(design: Design, nodes: int | None = None, intra: float | None = None, inter: float | None = None) -> Hosts:
    """As many hosts as the design has nodes, with its links; what is given takes the place of what is drawn."""
    cluster = design.cluster
    return Hosts(
        nodes=cluster.nodes if nodes is None else nodes,
        intra_bandwidth=cluster.intra_node.bandwidth if intra is None else intra,
        inter_bandwidth=cluster.inter_node.bandwidth if inter is None else inter,
    )


def network(design: Design, options: Options) -> Topology:
    """The network of a run of ``design`` with ``options``, which name hosts: its own where they are as many as its nodes.

    Raises:
        InputError: there are more hosts than processes, or a link is too slow to wait for.
    """
    hosts, scale = options.hosts, _slower(design, options.rehearse)
    assert hosts is not None
    node_of, placed = _placed(design, hosts)
    wanted = {"a process": hosts.intra_bandwidth / scale, "a NIC": hosts.inter_bandwidth / scale}
    if (slowest := min(wanted.values())) < LEAST_RATE:
        raise InputError(
            f"an emulated link of {number(slowest)} bytes/s cannot be waited for; make it {LEAST_RATE:g} or more"
            + (f", or stretch time less than {number(scale)} times" if scale > 1 else "")
        )
    intra, inter = (min(rate, CARRIED) / PAYLOAD for rate in wanted.values())
    return Topology(
        node_of,
        intra,
        inter,
        nics=design.cluster.nics_per_node,
        apart=True,
        latency_s=design.cluster.inter_node.latency_s * scale,
        note=f"{placed}; links of {_rates(wanted, scale)}{_if_in_units(design, options.rehearse)}",
    )


def _slower(design: Design, rehearsal: Rehearsal | None) -> float:
    """How many times slower links are than said, because time is stretched; a unit of time says nothing of them."""
    if rehearsal is None or rehearsal.scale is None or design.cost.kind == "unit":
        return 1.0
    return rehearsal.scale


def grown(scale: float, hosts: Hosts, step_s: float) -> float:
    """``scale``, larger where links would be too fast to be emulated, as far as a step stays a short wait.

    ``step_s`` is how long it takes by the model.
    """
    least = max(hosts.intra_bandwidth, hosts.inter_bandwidth) / CARRIED
    return max(scale, min(least, AS_IT_IS_S / step_s)) if step_s else scale


def ready() -> None:
    """See that this machine can emulate hosts.

    Raises:
        RunError: it cannot; why, and what to do.
    """
    if reason := missing():
        raise RunError(f"hosts cannot be emulated here: {reason}. Without --hosts the run needs none of it")


def _placed(design: Design, hosts: Hosts) -> tuple[tuple[int, ...], str]:
    """The host of each process, and how that came in words."""
    processes, drawn = process_count(design), design.cluster.nodes
    if hosts.nodes not in (drawn, *range(1, processes + 1)):
        raise InputError(f"--hosts {hosts.nodes}: the design has {processes} processes; use 1 to {processes} hosts")
    if hosts.nodes == drawn:
        nodes = [design.cluster.node_of(device) for mesh in design.meshes for device in mesh.devices]
        place = {node: host for host, node in enumerate(sorted(set(nodes)))}
        node_of, how = tuple(place[node] for node in nodes), "as drawn"
    else:
        node_of = tuple(process * hosts.nodes // processes for process in range(processes))
        how = f"filled in order since {drawn} are drawn" if drawn > 1 else "filled in order"
    sizes = [size for _, size in sorted(Counter(node_of).items())]
    plural = "s" * (len(sizes) != 1)
    return node_of, f"{len(sizes)} emulated host{plural} of {' + '.join(map(str, sizes))} processes, {how}"


def _rates(wanted: dict[str, float], scale: float) -> str:
    """``500 MB/s a process (3 GB/s is more than can be emulated here) and 100 MB/s a NIC``"""
    said = [f"{quantity(min(rate, CARRIED), 'B/s')} {whose}{_if_too_fast(rate)}" for whose, rate in wanted.items()]
    return " and ".join(said) + (f", {number(scale)} times slower as time is stretched" if scale != 1 else "")


def _if_in_units(design: Design, rehearsal: Rehearsal | None) -> str:
    if rehearsal is None or design.cost.kind != "unit":
        return ""
    return ", not slowed as time is: costs in units say nothing of bytes a second"


def _if_too_fast(rate: float) -> str:
    return f" ({quantity(rate, 'B/s')} is more than can be emulated here)" if rate > CARRIED else ""
