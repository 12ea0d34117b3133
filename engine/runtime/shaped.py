"""A small cluster on this machine: a network namespace a process, and links of two speeds between them.

Each process has a link to the switch (a bridge) of its node, and each node one uplink to the switch
between nodes; both ends of a link are held to its rate by a token bucket, which is inside the
kernel and in the way of every byte. Nothing outlives the processes: the namespaces have no names,
and the kernel takes them away, with every link in them, when the last process in them is gone,
however it went. Processes listen inside their namespaces only, and find each other in a file.

``python -m engine.runtime.shaped FOLDER`` is the process that makes the network and forks the
others. It imports torch once for all of them; its caller needs none.
"""

from __future__ import annotations

import ctypes
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from signal import SIG_IGN, SIGINT, SIGKILL, signal
from typing import Any, NoReturn

from engine.errors import InputError, MeshwaveError, RunError
from engine.units import quantity

LINUX = sys.platform.startswith("linux")
CLONE_NEWUSER, CLONE_NEWNET, PR_SET_PDEATHSIG = 0x10000000, 0x40000000, 1  # from linux/sched.h, linux/prctl.h
TIMEOUT = timedelta(seconds=120)
"""The longest that one message may take."""
LOOK_S = 0.02
END_S = 1.0
"""From the polite wish to end to the other one."""
INTERFACE = "e0"
"""What a process calls its link."""
MTU_BYTES = 9000
"""Of an Ethernet packet: a jumbo frame carries 99.4% of payload, and is handled once instead of six times."""
BURST_BYTES = 70_000
"""What may pass at once after a pause: a little more than the largest packet that the kernel hands to
a link in one piece. With less it would cut each into pieces, which costs more than all the rest."""
QUEUE_MS = 2000
"""How long a packet may wait in a link's queue before it is dropped: so long that hardly any is, since
the networks of clusters hold back a sender rather than lose what it sent."""
SUBNET = "10.78.0.0/16"
ROUTE = f"rto_min {QUEUE_MS}ms initcwnd 1000 initrwnd 1000"
"""What waits is not taken for lost, and a link is full from the start: those networks have no slow start,
which here would wait for acknowledgements in the queue of the other direction."""
SETTINGS = {
    "tcp_congestion_control": "reno",  # in every kernel, and the same everywhere; BBR probes for the rate first
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": "4096 16777216 33554432",  # so that the receiver does not hold back what the route lets through
}
"""Of TCP inside the namespaces."""
MOST_PROCESSES = 64
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
        if self.intra is not None and self.inter is not None and not 1e4 <= self.inter <= self.intra <= 1e11:
            raise InputError(
                f"the rates {self.intra:g} and {self.inter:g} bytes/s cannot be; use 1e4 to 1e11, the one between "
                "nodes the smaller, since what leaves a node passes a link inside it too"
            )

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
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.runtime.shaped", str(folder)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
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


# ---- what this machine can do ----


def cores() -> int:
    """Those that processes of this one may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def missing() -> str | None:
    """What this machine lacks to shape links, in words; nothing where it can. Never raises."""
    if not LINUX:
        return f"network namespaces are a thing of Linux, and this is {sys.platform}"
    absent = [command for command in ("ip", "tc") if _tool(command) is None]
    if absent:
        return f"the command {absent[0]} is not here; install iproute2"
    try:
        tried = subprocess.run(
            [sys.executable, "-m", "engine.runtime.shaped"],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"it could not be tried: {error}"
    if tried.returncode == 0:
        return None
    return (tried.stderr.strip().splitlines() or [f"status {tried.returncode}"])[-1]


def _tool(name: str) -> str | None:
    """The path of a command; administration's folders are not on everybody's path."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


# ---- the network ----


