"""Slots of two actions, of which one computes while the other waits for a collective inside it.

The two actions take turns, as processes execute them (:mod:`meshwave.engine.runtime.device.turns`): when one waits, the
other continues until it waits too. The device computes one of them at a time, and executes one collective at a time. A
slot is therefore at least as long as all computation, as all collectives and as each action, and at most as long as
both actions one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Piece(NamedTuple):
    """Computation of an action, and the wait for a collective after it."""

    compute_s: float
    wait_s: float = 0.0


Pieces = tuple[Piece, ...]
"""Pieces of an action in order; each except the last one has a wait above zero."""


def join_pieces(pieces: Iterable[Piece]) -> Pieces:
    """Join pieces that have no wait with the next piece."""
    found, compute = [], 0.0
    for piece in pieces:
        compute += piece.compute_s
        if piece.wait_s > 0:
            found.append(Piece(compute, piece.wait_s))
            compute = 0.0
    return (*found, Piece(compute))


def scale_pieces(pieces: Pieces, seconds: float) -> Pieces:
    """Scale the pieces of an action to a total of ``seconds``."""
    total = sum(map(sum, pieces))
    ratio = seconds / total if total else 0.0
    return tuple(Piece(ratio * compute, ratio * wait) for compute, wait in pieces)


class PlacedPiece(NamedTuple):
    """Piece placed in its slot; times are in seconds from the start of the slot."""

    start: float
    collective_start: float
    end: float  # start and end of the collective


Placed = list[PlacedPiece]


def place_overlapped_pieces(first: Pieces, second: Pieces) -> tuple[Placed, Placed]:
    """Return the start and end times of the pieces of two actions that share a slot and compute alternately."""
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
    """Return the duration of a shared slot in seconds."""
    return max(own[-1].end for own in place_overlapped_pieces(first, second))
