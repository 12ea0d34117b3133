"""A small cluster's network on this machine: a network namespace a process, and links of two speeds.

Each process has a link to the switch (a bridge) of its node, and each node one uplink to the switch
between nodes; both ends of a link are held to its rate by token buckets, which are inside the kernel
and in the way of every byte. Where links are to be apart, a process has a second one for what leaves
its node, to a switch that has the uplink.

Nothing outlives who holds it: namespaces have no names here, and the kernel takes them away, with
every link in them, when the last process that is in them or holds a descriptor of them is gone,
however it went.

``python -m meshwave.engine.runs.emulation.network`` tries whether this machine can, and says what it lacks.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from meshwave.engine.errors import MeshwaveError, RunError
from meshwave.engine.files import import_path
from meshwave.engine.runs.emulation._namespaces import (
    CLONE_NEWNET,
    CLONE_NEWUSER,
    PR_SET_PDEATHSIG,
    SETTINGS,
    _libc,
    _namespace,
    _set_namespace,
    new_namespace,
)
from meshwave.engine.runs.emulation.topology import MOST_PROCESSES, SUBNET, Topology

LINUX = sys.platform.startswith("linux")
INTERFACE, ACROSS = "e0", "e1"
"""What a process calls its link, and the one to other nodes where that is another."""
MTU_BYTES = 9000
"""Of an Ethernet packet: a jumbo frame is mostly payload, and is handled once instead of six times."""
PAYLOAD = (MTU_BYTES - 52) / (MTU_BYTES + 14)
"""Of what a link carries: the rest are headers, of TCP and IP 52 bytes and of Ethernet 14."""
BURST_BYTES = 70_000
"""What may pass at once after a pause: a little more than the largest packet that the kernel hands to
a link in one piece. With less it cuts each into pieces, which costs more than all the rest."""
BURST_S = 0.5e-3
"""The longest that what may pass at once would take, which is how much a message can come too early: on
slow links cutting costs little. One packet may always pass."""
QUEUE_MS = 2000
"""How long a packet may wait in a link's queue before it is dropped: so long that hardly any is, since
the networks of clusters hold back a sender rather than lose what it sent."""
ROUTE = f"rto_min {QUEUE_MS}ms initcwnd 1000 initrwnd 1000"
"""What waits is not taken for lost, and a link is full from the start: those networks have no slow start,
which here would wait for acknowledgements in the queue of the other direction."""


# ---- what this machine can do ----


def missing() -> str | None:
    """What this machine lacks to shape links, in words; nothing where it can. Never raises."""
    if not LINUX:
        return f"network namespaces are a thing of Linux, and this is {sys.platform}"
    absent = [command for command in ("ip", "tc") if _tool(command) is None]
    if absent:
        return f"the command {absent[0]} is not here; install iproute2"
    try:
        tried = subprocess.run(
            [sys.executable, "-m", "meshwave.engine.runs.emulation.network"],
            env={**os.environ, "PYTHONPATH": import_path()},
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


def _try() -> NoReturn:
    """Make the smallest network that has everything in it; the reason on standard error where it fails."""
    try:
        _make(Topology((0, 0, 1), intra=1e6, inter=1e6, nics=2, apart=True))
    except (OSError, RunError) as error:
        sys.exit(in_words(error))
    sys.exit(0)


def in_words(error: Exception) -> str:
    """Why a network could not be made."""
    if isinstance(error, OSError):
        return (
            f"this user may not make network namespaces ({error.strerror}); run as root, or allow user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    return str(error) if isinstance(error, MeshwaveError) else repr(error)


# ---- a network, and who makes it ----


class Network:
    """The namespaces and links of a topology. They live as long as this object is open somewhere, in this
    process or a fork of it, or a process is in one of them."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        """``descriptors``: the user namespace that owns them, the namespace of the switches, and that of each process."""
        self._user, self._switches, *self._namespaces = descriptors

    def enter(self, process: int) -> None:
        """Move this process, of one thread so far, to where ``process`` of the topology is."""
        own = os.stat("/proc/self/ns/user")
        if not os.path.samestat(own, os.fstat(self._user)):
            _set_namespace(self._user, CLONE_NEWUSER)
        _set_namespace(self._namespaces[process], CLONE_NEWNET)

    def close(self) -> None:
        for descriptor in (self._user, self._switches, *self._namespaces):
            os.close(descriptor)


class Builder:
    """A process that makes a network and hands it over, since who makes one has to move into it.

    It is a fork of this process, which must have one thread. It has ended when :meth:`network` is due.
    """

    def __init__(self, topology: Topology) -> None:
        """Start it.

        Raises:
            OSError: no process can be started.
        """
        parent = os.getpid()
        self._near, far = socket.socketpair()
        with far:
            self.pid = os.fork()
            if not self.pid:
                _build(topology, far, parent)

    def network(self) -> Network:
        """What it made. Whoever calls waits for the process, first or later.

        Raises:
            RunError: it could not, and why.
        """
        with self._near:
            said, descriptors, _, _ = socket.recv_fds(self._near, 1 << 16, 2 + MOST_PROCESSES, socket.MSG_CMSG_CLOEXEC)
        if descriptors:
            return Network(descriptors)
        raise RunError(f"the network could not be made: {said.decode() or 'the process that makes it was ended'}")


def make(topology: Topology) -> Network:
    """Have a network made, and wait for it.

    Raises:
        OSError: no process can be started.
        RunError: it cannot be made, and why.
    """
    builder = Builder(topology)
    try:
        return builder.network()
    finally:
        os.waitpid(builder.pid, 0)


def _build(topology: Topology, to: socket.socket, parent: int) -> NoReturn:
    """What a builder does: it sends the descriptors of what it made, or why it could not."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        die_with(parent)
        made = _make(topology)
        socket.send_fds(to, [b"made"], made)
        os._exit(0)
    except Exception as error:
        traceback.print_exc()
        to.sendall(in_words(error).encode())
    finally:
        os._exit(1)


