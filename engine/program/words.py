"""What is said of a program, in the terms of a design: meshes for ranks, and which actions are meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from engine.program.action import Action, parse_action

_MESSAGE_OR_COMPUTATION = re.compile(r"\b\d+(?:SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W)\d+(?:(?:TO|FROM)\d+)?\b")


def by_mesh_names(words: str, meshes: Sequence[str]) -> str:
    """``mesh C waits for ever at 2B0`` for ``rank 2 waits ...``: a program knows ranks, a person meshes."""

    def name(number: re.Match[str]) -> str:
        return meshes[int(number[0])] if int(number[0]) < len(meshes) else number[0]

    def named(found: re.Match[str]) -> str:
        return f"mesh{'es' if found[1] else ''} {re.sub(r'[0-9]+', name, found[2])}"

    return re.sub(r"\brank(s?) (\d+(?:(?:, | and )\d+)*)\b", named, words)


def actions_in(words: str) -> Iterator[Action]:
    """The computations and messages that a sentence names, in its order."""
    return (parse_action(match[0]) for match in _MESSAGE_OR_COMPUTATION.finditer(words))
