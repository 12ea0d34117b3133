"""Messages about edits on the page: of meshes and cluster, stages, experts, fields of forms and orders drawn by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from meshwave.engine.messages import Message, fill_template

_PLACE = "{devices:plural|device|devices} {devices:list} {devices:plural|%s}"


"""A place of experts, and a verb for one and for several devices."""


def _axes_text(axes: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in axes.items())


def _invalid_mesh_axes(mesh: str, devices: int, axes: Mapping[str, int], choices: Sequence[Mapping[str, int]]) -> str:
    possible = ", ".join(map(_axes_text, choices))
    return f"{_axes_text(axes)} = {prod(axes.values())}, but mesh {mesh} has {devices} devices; use {possible}"


def _device_in_use(mesh: str, node: int, column: int | None = None) -> str:
    place = f"node {node}" if column is None else f"device {column} of node {node}"
    removed = "node" if column is None else "device"
    return f"{place} is used by mesh {mesh}; move or delete the mesh before removing the {removed}"


def _unused_groups(title: str, sizes: Sequence[int]) -> str:
    template = (
        "{title} places whole experts on the {sizes:or} {noun} of a tensor-parallel group and does not use ep and esp"
    )
    return fill_template(template, title=title, sizes=sizes, noun="device" if list(sizes) == [1] else "devices")


def _invalid_quantity(text: str, example: str, unit: str | None = None) -> str:
    return fill_template("{text:typed} should be an amount such as {example}", text=text, example=example) + (
        f", in {unit}" if unit else ""
    )


MOST_NAMED = 4
"""Maximum number of actions that a sentence names."""


def _changes(moved: Sequence[str], split: Sequence[str], verbs: tuple[str, str]) -> str:
    return " and ".join(
        f"{verb} {', '.join(actions[:MOST_NAMED])}"
        + (f" and {len(actions) - MOST_NAMED} more" if len(actions) > MOST_NAMED else "")
        for verb, actions in zip(verbs, (moved, split), strict=True)
        if actions
    )


def _repair_order(moved: Sequence[str], split: Sequence[str]) -> str:
    return f"repair the order: {_changes(moved, split, ('move', 'split the slot of'))}"


def _order_repaired(moved: Sequence[str], split: Sequence[str], is_smallest: bool) -> str:
    if not moved and not split:
        return "The order is valid; no repair was needed"
    proof = "the fewest possible" if is_smallest else "perhaps not the fewest possible"
    count = fill_template("{count} {count:plural|change|changes}", count=len(moved) + len(split))
    return f"{_changes(moved, split, ('Moved', 'Split the slot of'))} ({count}, {proof})"


def _order_difference(
    start: str, meshes: Sequence[str], stages: Sequence[Mapping[str, Any]], later: int, earlier: int, **backwards: int
) -> str:
    parts = [
        fill_template("{count} {count:plural|block|blocks} {word}", count=count, word=word)
        for word, count in (("later", later), ("earlier", earlier))
        if count
    ]
    parts += [f"stage {moved['stage']} on {moved['target']} instead of {moved['source']}" for moved in stages]
    parts += [
        fill_template("{count} {count:plural|backward|backwards} {word}", count=backwards[kind], word=word)
        for kind, word in _BACKWARDS.items()
        if backwards[kind]
    ]
    if not parts:
        return f"Same order as {start}"
    mesh = f" on {meshes[0]}" if len(meshes) == len(parts) == 1 else ""
    return f"Compared with {start}: {', '.join(parts)}{mesh}"


_BACKWARDS = {
    "split": "split",
    "joined": "joined",
    "overlapped": "in a shared slot",
    "separated": "in a slot of their own",
}


def _no_steady_state(action: str, has_steady_state: bool) -> str:
    reason = (
        "the block is in the warm-up or cool-down of its mesh"
        if has_steady_state
        else "the order of the mesh does not repeat"
    )
    return f"the edit of {action} cannot be repeated in the steady state: {reason}; repeat it for all microbatches"


MESSAGES: dict[str, Message] = {
    # meshes and cluster
    "moved_mesh_size": (
        "mesh {mesh} has {devices} {devices:plural|device|devices} and cannot be moved to {given} {given:plural|device|devices}; resize it instead"
    ),
    "only_mesh": "{mesh} is the only mesh and a pipeline needs one; draw another first",
    "invalid_mesh_axes": _invalid_mesh_axes,
    "unknown_cluster_device": "there is no device {device}; the cluster has devices 0 to {last}",
    "mesh_without_devices": "a mesh needs at least one device",
    "repeated_mesh_device": "a mesh cannot contain a device twice",
    "incomplete_rectangle": "a mesh is a rectangle of nodes x devices; device {device} is missing from this one",
    "taken_device": "device {device} belongs to mesh {mesh}; a device can be in one mesh only",
    "device_in_use": _device_in_use,
    "missing_name": "a {kind} needs a name",
    "long_name": "a {kind} name has at most {maximum} characters; this one has {length}",
    "taken_mesh_name": "rank {rank} is already called {name}; mesh names must be unique",
    "tiling_size": "pp, dp, cp and tp must be at least 1",
    "tiling_devices": "{tiling} needs {needed} devices; the cluster has {devices}",
    "tiling_shape": (
        "{meshes} {meshes:plural|rectangle|rectangles} of {devices} devices do not fit on {nodes} x {devices_per_node}; "
        "use another dp x cp x tp"
    ),
    # stages
    "unknown_boundary": "there is no boundary after stage {stage}; the design has {stages} stages",
    "too_few_layers_left": (
        "stage {stage} has {layers} {layers:plural|layer|layers} and must keep at least {minimum}; it cannot give "
        "{count} to stage {other}"
    ),
    # experts
    "expert_held_already": f"{_PLACE % 'holds|hold'} expert {{expert}} already; press Delete to remove a replica",
    "replica_without_effect": (
        f"{_PLACE % 'holds|hold'} expert {{expert}} already; a second replica would have no effect"
    ),
    "expert_everywhere": "expert {expert} is on every device already",
    "last_replica": f"{_PLACE % 'holds|hold'} the only replica of expert {{expert}}; move it instead",
    "expert_not_held": f"{_PLACE % 'does|do'} not hold expert {{expert}}",
    "unknown_expert_place": "there is no device group {place}; the layer has device groups 0 to {last}",
    "unused_groups": _unused_groups,
    # fields of forms
    "not_an_amount": _invalid_quantity,
    "amount_too_large": "{text:typed} is too large; use an amount such as {example}",
    "missing_unit": "{number} has no unit; write {number} {unit} or {number} {prefixed}",
    "ambiguous_unit": "{number} could be {number} {unit} or {number} {shown}; write its unit too",
    "bits_or_bytes": "{number} {typed} could be bits or bytes: write {number} {prefix}bit/s or {number} {prefix}B/s",
    "missing_number": "a number is required",
    "not_a_number": "{text:typed} is not a number; use a value such as 0.5 or 80e9",
    "number_too_large": "the number is too large; use a value such as 80e9",
    "number_with_prefix": "use a plain number: {number}",
    "fractional_number": "{text} is not a whole number; use {below} or {above}",
    "unknown_choice": "unknown choice; use {choices:or}",
    "not_a_whole_number": "{text:typed} should be a whole number",
    "not_sizes": "{text:typed} should be sizes such as 2 x 4",
    "not_ranks": "{text:typed} should be a rank, or a range of ranks such as 0-7",
    "descending_ranks": (
        "{text:typed} is a descending range: write {last}-{first}, or list the ranks if the order matters"
    ),
    "not_axes": "{text:typed} should be mesh axes such as 0, 1, or none",
    "not_hosts": (
        "{text:typed} should be a list of host*ranks, such as 0*4 1*4, or a number per host, such as 4 per host"
    ),
    "too_many_ranks": "a mesh has at most {maximum} ranks",
    "empty_host": "a host must have at least one rank",
    "rate_too_low": "{text:typed} is too low: use at least 1 B/s, or 'free' for no cost",
    "unknown_transfer_axis": "this mesh axis does not exist; use an axis of the mesh",
    "unknown_transfer_dim": "this tensor dim does not exist; use a dim of the tensor",
    "too_many_tasks_to_draw": (
        "the transfer has {tasks:,} unit tasks, and at most {maximum:,} can be drawn; shard the tensor into fewer pieces, "
        "or use `meshwave reshard`"
    ),
    "no_transfer_in_link": "the link has no transfer: expected #spec= followed by JSON in base64",
    # fixes
    "remove_actions": "remove {actions:list}",
    "add_action": "add {action}",
    "split_slot": "split the slot {cell}",
    "repair_order": _repair_order,
    # edits that are refused
    "action_not_in_order": "{action} is not in this order; choose a block that is",
    "blocks_of_several_meshes": "these blocks belong to several meshes; move those of one mesh at a time",
    "block_to_another_mesh": "a block must be on the mesh that holds its stage; move the stage to another mesh instead",
    "unknown_stage_or_mesh": "choose a stage from 0 to {last_stage} and a mesh from 0 to {last_mesh}",
    "only_stage_of_mesh": "stage {stage} is the only one of {rank:rank}; a mesh needs a stage to compute",
    "no_whole_backward": "none of these blocks is a full backward (B); choose one to split it into I and W",
    "no_half_backward": "none of these blocks is half a backward (I or W); choose one to join it with its other half",
    "slot_shared_already": "{action} already shares a slot; split that slot first",
    "uneven_slot": "a slot holds one forward and one backward (B or I); choose the same number of each on a mesh",
    "no_shared_slot": "none of these blocks shares a slot; choose a block of a shared slot to split it",
    "no_steady_state": _no_steady_state,
    "orders_without_common_blocks": "the two orders have different stages, microbatches or meshes, and no block in common",
    "no_order_to_edit": "there is no order to edit yet: {reason}",
    "incomplete_order": "only a complete order can be edited here: {reason}",
    "incomplete_order_to_repair": "only a complete order can be repaired: {reason}",
    "stage_without_times": "moving a stage needs the times of its actions, and this order cannot be simulated: {reason}",
    "order_too_long_to_edit": (
        "this order has {blocks:,} blocks, and up to {most:,} can be edited by hand; use fewer microbatches"
    ),
    "unreadable_edit": "the page sent an edit that cannot be read; reload the page",
    # summaries
    "order_repaired": _order_repaired,
    "order_difference": _order_difference,
}
