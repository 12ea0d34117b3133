"""Differences between two designs, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from meshwave.engine.document import Design, Mesh
from meshwave.engine.frozen import NULL_KEY, Part
from meshwave.engine.schedules import schedules
from meshwave.engine.units import KEY_UNITS, format_ranges, quantity

Meanings = Mapping[str, str]
"""Meaning of null, by the path of the key."""
NONE = "none"
"""Meaning of null for keys that state none."""
TITLE_DIFFERENCES = 2  # maximum number of differences in a title
LONGEST = 60  # maximum number of characters of a list that is written out


Difference = tuple[str, str, str]
"""Name of a difference, such as ``schedule`` or ``model.hidden``, and both values as text."""


def describe_differences(first: Design, other: Design) -> list[str]:
    """Return one line of text per difference, such as ``schedule: 1f1b -> hanayo, waves 2``."""
    found = list_differences(first, other)
    return [f"{name}: {one} -> {two}" if one != two else f"{name}: differs" for name, one, two in found]


def distinct_titles(designs: Sequence[Design]) -> list[str]:
    """Return the names of designs; those with the same name are titled by what differs, such as ``1F1B (waves 2)``."""
    return [_distinct_title(design, [each for each in designs if each.name == design.name]) for design in designs]


def _distinct_title(design: Design, namesakes: Sequence[Design]) -> str:
    found = dict.fromkeys(
        f"{name} {value}"
        for other in namesakes
        if other != design
        for name, value, _ in list_differences(design, other)
    )
    if not found:
        return design.name
    more = ", …" if len(found) > TITLE_DIFFERENCES else ""
    return f"{design.name} ({', '.join([*found][:TITLE_DIFFERENCES])}{more})"


def list_differences(first: Design, other: Design) -> list[Difference]:
    """Return the differences between two designs.

    They are in the order of the document; names are ignored. A different schedule is listed with its options. Meshes
    are listed individually if both designs have the same number of them, otherwise only those in both whose size or axes
    differ.
    """
    one, two = (design.model_dump(mode="json", exclude={"name", "format"}) for design in (first, other))
    null = dict([*_null_meanings(first), *_null_meanings(other)])
    meshes = _mesh_texts(first, other)
    return [
        difference
        for section in one
        for difference in (meshes if section == "meshes" else _section_differences(section, one, two, null))
    ]


def _null_meanings(part: Part, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the meaning of null of every key of a part that can be null."""
    for name, field in type(part).model_fields.items():
        if isinstance(field.json_schema_extra, Mapping) and NULL_KEY in field.json_schema_extra:
            yield f"{prefix}{name}", str(field.json_schema_extra[NULL_KEY])
        if isinstance(value := getattr(part, name), Part):
            yield from _null_meanings(value, f"{prefix}{name}.")


def _section_differences(
    section: str, one: Mapping[str, Any], two: Mapping[str, Any], null: Meanings
) -> Iterator[Difference]:
    if one[section] == two[section]:
        return
    if section == "pipeline":
        yield from _pipeline_differences(one[section], two[section], null)
    else:
        yield from _part_differences(section, one[section], two[section], null)


def _pipeline_differences(one: Mapping[str, Any], two: Mapping[str, Any], null: Meanings) -> Iterator[Difference]:
    """Yield differences of the schedule first, then of the keys of every pipeline."""
    options = {*schedules[one["schedule"]].model_fields, *schedules[two["schedule"]].model_fields}
    same = one["schedule"] == two["schedule"]
    if not same:
        yield "schedule", _schedule_text(one), _schedule_text(two)
    for key in one:
        if key != "schedule" and key in two and (same or key not in options):
            yield from _value_difference(key, one[key], two[key], null.get(f"pipeline.{key}", NONE))


def _schedule_text(pipeline: Mapping[str, Any]) -> str:
    """Return a schedule as text, such as ``hanayo, waves 2, ungrouped``; only numbers are shown at their default."""
    words = [str(pipeline["schedule"])]
    for key, field in schedules[pipeline["schedule"]].model_fields.items():
        value = pipeline[key]
        if isinstance(value, int) or value != field.get_default():
            words.append(f"{key} {value}")
    return ", ".join(words)


