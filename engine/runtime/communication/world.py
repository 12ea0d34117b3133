"""Joining the processes of a run, and the choice of device and backend."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from meshwave.engine.findings import Refusal
from meshwave.engine.runs.emulation.network import INTERFACE
from meshwave.engine.runs.emulation.topology import Topology, read_topology
from meshwave.engine.runtime.communication.communicator import (
    BoundaryTransfers,
    Communicator,
    GradientGroups,
    MessageFormat,
)
from meshwave.engine.runtime.communication.device_communicator import DeviceCommunicator
from meshwave.engine.runtime.communication.flight_recorder import enable_flight_recorder
from meshwave.engine.runtime.communication.gloo_communicator import GlooCommunicator
from meshwave.engine.runtime.communication.groups import Group, make_groups
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.device.accelerator import (
    accelerator_count,
    accelerator_device,
    device_backend,
    is_accelerator,
    select_device,
)
from meshwave.engine.runtime.device.memory import use_expandable_segments
from meshwave.engine.runtime.device.streams import set_stream_environment
from meshwave.engine.units import quantity

TIMEOUT = timedelta(minutes=5)
"""Timeout of a single message or collective."""
PINGS = 30
"""Number of round trips; the shortest one gives the latency between hosts."""


@dataclass(frozen=True)
class World:
    """Process of a run: its number, its device, and its connection to the other processes."""

    process: int
    size: int
    device: torch.device
    backend: str  # "gloo", or the device's own, such as "nccl"
    computation: str = ""  # description of the device for the user
    communication: str = ""  # description of the message transport for the user

    @property
    def sends_between_devices(self) -> bool:
        """True if messages are sent from device to device, not through host memory."""
        return self.backend != "gloo"

    def make_communicator(
        self,
        layout: ProcessLayout,
        message: MessageFormat,
        gradient_groups: GradientGroups,
        transfers: BoundaryTransfers | None = None,
    ) -> Communicator:
        """Return the communicator of this process. All processes must call this method with the same groups."""
        kind = DeviceCommunicator if self.sends_between_devices else GlooCommunicator
        return kind(layout, self.process, message, self.device, gradient_groups, transfers or {}, TIMEOUT)

    def make_groups(self, members: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], Group]:
        """Create groups; see :func:`meshwave.engine.runtime.communication.groups.make_groups`."""
        return make_groups(members, self.process, self.backend, TIMEOUT, self.device)


def join_run(
    folder: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    computes: bool = True,
    check_size: Callable[[int], None] | None = None,
) -> World:
    """Join the processes of a run: through ``MASTER_ADDR`` if it is set (torchrun), else through a file in ``folder``.

    Args:
        folder: the run folder.
        environment: the environment variables.
        computes: False for a dry run.
        check_size: receives the number of processes before any of them connects, so that it can refuse the number in
            all of them; a process that still connects would report the loss of those that have ended.

    Raises:
        InputError: RANK or WORLD_SIZE is not set, or the description of the emulated network is damaged.
    """
    set_stream_environment()
    try:
        process, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    except KeyError as error:
        raise Refusal("process_variable_missing", {"variable": error.args[0]}) from None
    if check_size is not None:
        check_size(size)
    local_rank = int(environment.get("LOCAL_RANK", process))
    local_size = int(environment.get("LOCAL_WORLD_SIZE", size))
    topology = _emulated_topology(folder)
    world = World(
        process, size, *choose_device(local_rank, local_size, emulated=topology is not None, computes=computes)
    )
    if world.backend == "nccl":
        enable_flight_recorder()
    if is_accelerator(world.device):
        use_expandable_segments()
        select_device(world.device)
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        dist.init_process_group(world.backend, timeout=TIMEOUT)
    else:
        # All processes are on this machine, so nothing needs to listen on an interface that others can reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        store = dist.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]
        dist.init_process_group(world.backend, store=store, rank=process, world_size=size, timeout=TIMEOUT)
    if topology is None:
        return world
    return replace(world, communication=f"{world.communication} over {topology.note}{_describe_latency(topology)}")


def leave_run() -> None:
    """Leave the process group of the run."""
    dist.destroy_process_group()


def _emulated_topology(folder: Path) -> Topology | None:
    """Return the emulated network of the run folder if this process runs in it, otherwise None."""
    inside = sys.platform.startswith("linux") and INTERFACE in (name for _, name in socket.if_nameindex())
    return read_topology(folder) if inside else None


def _describe_latency(topology: Topology) -> str:
    """Return the latency between hosts as text; process 0 and the first process of another host measure it."""
    other = next((process for process, node in enumerate(topology.node_of) if node != topology.node_of[0]), None)
    pair, me = (0, other), dist.get_rank()
    if other is None or me not in pair:
        return ""
    peer = other if me == 0 else 0
    token, shortest_s = torch.zeros(1), float("inf")
    for _ in range(PINGS):
        began = time.perf_counter()
        if me == 0:
            dist.send(token, peer)
            dist.recv(token, peer)
        else:
            dist.recv(token, peer)
            dist.send(token, peer)
        shortest_s = min(shortest_s, (time.perf_counter() - began) / 2)
    measured, modelled = quantity(shortest_s, "s", 2), quantity(topology.latency_s, "s", 2)
    return f"; latency between hosts is at least {measured} on this machine ({modelled} in the design)"


def choose_device(
    local_rank: int, local_size: int, *, emulated: bool = False, computes: bool = True
) -> tuple[torch.device, str, str, str]:
    """Choose the device and the backend of a process.

    Args:
        local_rank: number of the process among those of this machine.
        local_size: number of processes on this machine.
        emulated: True if the network is emulated; messages between GPUs would bypass it.
        computes: False if the process waits instead of computing.

    Returns:
        Device, backend, and two descriptions for the user: of the device, and of the transport of messages.
    """
    gpus = accelerator_count()
    if not gpus:
        return torch.device("cpu"), "gloo", "computes on the CPU (no GPU available)", "messages use gloo"
    device = accelerator_device(local_rank % gpus)
    backend, computation = device_backend(device), f"computes on {device}"
    if not emulated and local_size <= gpus and backend is not None:
        return device, backend, computation, f"messages use {backend.upper()}"
    name = "the backend of the GPU" if backend is None else backend.upper()
    reason = f"{name} would bypass the emulated links" if emulated else f"the installed torch lacks {name}"
    if local_size > gpus:
        reason = f"{local_size} processes share {gpus} GPU{'s' * (gpus > 1)}; {name} needs one GPU per process"
        computation += ", which processes share, so times do not represent one GPU per process"
    if not computes:
        return torch.device("cpu"), "gloo", "waits instead of computing", f"messages use gloo ({reason})"
    return device, "gloo", computation, f"messages use gloo through the memory of the host ({reason})"
