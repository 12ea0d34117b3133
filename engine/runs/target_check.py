"""Check of a launch target: a short job that reports hardware, software and link rates."""

from __future__ import annotations

import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import PositiveFloat, PositiveInt

from meshwave.engine.costs.alpha_beta import collective_seconds
from meshwave.engine.document.cluster import MAX_DEVICES, Cluster
from meshwave.engine.errors import RunError
from meshwave.engine.findings import Problem, Refusal, RunRefusal
from meshwave.engine.run_files import Count, RunFile, read_document, write_document
from meshwave.engine.runs.launchers import Launcher
from meshwave.engine.runs.launchers._job_files import last_errors
from meshwave.engine.runs.launchers._jobs import JobLauncher, JobStatus, Phase
from meshwave.engine.runs.launchers._node_counts import NodeCounts
from meshwave.engine.runs.launchers._torchrun import NodeLayout
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.launchers.torchrun import TorchrunLauncher
from meshwave.engine.runs.recording import Clocks
from meshwave.engine.runs.recording.clocks import read_clocks
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.targets import open_target
from meshwave.engine.units import quantity

MODULE = "meshwave.engine.runtime.processes.target_check"
LIMIT_S = 300.0
"""Maximum time, in seconds, that a check waits for its job."""
LOOK_S = 0.5
LINK_TITLES = {"intra_node": "inside a node", "inter_node": "between nodes"}
MESSAGE_BYTES = 16 * 2**20
"""Size of the messages by which bandwidths are measured."""


class ProcessReport(RunFile):
    """Report of one process of the check."""

    process: Count
    node: Count
    host: str
    device: str
    identity: str
    memory_bytes: PositiveFloat
    cores: PositiveInt
    versions: dict[str, str]


class LinkReport(RunFile):
    """Measurements of one kind of link; bandwidths are in bytes/s."""

    processes: PositiveInt
    latency_s: PositiveFloat
    bandwidth: PositiveFloat
    all_reduce_bandwidth: PositiveFloat

    def drawn_all_reduce(self, drawn: Cluster, *, is_inside: bool) -> float | None:
        """Return the bandwidth that the cost model predicts for the measured all-reduce on a drawn cluster.

        None if the drawn cluster has fewer devices inside a node, or fewer nodes.
        """
        if self.processes > (drawn.devices_per_node if is_inside else drawn.nodes):
            return None
        stride = 1 if is_inside else drawn.devices_per_node
        group = range(0, self.processes * stride, stride)
        share = 2 * (self.processes - 1) / self.processes
        return share * MESSAGE_BYTES / collective_seconds(drawn, [group], MESSAGE_BYTES)


class DeviceReport(RunFile):
    """Measurements of a device."""

    flops: PositiveFloat
    memory_bandwidth: PositiveFloat


