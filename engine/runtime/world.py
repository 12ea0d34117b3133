"""Joining the other processes of a run, with the backend that this machine has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from engine.errors import InputError
from engine.runtime.groups import Group, make_groups
from engine.runtime.layout import Layout
from engine.runtime.wire import GlooWire, Message, NcclWire, Routes, Sharing, Wire

TIMEOUT = timedelta(minutes=5)  # the longest that one message or collective may take


@dataclass(frozen=True)
class World:
    """This process among the others."""

    process: int
    size: int
    device: torch.device
    backend: str  # "gloo" or "nccl"
    note: str  # one sentence on what that means here

    def wire(self, layout: Layout, message: Message, sharing: Sharing, routes: Routes | None = None) -> Wire:
        kind = NcclWire if self.backend == "nccl" else GlooWire
        return kind(layout, self.process, message, self.device, sharing, routes or {}, TIMEOUT)

    def groups(self, members: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], Group]:
        """See :func:`engine.runtime.groups.make_groups`."""
        return make_groups(members, self.process, self.backend, TIMEOUT, self.device)


def join(folder: Path, environment: Mapping[str, str] = os.environ) -> World:
    """Join the run: over ``MASTER_ADDR`` if it is set (torchrun), else over a file in ``folder``.

    Raises:
        InputError: RANK or WORLD_SIZE is not set.
    """
    try:
        process, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    except KeyError as error:
        raise InputError(
            f"{error.args[0]} is not set; start the worker with torchrun, or set RANK, WORLD_SIZE and LOCAL_RANK"
        ) from None
    local, neighbours = int(environment.get("LOCAL_RANK", process)), int(environment.get("LOCAL_WORLD_SIZE", size))
    world = World(process, size, *_choose(local, neighbours))
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        dist.init_process_group(world.backend, timeout=TIMEOUT)
    else:
        # All processes are on this machine: nothing need listen where others could knock.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        store = dist.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]
        dist.init_process_group(world.backend, store=store, rank=process, world_size=size, timeout=TIMEOUT)
    return world


def leave() -> None:
    dist.destroy_process_group()


def _choose(local: int, neighbours: int) -> tuple[torch.device, str, str]:
    """Device, backend and a sentence, for the ``local``-th of ``neighbours`` processes here."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        return torch.device("cpu"), "gloo", "no GPU: computes on the CPU, messages go through gloo"
    device = torch.device("cuda", local % gpus)
    if neighbours <= gpus and dist.is_nccl_available():
        return device, "nccl", f"computes on {device}, messages go through NCCL"
    why = (
        f"{neighbours} processes share {gpus} GPU{'s' if gpus > 1 else ''} and NCCL takes one a GPU, so times are no "
        "evidence for a GPU each"
        if neighbours > gpus
        else "this torch has no NCCL"
    )
    return device, "gloo", f"computes on {device}, messages go through gloo and the host's memory: {why}"
