"""Emulated hosts: the host of each process, and the rates of the links between hosts.

A run on emulated hosts executes the design on a cluster of these hosts (:func:`apply_hosts`), with links no faster than
this machine can emulate (:func:`cap_link_rates`). The run folder contains that design, from which the links, the
processes and the prediction of the run follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from meshwave.engine.document import Design, Link
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.run_files import damaged_file
from meshwave.engine.runs.dry_run import REALTIME_STEP_LIMIT_S, Rehearsal
from meshwave.engine.runs.emulation.network import PAYLOAD, missing_requirement
from meshwave.engine.runs.emulation.topology import LEAST_RATE, Topology
from meshwave.engine.runs.options import Hosts, Options
from meshwave.engine.runs.run_folder import Bundle, fix_layers, process_count, read_bundle, read_design, read_options
from meshwave.engine.units import format_count, format_number, quantity

FASTEST_LINK = 5e8
"""Rate of the fastest emulated link in bytes/s.

Cores copy all data from link to link; two cores reach about twice this rate over all links together.
"""


def default_hosts(
    design: Design, nodes: int | None = None, intra: float | None = None, inter: float | None = None
) -> Hosts:
    """Return emulated hosts with the nodes and links of the design; arguments that are given replace these values."""
    cluster = design.cluster
    return Hosts(
        nodes=cluster.nodes if nodes is None else nodes,
        intra_bandwidth=cluster.intra_node.bandwidth if intra is None else intra,
        inter_bandwidth=cluster.inter_node.bandwidth if inter is None else inter,
    )


def apply_hosts(design: Design, layers: Sequence[int], hosts: Hosts) -> Design:
    """Return the design on emulated hosts and links, with its stages fixed to ``layers``.

    Links of a calibration profile are replaced.

    Raises:
        Refusal: there are more hosts than processes.
    """
    return fix_layers(_place_on_hosts(design, hosts), layers)


def _place_on_hosts(design: Design, hosts: Hosts) -> Design:
    """Return the design on these hosts, unchanged if it already uses them."""
    cluster = design.cluster
    network: dict[str, Any] = {
        "intra_node": cluster.intra_node.model_copy(update={"bandwidth": hosts.intra_bandwidth}),
        "inter_node": cluster.inter_node.model_copy(update={"bandwidth": hosts.inter_bandwidth}),
        "sends_in_order": True,  # the queue of a process's link holds whole messages
    }
    update: dict[str, Any] = {"cluster": cluster.model_copy(update=network)}
    if hosts.nodes != cluster.nodes:
        update = _divide_processes(design, hosts.nodes, network)
    return design.model_copy(update={**update, "cost": design.cost.use_drawn_links()})


def _divide_processes(design: Design, hosts: int, network: dict[str, Any]) -> dict[str, Any]:
    """Return the cluster and meshes of a design whose processes are divided among hosts in order, in equal blocks."""
    processes = process_count(design)
    if hosts > processes:
        raise Refusal("too_many_hosts", {"hosts": hosts, "processes": processes}, "--hosts")
    host = [process * hosts // processes for process in range(processes)]
    each = max(Counter(host).values())
    devices = (each * host[process] + process - host.index(host[process]) for process in range(processes))
    meshes = tuple(mesh.place_on([*islice(devices, len(mesh.devices))]) for mesh in design.meshes)
    size = {"nodes": hosts, "devices_per_node": each}
    return {"cluster": design.cluster.model_copy(update={**size, **network}), "meshes": meshes}


def cap_link_rates(design: Design, rehearsal: Rehearsal | None) -> Design:
    """Return a design whose links are no faster than this machine can emulate."""
    most, cluster = FASTEST_LINK * _link_dilation(design, rehearsal), design.cluster
    links = {
        name: link.model_copy(update={"bandwidth": min(link.bandwidth, most)})
        for name, link in (("intra_node", cluster.intra_node), ("inter_node", cluster.inter_node))
    }
    return design.model_copy(update={"cluster": cluster.model_copy(update=links)})


def read_executed_bundle(folder: Path) -> Bundle:
    """Read a run folder with the links that the run used, even if an earlier version wrote it.

    Raises:
        RunFolderError: a file is missing or damaged, or the program does not belong to the design.
    """
    bundle = read_bundle(folder)
    return replace(bundle, design=_executed_design(folder, bundle.design, bundle.options))


def read_links(folder: Path) -> Links | None:
    """Return the emulated links of a run; None if it has none.

    Raises:
        RunFolderError: the options or the design are missing or damaged.
    """
    options = read_options(folder)
    return None if options.hosts is None else message_links(_executed_design(folder, read_design(folder), options))


def _executed_design(folder: Path, design: Design, options: Options) -> Design:
    """Return the design of a run folder with the links that the run used; earlier versions stored it as launched.

    Raises:
        RunFolderError: the options name impossible hosts.
    """
    try:
        if options.hosts is None:
            return design
        return cap_link_rates(_place_on_hosts(design, options.hosts), options.rehearse)
    except InputError as error:
        raise damaged_file(folder / "options.json", str(error)) from None


def host_topology(design: Design, drawn: Design, options: Options) -> Topology:
    """Return the emulated network of a run on the hosts of ``options``.

    ``design`` is the executed design, ``drawn`` the design as launched.

    Raises:
        Refusal: a link is too slow.
    """
    hosts, cluster, scale = options.hosts, design.cluster, _link_dilation(design, options.rehearse)
    assert hosts is not None
    rates = [link.bandwidth / scale for link in (cluster.intra_node, cluster.inter_node)]
    if (slowest := min(rates)) < LEAST_RATE:
        params = {
            "rate": format_number(slowest),
            "least": LEAST_RATE,
            "scale": format_number(scale) if scale > 1 else None,
        }
        raise Refusal("slow_link", params)
    intra, inter = (rate / PAYLOAD for rate in rates)
    node_of = _process_nodes(design)
    requested = {"per process": hosts.intra_bandwidth / scale, "per NIC": hosts.inter_bandwidth / scale}
    where = _placement_text(node_of, hosts.nodes, drawn.cluster.nodes)
    return Topology(
        node_of=node_of,
        intra=intra,
        inter=inter,
        nics=cluster.nics_per_node,
        apart=True,
        latency_s=cluster.inter_node.latency_s * scale,
        note=f"{where}; links of {_rates_text(requested, scale)}{_unit_costs_text(design, options.rehearse)}",
    )


def _link_dilation(design: Design, rehearsal: Rehearsal | None) -> float:
    """Return the time-dilation factor of links; 1 for costs in units, which define no link rates."""
    if rehearsal is None or rehearsal.scale is None or not design.cost.is_in_seconds:
        return 1.0
    return rehearsal.scale


def scale_for_links(scale: float, hosts: Hosts, step_s: float) -> float:
    """Return a time-dilation factor at which links can be emulated, unless a step would become too long.

    ``step_s`` is the modelled step time in seconds.
    """
    least = max(hosts.intra_bandwidth, hosts.inter_bandwidth) / FASTEST_LINK
    return max(scale, min(least, REALTIME_STEP_LIMIT_S / step_s)) if step_s else scale


def check_emulation() -> None:
    """Check that this machine can emulate hosts.

    Raises:
        RunRefusal: this machine lacks a requirement of emulation.
    """
    if reason := missing_requirement():
        raise RunRefusal("hosts_not_emulated", {"reason": reason})


def _process_nodes(design: Design) -> tuple[int, ...]:
    """Return the host index of each process, ``[processes]``; hosts without processes are skipped."""
    nodes = [design.cluster.node_of(device) for device in design.process_devices]
    place = {node: host for host, node in enumerate(sorted(set(nodes)))}
    return tuple(place[node] for node in nodes)


def _placement_text(node_of: Sequence[int], hosts: int, drawn: int) -> str:
    """Return a text such as ``2 emulated hosts of 2 + 1 processes, as in the design``."""
    how = "as in the design" if hosts == drawn else "filled in order"
    if hosts != drawn > 1:
        how += f" since the design has {drawn}"
    sizes = [size for _, size in sorted(Counter(node_of).items())]
    return f"{format_count(len(sizes), 'emulated host')} of {' + '.join(map(str, sizes))} processes, {how}"


def _rates_text(requested: dict[str, float], scale: float) -> str:
    """Return a text such as ``500 MB/s per process (limited: 3 GB/s cannot be emulated here) and 100 MB/s per NIC``."""
    rates = [f"{quantity(min(rate, FASTEST_LINK), 'B/s')} {per}{_limit_text(rate)}" for per, rate in requested.items()]
    return " and ".join(rates) + (
        f", slowed down by the time-dilation factor {format_number(scale)}" if scale != 1 else ""
    )


def _unit_costs_text(design: Design, rehearsal: Rehearsal | None) -> str:
    if rehearsal is None or design.cost.is_in_seconds:
        return ""
    return ", not slowed down: costs in units define no link rates"


def _limit_text(rate: float) -> str:
    return f" (limited: {quantity(rate, 'B/s')} cannot be emulated here)" if rate > FASTEST_LINK else ""


# ---- links of predictions ----


def matches_links(run: Bundle, design: Design) -> bool:
    """Return True if a prediction of ``design`` assumes the emulated links of a run; costs in units fit any links."""
    if run.options.hosts is None or not run.design.cost.is_in_seconds:
        return True
    return message_links(run.design) == message_links(design)


class Links(NamedTuple):
    """Links that the messages of a design use."""

    node_of: tuple[int, ...]  # [processes]
    within: Link | None  # link inside a host; None without messages inside hosts
    across: Link | None  # link between hosts; None without messages between hosts
    nics: int
    are_drawn: bool  # False for links from a calibration profile


def message_links(design: Design) -> Links:
    """Return the links that the messages of a design use."""
    cluster, node_of = design.cluster, _process_nodes(design)
    hosts = len(set(node_of))
    return Links(
        node_of,
        cluster.intra_node if len(node_of) > hosts else None,
        cluster.inter_node if hosts > 1 else None,
        cluster.nics_per_node if hosts > 1 else 1,
        design.cost.links_are_drawn,
    )


def prediction_links(run: Bundle) -> str:
    """Return a text on the links that a run's prediction assumes, if they differ from the design's; empty otherwise.

    For example ``predicted for hosts linked at 100 MB/s (set by --hosts; the design has 25 GB/s)``.
    """
    if run.options.hosts is None or run.design == run.drawn or not run.design.cost.is_in_seconds:
        return ""
    differences = [*_link_differences(run, run.options.hosts)]
    return "predicted for " + "; for ".join(differences) if differences else ""


def _link_differences(run: Bundle, hosts: Hosts) -> Iterator[str]:
    """Yield a text for each property of the links of messages that differs from the design."""
    cluster, executed, launched = run.drawn.cluster, message_links(run.design), message_links(run.drawn)
    if hosts.nodes != cluster.nodes:
        yield f"{format_count(hosts.nodes, 'host')} (set by --hosts; the design has {cluster.nodes})"
    profile = "" if launched.are_drawn else run.drawn.cost.profile_name
    for name, requested, link, original in (
        ("hosts", hosts.inter_bandwidth, executed.across, cluster.inter_node),
        ("processes of a host", hosts.intra_bandwidth, executed.within, cluster.intra_node),
    ):
        if link is not None and (profile or link != original):
            yield f"{name} linked at {_rate_difference(requested, link.bandwidth, original.bandwidth, profile)}"


def _rate_difference(requested: float, rate: float, original: float, profile: str) -> str:
    """Return a text such as ``100 MB/s (set by --hosts; the design has 25 GB/s)``."""
    why = "as in the design" if requested == original else "set by --hosts"
    if rate < requested:
        why = "the most that can be emulated here"
    instead = f"replaces the links of {profile}" if profile else f"the design has {quantity(original, 'B/s')}"
    return f"{quantity(rate, 'B/s')} ({why}; {instead})"
