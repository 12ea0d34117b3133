"""Messages about predictions, calibration profiles and searches in a timeline."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.errors import suggestion_text
from meshwave.engine.messages import Message, fill_template, join_list

COVERAGE: dict[str, Message] = {
    "unmeasured_precision": "the profile was measured in {measured:list} only; {precision} is assumed to take the same time",
    "unmeasured_optimizer": "the profile does not cover {optimizer}; its update time is estimated from the bytes it moves",
    "unmeasured_blocks": (
        "the profile does not cover {blocks}; their matrix products are assumed to run at the speed of dense layers"
    ),
    "unmeasured_size": (
        "a {quantity} of {size:g} is outside the measured range ({least:g} to {most:g}); its time is extrapolated"
    ),
    "unmeasured_computations": "the profile contains neither measured blocks nor a recorded run; compute times come from the roofline model",
    "unmeasured_tensor_parallelism": "the profile was measured with tp={measured:list}; the same rates are assumed for tp={tp}",
    "unmeasured_inter_node_link": "no link between nodes was measured; the design's link is used",
    "unmeasured_intra_node_link": "no link inside a node was measured; the design's link is used",
    "unmeasured_all_reduce": "no all-reduce of {devices} devices was measured; it is priced as a ring over the links",
}
"""Codes of warnings about parts of a design that a profile does not cover."""


def _memory(
    mesh: str, needed_bytes: float, capacity_bytes: float, category: str, category_bytes: float, remedies: Sequence[str]
) -> str:
    text = fill_template(
        "a device of mesh {mesh} needs {needed:quantity|B} of memory but has {capacity:quantity|B}; the largest part is "
        "{category} ({part:quantity|B})",
        mesh=mesh,
        needed=needed_bytes,
        capacity=capacity_bytes,
        category=category,
        part=category_bytes,
    )
    return f"{text}; use {join_list([_REMEDIES[each] for each in remedies], 'or')}"


_REMEDIES = {
    "more_meshes": "more meshes",
    "larger_tp": "a larger tp",
    "sgd": "sgd",
    "smaller_micro_batch": "a smaller micro_batch_size",
    "1f1b": "1f1b instead of gpipe",
    "recompute": "recomputation of all stages",
}


def _empty_query(mesh: str) -> str:
    return f'search for an action such as 3F7 or F7, "B of stage 2", "stage 2", "microbatch 5" or "mesh {mesh}"'


def _unknown_search_term(word: str, suggestion: str | None, mesh: str) -> str:
    return f'unknown search term "{word}"; ' + (f"did you mean {suggestion}?" if suggestion else _empty_query(mesh))


def _unknown_mesh(mesh: str, known: str) -> str:
    return f"there is no mesh {mesh}; meshes are {known}" if mesh else f"no mesh is named; name one of {known}"


def _missing_profile(name: str, known: Sequence[str], suggestion: str | None) -> str:
    hint = suggestion_text(known, suggestion) if known else "Measure this machine with meshwave calibrate."
    return f"there is no profile called {name!r}. {hint}"


MESSAGES: dict[str, Message] = {
    "block_of_unit_costs": "unit costs do not model the operations inside a block; select roofline costs",
    "no_slowdown": "nothing is slowed down; enter a device, choose a link, or enter a jitter above 0",
    "unused_slow_device": "device {device} belongs to no mesh, so slowing it down has no effect; choose a device of a mesh",
    "unknown_slow_link": "there is no mesh {mesh}; name two of {known:list}",
    "slow_factor_out_of_range": "a factor of {factor:g} is out of range; use a number above 0 and up to {most:g}",
    "jitter_out_of_range": "a jitter of {jitter:g} is out of range; use 0 to {most:g}",
    **COVERAGE,
    "memory": _memory,
    "context_imbalance": (
        "attention within documents is divided unevenly over the context-parallel devices of mesh {mesh}: the slowest computes "
        "{ratio:.2f} times the mean, and the others wait for it; use a smaller cp, or longer documents"
    ),
    "unused_devices": "{idle} of {devices} devices belong to no mesh and stay idle",
    "equal_shares": (
        "unit costs give all {stages} stages the same cost, but {layers} layers cannot be divided equally ({least} or "
        "{most} each); set pipeline.stages to make costs proportional to layers"
    ),
    "set_stage_layers": "set pipeline.stages to {layers:list}",
    "cost": "{reason}",
    # searches in a timeline
    "empty_query": _empty_query,
    "unknown_search_term": _unknown_search_term,
    "unknown_mesh_in_query": _unknown_mesh,
    "query_out_of_range": "there is no {kind} {number}; numbers range from 0 to {last}",
    "query_without_number": 'the number of the {kind} is missing; write it as in "{kind} 2"',
    "repeated_condition": "a search can name only one {kind}",
    "action_of_transfer": "a search can name only one kind of action; to find these transfers, type {action}",
    # calibration profiles
    "unwritable_profiles": "cannot store profiles in {folder}: {reason}",
    "profile_of_another_setup": (
        "some parts cannot be added to the profile {name}, because it was measured with other values of {fields:list}; "
        "choose another name with --name, or measure all parts and precisions"
    ),
    "unmeasured_layout": "the profile has no measurements for mp={mp} and esp={esp}; it has {measured}",
    "indivisible_groups": "groups of {name}={size} do not divide {ranks} ranks; use a divisor",
    "missing_profile": _missing_profile,
    "invalid_profile_name": "{name!r} is not a valid profile name; use a file name such as laptop.json",
    "invalid_profile": "{name} is not a valid profile ({problem}); measure this machine again with meshwave calibrate",
    "unreadable_profile": "{name} cannot be read: {reason}; use another profile, or roofline costs",
    "missing_phases": "every block of a profile needs one entry per phase; {kind} has none for {missing:list}; measure it again",
}
