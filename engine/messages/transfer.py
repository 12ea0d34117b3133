"""Messages about documents of transfers."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.messages import Message


def _mesh_rank_count(shape: Sequence[int], needed: int, given: int, key: str) -> str:
    return f"a mesh of {' x '.join(map(str, shape))} has {needed} ranks, and {given} {key} are given; give {needed}"


def _transfer_size(tensors: int, source: int, destination: int, maximum: int) -> str:
    size = f"{f'{tensors} tensors on ' if tensors > 1 else ''}{source} x {destination} ranks"
    return f"the transfer is too large to plan: {size} (their product can be up to {maximum:,}); use fewer ranks"


MESSAGES: dict[str, Message] = {
    "mesh_rank_count": _mesh_rank_count,
    "too_many_messages_to_list": "a unit task has more than {maximum:,} messages, too many to list",
    "missing_boundary": "specify one boundary of the design with --boundary A:B; {known}",
    "unreadable_boundary": "--boundary takes two meshes such as A:B, not {boundary!r}; {known}",
    "nothing_sent": "mesh {source} sends nothing to mesh {destination}; {known}",
    "repeated_rank": "rank {rank} is listed twice; list each rank once",
    "transfer_size": _transfer_size,
    "different_hosts": (
        "rank {rank} is on host {source} in the source and on host {destination} in the destination; a rank must be on one host"
    ),
    "partial_entry": "{entry!r} is not an entry of a spec, which has R or S with axes for each dim; use the key 'partial'",
    "partial_destination": "the destination receives the sum and cannot be partial itself; remove its partial axes",
    "spec_length": (
        "the tensor has {dims} {dims:plural|dim|dims} and the spec has {entries} {entries:plural|entry|entries}; "
        "give one entry per dim"
    ),
    "invalid_sharding": "{entry!r} is not a sharding; use R, or S with mesh axes such as S0 or S01",
    "unknown_axis": "{entry} names axis {axis}, and the mesh has axes 0 to {last}",
    "repeated_axis": "axis {axis} shards dim {second} twice; list it once",
    "reused_axis": "axis {axis} shards both dim {first} and dim {second}; an axis can shard only one dim",
    "repeated_partial_axis": "axis {axis} is listed twice; list each partial axis once",
    "sharded_partial_axis": "axis {axis} shards dim {first}; a tensor is partial over axes that shard no dim",
    "several_tensors": "this command takes a transfer of one tensor, under 'tensor'; plan several with meshwave reshard",
}
