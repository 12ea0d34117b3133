"""Messages about expert layers: their groups, their load and their placement."""

from __future__ import annotations

from meshwave.engine.messages import Message


def _rounded_capacity(slots: int, capacity: int, mp: int, degree: int) -> str:
    by = f"mp={mp}" + (f" x degree={degree}" if degree > 1 else "")
    return f"an expert needs {slots:,} slots and gets {capacity:,}, the next multiple of {by}"


def _partial_gate(schedule: str, mp: int, slots: int, chosen_by: str | None = None) -> str:
    subject = f"{chosen_by} chooses {schedule} here, which" if chosen_by else schedule
    return (
        f"{subject} splits the tokens into {mp} parts and selects experts for each part separately, with {slots:,} slots "
        "each. It may drop other tokens than a gate that sees all of them; set model.moe.capacity_factor to null to drop none"
    )


def _split_tensor_parallel_groups(mesh: str, tp: int, ep: int, esp: int, advice: str) -> str:
    return (
        f"the tp={tp} devices of mesh {mesh} hold the same tokens, so groups of experts must contain all or none of "
        f"them, but groups of ep={ep} x esp={esp} devices split them; {advice}"
    )


def _unbalanced_slots(slots: float, tokens: float, divisible: bool) -> str:
    advice = ", or balance the experts, which first equalizes the slots per device" if divisible else ""
    return (
        f"with a capacity factor, experts compute all of their slots, filled or empty: the fullest device of this placement "
        f"computes {slots:.3g} times the mean number of slots but receives {tokens:.3g} times the mean number of tokens; set model.moe.capacity_factor "
        f"to null to compute tokens only{advice}"
    )


MESSAGES: dict[str, Message] = {
    # the layer
    "indivisible_devices": "mp={mp} does not divide the {devices} devices of ep={ep} x esp={esp}; use a divisor",
    "indivisible_experts": "ep={ep} does not divide {experts} experts; use {supported:or}",
    "indivisible_expert_width": "esp={esp} does not divide the experts' width of {width}; use {supported:or}",
    "placement_size": (
        "the placement has {given} {given:plural|entry|entries}, but {group} has {expected} "
        "{expected:plural|device|devices}; give one entry per device, or null"
    ),
    "unplaced_expert": "expert {expert} is on no device; add it to one",
    "rounded_capacity": _rounded_capacity,
    # groups
    "unused_expert_setting": (
        "{key} has no effect: the model has no experts; add experts with model.moe, or remove {key}"
    ),
    "expert_devices": "ep={ep} x esp={esp} needs {given} devices, but all meshes together have {devices}; use smaller groups",
    "unused_group_size": (
        "{title} distributes whole experts over the devices of each tensor-parallel group and ignores {key}={value}; "
        "set it to 1"
    ),
    "split_expert_groups": (
        "groups of ep={ep} x esp={esp} devices do not divide the {devices} {devices:plural|device|devices} of mesh {mesh}; "
        "the prediction uses ep={fitting_ep} x esp={fitting_esp} instead, and the design cannot run; set ep and esp to "
        "these values"
    ),
    "split_tensor_parallel_groups": _split_tensor_parallel_groups,
    "unequal_token_groups": (
        "the auxiliary loss is averaged over the replicas of each mesh, and the meshes differ in dp ({sizes:list}): experts "
        "are balanced over token groups of different size; set aux_loss to 0 to compare such designs, or use the same dp on "
        "all meshes"
    ),
    "gathered_copies": (
        "the all-gather before the gate collects several copies of each token, and a gate with a capacity factor may "
        "drop different tokens of each copy; set model.moe.capacity_factor to null, or the variant to paper"
    ),
    # load and placement
    "load_size": "the load has {given} {given:plural|share|shares} for {experts} experts; give one per expert",
    "zero_load": 'all expert loads are zero; give at least one expert a positive share, or use "uniform"',
    "missing_experts": "this model has no experts; add experts first",
    "mismatched_placement": "the expert placement does not match the experts and devices; place them in equal blocks",
    "placement_devices": (
        "the placement has {given} entries, and the cluster has {devices} devices; give one entry per device, or null"
    ),
    "unknown_expert": "there is no expert {expert}; the model has experts 0 to {last}",
    "repeated_expert": "expert {expert} is listed twice; list it once",
    "layer_without_experts": "layer {layer} has no experts; the layers with experts are {layers:list}",
    "uneven_rebalanced_placement": (
        "experts can move during training only if all devices hold the same number of experts and none is replicated; "
        "change the placement, or set rebalance_steps to null"
    ),
    "repeated_expert_layer": "layer {layer} is listed twice; list it once",
    "unequal_shards": (
        "device {device} shares its experts with device {first} (esp={esp}) and must list the same: {experts:list}"
    ),
    "unbalanced_slots": _unbalanced_slots,
    "partial_gate": _partial_gate,
    # documents of expert layers
    "design_without_experts": (
        "the model of {design!r} has no experts; open an example with experts, such as 15-bert-base-moe or 16-gpt2-moe"
    ),
    "no_expert_block": "no block has experts: model.moe.every is {every}, but the model has only {layers} layers",
    "mesh_without_experts": "no stage on mesh {mesh} has experts; the stages on {others} do",
    "rank_count": "ep={ep} x esp={esp} needs {needed} devices, but there are {ranks}; {advice}",
    "unknown_collective": "unknown collective {name!r}. {known:hint}",
    "unknown_group": "unknown group {name!r}. {known:hint}",
}
