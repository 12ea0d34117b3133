"""Expert placement by load: who holds which experts, and which of them more than once.

The two ways of DeepSeek's published expert-parallel load balancer (EPLB, described with
arXiv:2412.19437): *hierarchical* gives every node its share of the experts first, so that replicas
stay on the node of their expert; *flat* knows no nodes. Both fill free slots with replicas of
whatever is hottest and then pack the longest first (LPT, Graham 1969) into bins of so many slots.
A third, *shadowed*, gives the free slots of a node to the hottest experts of other nodes, so that
their tokens stay at home (what FasterMoE, PPoPP 2022, does with every worker).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import chain
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.experts._layer import Homes, Layer, equal_blocks

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Item = tuple[float, int]
"""A replica to place: its load and its expert."""


def copy_load(layer: Layer, places: str = "ep") -> Floats:
    """[places, experts] the part of all visits that each copy of an expert serves; the sum is 1.

    Where ``places`` is ``mp``, experts are folded into the tensor-parallel group: every place has all
    tokens, and the replicas of an expert share them. Else each place asks one of them, whichever is near
    (:attr:`Layer.serving`), so that replicas may serve unequal parts.
    """
    place, expert, part = _serving(layer, places)
    shape = (layer.mp if places == "mp" else layer.ep, layer.experts)
    load = np.bincount(np.ravel_multi_index((place, expert), shape), part, prod(shape))
    return np.asarray(load, np.float64).reshape(shape)


def device_load(layer: Layer, places: str = "ep") -> Floats:
    """[devices] the part of all tokens that each computes, in even shares: 1 everywhere is balanced.

    The devices of an expert-sharding group work on the same tokens and so have the same load.
    """
    count = layer.mp if places == "mp" else layer.ep
    place, _, part = _serving(layer, places)
    each = count * np.bincount(place, part, count)  # each of so many places has 1 of so many even shares
    return np.resize(each, layer.devices) if places == "mp" else np.repeat(each, layer.esp)


def _serving(layer: Layer, places: str) -> tuple[Indices, Indices, Floats]:
    """Of every group of tokens that visits an expert together: the place that serves it, the expert, and which part of
    all visits that is."""
    if places == "mp":
        holders = layer.holders(layer.mp)
        copies = np.array([len(held) for held in holders])
        expert = np.repeat(np.arange(layer.experts), copies)
        place = np.fromiter(chain.from_iterable(holders), np.int64, len(expert))
        return place, expert, np.asarray(layer.shares)[expert] / copies[expert]
    expert = np.tile(np.arange(layer.experts), layer.ep)
    return layer.serving.ravel(), expert, np.tile(np.asarray(layer.shares) / layer.ep, layer.ep)


def device_rows(layer: Layer, places: str = "ep") -> Floats:
    """[devices] the rows that each computes, in even shares: what its time follows.

    Where no token is dropped those are the tokens of its experts. With a capacity all slots are computed,
    whatever is in them, so that a device has more to do the more experts it serves to others, hot or not.
    """
    if layer.capacity_factor is None:
        return device_load(layer, places)
    if places == "mp":
        return np.resize(layer.folded_rows / layer.folded_rows.mean(), layer.devices)
    return np.repeat(layer.served.sum(axis=0) / layer.experts, layer.esp)


def crossing_assignments(layer: Layer, places: str = "ep") -> float:
    """The part of all visits of tokens to experts that goes to another node; from the first shard to the first."""
    if places == "mp":
        return 0.0
    node = np.array([layer.node(place * layer.esp) for place in range(layer.ep)])
    away = node[layer.serving] != node[:, None]
    return float((away @ np.asarray(layer.shares)).mean())


ALIKE = 1.02
"""Placements whose fullest devices differ by less are equally balanced."""


def balance_experts(layer: Layer, extra: int = 0, places: str = "ep") -> Homes:
    """[places] the experts of each, so that the device with the most to do has the least (:func:`device_rows`).

    A place has slots for an even share of the experts and up to ``extra`` more, for replicas. Of the
    placements that are equally balanced the one wins whose fullest device is sent the fewest tokens, then the
    one with the fewest visits to other nodes, then the one with the fewest replicas. Deterministic, and never
    worse than equal blocks.
    """
    load = np.asarray(layer.shares)
    nodes = [layer.node(place * layer.esp) for place in range(layer.ep)]
    weights = [load]
    if layer.capacity_factor is not None and load.min() < load.max():
        weights.append(np.ones_like(load))  # slots are all alike
    blocks = equal_blocks(layer.experts, layer.ep)
    options = [blocks]
    for weight in weights:
        for more in range(min(extra, layer.experts) + 1):
            options += [hierarchical(weight, nodes, more), flat(weight, layer.ep, more), shadowed(weight, nodes, more)]
    good = [replace(layer, homes=homes) for homes in dict.fromkeys(options)]
    for measure in (device_rows, device_load):
        fullest = [float(measure(each, places).max()) for each in good]
        of_blocks = float(measure(replace(layer, homes=blocks), places).max())
        bound = max(min(fullest), min(min(fullest) * ALIKE, of_blocks)) + 1e-9
        kept = [(each, most) for each, most in zip(good, fullest, strict=True) if most <= bound]
        good = [each for each, _ in kept]

    def rank(found: tuple[Layer, float]) -> tuple[float, int, float]:
        placed, sent = found
        return round(crossing_assignments(placed, places), 9), sum(map(len, placed.homes or ())), sent

    return min(kept, key=rank)[0].homes or ()


def hierarchical(load: Floats, nodes: Sequence[int], extra: int = 0) -> Homes:
    """Experts to nodes, replicas into the free slots of each node, then both onto its places.

    ``nodes`` is the node of each place.
    """
    homes: list[tuple[int, ...]] = [()] * len(nodes)
    for mine, own in _by_node(load, nodes):
        packed = flat(load[own], len(mine), extra)
        for place, held in zip(mine, packed, strict=True):
            homes[place] = tuple(own[expert] for expert in held)
    return tuple(homes)


def flat(load: Floats, places: int, extra: int = 0) -> Homes:
    """Replicas into all free slots, then all of them onto the places, as if they were on one node."""
    even = -(-len(load) // places)
    counts = replicas(load, len(load) + places * extra, most=places)
    items = [
        (float(share) / n, expert) for expert, (share, n) in enumerate(zip(load, counts, strict=True)) for _ in range(n)
    ]
    packed = _pack(items, [even + extra] * places, [1] * places)
    return tuple(sorted(tuple(sorted(held)) for held in packed))  # equal places, in the order that reads best


def shadowed(load: Floats, nodes: Sequence[int], extra: int = 0) -> Homes:
    """Experts to nodes, and into the free slots of each the hottest of those that it does not have."""
    homes: list[tuple[int, ...]] = [()] * len(nodes)
    hottest = np.argsort(-load, kind="stable").tolist()
    for mine, own in _by_node(load, nodes):
        guests = [expert for expert in hottest if expert not in own and load[expert] > 0][: len(mine) * extra]
        part = len(mine) / len(nodes)  # of all tokens: those whose visits a guest takes
        items = [*((float(load[e]), e) for e in own), *((float(load[e]) * part, e) for e in guests)]
        even = -(-len(load) // len(nodes))
        packed = sorted(tuple(sorted(held)) for held in _pack(items, [even + extra] * len(mine), [1] * len(mine)))
        for place, held in zip(mine, packed, strict=True):
            homes[place] = held
    return tuple(homes)


def _by_node(load: Floats, nodes: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The places of each node and the experts that it owns: as many as its part of the places, of the same load."""
    places = [[place for place, on in enumerate(nodes) if on == node] for node in dict.fromkeys(nodes)]
    rooms = [-(-len(load) * len(mine) // len(nodes)) for mine in places]
    owned = _pack([(float(share), expert) for expert, share in enumerate(load)], rooms, [len(mine) for mine in places])
    return [(mine, sorted(own)) for mine, own in zip(places, owned, strict=True)]


def replicas(load: Floats, slots: int, most: int) -> list[int]:
    """[experts] how many of each, where ``slots`` hold them all: one more of the hottest until they are full.

    An expert gets ``most`` at most, one for each place; one without load is not replicated.
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
        left = -load[expert] / counts[expert] if room else 0.0  # 0: it has enough
        heapreplace(hottest, (left, expert))
    return counts


def _pack(items: Sequence[Item], rooms: Sequence[int], weights: Sequence[int]) -> list[list[int]]:
    """Items into bins of so much room, the heaviest first and each into the emptiest bin for its weight.

    A bin holds an expert once. Where only bins with the same expert have room left, another bin
    makes room by handing one of its own over.
    """
    bins: list[list[Item]] = [[] for _ in rooms]
    filled = np.zeros(len(rooms))
    for item in sorted(items, key=lambda item: (-item[0], item[1])):
        free = [place for place, room in enumerate(rooms) if len(bins[place]) < room]
        fit = [place for place in free if not _holds(bins[place], item[1])]
        if not fit:
            fit = [_make_room(bins, filled, weights, free[0], item[1])]
        place = min(fit, key=lambda place: ((filled[place] + item[0]) / weights[place], place))
        bins[place].append(item)
        filled[place] += item[0]
    return [[expert for _, expert in held] for held in bins]


def _make_room(bins: list[list[Item]], filled: Floats, weights: Sequence[int], free: int, expert: int) -> int:
    """Hand an item of a full bin over to the ``free`` one; returns the bin that has room now.

    The lightest that the free bin does not hold, from the emptiest full bin: there is one, since the
    free bin holds ``expert``, has room besides, and holds nothing twice.
    """
    full = (place for place in range(len(bins)) if place != free and not _holds(bins[place], expert))
    place = min(full, key=lambda place: (filled[place] / weights[place], place))
    item = min(item for item in bins[place] if not _holds(bins[free], item[1]))
    bins[place].remove(item)
    bins[free].append(item)
    filled[place] -= item[0]
    filled[free] += item[0]
    return place


def _holds(held: Sequence[Item], expert: int) -> bool:
    return any(each == expert for _, each in held)