class TargetReport(RunFile):
    """Content of ``report.json``."""

    processes: tuple[ProcessReport, ...]
    all_seen: tuple[bool, ...]
    """True for each process that saw the files of all other processes in the run folder."""
    backend: str
    intra_node: LinkReport | None
    inter_node: LinkReport | None
    device: DeviceReport
    nics: PositiveInt | None = None
    """Number of NICs of a node for messages between GPUs; None if the driver lists none."""
    device_links: str = ""
    """Links between the GPUs of a node as the driver names them, such as ``NV18``; empty if it does not."""

    @property
    def links(self) -> dict[str, LinkReport]:
        """The measured kinds of links by their names in the cluster section of a document."""
        found = {"intra_node": self.intra_node, "inter_node": self.inter_node}
        return {name: link for name, link in found.items() if link is not None}

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len({each.node for each in self.processes})

    @property
    def devices_per_node(self) -> int:
        """Number of processes of each node."""
        return len(self.processes) // self.nodes

    def problems(self, own_versions: Mapping[str, str]) -> Iterator[Problem]:
        """Yield the problems of the target; ``own_versions`` are the package versions of this machine."""
        for name in sorted({name for each in self.processes for name in each.versions}):
            found = sorted({each.versions[name] for each in self.processes})
            if len(found) > 1:
                yield Problem("", "versions_differ", {"name": name, "versions": found})
            elif name in own_versions and own_versions[name] != found[0]:
                params = {"name": name, "there": found[0], "here": own_versions[name]}
                yield Problem("", "version_of_target", params, severity="warning")
        owners = Counter((each.node, each.identity) for each in self.processes if each.identity)
        if shared := max(owners.values(), default=1) - 1:
            yield Problem("", "device_shared", {"processes": shared + 1})
        if not all(self.all_seen):
            yield Problem("", "folder_not_shared", {}, severity="warning")

    def cluster(self, nodes: int | None = None) -> Cluster:
        """Return the reported cluster as the ``cluster`` section of a document, with as many nodes as it can have.

        Args:
            nodes: the number of nodes; None for those that were checked.
        """
        first = self.processes[0]
        inside, between = self.intra_node or self.inter_node, self.inter_node or self.intra_node
        if inside is None or between is None:
            raise Refusal("links_not_measured")
        share = 1 if first.identity else self.devices_per_node  # processes on CPUs share the memory of their node
        device = {
            "name": first.device,
            "peak_flops": _round_measurement(self.device.flops),
            "memory_bytes": _round_measurement(first.memory_bytes / share),
            "memory_bandwidth": _round_measurement(self.device.memory_bandwidth),
            "efficiency": 1.0,
        }
        links = [
            {"latency_s": _round_measurement(each.latency_s), "bandwidth": _round_measurement(each.bandwidth)}
            for each in (inside, between)
        ]
        counts = {
            "nodes": min(nodes or self.nodes, MAX_DEVICES // self.devices_per_node),
            "devices_per_node": self.devices_per_node,
            "nics_per_node": self.nics or 1,
        }
        return Cluster.model_validate({**counts, "device": device, "intra_node": links[0], "inter_node": links[1]})


class DrawnLink(NamedTuple):
    """Bandwidths of a kind of link in a drawn cluster, in bytes/s; None if it does not have such a link."""

    bandwidth: float | None = None
    all_reduce_bandwidth: float | None = None


def drawn_links(report: TargetReport, drawn: Cluster) -> dict[str, DrawnLink]:
    """Return the bandwidths of a drawn cluster, given or predicted, for each measured kind of link."""
    return {
        name: DrawnLink(getattr(drawn, name).bandwidth, link.drawn_all_reduce(drawn, is_inside=name == "intra_node"))
        for name, link in report.links.items()
    }


def report_lines(
    report: TargetReport, clocks: Clocks, counts: NodeCounts | None = None, drawn: Cluster | None = None
) -> Iterator[str]:
    """Yield the lines of a report as text.

    Args:
        report: the report.
        clocks: the clocks of the processes.
        counts: the nodes of the target.
        drawn: a cluster whose links are compared.
    """
    first = report.processes[0]
    of = f" of {nodes_text(counts)}" if counts else ""
    yield f"nodes     {report.nodes}{of}, {report.devices_per_node} processes each, backend {report.backend}"
    yield f"device    {first.device}, {quantity(first.memory_bytes, 'B')}, {quantity(report.device.flops, 'FLOP/s')}"
    if report.device_links:
        yield f"topology  GPUs of a node are joined by {report.device_links}; NICs per node: {report.nics or 'unknown'}"
    yield f"versions  {', '.join(f'{name} {version}' for name, version in first.versions.items())}"
    predicted = drawn_links(report, drawn) if drawn else {}
    for name, link in report.links.items():
        bandwidth, all_reduce = predicted.get(name, DrawnLink())
        yield (
            f"link      {LINK_TITLES[name]}: {_bandwidth_text(link.bandwidth, bandwidth)}, "
            f"latency {quantity(link.latency_s, 's')}, "
            f"all-reduce of {link.processes} processes {_bandwidth_text(link.all_reduce_bandwidth, all_reduce)}"
        )
    if clocks.note:
        yield f"clocks    {clocks.note}"


def _bandwidth_text(measured: float, drawn: float | None) -> str:
    """Return a measured bandwidth as text, next to that of the drawn cluster."""
    return quantity(measured, "B/s") + (f" (drawn: {quantity(drawn, 'B/s')})" if drawn else "")


def nodes_text(counts: NodeCounts) -> str:
    """Return the number of nodes of a target, and how many of them are free, as text."""
    return f"{counts.total}" if counts.free is None else f"{counts.total} ({counts.free} free now)"


def check_target(
    launcher: Launcher, nodes: int | None = None, devices_per_node: int | None = None, limit_s: float = LIMIT_S
) -> tuple[TargetReport, Clocks]:
    """Run the check on a number of nodes and return its report.

    Raises:
        Refusal: the target starts no processes, or has fewer nodes.
        RunRefusal: the job fails, or exceeds the time limit.
    """
    cluster = job_launcher(launcher)
    nodes = nodes or min(2, cluster.max_nodes)
    if nodes > cluster.max_nodes:
        raise Refusal("too_many_nodes", {"target": cluster.target, "nodes": nodes, "most": cluster.max_nodes})
    devices = devices_per_node or cluster.default_devices_per_node
    layout = NodeLayout((devices,) * nodes, tuple(range(nodes * devices)))
    with run_job_to_end(cluster, layout, MODULE, limit_s) as (folder, failure):
        report = read_document(folder / "report.json", TargetReport)
        if report is None:
            raise failure
        return report, read_clocks(folder)


class TargetCluster(NamedTuple):
    """Cluster of a launch target."""

    cluster: Cluster
    counts: NodeCounts | None
    """The nodes of the target; None if unknown."""
    device_links: str
    """Links between the GPUs of a node as the driver names them; see :class:`TargetReport`."""


def target_cluster(name: str) -> TargetCluster:
    """Return the cluster that a short job reports for a launch target, with all its nodes.

    Raises:
        Refusal: the target does not exist, or starts no processes.
        RunRefusal: the job fails, or exceeds the time limit.
    """
    with closing(Record()) as record, closing(open_target(record, name)) as launcher:
        report, _ = check_target(launcher)
        counts = job_launcher(launcher).count_nodes()
        return TargetCluster(report.cluster(counts.total if counts else None), counts, report.device_links)


def target_nodes(name: str) -> NodeCounts | None:
    """Return the nodes of a launch target, and which of them are free now; None if unknown.

    Raises:
        Refusal: the target does not exist, or starts no processes.
        RunRefusal: the scheduler does not answer.
    """
    with closing(Record()) as record, closing(open_target(record, name)) as launcher:
        return job_launcher(launcher).count_nodes()


def job_launcher(launcher: Launcher) -> JobLauncher:
    """Return the launcher as a :class:`JobLauncher`; on this machine, one that starts torchrun instead of runs.

    Raises:
        Refusal: the launcher starts no processes.
        RunRefusal: the launcher cannot launch runs.
    """
    if isinstance(launcher, LocalLauncher):
        launcher = TorchrunLauncher(launcher.record, target=launcher.name)
    if not isinstance(launcher, JobLauncher):
        raise Refusal("no_processes_to_check", {"launcher": launcher.name})
    can = launcher.probe()
    if can.refusal is not None:
        raise RunRefusal(can.refusal.code, can.refusal.params)
    return launcher


@contextmanager
def run_job_to_end(
    launcher: JobLauncher, layout: NodeLayout, module: str, limit_s: float, files: Mapping[str, Any] | None = None
) -> Iterator[tuple[Path, RunRefusal]]:
    """Run a module on nodes to its end; yield its folder, and the error to raise if a result is missing there.

    Args:
        launcher: the launcher that runs it.
        layout: the processes of each node.
        module: module that torchrun starts with the folder as its argument.
        limit_s: time in seconds after which it is ended.
        files: JSON documents to write into the folder first, by file name.
    """
    folder = launcher.prepare_folder(f"check-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        for name, document in (files or {}).items():
            write_document(folder / name, document)
        status = _wait_for_job(launcher, launcher.start_program(layout, folder, module), folder, limit_s)
        why = {"target": launcher.target, "why": _failure_reason(status, limit_s), "said": last_errors(folder)}
        yield folder, RunRefusal("target_check_failed", why)
    finally:
        _remove_folder(launcher, folder)


def _wait_for_job(launcher: JobLauncher, job: Mapping[str, Any], folder: Path, limit_s: float) -> JobStatus:
    end = time.monotonic() + limit_s
    try:
        while (status := launcher.status(folder.name, job)).phase is not Phase.ENDED and time.monotonic() < end:
            time.sleep(LOOK_S)
    finally:
        with suppress(RunError):
            launcher.end(folder.name, job)
    launcher.pull(folder, job, everything=True)
    return status


def _failure_reason(status: JobStatus, limit_s: float) -> str:
    if status.phase is not Phase.ENDED:
        return f"its job is {status.phase.value} after {limit_s:.0f} s{f' ({status.note})' if status.note else ''}"
    return status.failure.message if status.failure else "its job ended without a report"


def _remove_folder(launcher: JobLauncher, folder: Path) -> None:
    with suppress(RunError):
        launcher.remove(folder)
    if folder.is_symlink():
        shutil.rmtree(folder.resolve(), ignore_errors=True)
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _round_measurement(value: float) -> float:
    """Return a measurement rounded to its significant digits."""
    return float(f"{value:.3g}")
