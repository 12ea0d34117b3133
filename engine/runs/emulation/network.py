"""The network of a small cluster on this machine: a network namespace per process, and links of two rates.

Each process has a link to the switch (a bridge) of its node, and each node one uplink to the switch
between nodes. Token buckets in the kernel limit both ends of a link to its rate. With separate links a process has a
second one for what leaves its node, to a switch with the uplink.

Namespaces have no names: the kernel removes them, with every link in them, when the last process in
them, or with a descriptor of them, has ended.

``python -m meshwave.engine.runs.emulation.network`` tests whether this machine can, and prints what it lacks.
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
from meshwave.engine.findings import RunRefusal
from meshwave.engine.runs.emulation.namespaces import (
    CLONE_NEWNET,
    CLONE_NEWUSER,
    PR_SET_PDEATHSIG,
    SETTINGS,
    enter_namespace,
    libc,
    new_namespace,
    open_namespace,
)
from meshwave.engine.runs.emulation.topology import MOST_PROCESSES, SUBNET, Topology

LINUX = sys.platform.startswith("linux")
INTERFACE, ACROSS = "e0", "e1"
"""Names of the link of a process, and of its link to other nodes if that is separate."""
MTU_BYTES = 9000
"""Size of an Ethernet packet: a jumbo frame is mostly payload, and is handled once instead of six times."""
PAYLOAD = (MTU_BYTES - 52) / (MTU_BYTES + 14)
"""Payload share of a packet: TCP and IP headers take 52 bytes, Ethernet 14."""
BURST_BYTES = 70_000
"""Burst after a pause: a little more than the largest packet that the kernel hands to a link in one piece.

With less, the kernel splits each packet, which costs more than everything else."""
BURST_S = 0.5e-3
"""Longest duration of a burst, which is how much a message can arrive too early.

On slow links splitting costs little. One packet may always pass."""
QUEUE_MS = 2000
"""Time in a link's queue after which a packet is dropped: so long that hardly any is.

Networks of clusters hold back a sender rather than drop its packets."""
ROUTE = f"rto_min {QUEUE_MS}ms initcwnd 1000 initrwnd 1000"
"""Waiting packets do not count as lost, and a link is full from the start.

Those networks have no slow start, which here would wait for acknowledgements in the queue of the other direction.
"""


# ---- requirements ----


def missing_requirement() -> str | None:
    """Return what this machine lacks to emulate links; None if nothing. Never raises."""
    if not LINUX:
        return f"network namespaces need Linux, and this is {sys.platform}"
    absent = [command for command in ("ip", "tc") if _tool(command) is None]
    if absent:
        return f"the command {absent[0]} is not installed; install iproute2"
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
        return f"the test failed: {error}"
    if tried.returncode == 0:
        return None
    return (tried.stderr.strip().splitlines() or [f"status {tried.returncode}"])[-1]


def _tool(name: str) -> str | None:
    """Return the path of a command; folders of administration are not on every PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _test() -> NoReturn:
    """Make the smallest network with all features; print the reason on standard error if it fails."""
    try:
        _make(Topology((0, 0, 1), intra=1e6, inter=1e6, nics=2, apart=True))
    except (OSError, RunError) as error:
        sys.exit(network_error_text(error))
    sys.exit(0)


