"""Labels of fixes, as on a button: the edit that removes a problem."""

from __future__ import annotations

import json
from typing import Any

from meshwave.engine.messages import Message


def _set_value(key: str, value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"set {key} to {text if len(text) <= 40 else f'{text[:37]}...'}"


MESSAGES: dict[str, Message] = {
    "set_value": _set_value,
    "remove_key": "remove {key}",
    "rename_key": "rename {key} to {name}",
    "rename_mesh": "rename mesh {number} to {name}",
    "use_axes": "use dp={dp} tp={tp} on mesh {mesh}",
    "use_axes_everywhere": "use tp={tp} on all meshes",
    "move_mesh": "move mesh {mesh} to {devices:plural|device|devices} {devices:list}",
    "keep_devices": "use only {devices:plural|device|devices} {devices:list} for mesh {mesh}",
    "use_nodes": "use {nodes} nodes",
    "use_meshes": "use {count} meshes",
    "use_expert_groups": "set ep to {ep} and esp to {esp}",
    "equal_blocks": "place the experts in equal blocks",
    "use_roofline": "use roofline costs",
    "remove_action": "remove {action}",
    "use_microbatches": "use {microbatches} {microbatches:plural|microbatch|microbatches}",
    "balance_stages": "balance the stages by cost",
    "spread_stage_costs": "redistribute the costs over {stages} {stages:plural|stage|stages}",
    "remove_stage_costs": "remove the costs per stage",
    "default_placement": "use the default placement",
}
