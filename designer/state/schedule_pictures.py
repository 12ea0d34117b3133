"""Small pictures of steps, as data for the page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from meshwave.engine.exports.pictures.palette import shades
from meshwave.engine.program.timeline import Timeline

LARGEST_EXACT_PICTURE = 1_500
"""Computations of the largest picture that is drawn block by block; larger ones are sampled."""
COLUMNS, LANES = 160, 16
"""Lanes and columns of a sampled picture."""


def schedule_picture(timeline: Timeline, largest: int = LARGEST_EXACT_PICTURE) -> dict[str, Any]:
    """Return the computations of a step as the columns that ``static/kit/schedule_picture.js`` draws.

    A picture with more than ``largest`` computations is sampled.
    """
    shown = np.flatnonzero(timeline.is_compute)
    shade = shades(timeline)[timeline.rank[shown], timeline.stage[shown]]
    passes = (shade ^ (shade >> 1)) & 1  # neighbouring passes alternate between two shades
    if len(shown) > largest:
        return _sampled_columns(timeline, shown, passes)
    fused = timeline.fused[shown]
    columns = {name: getattr(timeline, name)[shown].tolist() for name in ("rank", "op", "start", "end")}
    halves = 2 * fused.astype(int) + np.append(fused[1:], False)
    drawn = {"shade": passes.tolist(), "half": halves.tolist(), "ranks": timeline.ranks, "makespan": timeline.makespan}
    return {**columns, **drawn}


def _sampled_columns(timeline: Timeline, shown: np.ndarray[Any, Any], passes: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the computations at sampled times on sampled lanes; equal neighbours are joined."""
    lanes = np.unique(np.linspace(0, timeline.ranks - 1, min(LANES, timeline.ranks)).round().astype(int))
    width = timeline.makespan / COLUMNS
    runs = [
        (number, *run)
        for number, rank in enumerate(lanes)
        for run in _runs(timeline, shown[timeline.rank[shown] == rank], passes[timeline.rank[shown] == rank], width)
    ]
    rank, op, shade, first, end = zip(*runs, strict=True) if runs else ((),) * 5
    columns = {"rank": list(rank), "op": list(op), "shade": list(shade)}
    times = {"start": [place * width for place in first], "end": [place * width for place in end]}
    return {**columns, **times, "ranks": len(lanes), "makespan": timeline.makespan}


def _runs(
    timeline: Timeline, spans: np.ndarray[Any, Any], passes: np.ndarray[Any, Any], width: float
) -> Iterator[tuple[int, int, int, int]]:
    """Yield operation, shade, first column and end column of each run of equal columns."""
    order = np.argsort(timeline.start[spans], kind="stable")
    spans, passes = spans[order], passes[order]
    moment = (np.arange(COLUMNS) + 0.5) * width
    place = np.searchsorted(timeline.start[spans], moment, side="right") - 1
    busy = (place >= 0) & (timeline.end[spans[place]] > moment)
    kind = np.where(busy, 2 * timeline.op[spans[place]].astype(int) + passes[place], -1)
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), COLUMNS]
    for first, end in pairwise(edges):
        if kind[first] >= 0:
            yield int(kind[first] >> 1), int(kind[first] & 1), first, end
