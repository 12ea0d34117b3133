"""Emulated hosts: who of a run sits where, and what the links between them carry on this machine.

A run that names hosts is of the design as it is drawn, on a cluster of these hosts (:func:`placed`), with links no
faster than this machine can emulate (:func:`held`). That design is what its folder holds: its links are shaped by
it, its processes wait and choose by it, and its prediction is made of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from meshwave.engine.document import Design, Link
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.run_files import damaged
from meshwave.engine.runs.dry_run import AS_IT_IS_S, Rehearsal
from meshwave.engine.runs.emulation.network import PAYLOAD, missing
from meshwave.engine.runs.emulation.topology import LEAST_RATE, Topology
from meshwave.engine.runs.options import Hosts, Options
from meshwave.engine.runs.run_folder import Bundle, holding, process_count, read_bundle, read_design, read_options
from meshwave.engine.units import number, quantity

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


def placed(design: Design, layers: Sequence[int], hosts: Hosts) -> Design:
    """``design`` on emulated hosts, whose links are as fast as they are asked for; its stages keep their ``layers``.

    What a profile knows of messages is of other links than these.

    Raises:
        InputError: there are more hosts than processes.
    """
    return holding(_on(design, hosts), layers)


def _on(design: Design, hosts: Hosts) -> Design:
    """A design on these hosts; one that is on them already stays as it is."""
    cluster = design.cluster
    links = {
        "intra_node": cluster.intra_node.model_copy(update={"bandwidth": hosts.intra_bandwidth}),
        "inter_node": cluster.inter_node.model_copy(update={"bandwidth": hosts.inter_bandwidth}),
    }
    update: dict[str, Any] = {"cluster": cluster.model_copy(update=links)}
    if hosts.nodes != cluster.nodes:
        update = _dealt(design, hosts.nodes, links)
    return design.model_copy(update={**update, "cost": design.cost.on_drawn_links()})


def _dealt(design: Design, hosts: int, links: dict[str, Any]) -> dict[str, Any]:
    """Cluster and meshes of a design whose processes are dealt to so many hosts in equal blocks, in order."""
    processes = process_count(design)
    if hosts > processes:
        raise Refusal("too_many_hosts", {"hosts": hosts, "processes": processes}, "--hosts")
    host = [process * hosts // processes for process in range(processes)]
    each = max(Counter(host).values())
    devices = (each * host[process] + process - host.index(host[process]) for process in range(processes))
    meshes = tuple(
        mesh.model_copy(update={"devices": tuple(next(devices) for _ in mesh.devices)}) for mesh in design.meshes
    )
    size = {"nodes": hosts, "devices_per_node": each}
    return {"cluster": design.cluster.model_copy(update={**size, **links}), "meshes": meshes}


def held(design: Design, rehearsal: Rehearsal | None) -> Design:
    """A design on emulated hosts, whose links are no faster than this machine can emulate."""
    most, cluster = CARRIED * _slower(design, rehearsal), design.cluster
    links = {
        name: link.model_copy(update={"bandwidth": min(link.bandwidth, most)})
        for name, link in (("intra_node", cluster.intra_node), ("inter_node", cluster.inter_node))
    }
    return design.model_copy(update={"cluster": cluster.model_copy(update=links)})


def read_as_run(folder: Path) -> Bundle:
    """Read a run folder back, with the links that its run had, whichever version launched it.

    Raises:
        RunFolderError: a file is missing or damaged, or its program is not one of its design.
    """
    bundle = read_bundle(folder)
    return replace(bundle, design=_as_run(folder, bundle.design, bundle.options))


def read_links(folder: Path) -> Links | None:
    """The links that a run met on emulated hosts; None where it was not on any.

    Raises:
        RunFolderError: its options or its design are missing or damaged.
    """
    options = read_options(folder)
    return None if options.hosts is None else links_of(_as_run(folder, read_design(folder), options))


def _as_run(folder: Path, design: Design, options: Options) -> Design:
    """The design of a run folder on the links of its run. Earlier versions kept it as it was drawn, whatever hosts it was
    told; one that is on them already stays what it is.

    Raises:
        RunFolderError: its options name hosts that cannot be.
    """
    try:
        return design if options.hosts is None else held(_on(design, options.hosts), options.rehearse)
    except InputError as error:
        raise damaged(folder / "options.json", str(error)) from None


def network(design: Design, drawn: Design, options: Options) -> Topology:
    """The network of a run of ``design`` with ``options``, which name the hosts that it is on; ``drawn`` was launched.

    Raises:
        InputError: a link is too slow to wait for.
    """
    hosts, cluster, scale = options.hosts, design.cluster, _slower(design, options.rehearse)
    assert hosts is not None
    rates = [link.bandwidth / scale for link in (cluster.intra_node, cluster.inter_node)]
    if (slowest := min(rates)) < LEAST_RATE:
        params = {"rate": number(slowest), "least": LEAST_RATE, "scale": number(scale) if scale > 1 else None}
        raise Refusal("slow_link", params)
    intra, inter = (rate / PAYLOAD for rate in rates)
    node_of = _node_of(design)
    wanted = {"a process": hosts.intra_bandwidth / scale, "a NIC": hosts.inter_bandwidth / scale}
    where = _where(node_of, hosts.nodes, drawn.cluster.nodes)
    return Topology(
        node_of,
        intra,
        inter,
        nics=cluster.nics_per_node,
        apart=True,
        latency_s=cluster.inter_node.latency_s * scale,
        note=f"{where}; links of {_rates(wanted, scale)}{_if_in_units(design, options.rehearse)}",
    )


def _slower(design: Design, rehearsal: Rehearsal | None) -> float:
    """How many times slower links are than said, because time is stretched; a unit of time says nothing of them."""
    if rehearsal is None or rehearsal.scale is None or not design.cost.is_in_seconds:
        return 1.0
    return rehearsal.scale


def grown(scale: float, hosts: Hosts, step_s: float) -> float:
    """``scale``, larger where links would be too fast to be emulated, as far as a step stays a short wait.

    ``step_s`` is how long it takes by the model.
    """
    least = max(hosts.intra_bandwidth, hosts.inter_bandwidth) / CARRIED
    return max(scale, min(least, AS_IT_IS_S / step_s)) if step_s else scale


def check_emulation() -> None:
    """Check that this machine can emulate hosts.

    Raises:
        RunRefusal: it cannot.
    """
    if reason := missing():
        raise RunRefusal("hosts_not_emulated", {"reason": reason})


def _node_of(design: Design) -> tuple[int, ...]:
    """[processes] the host of each, counted over those that have any."""
    nodes = [design.cluster.node_of(device) for mesh in design.meshes for device in mesh.devices]
    place = {node: host for host, node in enumerate(sorted(set(nodes)))}
    return tuple(place[node] for node in nodes)


def _where(node_of: Sequence[int], hosts: int, drawn: int) -> str:
    """``2 emulated hosts of 2 + 1 processes, as drawn``"""
    how = "as drawn" if hosts == drawn else "filled in order"
    if hosts != drawn > 1:
        how += f" since {drawn} are drawn"
    sizes = [size for _, size in sorted(Counter(node_of).items())]
    plural = "s" * (len(sizes) != 1)
    return f"{len(sizes)} emulated host{plural} of {' + '.join(map(str, sizes))} processes, {how}"


def _rates(wanted: dict[str, float], scale: float) -> str:
    """``500 MB/s a process (3 GB/s is more than can be emulated here) and 100 MB/s a NIC``"""
    said = [f"{quantity(min(rate, CARRIED), 'B/s')} {whose}{_if_too_fast(rate)}" for whose, rate in wanted.items()]
    return " and ".join(said) + (f", {number(scale)} times slower as time is stretched" if scale != 1 else "")


def _if_in_units(design: Design, rehearsal: Rehearsal | None) -> str:
    if rehearsal is None or design.cost.is_in_seconds:
        return ""
    return ", not slowed as time is: costs in units say nothing of bytes a second"


def _if_too_fast(rate: float) -> str:
    return f" ({quantity(rate, 'B/s')} is more than can be emulated here)" if rate > CARRIED else ""


# ---- the links that a prediction is made for ----


def meets(run: Bundle, design: Design) -> bool:
    """Whether a prediction of ``design`` is one for the links that a run has, where these are emulated; costs in units
    are for any."""
    if run.options.hosts is None or not run.design.cost.is_in_seconds:
        return True
    return links_of(run.design) == links_of(design)


class Links(NamedTuple):
    """What the messages of a design go over."""

    node_of: tuple[int, ...]  # [processes]
    within: Link | None  # a host; None where nothing is sent there
    across: Link | None
    nics: int
    are_drawn: bool  # and not as a profile has them


def links_of(design: Design) -> Links:
    cluster, node_of = design.cluster, _node_of(design)
    hosts = len(set(node_of))
    return Links(
        node_of,
        cluster.intra_node if len(node_of) > hosts else None,
        cluster.inter_node if hosts > 1 else None,
        cluster.nics_per_node if hosts > 1 else 1,
        design.cost.links_are_drawn,
    )


def predicted_for(run: Bundle) -> str:
    """``predicted for hosts linked at 100 MB/s, which the run was told, not at the 25 GB/s that is drawn``: what links a
    run's prediction is made for, where those are not drawn; nothing where they are, or costs in units know no links."""
    if run.options.hosts is None or run.design == run.drawn or not run.design.cost.is_in_seconds:
        return ""
    told = [*_others(run, run.options.hosts)]
    return "predicted for " + "; for ".join(told) if told else ""


