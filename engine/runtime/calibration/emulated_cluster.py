"""A small cluster on this machine for what is measured: processes, and links of two speeds between them.

The links are those of :mod:`meshwave.engine.runs.emulation.network`, and nothing of them outlives the processes. Processes
listen inside their namespaces only, and find each other in a file.

``python -m meshwave.engine.runtime.calibration.emulated_cluster FOLDER`` is the process that has the network made and forks the
others. It imports torch once for all of them; its caller needs none.
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
from pathlib import Path
from signal import SIG_IGN, SIGINT, SIGKILL, signal
from typing import Any

from meshwave.engine.errors import InputError, MeshwaveError, RunError
from meshwave.engine.files import import_path
from meshwave.engine.run_files import write_document
from meshwave.engine.runs.emulation.network import INTERFACE, Network, die_with, make, missing
from meshwave.engine.runs.emulation.topology import MOST_PROCESSES, Topology
from meshwave.engine.units import quantity

TIMEOUT = timedelta(seconds=120)
"""The longest that one message may take."""
LOOK_S = 0.02
END_S = 1.0
"""From the polite wish to end to the other one."""
LOG = "log"
"""What the processes and their libraries write to standard error."""


@dataclass(frozen=True)
class Cluster:
    """``nodes`` times ``ranks_per_node`` processes; the rates, in bytes/s, are what each link carries
    in each direction. Without rates all processes share this machine's loopback."""

    nodes: int
    ranks_per_node: int
    intra: float | None = None
    """Of the link of each process."""
    inter: float | None = None
    """Of the uplink that the processes of a node share."""
    gpus: bool = False
    """Whether each process has a GPU of this machine to itself, and messages go over NCCL."""

    def __post_init__(self) -> None:
        if (self.intra is None) != (self.inter is None):
            raise InputError("a shaped cluster has two rates: inside nodes and between them")
        if self.gpus and (self.is_shaped or self.nodes > 1):
            raise InputError("what GPUs of this machine send cannot be shaped; they are one node without rates")
        if self.nodes < 1 or self.ranks_per_node < 1 or self.ranks > MOST_PROCESSES:
            raise InputError(f"{self.nodes} x {self.ranks_per_node} processes cannot be; use 1 to {MOST_PROCESSES}")
        _ = self.topology  # which refuses rates that links cannot have

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def is_shaped(self) -> bool:
        return self.intra is not None

    def node(self, rank: int) -> int:
        return rank // self.ranks_per_node

    @property
    def node_of(self) -> tuple[int, ...]:
        """[ranks]"""
        return tuple(map(self.node, range(self.ranks)))

    @property
    def topology(self) -> Topology | None:
        """Its network, where it is shaped."""
        if self.intra is None or self.inter is None:
            return None
        return Topology(self.node_of, self.intra, self.inter)

    def __str__(self) -> str:
        if self.gpus:
            return f"{self.ranks} GPUs of this machine over NCCL"
        if self.intra is None or self.inter is None:
            return f"{self.ranks} processes over this machine's loopback, not shaped"
        return (
            f"{self.nodes} nodes of {self.ranks_per_node} processes, emulated: {quantity(self.intra, 'B/s')} a process, "
            f"{quantity(self.inter, 'B/s')} a node's uplink"
        )


def run(work: str, cluster: Cluster, argument: Any = None, say: Callable[[str], None] = lambda line: None) -> list[Any]:
    """Call ``work``, a name such as ``package.module:function``, in every process of the cluster.

    It gets the cluster and the argument, which is plain JSON, in a process of a torch.distributed
    group over gloo, or over NCCL where each has a GPU; what it returns, plain JSON again, comes back
    by rank. ``say`` hears the lines that any of them prints.

    Raises:
        InputError: this machine cannot shape links, and why.
        RunError: a process failed; the first one's error.
    """
    if cluster.is_shaped and (reason := missing()):
        raise InputError(
            f"links cannot be shaped here: {reason}; without rates the processes share this machine's loopback"
        )
    with tempfile.TemporaryDirectory(prefix="meshwave-") as name:
        folder = Path(name)
        job = {"work": work, "cluster": asdict(cluster), "argument": argument}
        (folder / "job.json").write_text(json.dumps(job), "utf-8")
        with _started(folder, cluster.gpus) as process:
            assert process.stdout is not None
            for line in process.stdout:
                say(line.rstrip("\n"))
            process.wait()
        _raise_first_error(folder, process.returncode)
        return [json.loads((folder / f"result-{rank}.json").read_text("utf-8")) for rank in range(cluster.ranks)]