class Network:
    """The namespaces and links of a shaped cluster. They live as long as this process or one that entered.

    The caller of the constructor is moved into the namespace of the switches.

    Raises:
        OSError: the kernel refuses namespaces to this user.
        RunError: ``ip`` or ``tc`` refuse; what they said.
    """

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.intra is not None
        assert cluster.inter is not None
        self._cluster = cluster
        switches = new_namespace()
        self._namespaces = [self._link(rank, switches, cluster.intra) for rank in range(cluster.ranks)]
        set_namespace(switches)
        self._connect(cluster.intra, cluster.inter)

    def enter(self, rank: int) -> None:
        """Move this process, of one thread so far, into the namespace of ``rank``."""
        set_namespace(self._namespaces[rank])
        for name, value in SETTINGS.items():
            with suppress(OSError):  # what cannot be written is as the machine has it
                Path("/proc/sys/net/ipv4", name).write_text(value)

    @staticmethod
    def address(rank: int) -> str:
        return f"10.78.{rank // 250}.{rank % 250 + 1}"

    def _link(self, rank: int, switches: int, rate: float) -> int:
        """A new namespace with one link; its other end, ``port<rank>``, is among the switches."""
        namespace = new_namespace()
        far = f"/proc/{os.getpid()}/fd/{switches}"
        _ip(
            "link set lo up",
            f"link add name {INTERFACE} mtu {MTU_BYTES} type veth peer name port{rank} mtu {MTU_BYTES} netns {far}",
            f"addr add {self.address(rank)}/16 dev {INTERFACE} noprefixroute",
            f"link set {INTERFACE} up",
            f"route add {SUBNET} dev {INTERFACE} {ROUTE}",
        )
        _tc(_bucket(INTERFACE, rate))
        return namespace

    def _connect(self, intra: float, inter: float) -> None:
        """A switch a node and, where there are several, one between them with an uplink to each."""
        ranks, nodes = range(self._cluster.ranks), range(self._cluster.nodes)
        lines = [f"link add name node{node} mtu {MTU_BYTES} type bridge" for node in nodes]
        lines += [f"link set port{rank} master node{self._cluster.node(rank)}" for rank in ranks]
        up = [f"node{node}" for node in nodes] + [f"port{rank}" for rank in ranks]
        buckets = [_bucket(f"port{rank}", intra) for rank in ranks]
        if len(nodes) > 1:
            lines.append(f"link add name spine mtu {MTU_BYTES} type bridge")
            up.append("spine")
            for node in nodes:
                ends = f"up{node}", f"down{node}"
                lines += [f"link add name {ends[0]} mtu {MTU_BYTES} type veth peer name {ends[1]} mtu {MTU_BYTES}"]
                lines += [f"link set {ends[0]} master node{node}", f"link set {ends[1]} master spine"]
                up += ends
                buckets += [_bucket(end, inter) for end in ends]
        _ip(*lines, *(f"link set {device} up" for device in up))
        _tc(*buckets)


def new_namespace() -> int:
    """Move this process into a new network namespace, as root of a user namespace where it is not
    root already; returns a descriptor that keeps it."""
    try:
        _unshare(CLONE_NEWNET)
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def set_namespace(descriptor: int) -> None:
    """Move this thread into a network namespace; threads that it starts later are born there."""
    _called(_libc().setns(descriptor, CLONE_NEWNET))


def _unshare(flags: int) -> None:
    _called(_libc().unshare(flags))


def _called(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _bucket(device: str, rate: float) -> str:
    """Hold what leaves ``device`` to ``rate`` bytes/s (which tc calls bps)."""
    return f"qdisc add dev {device} root tbf rate {rate:.0f}bps burst {BURST_BYTES} latency {QUEUE_MS}ms"


def _ip(*lines: str) -> None:
    _batch("ip", lines)


def _tc(*lines: str) -> None:
    _batch("tc", lines)


def _batch(command: str, lines: tuple[str, ...]) -> None:
    done = subprocess.run(
        [_tool(command) or command, "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RunError(f"{command} failed: {' '.join(done.stderr.split())}")


def _try() -> None:
    """Make the smallest network that has everything in it; the reason on standard error where it fails."""
    try:
        Network(Cluster(nodes=2, ranks_per_node=1, intra=1e6, inter=1e6))
    except OSError as error:
        sys.exit(
            f"this user may not make network namespaces ({error.strerror}); run as root, or allow user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    except RunError as error:
        sys.exit(str(error))


# ---- the process that forks the others ----


def main(folder: Path) -> None:
    signal(SIGINT, SIG_IGN)  # Ctrl-C is for whoever started us
    job = json.loads((folder / "job.json").read_text("utf-8"))
    cluster = Cluster(**job["cluster"])
    try:
        network = Network(cluster) if cluster.is_shaped else None
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
        _die_with(parent)
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
        _write(folder / f"result-{rank}.json", result)
    except Exception as error:
        _report(folder, str(rank), f"process {rank}", error)
        raise


def _in_group(folder: Path, cluster: Cluster, rank: int, work: Callable[[], Any]) -> Any:
    import torch
    import torch.distributed as dist

    loopback = "lo0" if sys.platform == "darwin" else "lo"
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE if cluster.is_shaped else loopback
    torch.set_num_threads(1)  # cores go to processes
    store = dist.FileStore(str(folder / "store"), cluster.ranks)  # type: ignore[attr-defined]
    if cluster.gpus:
        torch.cuda.set_device(rank)
    backend = "nccl" if cluster.gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=cluster.ranks, timeout=TIMEOUT)
    result = work()
    dist.destroy_process_group()
    return result


def _report(folder: Path, name: str, who: str, error: Exception) -> None:
    traceback.print_exception(error)
    said = str(error) if isinstance(error, MeshwaveError) else repr(error)
    _write(folder / f"error-{name}.json", {"who": who, "error": said, "time": time.time()})


def _write(path: Path, value: Mapping[str, Any] | Any) -> None:
    path.with_suffix(".tmp").write_text(json.dumps(value), "utf-8")
    path.with_suffix(".tmp").rename(path)


def _die_with(parent: int) -> None:
    """Have the kernel end this process when the one that forked it is killed."""
    if LINUX:
        _libc().prctl(PR_SET_PDEATHSIG, int(SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew our wish
        os._exit(1)


def _start() -> NoReturn:
    _try() if len(sys.argv) < 2 else main(Path(sys.argv[1]))
    sys.exit(0)


if __name__ == "__main__":
    _start()