def network_error_text(error: Exception) -> str:
    """Return why a network could not be created."""
    if isinstance(error, OSError):
        return (
            f"this user cannot create network namespaces ({error.strerror}); run as root, or allow user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    return str(error) if isinstance(error, MeshwaveError) else repr(error)


# ---- networks ----


class Network:
    """The namespaces and links of a topology.

    They exist as long as this object is open in this process or a fork of it, or a process is in one of them.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        """``descriptors``: the user namespace that owns them, the namespace of the switches, and that of each process."""
        self._user, self._switches, *self._namespaces = descriptors

    def enter(self, process: int) -> None:
        """Move this process, which must have one thread, into the namespace of ``process``."""
        own = os.stat("/proc/self/ns/user")
        if not os.path.samestat(own, os.fstat(self._user)):
            enter_namespace(self._user, CLONE_NEWUSER)
        enter_namespace(self._namespaces[process], CLONE_NEWNET)

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (self._user, self._switches, *self._namespaces):
            os.close(descriptor)


class Builder:
    """A process that creates a network and passes its descriptors on, because the creator has to move into it.

    It is a fork of this process, which must have one thread.
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
        """Return the network. The caller waits for the process, before or after.

        Raises:
            RunError: the network could not be created.
        """
        with self._near:
            said, descriptors, _, _ = socket.recv_fds(self._near, 1 << 16, 2 + MOST_PROCESSES, socket.MSG_CMSG_CLOEXEC)
        if descriptors:
            return Network(descriptors)
        raise RunRefusal("network_not_created", {"reason": said.decode()})


def make_network(topology: Topology) -> Network:
    """Make a network in another process, and wait for it.

    Raises:
        OSError: no process can be started.
        RunError: it cannot be made.
    """
    builder = Builder(topology)
    try:
        return builder.network()
    finally:
        os.waitpid(builder.pid, 0)


def _build(topology: Topology, to: socket.socket, parent: int) -> NoReturn:
    """Make a network in a builder process; send its descriptors, or why it failed."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        end_with_parent(parent)
        made = _make(topology)
        socket.send_fds(to, [b"made"], made)
        os._exit(0)
    except Exception as error:
        traceback.print_exc()
        to.sendall(network_error_text(error).encode())
    finally:
        os._exit(1)


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent is killed."""
    if LINUX:
        libc().prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call above
        os._exit(1)


# ---- links ----


def _make(topology: Topology) -> list[int]:
    """Make the namespaces and links; return descriptors as :class:`Network` takes them."""
    switches = new_namespace()
    namespaces = [_link(topology, process, switches) for process in range(topology.processes)]
    enter_namespace(switches, CLONE_NEWNET)
    _connect(topology)
    return [open_namespace("user"), switches, *namespaces]


def _link(topology: Topology, process: int, switches: int) -> int:
    """Make a namespace with one or two links to ports of the switches."""
    namespace = new_namespace()
    for name, value in SETTINGS.items():
        with suppress(OSError):  # otherwise the setting of the machine applies
            Path("/proc/sys/net/ipv4", name).write_text(value)
    there, address = f"netns /proc/{os.getpid()}/fd/{switches}", topology.address(process)
    devices = {INTERFACE: SUBNET}
    if topology.has_two_links:
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
    """An end of a link at a switch."""

    name: str
    switch: str
    rate: float  # of its link, bytes/s


def _ports(topology: Topology, process: int) -> list[Port]:
    """Return the ports of the links of a process: at the switch of its node and, with a second link, at its gate."""
    node = topology.node_of[process]
    inside = Port(f"port{process}", f"node{node}", topology.intra)
    return [inside, Port(f"far{process}", f"gate{node}", topology.inter)] if topology.has_two_links else [inside]


def _uplinks(topology: Topology) -> list[Port]:
    """Return both ends of the uplink of each node; none for a single node."""
    leaves, rate = "gate" if topology.has_two_links else "node", topology.inter * topology.nics
    nodes = range(topology.nodes if topology.nodes > 1 else 0)
    return [
        end
        for node in nodes
        for end in (Port(f"up{node}", f"{leaves}{node}", rate), Port(f"down{node}", "spine", rate))
    ]


def _connect(topology: Topology) -> None:
    """Make the switches and the uplinks, and connect the ports."""
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
    """Return the command for a link of two ends, of which the far one may be in another namespace."""
    return f"link add name {near} mtu {MTU_BYTES} type veth peer name {far} mtu {MTU_BYTES} {there}"


def _bucket(device: str, rate: float) -> str:
    """Return the command that limits ``device`` to ``rate`` bytes/s (bps in tc)."""
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
        raise RunRefusal("network_command_failed", {"command": command, "reason": " ".join(done.stderr.split())})


if __name__ == "__main__":
    _test()
