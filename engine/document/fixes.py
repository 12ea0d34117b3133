"""Fixes: edits of a document that remove a problem, and functions that apply edits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, product
from math import gcd
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from meshwave.engine.document.cluster import MAX_DEVICES
from meshwave.engine.document.meshes import axes_fix
from meshwave.engine.findings import REMOVED, Edit, Fix, Refusal

if TYPE_CHECKING:
    from meshwave.engine.document.cluster import Cluster
    from meshwave.engine.document.meshes import Mesh

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def parse_path(path: str) -> list[str | int]:
    """Return ``["meshes", 2, "devices"]`` for ``meshes[2].devices``."""
    return [int(index) if index else name for name, index in _STEP.findall(path)]


def apply_edits(document: Mapping[str, Any], edits: Iterable[Edit]) -> dict[str, Any]:
    """Return a copy of a document with the edits applied; a missing section is added if an edit sets a key in it.

    Raises:
        Refusal: an edit does not fit the document.
    """
    changed: dict[str, Any] = json.loads(json.dumps(document))
    for path, value in edits:
        apply_edit(changed, path, value)
    return changed


def apply_edit(document: dict[str, Any], path: str, value: Any) -> None:
    """Apply an edit to a document in place.

    Raises:
        Refusal: the edit does not fit the document.
    """
    if not (steps := parse_path(path)):
        raise Refusal("missing_path", {"path": f'"{path}"'})
    *sections, key = steps
    here: Any = document
    if sections:
        document.setdefault(str(sections[0]), {})
    try:
        for step in sections:
            here = here[step]
        if value is REMOVED:
            del here[key]
        elif isinstance(here, dict) and not isinstance(key, str):
            raise KeyError(key)
        else:
            here[key] = value
    except (KeyError, IndexError, TypeError):
        raise Refusal("missing_path", {"path": path}) from None


# ---- fixes of any section ----


def remove_key_fix(path: str) -> Fix:
    """Return the fix that deletes a key."""
    return Fix("remove_key", {"key": path.rpartition(".")[2]}, ((path, REMOVED),))


def rename_key_fix(path: str, value: Any, name: str) -> Fix:
    """Return the fix that moves the ``value`` at a path to a sibling key with another name."""
    section, dot, key = path.rpartition(".")
    sibling = f"{section}{dot}{name}"
    return Fix("rename_key", {"key": key, "name": name}, ((path, REMOVED), (sibling, value)))


# ---- fixes of meshes ----


def mesh_axes_fix(number: int, mesh: Mesh, tp: int) -> Fix:
    """Return the fix that sets the tp of a mesh, and its dp to the rest of its devices."""
    return axes_fix(mesh.name, len(mesh.devices), tp).with_path_prefix(f"meshes[{number}]")


def keep_devices_fix(number: int, mesh: Mesh, devices: Sequence[int]) -> Fix:
    """Return the fix that reduces a mesh to the given devices; its tp becomes a divisor of their number."""
    tp = gcd(mesh.tp, len(devices))
    axes = {"dp": len(devices) // tp, "tp": tp}
    edits = ((f"meshes[{number}].devices", list(devices)), (f"meshes[{number}].axes", axes))
    return Fix("keep_devices", {"mesh": mesh.name, "devices": list(devices)}, edits)


def move_mesh_fix(number: int, mesh: str, devices: Sequence[int]) -> Fix:
    """Return the fix that moves a mesh to other devices of the same number."""
    return Fix("move_mesh", {"mesh": mesh, "devices": list(devices)}, ((f"meshes[{number}].devices", list(devices)),))


def rename_mesh_fix(number: int, names: Iterable[str]) -> Fix:
    """Return the fix that gives a mesh a name that is not among ``names``."""
    name = unused_name(names)
    return Fix("rename_mesh", {"number": number, "name": name}, ((f"meshes[{number}].name", name),))


def unused_name(names: Iterable[str]) -> str:
    """Return the first of the names A, B, ..., Z, A1, B1, ... that is not among ``names``."""
    used = set(names)
    candidates = (f"{letter}{number or ''}" for number in count() for letter in ascii_uppercase)
    return next(name for name in candidates if name not in used)


def mesh_count_fixes(meshes: Sequence[Mesh], cluster: Cluster, counts: Iterable[int]) -> list[Fix]:
    """Return a fix for each number of meshes: it removes the last meshes, or copies the last one to unused devices."""
    fixes = []
    for number in counts:
        changed = _meshes_of_count(meshes, cluster, number)
        if changed:
            fixes.append(Fix("use_meshes", {"count": number}, (("meshes", changed),)))
    return fixes


def _meshes_of_count(meshes: Sequence[Mesh], cluster: Cluster, number: int) -> list[dict[str, Any]]:
    changed = [mesh.model_dump(mode="json") for mesh in meshes[:number]]
    while len(changed) < number:
        used = [device for mesh in changed for device in mesh["devices"]]
        devices = free_rectangle(cluster, len(changed[-1]["devices"]), used)
        if devices is None:
            return []
        changed.append({**changed[-1], "name": unused_name(mesh["name"] for mesh in changed), "devices": devices})
    return changed


def add_nodes_fixes(cluster: Cluster, device: int) -> list[Fix]:
    """Return the fix that extends a cluster to contain a device; empty if that exceeds the maximum."""
    nodes = device // cluster.devices_per_node + 1
    if nodes * cluster.devices_per_node > MAX_DEVICES:
        return []
    return [Fix("use_nodes", {"nodes": nodes}, (("cluster.nodes", nodes),))]


def free_rectangle(cluster: Cluster, size: int, used: Iterable[int]) -> list[int] | None:
    """Return the first rectangle of ``size`` unused devices on the fewest nodes; None if there is none."""
    taken, per_node = set(used), cluster.devices_per_node
    for height in (rows for rows in range(1, cluster.nodes + 1) if size % rows == 0):
        width = size // height
        for row, column in product(range(cluster.nodes - height + 1), range(per_node - width + 1)):
            nodes, places = range(row, row + height), range(column, column + width)
            devices = [node * per_node + place for node, place in product(nodes, places)]
            if taken.isdisjoint(devices):
                return devices
    return None


# ---- fixes of orders ----


def remove_action_fix(where: str, action: str) -> Fix:
    """Return the fix that removes a cell of a hand-drawn order."""
    return Fix("remove_action", {"action": action}, ((where, REMOVED),))
