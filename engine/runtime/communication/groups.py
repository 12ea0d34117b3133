"""Process groups for collectives within a stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.runtime.device.accelerator import is_accelerator

# torch 2.13 renamed both
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Group:
    """Process group that contains this process."""

    members: tuple[int, ...]
    index: int  # position of this process among the members
    handle: Any = None  # torch's process group; None if there is one member
    divides_tokens: bool = False  # True with sequence parallelism: members split the tokens outside attention and MLP

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)

    def own_range(self, whole: int) -> range:
        """Return this process's share of ``whole`` items as a range. Shares are even; the first ones get one item more."""
        each, more = divmod(whole, self.size)
        first = self.index * each + min(self.index, more)
        return range(first, first + each + (self.index < more))


ALONE = Group((0,), 0)
"""Group of a single process, whatever its number."""


def to_group_memory(x: Tensor, group: Group) -> Tensor:
    """Return ``x`` in the memory from which the backend of a group sends; for gloo, host memory."""
    needs_host = is_accelerator(x.device) and group.size > 1 and dist.get_backend(group.handle) == "gloo"
    return x.to("cpu") if needs_host else x


def make_groups(
    members: Iterable[tuple[int, ...]], process: int, backend: str, timeout: timedelta, device: torch.device
) -> dict[tuple[int, ...], Group]:
    """Create groups and return those that contain ``process``, by their members.

    Every process passes the members of all groups in the same order, as torch.distributed requires. NCCL groups are
    used once in that order, because the first use of a group waits for all its members.
    """
    own: dict[tuple[int, ...], Group] = {}
    for group in dict.fromkeys(members):
        handle = dist.new_group(list(group), timeout=timeout, backend=backend) if len(group) > 1 else None
        if process in group:
            own[group] = Group(group, group.index(process), handle)
    if backend != "gloo":
        for shared in own.values():
            if shared.handle is not None:
                dist.all_reduce(torch.zeros(1, device=device), group=shared.handle)
    return own
