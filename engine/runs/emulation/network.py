"""Emulated network of a small cluster: one network namespace per process, connected by rate-limited links.

Each process has a link to the switch (a bridge) of its node, and each node has one uplink to the switch between nodes.
Token buckets in the kernel limit both ends of a link to its rate. With separate links, a process has a second link for
messages to other nodes, to a switch with the uplink.

The namespaces are unnamed: the kernel removes them and their links when the last process in them, or with a descriptor
of them, has ended.

``python -m meshwave.engine.runs.emulation.network`` tests whether this machine supports such networks, and prints what
is missing.
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
from functools import cache
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
"""Interface names of a process: its link, and its link to other nodes if that is separate."""
MTU_BYTES = 9000
"""Maximum packet size; a jumbo frame is mostly payload, and is processed once instead of six times."""
PAYLOAD = (MTU_BYTES - 52) / (MTU_BYTES + 14)
"""Payload share of a packet: TCP and IP headers take 52 bytes, Ethernet 14 bytes."""
BURST_BYTES = 70_000
"""Minimum burst of a token bucket: slightly more than the largest packet that the kernel passes in one piece.

With less, the kernel splits each packet, which costs more than everything else.
"""
BURST_S = 0.5e-3
"""Maximum duration of a burst in seconds, by which a message can arrive too early.

Splitting packets costs little on slow links. One packet may always pass.
"""
QUEUE_MS = 2000
"""Time in the queue of a link, in milliseconds, after which a packet is dropped; long enough that hardly any is.

Cluster networks slow a sender down rather than drop its packets.
"""
ROUTE = f"rto_min {QUEUE_MS}ms initcwnd 1000 initrwnd 1000"
"""TCP options of routes: queued packets do not count as lost, and the full rate is used from the start.

Cluster networks have no slow start, which would here wait for acknowledgements in the queue of the other direction.
"""


# ---- requirements ----


def missing_requirement() -> str | None:
    """Return a text on what this machine lacks to emulate links; None if nothing is missing. Never raises."""
    if not LINUX:
        return f"network namespaces need Linux, and this is {sys.platform}"
    absent = [command for command in ("ip", "tc") if _command_path(command) is None]
    if absent:
        return f"the command {absent[0]} is not installed; install iproute2"
    try:
        _test_emulation_in_process()
    except subprocess.CalledProcessError as error:
        lines: list[str] = error.stderr.strip().splitlines()
        return lines[-1] if lines else f"status {error.returncode}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"the test failed: {error}"
    return None


@cache  # a failure is tested again, because the user may remedy it
def _test_emulation_in_process() -> None:
    subprocess.run(
        [sys.executable, "-m", "meshwave.engine.runs.emulation.network"],
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )


def _command_path(name: str) -> str | None:
    """Return the path of a command; administration folders are not on every PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _test_emulation() -> NoReturn:
    """Create the smallest network with all features; on failure, print the reason to standard error."""
    try:
        _create_namespaces(Topology(node_of=(0, 0, 1), intra=1e6, inter=1e6, nics=2, apart=True))
    except (OSError, RunError) as error:
        sys.exit(network_error_text(error))
    sys.exit(0)


