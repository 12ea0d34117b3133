"""Takes a tensor from one mesh and sharding to another: gloo through the host, NCCL between GPUs.

    from meshwave.engine.runtime.resharding import reshard

    shard = reshard(tensor, destination=(mesh, placements))

    moving = reshard_many(items, shards)  # several tensors by one plan, called by the processes that take part
    shards = moving.wait()

torch's own ``redistribute`` refuses a mesh of other devices that overlaps the first, and returns empty
tensors without a word where the two have no device in common (pytorch RFC #181061 asks for more).

Every process makes the same plan and plays its own part of it: it posts all receives at once, sends
what it owns, and hands on a range as soon as it is there. What a process owns leaves for other hosts
in the order of the plan, one target after the other, and so does what stays on its host; the two do
not wait for each other. Bytes alone travel, so that a dtype only has to have a size; of a partial source processes add
up what came before they send the sum on, and so a dtype has to have a sum.

Each process keeps the plan's order by itself: nobody tells another that a NIC is free. Two processes of a
host that send at once share its NIC where the plan lets one go first, and both end when the later one would;
:func:`meshwave.engine.resharding.played_seconds` counts with that. An order kept for a host would cost a message for
each task, and bring the first of them there earlier, not the last.
"""

from __future__ import annotations

from meshwave.engine.runtime.resharding.bound_transfer import Moving, Resharding
from meshwave.engine.runtime.resharding.carriers import Carrier, GlooCarrier, NcclCarrier
from meshwave.engine.runtime.resharding.many_tensors import (
    MovingList,
    ReshardingList,
    ReshardItem,
    prepare_many,
    reshard_many,
)
from meshwave.engine.runtime.resharding.reshard import prepare, reshard

__all__ = [
    "Carrier",
    "GlooCarrier",
    "Moving",
    "MovingList",
    "NcclCarrier",
    "ReshardItem",
    "Resharding",
    "ReshardingList",
    "prepare",
    "prepare_many",
    "reshard",
    "reshard_many",
]
