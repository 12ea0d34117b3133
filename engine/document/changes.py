"""Changes of a design by path, as data: what an edit changed, and the same change of another state of the design.

People who edit one design together send each other changes, not documents, so that edits of different parts do not
replace each other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from meshwave.engine.document.fixes import unused_name
from meshwave.engine.findings import REMOVED, Refusal

Document = Mapping[str, Any]
Path = tuple[str, ...]
"""Keys from the top of the document, such as ``("pipeline", "microbatches")``.

A mesh is found by its name, ``("meshes", "A", "devices")``: its number changes when another one is added or removed.
"""
MESH_ORDER: Path = ("order of the meshes",)
"""Path of the names of the meshes in pipeline order."""
_AXES: Path = ("axes",)
"""Last key of the axes of a mesh, which are one value: their product is the number of its devices."""


class Change(NamedTuple):
    """The values at a path before and after an edit; :data:`REMOVED` where the document has none."""

    path: Path
    before: Any
    after: Any

    @property
    def inverse(self) -> Change:
        """The change that restores the value from before."""
        return Change(self.path, self.after, self.before)

    @property
    def where(self) -> str:
        """The path as text, such as ``pipeline.microbatches``."""
        return ".".join(self.path).replace("\0", " #")


def find_changes(before: Document, after: Document) -> list[Change]:
    """Return the changes that lead from one document to another; equal parts are left out."""
    return [*_differences((), _by_name(before), _by_name(after))]


def apply_changes(document: Document, changes: Iterable[Change]) -> dict[str, Any]:
    """Return a document with changes that were made to another state of it.

    Values at other paths stay. A mesh that was added gets another name if its name is taken; the order of the meshes
    keeps the meshes that the changes do not know after the ones that they follow.

    Raises:
        Refusal: a part that is changed no longer exists.
    """
    tree = _by_name(json.loads(json.dumps(document)))
    order: Sequence[str] | None = None
    for change in changes:
        if change.path == MESH_ORDER:
            order = change.after
        else:
            _apply(tree, change)
    names = tree.pop(MESH_ORDER[0])
    tree["meshes"] = [
        tree["meshes"][name] for name in _merge_order(names if order is None else order, names, tree["meshes"])
    ]
    return tree


def unchanged_since(document: Document, changes: Iterable[Change]) -> list[Change]:
    """Return those changes whose values a document still has, so that reverting them reverts no other edit."""
    tree = _by_name(document)
    return [change for change in changes if _has_value(tree, change)]


def overlap(one: Path, other: Path) -> bool:
    """Return whether one of two paths contains the other."""
    return all(key == theirs for key, theirs in zip(one, other, strict=False))


def moves_meshes(change: Change) -> bool:
    """Return whether a change moves meshes that both documents have to other ranks."""
    return change.path == MESH_ORDER and not _is_same_order(change.before, change.after)


def _by_name(document: Document) -> dict[str, Any]:
    """Return a document with its meshes by name, and their order; a repeated name gets a number."""
    meshes: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for mesh in document["meshes"]:
        seen[name := mesh["name"]] += 1
        meshes[name if seen[name] == 1 else f"{name}\0{seen[name]}"] = mesh
    return {**document, "meshes": meshes, MESH_ORDER[0]: list(meshes)}


def _differences(path: Path, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, Mapping) and isinstance(after, Mapping) and path[-1:] != _AXES:
        for key in {**before, **after}:
            yield from _differences((*path, key), before.get(key, REMOVED), after.get(key, REMOVED))
    elif not _is_equal(before, after):
        yield Change(path, before, after)


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal; the order of axes matters."""
    return bool(one == other) and (not isinstance(one, Mapping) or [*one] == [*other])


def _apply(tree: dict[str, Any], change: Change) -> None:
    *sections, key = change.path
    here: Any = tree
    for section in sections:
        here = here.get(section) if isinstance(here, Mapping) else None
    if not isinstance(here, dict):
        raise Refusal("missing_path", {"path": change.where})
    if change.after is REMOVED:
        here.pop(key, None)
    elif sections == ["meshes"] and change.before is REMOVED and here.get(key, change.after) != change.after:
        name = unused_name(here)
        here[name] = {**change.after, "name": name}
    else:
        here[key] = change.after


def _merge_order(wanted: Sequence[str], present: Sequence[str], meshes: Iterable[str]) -> list[str]:
    """Return all meshes in the wanted order; others stay behind the mesh that they follow at present."""
    names = list(meshes)
    order = [name for name in wanted if name in names]
    known = [name for name in present if name in names]
    for at, name in enumerate(known):
        if name not in order:
            order.insert(order.index(known[at - 1]) + 1 if at else 0, name)
    return [*order, *(name for name in names if name not in order)]


def _has_value(tree: Mapping[str, Any], change: Change) -> bool:
    if change.path == MESH_ORDER:
        return _is_same_order(tree[MESH_ORDER[0]], change.after)
    here: Any = tree
    for key in change.path:
        here = here.get(key, REMOVED) if isinstance(here, Mapping) else REMOVED
    return _is_equal(here, change.after)


def _is_same_order(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether the names that two lists share are in the same order."""
    return [name for name in one if name in other] == [name for name in other if name in one]