def network_error_text(error: Exception) -> str:
    """Return the reason why a network could not be created."""
    if isinstance(error, OSError):
        return (
            f"this user cannot create network namespaces ({error.strerror}); run as root, or allow user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    return str(error) if isinstance(error, MeshwaveError) else repr(error)


# ---- networks ----


class Network:
    """Namespaces and links of a topology.

    They exist as long as this object is open in this process or a fork of it, or a process is in one of them.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        """Take the descriptors of the user namespace, the namespace of the switches, and those of the processes."""
        self._user, self._switches, *self._namespaces = descriptors

    def enter(self, process: int) -> None:
        """Move this process, which must be single-threaded, into the namespace of ``process``."""
        own = os.stat("/proc/self/ns/user")
        if not os.path.samestat(own, os.fstat(self._user)):
            enter_namespace(self._user, CLONE_NEWUSER)
        enter_namespace(self._namespaces[process], CLONE_NEWNET)

    def close(self) -> None:
        """Close the descriptors of the namespaces."""
        for descriptor in (self._user, self._switches, *self._namespaces):
            os.close(descriptor)


class Builder:
    """Child process that creates a network and returns its descriptors; the creator must move into the network.

    It is a fork of the current process, which must be single-threaded.
    """

    def __init__(self, topology: Topology) -> None:
        """Start the child process.

        Raises:
            OSError: the child process cannot be started.
        """
        parent = os.getpid()
        self._near, far = socket.socketpair()
        with far:
            self.pid = os.fork()
            if not self.pid:
                _build_network(topology, far, parent)

    def network(self) -> Network:
        """Return the network. The caller waits for the child process before or afterwards.

        Raises:
            RunError: the network could not be created.
        """
        with self._near:
            said, descriptors, _, _ = socket.recv_fds(self._near, 1 << 16, 2 + MOST_PROCESSES, socket.MSG_CMSG_CLOEXEC)
        if descriptors:
            return Network(descriptors)
        raise RunRefusal("network_not_created", {"reason": said.decode()})


def make_network(topology: Topology) -> Network:
    """Create a network in a child process, and wait for the process.

    Raises:
        OSError: the child process cannot be started.
        RunError: the network cannot be created.
    """
    builder = Builder(topology)
    try:
        return builder.network()
    finally:
        os.waitpid(builder.pid, 0)


def _build_network(topology: Topology, to: socket.socket, parent: int) -> NoReturn:
    """Create a network in a child process; send its descriptors, or the reason why it failed."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        end_with_parent(parent)
        made = _create_namespaces(topology)
        socket.send_fds(to, [b"made"], made)
        os._exit(0)
    except Exception as error:
        traceback.print_exc()
        to.sendall(network_error_text(error).encode())
    finally:
        os._exit(1)


def end_with_parent(parent: int) -> None:
    """Ask the kernel to end this process when its parent is killed."""
    if LINUX:
        libc().prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call above
        os._exit(1)


# ---- links ----


def _create_namespaces(topology: Topology) -> list[int]:
    """Create the namespaces and links; return the descriptors for :class:`Network`."""
    switches = new_namespace()
    namespaces = [_create_process_link(topology, process, switches) for process in range(topology.processes)]
    enter_namespace(switches, CLONE_NEWNET)
    _connect_switches(topology)
    return [open_namespace("user"), switches, *namespaces]


def _create_process_link(topology: Topology, process: int, switches: int) -> int:
    """Create a namespace with one or two links to ports of the switches."""
    namespace = new_namespace()
    for name, value in SETTINGS.items():
        with suppress(OSError):  # otherwise the machine's own setting applies
            Path("/proc/sys/net/ipv4", name).write_text(value)
    there, address = f"netns /proc/{os.getpid()}/fd/{switches}", topology.address(process)
    devices = {INTERFACE: SUBNET}
    if topology.has_two_links:
        devices = {INTERFACE: address.rpartition(".")[0] + ".0/24", ACROSS: SUBNET}
    ends = list(zip(devices, _emulated_ports(topology, process), strict=True))
    lines = ["link set lo up"]
    for device, port in ends:
        lines += [
            _veth_command(device, port.name, there),
            f"addr add {address}/16 dev {device} noprefixroute",
            f"link set {device} up",
            f"route add {devices[device]} dev {device} {ROUTE}",
        ]
    _run_ip(*lines)
    _run_tc(*(_rate_limit_command(device, port.rate) for device, port in ends))
    return namespace


class Port(NamedTuple):
    """End of a link at a switch."""

    name: str
    switch: str
    rate: float  # bytes/s of the link


def _emulated_ports(topology: Topology, process: int) -> list[Port]:
    """Return the ports of a process: at its node's switch and, with a second link, at the switch to other nodes."""
    node = topology.node_of[process]
    inside = Port(f"port{process}", f"node{node}", topology.intra)
    return [inside, Port(f"far{process}", f"gate{node}", topology.inter)] if topology.has_two_links else [inside]


def _emulated_uplinks(topology: Topology) -> list[Port]:
    """Return both ends of the uplink of each node; none for a single node."""
    leaves, rate = "gate" if topology.has_two_links else "node", topology.inter * topology.nics
    nodes = range(topology.nodes if topology.nodes > 1 else 0)
    return [
        end
        for node in nodes
        for end in (Port(f"up{node}", f"{leaves}{node}", rate), Port(f"down{node}", "spine", rate))
    ]


def _connect_switches(topology: Topology) -> None:
    """Create the switches and the uplinks, and connect the ports."""
    uplinks = _emulated_uplinks(topology)
    ports = [port for process in range(topology.processes) for port in _emulated_ports(topology, process)] + uplinks
    switches = list(dict.fromkeys(port.switch for port in ports))
    _run_ip(
        *(f"link add name {switch} mtu {MTU_BYTES} type bridge" for switch in switches),
        *(_veth_command(near.name, far.name) for near, far in zip(uplinks[::2], uplinks[1::2], strict=True)),
        *(f"link set {port.name} master {port.switch}" for port in ports),
        *(f"link set {device} up" for device in (*switches, *(port.name for port in ports))),
    )
    _run_tc(*(_rate_limit_command(port.name, port.rate) for port in ports))


def _veth_command(near: str, far: str, there: str = "") -> str:
    """Return the ip command that creates a link with two ends; the far end may be in another namespace."""
    return f"link add name {near} mtu {MTU_BYTES} type veth peer name {far} mtu {MTU_BYTES} {there}"


def _rate_limit_command(device: str, rate: float) -> str:
    """Return the tc command that limits ``device`` to ``rate`` bytes/s (bps in tc)."""
    burst = min(BURST_BYTES, max(MTU_BYTES + 1000, rate * BURST_S))
    return f"qdisc add dev {device} root tbf rate {rate:.0f}bps burst {burst:.0f} latency {QUEUE_MS}ms"


def _run_ip(*lines: str) -> None:
    _run_batch("ip", lines)


def _run_tc(*lines: str) -> None:
    _run_batch("tc", lines)


def _run_batch(command: str, lines: tuple[str, ...]) -> None:
    done = subprocess.run(
        [_command_path(command) or command, "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RunRefusal("network_command_failed", {"command": command, "reason": " ".join(done.stderr.split())})


if __name__ == "__main__":
    _test_emulation()
