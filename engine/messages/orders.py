"""Messages about orders drawn by hand: their edits, repairs and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwave.engine.messages import Message, fill_template

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
    "no_whole_backward": "none of these blocks is a whole backward (B); choose one to split it into I and W",
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
