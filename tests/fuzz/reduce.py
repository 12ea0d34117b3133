"""Reduction of a failing input to a smaller one that fails in the same way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from tests.fuzz.mutate import part_at, places

Fails = Callable[[bytes], bool]
SIMPLE = (None, 0, 1, "", [], {})


def reduced(content: bytes, fails: Fails, seconds: float) -> bytes:
    """Return the smallest input found within ``seconds`` for which ``fails`` is true: parts are removed first, then
    bytes.
    """
    end = time.monotonic() + seconds

    def is_in_time(candidate: bytes) -> bool:
        return time.monotonic() < end and fails(candidate)

    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return _chunks(content, is_in_time)
    return _parts(document, content, is_in_time)


def _parts(document: Any, content: bytes, fails: Fails) -> bytes:
    """Yield documents without one part, outer parts first, then documents with a plain value in place of a part."""
    begun = _encode_document(document)
    best = begun if fails(begun) else content
    if best is content:
        return _chunks(content, fails)
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller_documents(document):
            text = _encode_document(candidate)
            if len(text) < len(best) and fails(text):
                document, best, smaller = candidate, text, True
                break
    return best


def _encode_document(document: Any) -> bytes:
    return json.dumps(document).encode()


def _smaller_documents(document: Any) -> Iterator[Any]:
    every = sorted(places(document), key=lambda place: (len(place), [str(step) for step in place]))
    for place in every:
        yield replace_at(document, place)
    for place in every:
        for value in SIMPLE:
            yield replace_at(document, place, value)


def replace_at(document: Any, place: tuple[str | int, ...], *value: Any) -> Any:
    found = deepcopy(document)
    parent = part_at(found, place[:-1])
    if value:
        parent[place[-1]] = value[0]
    else:
        del parent[place[-1]]
    return found


def _chunks(content: bytes, fails: Fails) -> bytes:
    """Yield texts without a run of bytes, long runs first."""
    size = max(len(content) // 2, 1)
    while size:
        at = 0
        while at < len(content):
            candidate = content[:at] + content[at + size :]
            if fails(candidate):
                content = candidate
            else:
                at += size
        size //= 2
    return content