def _others(run: Bundle, hosts: Hosts) -> Iterator[str]:
    """What its messages go over that is not drawn, as far as there are such messages."""
    drawn, mine, its = run.drawn.cluster, links_of(run.design), links_of(run.drawn)
    if hosts.nodes != drawn.nodes:
        rather = "the one that is drawn" if drawn.nodes == 1 else f"the {drawn.nodes} that are drawn"
        yield f"{hosts.nodes} host{'s' * (hosts.nodes != 1)}, which the run was told, not for {rather}"
    profile = "" if its.are_drawn else run.drawn.cost.profile_name
    for who, told, had, was in (
        ("hosts", hosts.inter_bandwidth, mine.across, drawn.inter_node),
        ("processes of a host", hosts.intra_bandwidth, mine.within, drawn.intra_node),
    ):
        if had is not None and (profile or had != was):
            yield f"{who} linked at {_instead(told, had.bandwidth, was.bandwidth, profile)}"


def _instead(told: float, had: float, drawn: float, profile: str) -> str:
    """``100 MB/s, which the run was told, not at the 25 GB/s that is drawn``"""
    why = "as drawn" if told == drawn else "which the run was told"
    if had < told:
        why = "the most that can be emulated here"
    rather = f"as {profile} has it" if profile else f"at the {quantity(drawn, 'B/s')} that is drawn"
    return f"{quantity(had, 'B/s')}, {why}, not {rather}"
