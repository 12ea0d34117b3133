"""Small cluster of processes on this machine with emulated links of two speeds, for measurements.

The links are those of :mod:`meshwave.engine.runs.emulation.network`; they are removed when the processes end. Processes
listen only inside their network namespaces, and find each other through a file.

``python -m meshwave.engine.runtime.calibration.emulated_cluster FOLDER`` is the process that creates the network and
forks the others. It imports torch once for all of them; its caller does not import torch.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from signal import SIG_IGN, SIGINT, SIGKILL, signal
from typing import Any

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import import_path
from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.run_files import write_document
from meshwave.engine.runs.emulation.network import (
    INTERFACE,
    Network,
    end_with_parent,
    make_network,
    missing_requirement,
)
from meshwave.engine.runs.emulation.topology import MOST_PROCESSES, Topology
from meshwave.engine.units import quantity

MESSAGE_TIMEOUT = timedelta(seconds=120)
"""The longest that one message may take."""
POLL_S = 0.02
TERMINATION_TIMEOUT_S = 1.0
"""Time to end after standard input closes, before the process is killed."""
LOG = "log"
"""File of the standard error of the processes and their libraries."""


@dataclass(frozen=True)
class ProcessCluster:
    """Cluster of ``nodes * ranks_per_node`` processes on this machine.

    Bandwidths, in bytes/s, apply to each link in each direction. Without bandwidths all processes share the loopback
    interface of this machine.
    """

    nodes: int
    ranks_per_node: int
    intra_bandwidth: float | None = None
    """Bandwidth of the link of each process."""
    inter_bandwidth: float | None = None
    """Bandwidth of the uplink that the processes of a node share."""
    uses_gpus: bool = False
    """True if each process has its own GPU of this machine and messages are sent over NCCL."""

    def __post_init__(self) -> None:
        if (self.intra_bandwidth is None) != (self.inter_bandwidth is None):
            raise Refusal("one_bandwidth")
        if self.uses_gpus and (self.is_emulated or self.nodes > 1):
            raise Refusal("gpu_links")
        if self.nodes < 1 or self.ranks_per_node < 1 or self.ranks > MOST_PROCESSES:
            params = {"nodes": self.nodes, "per_node": self.ranks_per_node, "most": MOST_PROCESSES}
            raise Refusal("process_cluster_size", params)
        _ = self.topology  # rejects unsupported bandwidths

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.nodes * self.ranks_per_node

    @property
    def is_emulated(self) -> bool:
        """True if links between the processes are emulated."""
        return self.intra_bandwidth is not None

    @property
    def node_by_rank(self) -> tuple[int, ...]:
        """Node of each process, ``[ranks]``."""
        return tuple(rank // self.ranks_per_node for rank in range(self.ranks))

    @property
    def topology(self) -> Topology | None:
        """Emulated network of the cluster; None if links are not emulated."""
        if self.intra_bandwidth is None or self.inter_bandwidth is None:
            return None
        return Topology(node_of=self.node_by_rank, intra=self.intra_bandwidth, inter=self.inter_bandwidth)

    def __str__(self) -> str:
        if self.uses_gpus:
            return f"{self.ranks} GPUs of this machine over NCCL"
        if self.intra_bandwidth is None or self.inter_bandwidth is None:
            return f"{self.ranks} processes over this machine's loopback, not emulated"
        intra, inter = (quantity(each, "B/s") for each in (self.intra_bandwidth, self.inter_bandwidth))
        return f"{self.nodes} emulated nodes of {self.ranks_per_node} processes: {intra} per process, {inter} per node uplink"


def run_in_cluster(
    function: str, cluster: ProcessCluster, argument: Any = None, on_line: Callable[[str], None] = lambda line: None
) -> list[Any]:
    """Call a function in every process of a cluster and return the results by rank.

    Args:
        function: a name such as ``package.module:function``. It is called with the cluster and the argument, in a
            process of a torch.distributed group over gloo, or over NCCL if each process has a GPU. It returns plain
            JSON.
        cluster: the processes.
        argument: plain JSON.
        on_line: called with every line that a process prints.

    Raises:
        InputError: this machine cannot emulate links.
        RunError: a process failed. The message is that of the first failure.
    """
    if cluster.is_emulated and (reason := missing_requirement()):
        raise Refusal("cluster_not_emulated", {"reason": reason})
    with tempfile.TemporaryDirectory(prefix="meshwave-") as name:
        folder = Path(name)
        job = {"function": function, "cluster": asdict(cluster), "argument": argument}
        (folder / "job.json").write_text(json.dumps(job), "utf-8")
        with _parent_process(folder, cluster.uses_gpus) as process:
            assert process.stdout is not None
            for line in process.stdout:
                on_line(line.rstrip("\n"))
            process.wait()
        raise_first_error(folder, process.returncode)
        return [json.loads((folder / f"result-{rank}.json").read_text("utf-8")) for rank in range(cluster.ranks)]


@contextmanager
def _parent_process(folder: Path, uses_gpus: bool) -> Iterator[subprocess.Popen[str]]:
    """Start the process that creates the network; at the end of the ``with`` block, end it and all of its children."""
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "meshwave.engine.runtime.calibration.emulated_cluster", str(folder)],
            env={
                **os.environ,
                "PYTHONPATH": import_path(),
                "OMP_NUM_THREADS": "1",
                **({} if uses_gpus else {"CUDA_VISIBLE_DEVICES": ""}),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()  # asks it to end
        try:
            process.wait(TERMINATION_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()  # the kernel then kills its children
            process.wait()
        process.stdout.read()  # until the last of the processes has closed it
        process.stdout.close()


def raise_first_error(folder: Path, status: int) -> None:
    """Raise the error that occurred first. When one process fails, the others fail a moment later."""
    errors = [json.loads(path.read_text("utf-8")) for path in folder.glob("error-*.json")]
    if errors:
        first = min(errors, key=lambda error: error["time"])
        raise RunRefusal("cluster_process_failed", {"who": first["who"], "reason": first["error"]})
    if status:
        lines = (folder / LOG).read_text("utf-8", "replace").strip().splitlines()
        raise RunRefusal("cluster_status", {"status": status, "log": lines[-1] if lines else ""})


# ---- the process that forks the others ----


def main(folder: Path) -> None:
    """Create the network of ``job.json``, run its function in every process, and exit with the status of the processes."""
    signal(SIGINT, SIG_IGN)  # Ctrl-C is handled by the caller
    job = json.loads((folder / "job.json").read_text("utf-8"))
    cluster = ProcessCluster(**job["cluster"])
    gc.disable()  # collections take a fifth of the time of the imports, and find nothing
    try:
        network = make_network(cluster.topology) if cluster.topology else None
        function = _find_function(job["function"])
    except Exception as error:
        _write_error(folder, "start", "the start", error)
        sys.exit(1)
    gc.freeze()  # a collection in a fork would copy every page that it visits
    gc.enable()
    run_process = partial(_run_process, folder, cluster, network, function, job["argument"])
    status = _wait_for_children({_fork_process(rank, run_process) for rank in range(cluster.ranks)})
    if _is_orphaned():
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(status)  # the shutdown of the interpreter takes a third of a second after an import of torch


def _find_function(name: str) -> Callable[[ProcessCluster, Any], Any]:
    module, _, function = name.partition(":")
    found: Callable[[ProcessCluster, Any], Any] = getattr(importlib.import_module(module), function)
    return found


def _is_orphaned(wait_s: float = 0.0) -> bool:
    """Return True if the caller has closed standard input, because it ended or because it requests the end."""
    return bool(select.select([0], [], [], wait_s)[0])


def _wait_for_children(alive: set[int]) -> int:
    """Wait for all child processes and return the exit status; kill them if one fails or the caller has ended."""
    failed = False
    try:
        while alive and not failed and not _is_orphaned(POLL_S):
            while alive and (found := os.waitpid(-1, os.WNOHANG))[0]:
                alive.remove(found[0])
                failed |= found[1] != 0
    finally:
        unfinished = bool(alive)
        for pid in alive:
            os.kill(pid, SIGKILL)
        for pid in alive:
            os.waitpid(pid, 0)
    return 1 if failed or unfinished else 0


def _fork_process(rank: int, run_process: Callable[[int], None]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        end_with_parent(parent)
        run_process(rank)
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run_process(
    folder: Path,
    cluster: ProcessCluster,
    network: Network | None,
    function: Callable[[ProcessCluster, Any], Any],
    argument: Any,
    rank: int,
) -> None:
    """Run one process of the cluster in its network namespace, and write its result."""
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]  # lines of processes do not mix
    try:
        if network is not None:
            network.enter(rank)
        result = _call_in_group(folder, cluster, rank, lambda: function(cluster, argument))
        write_document(folder / f"result-{rank}.json", result)
    except Exception as error:
        _write_error(folder, str(rank), f"process {rank}", error)
        raise


def _call_in_group(folder: Path, cluster: ProcessCluster, rank: int, function: Callable[[], Any]) -> Any:
    import torch
    import torch.distributed as dist

    from meshwave.engine.runtime.device.accelerator import accelerator_device, device_backend, select_device
    from meshwave.engine.runtime.device.streams import set_stream_environment

    set_stream_environment()
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE if cluster.is_emulated else loopback
    torch.set_num_threads(1)  # one core for each process
    store = dist.FileStore(str(folder / "store"), cluster.ranks)  # type: ignore[attr-defined]
    backend: str | None = "gloo"
    if cluster.uses_gpus:
        device = accelerator_device(rank)
        select_device(device)
        backend = device_backend(device)
        if backend is None:
            raise RunRefusal("no_device_backend", {"device": device.type})
    dist.init_process_group(backend, store=store, rank=rank, world_size=cluster.ranks, timeout=MESSAGE_TIMEOUT)
    result = function()
    dist.destroy_process_group()
    return result


def _write_error(folder: Path, name: str, who: str, error: Exception) -> None:
    traceback.print_exception(error)
    text = str(error) if isinstance(error, MeshwaveError) else repr(error)
    write_document(folder / f"error-{name}.json", {"who": who, "error": text, "time": time.time()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
