"""Expert placement by load: assignment of experts to places, with replicas.

Two methods are those of DeepSeek's published expert-parallel load balancer (EPLB, described with arXiv:2412.19437):
*hierarchical* first assigns to every node its share of the experts, so that replicas stay on the node of their expert;
*flat* ignores nodes. Both fill free slots with replicas of the hottest experts and then pack the heaviest first (LPT,
Graham 1969) into bins of a fixed number of slots. A third method, *shadowed*, fills the free slots of a node with the
hottest experts of other nodes, so that their tokens stay on the node (as FasterMoE, PPoPP 2022, does for every worker).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import chain
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.experts._layer import Layer, Placement, equal_blocks

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Item = tuple[float, int]
"""Replica to be placed: its load and its expert."""


def load_per_replica(layer: Layer, places: str = "ep") -> Floats:
    """Return the share of token assignments that each replica of an expert serves, ``[places, experts]``; the sum is 1.

    If ``places`` is ``mp``, experts are distributed over the tensor-parallel group: every place has all tokens, and the
    replicas of an expert share them. Otherwise each place uses one nearby replica (:attr:`Layer.serving_places`), so
    that replicas may serve unequal shares.
    """
    place, expert, part = _expert_visits(layer, places)
    shape = (layer.mp if places == "mp" else layer.ep, layer.experts)
    load = np.bincount(np.ravel_multi_index((place, expert), shape), part, prod(shape))
    return np.asarray(load, np.float64).reshape(shape)


def device_load(layer: Layer, places: str = "ep") -> Floats:
    """Return the tokens that each device computes relative to an even share, ``[devices]``; 1 everywhere is balanced.

    The devices of an expert-sharding group compute the same tokens and therefore have the same load.
    """
    count = layer.mp if places == "mp" else layer.ep
    place, _, part = _expert_visits(layer, places)
    each = count * np.bincount(place, part, count)
    return np.resize(each, layer.devices) if places == "mp" else np.repeat(each, layer.esp)


def _expert_visits(layer: Layer, places: str) -> tuple[Indices, Indices, Floats]:
    """Return place, expert and share of token assignments for each group of tokens that visits an expert together."""
    if places == "mp":
        holders = layer.holders(layer.mp)
        copies = np.array([len(held) for held in holders])
        expert = np.repeat(np.arange(layer.experts), copies)
        place = np.fromiter(chain.from_iterable(holders), np.int64, len(expert))
        return place, expert, np.asarray(layer.shares)[expert] / copies[expert]
    expert = np.tile(np.arange(layer.experts), layer.ep)
    return layer.serving_places.ravel(), expert, np.tile(np.asarray(layer.shares) / layer.ep, layer.ep)


def device_rows(layer: Layer, places: str = "ep") -> Floats:
    """Return the rows that each device computes relative to an even share, ``[devices]``; they determine its time.

    Without a capacity these are the tokens of its experts. With a capacity all slots are computed, occupied or not, so
    that a device has more work if it serves more experts to others, regardless of their load.
    """
    if layer.capacity_factor is None:
        return device_load(layer, places)
    if places == "mp":
        return np.resize(layer.folded_rows / layer.folded_rows.mean(), layer.devices)
    return np.repeat(layer.visit_counts.sum(axis=0) / layer.experts, layer.esp)


def crossing_assignments(layer: Layer, places: str = "ep") -> float:
    """Return the share of token assignments that go to another node, counted between the first shards of experts."""
    if places == "mp":
        return 0.0
    node = np.array([layer.node(place * layer.esp) for place in range(layer.ep)])
    away = node[layer.serving_places] != node[:, None]
    return float((away @ np.asarray(layer.shares)).mean())


BALANCE_TOLERANCE = 1.02
"""Maximum ratio of the maximum loads of two placements that count as equally balanced."""


def balance_experts(layer: Layer, extra: int = 0, places: str = "ep") -> Placement:
    """Return the experts of each place that minimize the maximum work of a device (:func:`device_rows`), ``[places]``.

    A place has slots for an even share of the experts and up to ``extra`` more, for replicas. Ties are broken by the
    fewest tokens sent to the device with the most work, then by the fewest token assignments to other nodes, then by
    the fewest replicas. The result is deterministic, and never worse than equal blocks.
    """
    load = np.asarray(layer.shares)
    nodes = [layer.node(place * layer.esp) for place in range(layer.ep)]
    weights = [load]
    if layer.capacity_factor is not None and load.min() < load.max():
        weights.append(np.ones_like(load))  # all experts have the same number of slots
    blocks = equal_blocks(layer.experts, layer.ep)
    options = [blocks]
    for weight in weights:
        for more in range(min(extra, layer.experts) + 1):
            options += [
                place_by_node(weight, nodes, more),
                place_globally(weight, layer.ep, more),
                place_shadows(weight, nodes, more),
            ]
    good = [replace(layer, placement=placement) for placement in dict.fromkeys(options)]
    for measure in (device_rows, device_load):
        fullest = [float(measure(each, places).max()) for each in good]
        of_blocks = float(measure(replace(layer, placement=blocks), places).max())
        bound = max(min(fullest), min(min(fullest) * BALANCE_TOLERANCE, of_blocks)) + 1e-9
        kept = [(each, most) for each, most in zip(good, fullest, strict=True) if most <= bound]
        good = [each for each, _ in kept]

    def rank(found: tuple[Layer, float]) -> tuple[float, int, float]:
        placed, sent = found
        return round(crossing_assignments(placed, places), 9), sum(map(len, placed.placement or ())), sent

    return min(kept, key=rank)[0].placement or ()


def place_by_node(load: Floats, nodes: Sequence[int], extra: int = 0) -> Placement:
    """Return a placement that assigns experts to nodes, adds replicas in free slots, and packs each node's copies.

    ``nodes`` is the node of each place.
    """
    placement: list[tuple[int, ...]] = [()] * len(nodes)
    for mine, own in _experts_by_node(load, nodes):
        packed = place_globally(load[own], len(mine), extra)
        for place, held in zip(mine, packed, strict=True):
            placement[place] = tuple(own[expert] for expert in held)
    return tuple(placement)


def place_globally(load: Floats, places: int, extra: int = 0) -> Placement:
    """Return a placement that fills all free slots with replicas and packs all copies into places, ignoring nodes."""
    even = -(-len(load) // places)
    counts = replica_counts(load, len(load) + places * extra, most=places)
    items = [
        (float(share) / n, expert) for expert, (share, n) in enumerate(zip(load, counts, strict=True)) for _ in range(n)
    ]
    packed = _pack_experts(items, [even + extra] * places, [1] * places)
    return tuple(sorted(tuple(sorted(held)) for held in packed))  # places are interchangeable


def place_shadows(load: Floats, nodes: Sequence[int], extra: int = 0) -> Placement:
    """Return a placement that assigns experts to nodes, and the hottest experts of other nodes to the free slots."""
    placement: list[tuple[int, ...]] = [()] * len(nodes)
    hottest = np.argsort(-load, kind="stable").tolist()
    for mine, own in _experts_by_node(load, nodes):
        guests = [expert for expert in hottest if expert not in own and load[expert] > 0][: len(mine) * extra]
        part = len(mine) / len(nodes)  # share of all tokens that a guest expert serves
        items = [*((float(load[e]), e) for e in own), *((float(load[e]) * part, e) for e in guests)]
        even = -(-len(load) // len(nodes))
        packed = sorted(
            tuple(sorted(held)) for held in _pack_experts(items, [even + extra] * len(mine), [1] * len(mine))
        )
        for place, held in zip(mine, packed, strict=True):
            placement[place] = held
    return tuple(placement)


def _experts_by_node(load: Floats, nodes: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the places and the experts of each node; the experts are proportional to places and balanced by load."""
    places = [[place for place, on in enumerate(nodes) if on == node] for node in dict.fromkeys(nodes)]
    rooms = [-(-len(load) * len(mine) // len(nodes)) for mine in places]
    owned = _pack_experts(
        [(float(share), expert) for expert, share in enumerate(load)], rooms, [len(mine) for mine in places]
    )
    return [(mine, sorted(own)) for mine, own in zip(places, owned, strict=True)]


def replica_counts(load: Floats, slots: int, most: int) -> list[int]:
    """Return the number of copies of each expert, ``[experts]``: replicas of the hottest experts fill all ``slots``.

    An expert gets at most ``most`` copies, one per place; an expert without load is not replicated.
    """
    counts = [1] * len(load)
    hottest = [(-share, expert) for expert, share in enumerate(load)]
    heapify(hottest)
    free = slots - len(load)
    while free > 0 and hottest and hottest[0][0] < 0:
        _, expert = hottest[0]
        room = counts[expert] < most
        counts[expert] += room
        free -= room
        left = -load[expert] / counts[expert] if room else 0.0  # 0 if the expert already has the maximum
        heapreplace(hottest, (left, expert))
    return counts


def _pack_experts(items: Sequence[Item], rooms: Sequence[int], weights: Sequence[int]) -> list[list[int]]:
    """Pack items into bins of limited size, heaviest first, each into the bin with the smallest relative load.

    ``weights`` are the capacities to which loads are relative. A bin contains an expert at most once. If all bins with
    free slots contain the expert already, an item is moved out of another bin to free a slot.
    """
    bins: list[list[Item]] = [[] for _ in rooms]
    filled = np.zeros(len(rooms))
    for item in sorted(items, key=lambda item: (-item[0], item[1])):
        free = [place for place, room in enumerate(rooms) if len(bins[place]) < room]
        fit = [place for place in free if not _has_expert(bins[place], item[1])]
        if not fit:
            fit = [_free_slot(bins, filled, weights, free[0], item[1])]
        place = min(fit, key=lambda place: ((filled[place] + item[0]) / weights[place], place))
        bins[place].append(item)
        filled[place] += item[0]
    return [[expert for _, expert in held] for held in bins]


def _free_slot(bins: list[list[Item]], filled: Floats, weights: Sequence[int], free: int, expert: int) -> int:
    """Move an item from a full bin to the ``free`` bin, and return the bin that now has a free slot.

    The lightest item whose expert is not in the free bin is taken from the full bin with the smallest load. Such an
    item exists, since the free bin contains ``expert``, has a free slot, and contains no expert twice.
    """
    full = (place for place in range(len(bins)) if place != free and not _has_expert(bins[place], expert))
    place = min(full, key=lambda place: (filled[place] / weights[place], place))
    item = min(item for item in bins[place] if not _has_expert(bins[free], item[1]))
    bins[place].remove(item)
    bins[free].append(item)
    filled[place] -= item[0]
    filled[free] += item[0]
    return place


def _has_expert(held: Sequence[Item], expert: int) -> bool:
    return any(each == expert for _, each in held)
