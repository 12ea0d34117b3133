"""Cross-mesh resharding at run time, over gloo through host memory or from device to device.

    from meshwave.engine.runtime.resharding import reshard

    shard = reshard(tensor, destination=(mesh, placements))

    pending = reshard_many(items, shards)  # several tensors by one plan, called by the processes that take part
    shards = pending.wait()

torch's own ``redistribute`` raises an error for a mesh of other devices that overlaps the source mesh, and silently
returns empty tensors if the meshes have no device in common (pytorch RFC #181061 proposes to support both).

Every process makes the same plan and executes its own part of it: it posts all receives at once, sends the slices that
it owns, and forwards a range as soon as it arrives. It sends to other hosts in the order of the plan, one target after
the other, and independently to processes of its own host. Messages are plain bytes, so any dtype can be resharded; a
partial source needs a dtype that can be summed.

Processes do not coordinate the use of a NIC. If the plan orders the sends of two processes of a host one after the
other, both may share the NIC and finish at the time planned for the later one;
:func:`meshwave.engine.resharding.simulated_plan_seconds` accounts for that. Coordination would cost a message per task and
would speed up the first task only, not the last.
"""

from __future__ import annotations

from meshwave.engine.runtime.resharding.bound_transfer import PendingReshard, Resharding
from meshwave.engine.runtime.resharding.many_tensors import (
    PendingReshardList,
    ReshardingList,
    ReshardItem,
    prepare_many,
    reshard_many,
)
from meshwave.engine.runtime.resharding.reshard import prepare, reshard
from meshwave.engine.runtime.resharding.transports import DeviceTransport, GlooTransport, Transport
