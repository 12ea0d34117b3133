"""Validation of the valid parts of a document, whose refused parts are replaced by valid values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import lcm
from typing import Any

from meshwave.engine.document.fixes import parse_path
from meshwave.engine.document.upgrades import FORMAT
from meshwave.engine.document.validation_problems import tensor_parallel_sizes
from meshwave.engine.findings import Problem

_LINK = {"latency_s": 0.0, "bandwidth": 1.0}

STAND_INS: Mapping[str, Any] = {
    "format": FORMAT,
    "cluster": {
        "nodes": 1,
        "devices_per_node": 1,
        "device": {"peak_flops": 1.0, "memory_bytes": 1.0, "memory_bandwidth": 1.0},
        "intra_node": _LINK,
        "inter_node": _LINK,
    },
    "model": {"kind": "gpt", "layers": 1, "hidden": 1, "heads": 1, "sequence": 1, "vocab": 1},
    "meshes": [{"name": "-", "devices": [0]}],
    "pipeline": {"schedule": "gpipe", "microbatches": 1},
}
"""Smallest valid document; sections that it omits are optional in every document."""

SPARE: Mapping[str, tuple[str, ...]] = {
    "cluster": (
        "device",
        "intra_node",
        "inter_node",
        "nics_per_node",
        "node_bandwidth",
        "price_per_device_hour",
        "uplink",
        "watts_per_device",
    ),
    "model": ("kind", "sequence", "vocab", "ffn"),
    "pipeline": ("stages", "placement", "recompute"),
    "experts": (
        "schedule",
        "degree",
        "variant",
        "placement",
        "load",
        "layers",
        "rebalance_steps",
        "rebalance_threshold",
    ),
}
"""Keys that can be removed from a section without affecting its comparison with other sections."""


def replace_refused_parts(
    document: Mapping[str, Any], refused: Iterable[Problem]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return a valid document that replaces a refused one, and the names of the sections that can be checked."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    invalid: set[str] = set()
    for problem in refused:
        place = parse_path(problem.where)
        if not _replace_value(copy, place, problem.code):
            invalid.add(str(place[0]) if place else "")
    for section in invalid:
        copy.pop(section, None)
    return {**STAND_INS, **copy}, frozenset(invalid)


def _replace_value(document: dict[str, Any], place: list[str | int], code: str) -> bool:
    """Replace a refused value in its section; return True if the section can be checked without it."""
    if len(place) < 2:
        return False
    section, key = place[:2]
    part = document.get(str(section))
    if code == "mesh_size" and isinstance(part, list) and isinstance(key, int):  # the devices of the mesh are valid
        part[key]["axes"] = {"dp": len(part[key]["devices"])}
        return True
    if not isinstance(part, dict):
        return False
    if code == "indivisible_width":  # the suggestions of this problem already consider every tp
        part["heads"] = part["hidden"] = lcm(*tensor_parallel_sizes(document.get("meshes")))
        return True
    if code in ("unknown_key", "unused_option"):
        return _remove_value(document, place)
    if key not in SPARE.get(str(section), ()):
        return False
    part.pop(str(key), None)
    if key in STAND_INS.get(str(section), {}):
        part[str(key)] = STAND_INS[str(section)][key]
    return True


def _remove_value(document: dict[str, Any], place: list[str | int]) -> bool:
    here: Any = document
    try:
        for step in place[:-1]:
            here = here[step]
        del here[place[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True