class MeshDifference(NamedTuple):
    """A mesh that differs between two designs, with both ranks; -1 and ``none`` in a design without it."""

    kind: Literal["added", "removed", "moved", "resized", "axes"]
    name: str
    ranks: tuple[int, int]
    before: str
    after: str


def match_meshes(first: Design, other: Design) -> dict[int, int]:
    """Return the rank in ``other`` of each mesh of ``first`` that is in both designs.

    Meshes are matched by rank if both designs have the same number of them, otherwise by name.
    """
    if first.ranks == other.ranks:
        return {rank: rank for rank in range(first.ranks)}
    ranks = {mesh.name: rank for rank, mesh in enumerate(other.meshes)}
    return {rank: ranks[mesh.name] for rank, mesh in enumerate(first.meshes) if mesh.name in ranks}


def mesh_differences(first: Design, other: Design) -> Iterator[MeshDifference]:
    """Yield the meshes that differ: those of the first design by rank, then the added ones."""
    matched = match_meshes(first, other)
    for rank, mesh in enumerate(first.meshes):
        name = mesh.name or str(rank)
        if rank not in matched:
            yield MeshDifference("removed", name, (rank, -1), _mesh_text(mesh), NONE)
            continue
        theirs = other.meshes[matched[rank]]
        if mesh.devices != theirs.devices or [*mesh.axes.items()] != [*theirs.axes.items()]:
            yield MeshDifference(
                _mesh_change(mesh, theirs), name, (rank, matched[rank]), _mesh_text(mesh), _mesh_text(theirs)
            )
    for rank, mesh in enumerate(other.meshes):
        if rank not in matched.values():
            yield MeshDifference("added", mesh.name or str(rank), (-1, rank), NONE, _mesh_text(mesh))


def _mesh_change(mesh: Mesh, theirs: Mesh) -> Literal["moved", "resized", "axes"]:
    if len(mesh.devices) != len(theirs.devices):
        return "resized"
    return "moved" if set(mesh.devices) != set(theirs.devices) else "axes"


def _mesh_texts(first: Design, other: Design) -> Iterator[Difference]:
    if first.ranks != other.ranks:
        yield "meshes", str(first.ranks), str(other.ranks)
    for found in mesh_differences(first, other):
        if first.ranks == other.ranks or found.kind in ("resized", "axes"):
            yield f"mesh {found.name}", found.before, found.after


def _mesh_text(mesh: Mesh) -> str:
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.axes.items())
    devices, first = list(mesh.devices), mesh.devices[0]
    if len(devices) == 1:
        return f"device {first} ({axes})"
    if devices == [*range(first, first + len(devices))]:
        return f"{len(devices)} devices from {first} ({axes})"
    in_order = devices == sorted(devices)
    return f"devices {format_ranges(devices) if in_order else value_text(devices)} ({axes})"


def _part_differences(path: str, one: Any, two: Any, null: Meanings) -> Iterator[Difference]:
    """Yield differences recursively; a part of another kind is listed by its kind."""
    if not isinstance(one, Mapping) or not isinstance(two, Mapping):
        yield from _value_difference(path, one, two, null.get(path, NONE))
        return
    kinds = (one.get("kind"), two.get("kind"))
    if kinds[0] != kinds[1]:
        yield path, str(kinds[0]), str(kinds[1])
    for key in one:
        if key in two and key != "kind":
            yield from _part_differences(f"{path}.{key}", one[key], two[key], null)


def _value_difference(path: str, one: Any, two: Any, null: str) -> Iterator[Difference]:
    if one == two:
        return
    unit = next((unit for end, unit in KEY_UNITS.items() if path.endswith(end)), "")
    before, after = (null if value is None else _amount_text(value, unit) for value in (one, two))
    yield path, before, after


def _amount_text(value: Any, unit: str) -> str:
    return quantity(value, unit) if unit and isinstance(value, int | float) and value else value_text(value)


def value_text(value: Any) -> str:
    """Return a value of a document as short text."""
    if value is None or value in ([], ()):
        return NONE
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {value_text(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        text = ", ".join(map(value_text, value))
        return text if len(text) <= LONGEST else f"{len(value)} entries"
    return str(value)
