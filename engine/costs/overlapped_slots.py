"""Slots of two actions: one computes while the other waits for a collective inside it.

The two take turns, as processes execute them (:mod:`meshwave.engine.runtime.device.turns`): at each wait the other one
goes on until it waits itself. The device computes one of them at a time, and one collective moves at a time. A slot is
thus never shorter than all compute, all collectives or either action, and never longer than both in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Piece(NamedTuple):
    """Compute of an action, and the wait for a collective after it."""

    compute_s: float
    wait_s: float = 0.0


Pieces = tuple[Piece, ...]
"""The pieces of an action in order; of all but the last one, the wait is above zero."""


def join_pieces(pieces: Iterable[Piece]) -> Pieces:
    """Return pieces, those without a wait joined with the piece after them."""
    found, compute = [], 0.0
    for piece in pieces:
        compute += piece.compute_s
        if piece.wait_s > 0:
            found.append(Piece(compute, piece.wait_s))
            compute = 0.0
    return (*found, Piece(compute))


def scale_pieces(pieces: Pieces, seconds: float) -> Pieces:
    """Return the pieces of an action that takes ``seconds`` alone."""
    total = sum(map(sum, pieces))
    ratio = seconds / total if total else 0.0
    return tuple(Piece(ratio * compute, ratio * wait) for compute, wait in pieces)


class PlacedPiece(NamedTuple):
    """A piece in its slot, in seconds from the start of the slot."""

    start: float
    collective_start: float
    end: float  # of the collective


Placed = list[PlacedPiece]


def take_turns(first: Pieces, second: Pieces) -> tuple[Placed, Placed]:
    """Return the times of the pieces of two actions in a slot."""
    placed: tuple[Placed, Placed] = [], []
    actions, turn = (first, second), 0
    now = link_free = 0.0
    while len(placed[0]) < len(first) or len(placed[1]) < len(second):
        own = placed[turn]
        if len(own) < len(actions[turn]):
            compute, wait = actions[turn][len(own)]
            start = max(now, own[-1].end if own else 0.0)
            now = collective_start = start + compute
            if wait > 0:
                collective_start = max(now, link_free)
                link_free = collective_start + wait
            own.append(PlacedPiece(start, collective_start, collective_start + wait))
        turn = 1 - turn
    return placed


def overlapped_seconds(first: Pieces, second: Pieces) -> float:
    """Return the seconds of a slot of two actions."""
    return max(own[-1].end for own in take_turns(first, second))
