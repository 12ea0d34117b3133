"""Judge what is sound of a document while some of it is refused: the refused is stood in for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import lcm
from typing import Any

from meshwave.engine.document.upgrades import FORMAT
from meshwave.engine.document.validation_problems import tensor_parallel
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
"""The smallest sound document; the sections that are not here can be left out of any."""

SPARE: Mapping[str, tuple[str, ...]] = {
    "cluster": ("device", "intra_node", "inter_node", "nics_per_node", "node_bandwidth", "uplink"),
    "model": ("kind", "sequence", "vocab", "ffn"),
    "pipeline": ("stages", "placement", "recompute"),
    "experts": ("schedule", "degree", "variant", "placement", "load"),
}
"""The keys without which their section can still be held against others."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def stood_in(document: Mapping[str, Any], refused: Iterable[Problem]) -> tuple[dict[str, Any], frozenset[str]]:
    """A document to judge in place of a refused one, and the sections of which nothing can be said."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    torn: set[str] = set()
    for problem in refused:
        place = [int(index) if index else name for name, index in _STEP.findall(problem.where)]
        if not _put_aside(copy, place, problem.code):
            torn.add(str(place[0]) if place else "")
    for section in torn:
        copy.pop(section, None)
    return {**STAND_INS, **copy}, frozenset(torn)


def _put_aside(document: dict[str, Any], place: list[str | int], code: str) -> bool:
    """Take what was refused out of its section; False where the section cannot be judged without it."""
    if len(place) < 2:
        return False
    section, key = place[:2]
    part = document.get(str(section))
    if code == "mesh_size" and isinstance(part, list) and isinstance(key, int):  # its devices are sound
        part[key]["axes"] = {"dp": len(part[key]["devices"])}
        return True
    if not isinstance(part, dict):
        return False
    if code == "heads":  # what is said of them minds every tp already
        part["heads"] = part["hidden"] = lcm(*tensor_parallel(document.get("meshes")))
        return True
    if code == "extra_forbidden":
        return _removed(document, place)
    if key not in SPARE.get(str(section), ()):
        return False
    part.pop(str(key), None)
    if key in STAND_INS.get(str(section), {}):
        part[str(key)] = STAND_INS[str(section)][key]
    return True


def _removed(document: dict[str, Any], place: list[str | int]) -> bool:
    here: Any = document
    try:
        for step in place[:-1]:
            here = here[step]
        del here[place[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True
