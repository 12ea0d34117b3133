"""What two designs differ in, in words: the documents laid side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshwave.engine.document import Design
from meshwave.engine.schedules import schedules

LONGEST = 60  # letters of a list that is written out


def differences(first: Design, other: Design) -> list[str]:
    """``schedule: 1f1b -> hanayo, waves 2``: one line a difference, in the order of the document; names do not count.

    A schedule is told with its options, since those of another are other keys; meshes by how many
    there are, else mesh by mesh.
    """
    one, two = (design.model_dump(mode="json", exclude={"name", "format"}) for design in (first, other))
    return [*_differ(one, two)]


def _differ(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[str]:
    for section in one:
        if one[section] == two[section]:
            continue
        if section == "pipeline":
            yield from _pipelines(one[section], two[section])
        elif section == "meshes":
            yield from _meshes(one[section], two[section])
        else:
            yield from _parts(section, one[section], two[section])


def _pipelines(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[str]:
    """The schedule first; its options one by one where it is the same; then what every pipeline has."""
    options = {*schedules[one["schedule"]].model_fields, *schedules[two["schedule"]].model_fields}
    same = one["schedule"] == two["schedule"]
    if not same:
        yield f"schedule: {_schedule(one)} -> {_schedule(two)}"
    for key in one:
        if key != "schedule" and key in two and (same or key not in options):
            yield from _values(key, one[key], two[key])


def _schedule(pipeline: Mapping[str, Any]) -> str:
    """``hanayo, waves 2, ungrouped``: options at their defaults are left out, but for numbers."""
    words = [str(pipeline["schedule"])]
    for key, field in schedules[pipeline["schedule"]].model_fields.items():
        value = pipeline[key]
        if isinstance(value, int) or value != field.get_default():
            words.append(f"{key} {value}")
    return ", ".join(words)


def _meshes(one: Sequence[Mapping[str, Any]], two: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(one) != len(two):
        yield f"meshes: {len(one)} -> {len(two)}"
        return
    for rank, (mine, theirs) in enumerate(zip(one, two, strict=True)):
        if mine["devices"] != theirs["devices"] or mine["axes"] != theirs["axes"]:
            yield f"mesh {mine['name'] or rank}: {_mesh(mine)} -> {_mesh(theirs)}"


def _mesh(mesh: Mapping[str, Any]) -> str:
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh["axes"].items())
    devices = mesh["devices"]
    return (
        f"device {devices[0]} ({axes})" if len(devices) == 1 else f"{len(devices)} devices from {devices[0]} ({axes})"
    )


def _parts(path: str, one: Any, two: Any) -> Iterator[str]:
    """Part by part as far as both have parts; a part of another kind is told by its kind."""
    if not isinstance(one, Mapping) or not isinstance(two, Mapping):
        yield from _values(path, one, two)
        return
    kinds = (one.get("kind"), two.get("kind"))
    if kinds[0] != kinds[1]:
        yield f"{path}: {kinds[0]} -> {kinds[1]}"
    for key in one:
        if key in two and key != "kind":
            yield from _parts(f"{path}.{key}", one[key], two[key])


_NOTHING = {
    "training.clip_norm": "no clipping",
    "training.data": "the text that comes with Meshwave",
    "model.moe": "none",
    "model.moe.capacity_factor": "dropless",
}
"""What null says where it does not leave the choice to Meshwave."""


def _values(path: str, one: Any, two: Any) -> Iterator[str]:
    if one == two:
        return
    texts = [_NOTHING.get(path, "automatic") if value is None else _text(value) for value in (one, two)]
    if texts[0] == texts[1]:
        yield f"{path}: another"
    else:
        yield f"{path}: {texts[0]} -> {texts[1]}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        text = ", ".join(map(_text, value))
        return text if len(text) <= LONGEST else f"{len(value)} given"
    return str(value)
