"""Prices of microbatches whose documents differ in length, relative to the price of their kind of action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.distinct_actions import distinct_kinds
from meshwave.engine.costs.packed_documents import attended_shares, mean_attended_share, pack_equal_documents
from meshwave.engine.costs.padded_documents import masked_shares, padded_lengths, shorten_sequences
from meshwave.engine.document import Design
from meshwave.engine.program.program import Program

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Price = Callable[[Design], Floats]
"""Function that returns the seconds of actions, or of slots, ``[prices]``, for a design with other documents."""

PRICED_LENGTHS = 17
"""Number of lengths of sequences that are priced; the prices of lengths between them are interpolated."""


def remember_prices(price: Price) -> Price:
    """Return the function with a memory of its results for designs that differ in the length of documents only."""
    known: dict[tuple[int, tuple[int, ...] | None], Floats] = {}

    def remembered(other: Design) -> Floats:
        key = other.model.sequence, other.training.document_lengths
        if key not in known:
            known[key] = price(other)
        return known[key]

    return remembered


def microbatch_scale(design: Design, program: Program, seconds: Floats, price: Price) -> Floats:
    """Return the seconds of each computation and message relative to the ``seconds`` of its kind, ``[rows]``.

    Args:
        design: the design.
        program: the program of the design.
        seconds: [kinds] seconds of each distinct action.
        price: function that returns ``seconds`` for other documents.
    """
    kind = distinct_kinds(program).of_row
    base = seconds[kind]
    found = padded_seconds(design, program, program.row_microbatch, kind, price)
    if found is None:
        found = _packed_seconds(design, program, base, price)
    if found is None:
        return np.ones(len(program))
    return np.divide(found, base, out=np.ones(len(program)), where=(program.is_compute | program.is_send) & (base > 0))


def length_scale(design: Design, program: Program) -> Floats:
    """Return the tokens of each message relative to those of whole sequences, ``[rows]``; 1 for other actions."""
    lengths, scale = padded_lengths(design), np.ones(len(program))
    if lengths is not None and program.microbatches == len(lengths):
        scale[program.is_send] = lengths[program.microbatch[program.is_send]] / design.model.sequence
    return scale


def padded_seconds(design: Design, program: Program, microbatches: Ints, prices: Ints, price: Price) -> Floats | None:
    """Return the seconds of actions with sequences of the length of their microbatch; None without padded documents.

    Attention that is masked at padding is linear in the share of the sequence to which tokens attend.

    Args:
        design: the design.
        program: the program of the design.
        microbatches: [actions] microbatch of each action.
        prices: [actions] place of each action in the result of ``price``.
        price: function that returns the seconds for other documents.
    """
    lengths = padded_lengths(design)
    if lengths is None or program.microbatches != len(lengths):
        return None
    priced = np.unique(np.quantile(lengths, np.linspace(0, 1, PRICED_LENGTHS), method="nearest"))
    shortened = [shorten_sequences(design, length) for length in priced.tolist()]
    length = lengths[microbatches]
    above = np.searchsorted(priced, length)
    below = np.maximum(above - 1, 0)
    share = (length - priced[below]) / np.maximum(priced[above] - priced[below], 1)

    def interpolate(table: Floats) -> Floats:
        return np.asarray((1 - share) * table[below, prices] + share * table[above, prices])

    table, masked = np.stack([price(each) for each in shortened]), masked_shares(design)
    if masked is None:
        return interpolate(table)
    halves = [pack_equal_documents(each, 0.5, pads=False) for each in shortened]
    full, half = (np.array([[mean_attended_share(each)] for each in designs]) for designs in (shortened, halves))
    less = np.stack([price(each) for each in halves])
    slope = np.divide(table - less, full - half, out=np.zeros_like(table), where=full > half)
    attended = np.interp(length, priced, full[:, 0])
    found: Floats = interpolate(table) - (attended - masked[microbatches]) * interpolate(slope)
    return found


def _packed_seconds(design: Design, program: Program, base: Floats, price: Price) -> Floats | None:
    """Return the seconds of each row with the attention of its microbatch; None without packed documents.

    Attention is linear in the share of the sequence to which tokens attend, so two prices determine its slope.
    """
    found = [attended_shares(design, mesh) for mesh in design.meshes]
    if found[0] is None or program.microbatches != len(found[0]):
        return None
    shares = np.stack([each for each in found if each is not None])  # [meshes, microbatches]
    equal = [pack_equal_documents(design, share) for share in (shares.min(), shares.max())]
    low, high = (np.array([mean_attended_share(each, mesh) for mesh in design.meshes]) for each in equal)
    less, more = (price(each)[distinct_kinds(program).of_row] for each in equal)
    change = (shares - shares.mean(axis=1, keepdims=True))[program.rank, program.row_microbatch]
    rises = (high > low)[program.rank] & program.is_compute
    slope = np.divide(more - less, (high - low)[program.rank], out=np.zeros(len(program)), where=rises)
    return np.asarray(base + slope * change)
