"""Changes of a design by path, as data: the changes of an edit, and their application to another state of the design.

People who edit one design together exchange changes instead of documents, so that edits of different parts do not
overwrite each other.
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

A mesh is identified by its name, as in ``("meshes", "A", "devices")``, because its number changes when another mesh is
added or removed.
"""
MESH_ORDER: Path = ("order of the meshes",)
"""Path of the list of mesh names in pipeline order."""
_AXES: Path = ("axes",)
"""Last key of the axes of a mesh, which are one value, because their product is the number of its devices."""


class Change(NamedTuple):
    """Values at a path before and after an edit; :data:`REMOVED` if the document has no value there."""

    path: Path
    before: Any
    after: Any

    @property
    def inverse(self) -> Change:
        """The change that restores the previous value."""
        return Change(self.path, self.after, self.before)

    @property
    def where(self) -> str:
        """The path as text, such as ``pipeline.microbatches``."""
        return ".".join(self.path).replace("\0", " #")


def find_changes(before: Document, after: Document) -> list[Change]:
    """Return the changes from one document to another; equal parts are left out."""
    return [*_find_changes((), _by_name(before), _by_name(after))]


def apply_changes(document: Document, changes: Iterable[Change]) -> dict[str, Any]:
    """Apply changes that were made to another state of a document, and return the result.

    Values at other paths are kept. An added mesh gets another name if its name is taken. Meshes that are unknown to the
    changes stay behind the mesh that they follow.

    Raises:
        Refusal: a changed part no longer exists.
    """
    tree = _by_name(json.loads(json.dumps(document)))
    order: Sequence[str] | None = None
    for change in changes:
        if change.path == MESH_ORDER:
            order = change.after
        else:
            _apply_change(tree, change)
    names = tree.pop(MESH_ORDER[0])
    tree["meshes"] = [
        tree["meshes"][name] for name in _merge_order(names if order is None else order, names, tree["meshes"])
    ]
    return tree


def revertible_changes(document: Document, changes: Iterable[Change]) -> list[Change]:
    """Return the changes whose new values the document still has, so that reverting them affects no other edit."""
    tree = _by_name(document)
    return [change for change in changes if _has_value(tree, change)]


def paths_overlap(one: Path, other: Path) -> bool:
    """Return True if one of two paths contains the other."""
    return all(key == theirs for key, theirs in zip(one, other, strict=False))


def moves_meshes(change: Change) -> bool:
    """Return True if a change moves meshes that are in both documents to other ranks."""
    return change.path == MESH_ORDER and not _is_same_order(change.before, change.after)


def _by_name(document: Document) -> dict[str, Any]:
    """Return a document with its meshes by name, and with their order; a repeated name gets a number."""
    meshes: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for mesh in document["meshes"]:
        seen[name := mesh["name"]] += 1
        meshes[name if seen[name] == 1 else f"{name}\0{seen[name]}"] = mesh
    return {**document, "meshes": meshes, MESH_ORDER[0]: list(meshes)}


def _find_changes(path: Path, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, Mapping) and isinstance(after, Mapping) and path[-1:] != _AXES:
        for key in {**before, **after}:
            yield from _find_changes((*path, key), before.get(key, REMOVED), after.get(key, REMOVED))
    elif not _is_equal(before, after):
        yield Change(path, before, after)


def _is_equal(one: Any, other: Any) -> bool:
    """Return True if two values are equal; the order of axes matters."""
    return bool(one == other) and (not isinstance(one, Mapping) or [*one] == [*other])


def _apply_change(tree: dict[str, Any], change: Change) -> None:
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
    """Return all mesh names in the wanted order; other meshes stay behind the mesh that they currently follow."""
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
    """Return True if the names that two lists have in common are in the same order."""
    return [name for name in one if name in other] == [name for name in other if name in one]
