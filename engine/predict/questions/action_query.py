"""Search queries for spans: ``3F7``, ``F7``, ``B of stage 2``, ``stage 2``, ``mesh C``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Refusal
from meshwave.engine.program.action import RECEIVES, SENDS, Op
from meshwave.engine.program.timeline import Timeline

OPS_BY_WORD = {
    "forward": (Op.F,),
    "backward": (Op.B, Op.I, Op.W),
    "step": (Op.STEP,),
    "update": (Op.STEP,),
    "optimizer": (Op.STEP,),
    "reduction": (Op.REDUCE_GRAD,),
    "gather": (Op.UNSHARD,),
    "transfer": SENDS,
    "send": SENDS,
    "activation": (Op.SEND_F,),
    "gradient": (Op.SEND_B,),
}
_IGNORED_WORDS = {"of", "on", "in", "at", "the", "for", "with", "and", "all", ","}
_SPAN_OPS = [op.name for op in Op if op not in RECEIVES]
_ACTION = re.compile(rf"(\d+)?({'|'.join(sorted(_SPAN_OPS, key=len, reverse=True))})(\d+)?", re.IGNORECASE)
_NUMBERED = re.compile(r"(stage|microbatch|mb|rank)s?(\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Query:
    """Conditions on a span; None or empty means no condition."""

    ops: tuple[Op, ...] = ()
    stage: int | None = None
    microbatch: int | None = None
    rank: int | None = None  # either end of a transfer

    def matches(self, timeline: Timeline) -> NDArray[np.bool_]:
        """Return True for each span that meets the conditions, ``[spans]``; transfers only if ``ops`` contains them."""
        found = np.isin(timeline.op, self.ops) if self.ops else ~timeline.is_transfer
        if self.stage is not None:
            found &= timeline.stage == self.stage
        if self.microbatch is not None:
            found &= (timeline.microbatch == self.microbatch) & (timeline.op != Op.REDUCE_GRAD)
        if self.rank is not None:
            found &= (timeline.rank == self.rank) | (timeline.peer == self.rank)
        return found

    def as_data(self) -> dict[str, Any]:
        """Return the query as JSON data."""
        return {**asdict(self), "ops": [int(op) for op in self.ops]}


def parse_query(text: str, meshes: Sequence[str], stages: int, microbatches: int) -> Query:
    """Parse a query for a timeline with the given meshes and numbers of stages and microbatches.

    Raises:
        InputError: the text names nothing in the timeline.
    """
    found: dict[str, Any] = {}
    rest = "".join(mark if mark.isprintable() else "\ufffd" for mark in text).strip()
    example = meshes[-1] if meshes else "A"
    if not rest:
        raise Refusal("empty_query", {"mesh": example})
    while rest:
        rest = _parse_term(rest, found, meshes, example)
    limits = {"stage": stages, "microbatch": microbatches, "rank": len(meshes)}
    for name, limit in limits.items():
        if found.get(name, -1) >= limit:
            raise Refusal("query_out_of_range", {"kind": name, "number": found[name], "last": limit - 1})
    return Query(**found)


def _parse_term(rest: str, found: dict[str, Any], meshes: Sequence[str], example: str) -> str:
    """Parse the first term of ``rest`` into ``found``, and return the remaining text."""
    word, _, after = rest.partition(" ")
    after = after.strip()
    low = word.lower().strip(",")
    if low in _IGNORED_WORDS or not low:
        return after
    if low in ("mesh", "meshes"):
        return _parse_mesh_name(after, found, meshes)
    numbered = _NUMBERED.fullmatch(low)
    if numbered:
        kind, number = numbered.groups()
        if number is None:
            number, _, after = after.partition(" ")
        if not number.isdecimal():
            raise Refusal("query_without_number", {"kind": kind})
        _set_condition(found, {"mb": "microbatch"}.get(kind, kind), int(number))
        return after.strip()
    ops = OPS_BY_WORD.get(low) or OPS_BY_WORD.get(low.removesuffix("s"))
    if ops:
        _set_condition(found, "ops", ops)
        return after
    action = _ACTION.fullmatch(low)
    if action:
        stage, name, microbatch = action.groups()
        _set_condition(found, "ops", (Op[name.upper()],))
        if stage is not None:
            _set_condition(found, "stage", int(stage))
        if microbatch is not None:
            _set_condition(found, "microbatch", int(microbatch))
        return after
    near = get_close_matches(low, [*OPS_BY_WORD, "stage", "microbatch", "mesh"], 1, 0.7)
    raise Refusal("unknown_search_term", {"word": word, "suggestion": next(iter(near), None), "mesh": example})


def _parse_mesh_name(after: str, found: dict[str, Any], meshes: Sequence[str]) -> str:
    """Parse a mesh name, which may contain spaces, and return the remaining text; the longest matching name is used."""
    by_name = sorted(enumerate(meshes), key=lambda entry: -len(entry[1]))
    for rank, name in by_name:
        if after.lower() == name.lower() or after.lower().startswith(f"{name.lower()} "):
            _set_condition(found, "rank", rank)
            return after[len(name) :].strip()
    wanted = after.partition(" ")[0]
    known = ", ".join(meshes[:6]) + (f", ... {meshes[-1]}" if len(meshes) > 6 else "")
    raise Refusal("unknown_mesh_in_query", {"mesh": wanted, "known": known})


def _set_condition(found: dict[str, Any], name: str, value: Any) -> None:
    if name in found and found[name] != value:
        if name == "ops" and SENDS in (found[name], value):  # such as "send F"
            ops = value if found[name] == SENDS else found[name]
            raise Refusal("action_of_transfer", {"action": "SEND_F" if ops[0] in (Op.F, Op.SEND_F) else "SEND_B"})
        raise Refusal("repeated_condition", {"kind": "kind of action" if name == "ops" else name})
    found[name] = value
