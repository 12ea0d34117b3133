"""Messages about actions, programs and orders drawn by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwave.engine.messages import Message, fill_template


def _unknown_action(cell: str, suggestion: str = "", **_: Any) -> str:
    remedy = (
        f"did you mean {suggestion}?"
        if suggestion
        else "write stage, kind and microbatch, such as 0F0 (forward), 0B0 (backward), 0I0 (input gradient) or 0W0 "
        "(weight gradient)"
    )
    return f"{cell!r} is not an action; {remedy}"


def _repeated_action(action: str, count: int, ranks: Sequence[int], **names: Any) -> str:
    where = fill_template(" ({ranks:rank})", ranks=ranks, **names) if len(ranks) > 1 else ""
    return fill_template(
        "{action:action} occurs {count} times{where}; keep one", action=action, count=count, where=where, **names
    )


def _deadlock(cycle: Sequence[dict[str, Any]], **names: Any) -> str:
    """Describe the cycle rank by rank and name a change that breaks it."""
    first, last = cycle[0], cycle[-1]
    parts = [fill_template("deadlock: {rank:rank} waits at {at:action}, which needs {needs:action}", **first, **names)]
    for before, wait in zip(cycle, cycle[1:], strict=False):
        runs_later = "{rank:rank} runs {needed:action} only after {at:action}, which needs {needs:action}"
        stands_there = "{rank:rank} cannot run {at:action} before {needs:action}"
        template = stands_there if before["needs"] == wait["at"] else runs_later
        parts.append(fill_template(template, needed=before["needs"], **wait, **names))
    if last["needs"] != first["at"]:
        later = "{rank:rank} runs {needed:action} only after {at:action}"
        parts.append(fill_template(later, needed=last["needs"], rank=first["rank"], at=first["at"], **names))
    if "split" in names:
        return f"{'; '.join(parts)}. Split the slot {names['split']}"
    return f"{'; '.join(parts)}. {fill_template('Move {move:action} after {after:action}', **names)}"


def _more_problems(count: int | None = None) -> str:
    return "more problems of this kind are not listed" if count is None else f"{count:,} more problems of this kind"


MESSAGES: dict[str, Message] = {
    # cells
    "unknown_action": _unknown_action,
    "wrong_slot": "{cell!r} overlaps {first} with {second}; a slot holds a forward, then a backward",
    # lists of problems
    "unlisted_problems": _more_problems,
    # computations
    "no_computations": "the program has no computations; give every mesh its actions, such as 0F0 0B0",
    "unknown_stage": (
        "stage {stage} of {action:action} does not exist: there {stages:plural|is|are} {stages} "
        "{stages:plural|stage|stages}, numbered from 0; remove it"
    ),
    "unknown_microbatch": (
        "microbatch {microbatch} of {action:action} does not exist: there {microbatches:plural|is|are} {microbatches} "
        "{microbatches:plural|microbatch|microbatches}, numbered from 0; remove it"
    ),
    "slot_without_forward": (
        "{action:action} has no forward before it to overlap with; a slot holds a forward, then a backward"
    ),
    "slot_of_one_microbatch": (
        "{action:action} and {backward:action} cannot overlap: the backward needs that forward; run one after the other"
    ),
    "missing_action": "{action:action} is missing; every stage runs every microbatch forward and backward",
    "repeated_action": _repeated_action,
    "backward_and_half": "stage {stage} runs {action:action} and also {half:action}, a half of it; keep one of the two",
    "missing_half": "{action:action} is missing; {half:action} is only half of the backward",
    "wrong_rank": (
        "{action:action} is on {rank:rank}, but {home:rank} holds stage {stage} of microbatch {microbatch}; "
        "a stage runs forward and backward of a microbatch on one rank"
    ),
    "idle_rank": "{rank:rank} computes nothing; give it actions such as 0F0 0B0, or remove its mesh",
    # messages between ranks
    "unnecessary_message": "{action:action} is not needed: both stages are on one rank; remove it",
    "missing_message": (
        "the tensor of microbatch {microbatch} from stage {source} to stage {target} is never sent; "
        "add {action:action} and {receive:action}"
    ),
    "missing_receive": "{action:action} is never received; add {receive:action} on the other rank",
    "missing_send": "{action:action} is never sent; add {send:action} on the other rank",
    "repeated_message": (
        "{action:action} occurs {sends} {sends:plural|time|times} and {receive:action} {receives} "
        "{receives:plural|time|times}; keep one of each"
    ),
    "unknown_skip": "{action:action} has no matching message: no tensor skips between these stages; remove it",
    "message_of_first_stage": "{action:action} has no matching send: there is no stage before the first; remove it",
    "message_of_last_stage": "{action:action} has no matching receive: there is no stage after the last; remove it",
    "message_on_wrong_rank": (
        "{action:action} is on {rank:rank}; it belongs on {home:rank}, which runs {computation:action}"
    ),
    "wrong_peer": "{action:action} of {rank:rank} names {peer:rank} as its peer; it must name {expected:rank}",
    "early_send": (
        "{rank:rank} runs {action:action} before {computation:action}, which produces its tensor; move it after that"
    ),
    "late_receive": (
        "{rank:rank} runs {computation:action} before {action:action}, which receives its input; "
        "move the receive before it"
    ),
    "receive_order": (
        "{rank:rank} sends {action:action} to {peer:rank}, which receives {receive:action} in its place; "
        "receives from a rank must be in the order of its sends"
    ),
    # updates
    "step_count": "{rank:rank} has {count} STEP actions; it needs one, at its end",
    "early_step": "{rank:rank} runs STEP before {action:action}; move STEP to the end of the rank",
    "unknown_reduction": "{rank:rank} runs {action:action}, but holds no copy of stage {stage}; remove it",
    "repeated_reduction": "{rank:rank} runs {action:action} more than once; keep one",
    "early_reduction": "{rank:rank} runs {action:action} before {computation:action}; move it after that",
    "missing_reduction": (
        "{rank:rank} never runs {action:action}, but {ranks:rank} hold copies of stage {stage}; "
        "add it after the last backward of the stage"
    ),
    "reduction_order": (
        "{rank:rank} runs {before:action} before {after:action}, and ranks that share these stages use another order; "
        "reduce shared stages in ascending order on every rank"
    ),
    # gathers of sharded weights
    "missing_unshard": "{rank:rank} runs {action:action} while stage {stage} is sharded; add {unshard:action} before it",
    "repeated_unshard": "{rank:rank} runs {action:action} while stage {stage} is unsharded already; remove it",
    "repeated_reshard": "{rank:rank} runs {action:action} while stage {stage} is sharded already; remove it",
    "missing_reshard": "{rank:rank} ends the step with stage {stage} unsharded; add {action:action} after its last use",
    # deadlocks
    "deadlock": _deadlock,
}