def die_with(parent: int) -> None:
    """Have the kernel end this process when the one that forked it is killed."""
    if LINUX:
        _libc().prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew our wish
        os._exit(1)


# ---- links ----


def _make(topology: Topology) -> list[int]:
    """Make all of it, from among the switches; descriptors as :class:`Network` takes them."""
    switches = new_namespace()
    namespaces = [_link(topology, process, switches) for process in range(topology.processes)]
    _set_namespace(switches, CLONE_NEWNET)
    _connect(topology)
    return [_namespace("user"), switches, *namespaces]


def _link(topology: Topology, process: int, switches: int) -> int:
    """A new namespace with one link or two, whose other ends are ports of the switches."""
    namespace = new_namespace()
    for name, value in SETTINGS.items():
        with suppress(OSError):  # what cannot be written is as the machine has it
            Path("/proc/sys/net/ipv4", name).write_text(value)
    there, address = f"netns /proc/{os.getpid()}/fd/{switches}", topology.address(process)
    devices = {INTERFACE: SUBNET}
    if topology.is_apart:
        devices = {INTERFACE: address.rpartition(".")[0] + ".0/24", ACROSS: SUBNET}
    ends = list(zip(devices, _ports(topology, process), strict=True))
    lines = ["link set lo up"]
    for device, port in ends:
        lines += [
            _pair(device, port.name, there),
            f"addr add {address}/16 dev {device} noprefixroute",
            f"link set {device} up",
            f"route add {devices[device]} dev {device} {ROUTE}",
        ]
    _ip(*lines)
    _tc(*(_bucket(device, port.rate) for device, port in ends))
    return namespace


class Port(NamedTuple):
    """An end of a link among the switches."""

    name: str
    switch: str
    rate: float  # of its link


def _ports(topology: Topology, process: int) -> list[Port]:
    """Where the links of a process end: at the switch of its node and, where it has another, at its gate."""
    node = topology.node_of[process]
    inside = Port(f"port{process}", f"node{node}", topology.intra)
    return [inside, Port(f"far{process}", f"gate{node}", topology.inter)] if topology.is_apart else [inside]


def _uplinks(topology: Topology) -> list[Port]:
    """Both ends of the uplink of each node; none where there is but one."""
    leaves, rate = "gate" if topology.is_apart else "node", topology.inter * topology.nics
    nodes = range(topology.nodes if topology.nodes > 1 else 0)
    return [
        end
        for node in nodes
        for end in (Port(f"up{node}", f"{leaves}{node}", rate), Port(f"down{node}", "spine", rate))
    ]


def _connect(topology: Topology) -> None:
    """Make the switches and the uplinks, and give each port its switch."""
    uplinks = _uplinks(topology)
    ports = [port for process in range(topology.processes) for port in _ports(topology, process)] + uplinks
    switches = list(dict.fromkeys(port.switch for port in ports))
    _ip(
        *(f"link add name {switch} mtu {MTU_BYTES} type bridge" for switch in switches),
        *(_pair(near.name, far.name) for near, far in zip(uplinks[::2], uplinks[1::2], strict=True)),
        *(f"link set {port.name} master {port.switch}" for port in ports),
        *(f"link set {device} up" for device in (*switches, *(port.name for port in ports))),
    )
    _tc(*(_bucket(port.name, port.rate) for port in ports))


def _pair(near: str, far: str, there: str = "") -> str:
    """A link with two ends, of which the far one may be elsewhere."""
    return f"link add name {near} mtu {MTU_BYTES} type veth peer name {far} mtu {MTU_BYTES} {there}"


def _bucket(device: str, rate: float) -> str:
    """Hold what leaves ``device`` to ``rate`` bytes/s (which tc calls bps)."""
    burst = min(BURST_BYTES, max(MTU_BYTES + 1000, rate * BURST_S))
    return f"qdisc add dev {device} root tbf rate {rate:.0f}bps burst {burst:.0f} latency {QUEUE_MS}ms"


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


if __name__ == "__main__":
    _try()
