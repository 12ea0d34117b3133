"""Messages about searches in a timeline."""

from __future__ import annotations

from meshwave.engine.messages import Message


def _empty_query(mesh: str) -> str:
    return f'search for an action such as 3F7 or F7, "B of stage 2", "stage 2", "microbatch 5" or "mesh {mesh}"'


def _unknown_search_term(word: str, suggestion: str | None, mesh: str) -> str:
    return f'unknown search term "{word}"; ' + (f"did you mean {suggestion}?" if suggestion else _empty_query(mesh))


def _unknown_mesh(mesh: str, known: str) -> str:
    return f"there is no mesh {mesh}; meshes are {known}" if mesh else f"no mesh is named; name one of {known}"


MESSAGES: dict[str, Message] = {
    "empty_query": _empty_query,
    "unknown_search_term": _unknown_search_term,
    "unknown_mesh_in_query": _unknown_mesh,
    "query_out_of_range": "there is no {kind} {number}; numbers range from 0 to {last}",
    "query_without_number": 'the number of the {kind} is missing; write it as in "{kind} 2"',
    "repeated_condition": "a search can name only one {kind}",
}
