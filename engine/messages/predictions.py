"""Messages about predictions: warnings, and sizes that a calibration profile does not cover."""

from __future__ import annotations

from collections.abc import Sequence

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
    "recompute": "recompute full",
}

MESSAGES: dict[str, Message] = {
    "block_of_unit_costs": "unit costs do not model the operations inside a block; select roofline costs",
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
}
