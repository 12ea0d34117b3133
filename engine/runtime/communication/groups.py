"""Groups of processes that compute together: who is in one, and where this process stands in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Group:
    """Processes in the order of their parts, and torch's handle where there is more than one."""

    members: tuple[int, ...]
    index: int  # of this process among them
    handle: Any = None

    @property
    def size(self) -> int:
        return len(self.members)

    def part(self, whole: int) -> range:
        """This process's share of ``whole`` things, as even as can be; the first get one more."""
        each, more = divmod(whole, self.size)
        first = self.index * each + min(self.index, more)
        return range(first, first + each + (self.index < more))


ALONE = Group((0,), 0)
"""A process that computes by itself, whatever its number."""


def make_groups(
    members: Iterable[tuple[int, ...]], process: int, backend: str, timeout: timedelta, device: torch.device
) -> dict[tuple[int, ...], Group]:
    """The groups of ``members`` that ``process`` is in.

    Every process gives the same members in the same order, its own or not, as torch.distributed
    asks. NCCL's are used once, in that order, for their first use waits for all members.
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
