"""Edits of a transfer document: the text of a field, the shape of tensor or mesh, the mesh axes of a dim."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from math import prod

from meshwave.designer.state.transfer_fields import FIELDS, SIDES, Document
from meshwave.engine.document.cluster import MAX_DEVICES
from meshwave.engine.findings import Refusal, unknown_member_params


def set_field_text(document: Document, path: str, text: str) -> Document:
    """Return the document with the text of a field parsed and stored.

    Raises:
        Refusal: the field does not exist, or the text cannot be parsed.
    """
    if path not in FIELDS:
        raise Refusal("unknown_member", unknown_member_params("field", path, FIELDS))
    value = FIELDS[path].parse(text, document)
    if path == "tensor.shape":
        return set_tensor_shape(document, value)
    side, _, key = path.partition(".")
    if side in SIDES and key == "shape":
        return set_mesh_shape(document, side, value)
    changed = deepcopy(document)
    here = changed
    *owners, last = path.split(".")
    for step in owners:
        here = here[step]
    here[last] = value
    return changed


# ---- sizes and axes ----


def set_tensor_shape(document: Document, shape: list[int]) -> Document:
    """Return the document with another tensor shape; new dims are replicated (``R``) in both specs."""
    changed = deepcopy(document)
    changed["tensor"]["shape"] = shape
    for side in SIDES:
        spec = changed[side]["spec"]
        changed[side]["spec"] = [*spec[: len(shape)], *["R"] * (len(shape) - len(spec))]
    return changed


def set_mesh_shape(document: Document, side: str, shape: list[int]) -> Document:
    """Return the document with another mesh shape of ``side``.

    Ranks and hosts are renumbered with the same number of ranks per host; a destination whose ranks directly follow
    those of the source is moved accordingly. Axes that no longer exist are removed from the spec.
    """
    changed = deepcopy(document)
    section = changed[side]
    before = {key: list(section[key]) for key in ("ranks", "hosts")}
    section["shape"] = shape
    section["spec"] = [
        _spec_entry([axis for axis in _entry_axes(entry) if axis < len(shape)]) for entry in section["spec"]
    ]
    section["partial"] = [axis for axis in section.get("partial", []) if axis < len(shape)]
    size = prod(shape)
    if not 0 < size <= MAX_DEVICES or not all(before.values()):
        return changed
    each = before["hosts"].count(before["hosts"][0])
    section["ranks"] = list(range(before["ranks"][0], before["ranks"][0] + size))
    section["hosts"] = [before["hosts"][0] + place // each for place in range(size)]
    if side == "source":
        other = changed["destination"]
        for key in ("ranks", "hosts"):
            if other[key] and min(other[key]) == max(before[key]) + 1:
                other[key] = [number + max(section[key]) - max(before[key]) for number in other[key]]
    return changed


def assign_axis(document: Document, side: str, axis: int, dim: int | None, at: int) -> Document:
    """Return the document with a mesh axis as the ``at``-th axis that shards ``dim``; None replicates the tensor.

    Raises:
        Refusal: the axis or dim does not exist.
    """
    if side not in SIDES or not 0 <= axis < len(document[side]["shape"]):
        raise Refusal("unknown_transfer_axis")
    changed = deepcopy(document)
    cuts = [[each for each in _entry_axes(entry) if each != axis] for entry in changed[side]["spec"]]
    if dim is not None:
        if not 0 <= dim < len(cuts):
            raise Refusal("unknown_transfer_dim")
        cuts[dim].insert(at, axis)
        changed[side]["partial"] = [each for each in changed[side].get("partial", []) if each != axis]
    changed[side]["spec"] = [_spec_entry(axes) for axes in cuts]
    return changed


def _entry_axes(entry: str) -> list[int]:
    return [int(each) for each in str(entry)[1:] if each.isdigit()]


def _spec_entry(axes: Sequence[int]) -> str:
    return f"S{''.join(map(str, axes))}" if axes else "R"
