"""Damage to documents: changed structure, types, extreme numbers, nesting, unusual characters and bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

Place = tuple[str | int, ...]

NUMBERS = (
    0, 1, 2, 3, 4, 5, 7, 8, 16, 64, 100, -1, 0.5, 1.5, -0.0, 5e-324, 1e-300, 1e-9, 1e9, 1e300, 1.7e308, -1e300,
    2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
STRINGS = (
    "", " ", "a", "auto", "0", "0F0", "1e9", "a" * 300, "\x1b[31mred\x1b[0m", "\x00", "\x0c", "\x9b5m", "\r\n", "\u2028",
    "\u202eabc", "e\u0301\u0301\u0301", "\U0001d4b3", "\ud800", "../../etc/passwd", "<script>alert(1)</script>", "%s{0}",
    "'\"`;--", "=1+1", "]]>&amp;", "gpt", "1f1b", "a/b\\c",
)  # fmt: skip
OTHERS = (None, True, False, [], {}, [[]], [None], {"": None}, [0, 1], {"a": {"b": []}})
DEEP = "@deep@"
"""Placeholder for a deeply nested list, replaced when the document is written."""
DEPTHS = (3, 100, 990, 100_000)


def mutate_json(chance: Random, seeds: Sequence[bytes]) -> bytes:
    """Return a damaged copy of a JSON document of ``seeds``, which may contain parts of another one."""
    document, other = (json.loads(chance.choice(seeds)) for _ in range(2))
    for _ in range(1 + int(chance.expovariate(0.7))):
        document = damage_document(chance, document, other)
    return written(chance, document)


def written(chance: Random, document: Any) -> bytes:
    """Return a document as bytes; one of eight is also damaged as bytes."""
    text = json.dumps(document)
    for _ in range(text.count(f'"{DEEP}"')):
        depth = chance.choice(DEPTHS)
        text = text.replace(f'"{DEEP}"', "[" * depth + "]" * depth, 1)
    content = text.encode()
    return mutate_bytes(chance, content) if chance.random() < 0.125 else content


def damage_document(chance: Random, document: Any, other: Any) -> Any:
    """Return a document with one change."""
    document = deepcopy(document)
    every = list(places(document))
    if not every:
        return chance.choice(OTHERS)
    place = chance.choice(every)
    parent = part_at(document, place[:-1])
    chance.choice(_CHANGES)(chance, parent, place[-1], other)
    return document


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yield the path of every part of a document except the whole."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in steps:
        yield (*at, step)
        yield from places(part, (*at, step))


def part_at(document: Any, place: Place) -> Any:
    for step in place:
        document = document[step]
    return document


# ---- one change of document[...][step] ----


def _nudge_number(chance: Random, parent: Any, step: Any, other: Any) -> None:
    """Change a number slightly, so that the document may remain valid."""
    value = parent[step]
    if type(value) not in (int, float) or value - value != 0:  # no number, or not a finite one
        return _graft_value(chance, parent, step, other)
    with suppress(OverflowError):  # of a whole number of hundreds of digits
        parent[step] = chance.choice(
            (value + 1, value - 1, value * 2, value // 2, value * 10, -value, float(value), value / 1e6, str(value))
        )
    return None


def _set_extreme_value(chance: Random, parent: Any, step: Any, other: Any) -> None:
    parent[step] = chance.choice(NUMBERS)


def _change_text(chance: Random, parent: Any, step: Any, other: Any) -> None:
    value = parent[step]
    text = chance.choice(STRINGS)
    parent[step] = f"{value}{text}" if isinstance(value, str) and chance.random() < 0.5 else text


def _change_type(chance: Random, parent: Any, step: Any, other: Any) -> None:
    parent[step] = chance.choice((*OTHERS, [parent[step]], {"": parent[step]}, DEEP))


def _drop_value(chance: Random, parent: Any, step: Any, other: Any) -> None:
    del parent[step]


def _graft_value(chance: Random, parent: Any, step: Any, other: Any) -> None:
    """Insert a part of another document, preferably one with the same key."""
    every = list(places(other))
    alike = [place for place in every if place[-1] == step and isinstance(step, str)]
    if every:
        parent[step] = deepcopy(part_at(other, chance.choice(alike or every)))


def _change_key(chance: Random, parent: Any, step: Any, other: Any) -> None:
    """Rename a key, or add an unknown key."""
    if not isinstance(parent, dict):
        return _change_list(chance, parent, step, other)
    name = chance.choice((f"{step}s", str(step).upper(), *STRINGS, *_keys(other)))
    parent[name] = parent.pop(step) if chance.random() < 0.5 else deepcopy(parent[step])
    return None


def _keys(document: Any) -> list[str]:
    return [place[-1] for place in places(document) if isinstance(place[-1], str)]


def _change_list(chance: Random, parent: Any, step: Any, other: Any) -> None:
    """Repeat, reorder or shorten a list."""
    members = parent if isinstance(parent, list) else parent[step]
    if not isinstance(members, list) or not members:
        return _nudge_number(chance, parent, step, other)
    at = chance.randrange(len(members))
    match chance.randrange(5):
        case 0:
            members.insert(at, deepcopy(members[at]))
        case 1:
            chance.shuffle(members)
        case 2:
            del members[at:]
        case 3:
            members.reverse()
        case 4:
            members.extend(deepcopy(members) * chance.choice((1, 3, 20)))
    return None


Change = Callable[[Random, Any, Any, Any], None]
_CHANGES: Sequence[Change] = (
    *(_nudge_number,) * 6, *(_graft_value,) * 5, *(_change_list,) * 3, *(_set_extreme_value,) * 3, _change_text, _change_text, _change_type, _change_type, _drop_value, _drop_value, _change_key,
)  # fmt: skip


# ---- bytes ----

PIECES = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc3", b"\r", b"\n", b"\x1b[31m", b"{", b"}", b"[", b"]", b'"', b",",
    b":", b"-", b"\\u0000", b"\\ud800", b"NaN", b"Infinity", b"1e999", b"9" * 5000, b"//", b"'", b"[" * 2000, b"a." * 2000,
)  # fmt: skip


def mutate_text(chance: Random, seeds: Sequence[bytes]) -> bytes:
    """Return a damaged copy of a text of ``seeds``, which may contain lines of another one."""
    lines, other = (chance.choice(seeds).decode("utf-8", "replace").split("\n") for _ in range(2))
    for _ in range(1 + int(chance.expovariate(0.7))):
        at = chance.randrange(len(lines))
        match chance.randrange(8):
            case 0:
                del lines[at : at + chance.choice((1, 1, 3))]
            case 1:
                lines.insert(at, lines[chance.randrange(len(lines))])
            case 2:
                lines[at:at] = other[(begin := chance.randrange(len(other))) : begin + chance.choice((1, 3, 20))]
            case 3 | 4:
                lines[at] = _with_other_value(chance, lines[at], r"-?\d+(?:\.\d+)?", [str(each) for each in NUMBERS])
            case 5 | 6:
                lines[at] = _with_other_value(chance, lines[at], r'(?<=")[^"]*(?=")|\w+', STRINGS)
            case 7:
                return mutate_bytes(chance, "\n".join(lines).encode("utf-8", "surrogatepass"))
        lines = lines or [""]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _with_other_value(chance: Random, line: str, pattern: str, values: Sequence[str]) -> str:
    """Return a line in which one match of a pattern is replaced."""
    found = list(re.finditer(pattern, line))
    if not found:
        return line
    part = chance.choice(found)
    return line[: part.start()] + chance.choice(values) + line[part.end() :]


def mutate_bytes(chance: Random, content: bytes) -> bytes:
    """Return a damaged copy of a file of any format."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at, end = sorted(chance.randrange(len(found) + 1) for _ in range(2))
        end = min(end, at + chance.choice((1, 1, 4, 30, 1000)))
        match chance.randrange(6):
            case 0:
                del found[at:end]
            case 1:
                found[at:end] = found[at:end] * 2
            case 2:
                found[at:at] = chance.choice(PIECES)
            case 3:
                found[at:end] = bytes(chance.randrange(256) for _ in range(end - at))
            case 4:
                del found[at:]
            case 5:
                found[:] = bytes(found).decode("latin-1").encode(chance.choice(("utf-16", "utf-8", "utf-32-le")))
    return bytes(found)
