"""Joining the other processes of a run, with the backend that this machine has."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from meshwave.engine.errors import InputError
from meshwave.engine.runs.emulation.network import INTERFACE
from meshwave.engine.runs.emulation.topology import Topology, read_topology
from meshwave.engine.runtime.communication._gloo import GlooWire
from meshwave.engine.runtime.communication._nccl import NcclWire
from meshwave.engine.runtime.communication.groups import Group, make_groups
from meshwave.engine.runtime.communication.layout import Layout
from meshwave.engine.runtime.communication.wire import Message, Routes, Sharing, Wire
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

TIMEOUT = timedelta(minutes=5)  # the longest that one message or collective may take
PINGS = 30
"""There and back, of which the quickest counts."""


@dataclass(frozen=True)
class World:
    """This process among the others."""

    process: int
    size: int
    device: torch.device
    backend: str  # "gloo", or the one of the device, such as "nccl"
    note: str  # one sentence on what that means here

    @property
    def sends_between_devices(self) -> bool:
        """Whether messages go from device to device, not through the memory of the host."""
        return self.backend != "gloo"

    def wire(self, layout: Layout, message: Message, sharing: Sharing, routes: Routes | None = None) -> Wire:
        kind = NcclWire if self.sends_between_devices else GlooWire
        return kind(layout, self.process, message, self.device, sharing, routes or {}, TIMEOUT)

    def groups(self, members: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], Group]:
        """See :func:`meshwave.engine.runtime.communication.groups.make_groups`."""
        return make_groups(members, self.process, self.backend, TIMEOUT, self.device)


def join(folder: Path, environment: Mapping[str, str] = os.environ, *, computes: bool = True) -> World:
    """Join the run: over ``MASTER_ADDR`` if it is set (torchrun), else over a file in ``folder``.

    A process that ``computes`` nothing takes a GPU only where messages go from GPU to GPU.

    Raises:
        InputError: RANK or WORLD_SIZE is not set, or the network that the folder names is damaged.
    """
    set_stream_environment()
    try:
        process, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    except KeyError as error:
        raise InputError(
            f"{error.args[0]} is not set; start the worker with torchrun, or set RANK, WORLD_SIZE and LOCAL_RANK"
        ) from None
    local, neighbours = int(environment.get("LOCAL_RANK", process)), int(environment.get("LOCAL_WORLD_SIZE", size))
    topology = _emulated(folder)
    world = World(process, size, *_choose(local, neighbours, can_send=topology is None, computes=computes))
    if is_accelerator(world.device):
        use_expandable_segments()
        select_device(world.device)
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        dist.init_process_group(world.backend, timeout=TIMEOUT)
    else:
        # All processes are on this machine: nothing need listen where others could knock.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        store = dist.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]
        dist.init_process_group(world.backend, store=store, rank=process, world_size=size, timeout=TIMEOUT)
    return world if topology is None else replace(world, note=f"{world.note} over {topology.note}{_latency(topology)}")


def leave() -> None:
    dist.destroy_process_group()


def _emulated(folder: Path) -> Topology | None:
    """The emulated network that this process is in: that of the run folder, if it really is there."""
    inside = sys.platform.startswith("linux") and INTERFACE in (name for _, name in socket.if_nameindex())
    return read_topology(folder) if inside else None


def _latency(topology: Topology) -> str:
    """What a small message takes between hosts, in words; processes 0 and the first of another host measure it."""
    other = next((process for process, node in enumerate(topology.node_of) if node != topology.node_of[0]), None)
    pair, me = (0, other), dist.get_rank()
    if other is None or me not in pair:
        return ""
    peer = other if me == 0 else 0
    token, quickest_s = torch.zeros(1), float("inf")
    for _ in range(PINGS):
        began = time.perf_counter()
        if me == 0:
            dist.send(token, peer)
            dist.recv(token, peer)
        else:
            dist.recv(token, peer)
            dist.send(token, peer)
        quickest_s = min(quickest_s, (time.perf_counter() - began) / 2)
    found, meant = quantity(quickest_s, "s", 2), quantity(topology.latency_s, "s", 2)
    return f"; a message from host to host takes {found} at least, this machine's own latency, where {meant} would be as drawn"


def _choose(local: int, neighbours: int, can_send: bool = True, computes: bool = True) -> tuple[torch.device, str, str]:
    """Device, backend and a sentence, for the ``local``-th of ``neighbours`` processes here.

    ``can_send`` says whether GPUs may send to each other: on emulated hosts they would go past the links.
    """
    gpus = accelerator_count()
    if not gpus:
        return torch.device("cpu"), "gloo", "no GPU: computes on the CPU, messages go through gloo"
    device = accelerator_device(local % gpus)
    backend = device_backend(device)
    if can_send and neighbours <= gpus and backend is not None:
        return device, backend, f"computes on {device}, messages go through {backend.upper()}"
    why = _why_gloo(neighbours, gpus, can_send, backend)
    if not computes:
        return torch.device("cpu"), "gloo", f"computes nothing, messages go through gloo: {why}"
    evidence = ", so times are no evidence for a GPU each" if neighbours > gpus else ""
    return device, "gloo", f"computes on {device}, messages go through gloo and the host's memory: {why}{evidence}"


def _why_gloo(neighbours: int, gpus: int, can_send: bool, backend: str | None) -> str:
    if backend is None:
        return "this torch has no collectives of the GPU's own"
    if neighbours > gpus:
        few = f"{gpus} GPU{'s' if gpus > 1 else ''}"
        return f"{neighbours} processes share {few} and {backend.upper()} takes one a GPU"
    return f"{backend.upper()} would go past the emulated links"