@contextmanager
def _started(folder: Path, gpus: bool) -> Iterator[subprocess.Popen[str]]:
    """The process that makes the network; at the end, however it comes, it is gone with all it started."""
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "meshwave.engine.runtime.calibration.emulated_cluster", str(folder)],
            env={
                **os.environ,
                "PYTHONPATH": import_path(),
                "OMP_NUM_THREADS": "1",
                **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}),
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
        process.stdin.close()  # nobody is there for whom to go on
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()  # and the kernel the others
            process.wait()
        process.stdout.read()  # to its end: the last of the processes held it
        process.stdout.close()


def _raise_first_error(folder: Path, status: int) -> None:
    """Where one process fails the others do, a moment later."""
    errors = [json.loads(path.read_text("utf-8")) for path in folder.glob("error-*.json")]
    if errors:
        first = min(errors, key=lambda error: error["time"])
        raise RunError(f"{first['who']} of the cluster failed: {first['error']}")
    if status:
        said = (folder / LOG).read_text("utf-8", "replace").strip().splitlines()
        raise RunError(f"the cluster ended with status {status}{f': {said[-1]}' if said else ''}")


def cores() -> int:
    """Those that processes of this one may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- the process that forks the others ----


def main(folder: Path) -> None:
    signal(SIGINT, SIG_IGN)  # Ctrl-C is for whoever started us
    job = json.loads((folder / "job.json").read_text("utf-8"))
    cluster = Cluster(**job["cluster"])
    try:
        network = make(cluster.topology) if cluster.topology else None
        work = _function(job["work"])
    except Exception as error:
        _report(folder, "start", "the start", error)
        sys.exit(1)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page it looks at
    play = lambda rank: _play(folder, cluster, network, rank, work, job["argument"])  # noqa: E731
    status = _watch({_fork(rank, play) for rank in range(cluster.ranks)})
    if _is_alone():
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(status)


def _function(name: str) -> Callable[[Cluster, Any], Any]:
    module, _, function = name.partition(":")
    found: Callable[[Cluster, Any], Any] = getattr(importlib.import_module(module), function)
    return found


def _is_alone(wait_s: float = 0.0) -> bool:
    """Whether nobody is left who wants to know: standard input, on which nothing is ever said, has ended."""
    return bool(select.select([0], [], [], wait_s)[0])


def _watch(alive: set[int]) -> int:
    """Wait for all, end them where one fails or nobody wants to know; the exit status."""
    failed = False
    try:
        while alive and not failed and not _is_alone(LOOK_S):
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


def _fork(rank: int, play: Callable[[int], None]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with(parent)
        play(rank)
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _play(
    folder: Path,
    cluster: Cluster,
    network: Network | None,
    rank: int,
    work: Callable[[Cluster, Any], Any],
    argument: Any,
) -> None:
    """One process of the cluster, from its namespace to its result."""
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]  # whole lines
    try:
        if network is not None:
            network.enter(rank)
        result = _in_group(folder, cluster, rank, lambda: work(cluster, argument))
        write_document(folder / f"result-{rank}.json", result)
    except Exception as error:
        _report(folder, str(rank), f"process {rank}", error)
        raise


def _in_group(folder: Path, cluster: Cluster, rank: int, work: Callable[[], Any]) -> Any:
    import torch
    import torch.distributed as dist

    from meshwave.engine.runtime.device.accelerator import accelerator_device, device_backend, select_device
    from meshwave.engine.runtime.device.streams import set_stream_environment

    set_stream_environment()
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE if cluster.is_shaped else loopback
    torch.set_num_threads(1)  # cores go to processes
    store = dist.FileStore(str(folder / "store"), cluster.ranks)  # type: ignore[attr-defined]
    backend: str | None = "gloo"
    if cluster.gpus:
        device = accelerator_device(rank)
        select_device(device)
        backend = device_backend(device)
        if backend is None:
            raise RunError(f"this torch has no backend for messages between devices of type {device.type}")
    dist.init_process_group(backend, store=store, rank=rank, world_size=cluster.ranks, timeout=TIMEOUT)
    result = work()
    dist.destroy_process_group()
    return result


def _report(folder: Path, name: str, who: str, error: Exception) -> None:
    traceback.print_exception(error)
    said = str(error) if isinstance(error, MeshwaveError) else repr(error)
    write_document(folder / f"error-{name}.json", {"who": who, "error": said, "time": time.time()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
