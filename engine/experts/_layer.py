"""One expert layer on one group of devices: its sizes, process groups, and expert placement.

Symbols of Parm (arXiv:2407.00599) and of PPMoE (arXiv:2304.11414): ``P = ep * esp`` devices, ``mp`` of which hold the
same tokens; ``S`` tokens per input, width ``M``, expert width ``H``, ``E`` experts, of which a token visits ``k``;
capacity ``T``. The two message sizes are ``X = S M b`` and ``D = E T M b`` bytes, with ``b`` bytes per element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Problem, nearest_divisors, set_key_fix

Floats = NDArray[np.float64]
Load = Literal["uniform", "zipf"] | Sequence[float] | None
Placement = tuple[tuple[int, ...], ...]
"""Experts that each place of the expert-parallel group holds, ``[places]``."""


@dataclass(frozen=True)
class Layer:
    """Sizes of an expert layer and numbering of its devices.

    Devices are numbered 0 to P - 1: ``mp`` and ``esp`` groups have adjacent devices, an ``ep`` group has every
    ``esp``-th device, and ``ep_esp`` has all. Device ``r`` is member ``r % esp`` of the group at *place* ``r // esp``,
    which holds the experts ``placement[place]``, sharded over ``esp``.
    """

    mp: int
    """Number of devices that hold the same tokens: the tensor-parallel group, N_MP (N_TP in PPMoE)."""
    ep: int
    """Number of places that hold different experts, N_EP."""
    esp: int
    """Number of devices that share one expert, N_ESP."""
    experts: int
    tokens: int
    """S: number of tokens in the input of one ``mp`` group."""
    hidden: int
    ffn_hidden: int
    top_k: int = 1
    capacity_factor: float | None = 1.0
    """Slots of an expert relative to an even share; None if no token is dropped."""
    item_bytes: int = 4
    nodes: tuple[int, ...] | None = None
    """[devices] node of each device; None if all are on one node."""
    placement: Placement | None = None
    """[places] experts of each place; None for equal blocks of experts."""
    load: tuple[float, ...] | None = None
    """[experts] share of token assignments of each expert, with sum 1; None if uniform."""
    matrices: int = 2
    """Number of matrices of an expert: 2, or 3 if it is gated."""
    has_biases: bool = True
    """True if the matrices of an expert have biases."""
    clamps_activation: bool = False
    """True if both inputs of a gated activation are clamped, as in gpt-oss."""
    router_vector_count: int = 0
    """Number of learned values per expert in the gate in addition to its matrix."""
    degree: int = 1
    """Number of chunks into which slots are split, so that communication and compute of different chunks overlap."""

    @property
    def devices(self) -> int:
        """P: number of devices."""
        return self.ep * self.esp

    @cached_property
    def capacity(self) -> int:
        """T: number of slots of an expert for one input, a multiple of ``mp`` and of the chunks."""
        return self.round_slots(self.slots_needed)

    @property
    def slots_needed(self) -> int:
        """Minimum number of slots: ``ceil(k f S / E)``, or without capacity the tokens of the most loaded expert."""
        if self.capacity_factor is None:
            return ceil(self.top_k * self.tokens * max(self.shares) - 1e-9)
        factor = Fraction(str(float(self.capacity_factor)))  # exact arithmetic: 1.2 is 12/10
        return ceil(factor * self.top_k * self.tokens / self.experts)

    @property
    def may_drop(self) -> bool:
        """True if tokens are dropped when all of them choose the same expert."""
        return self.capacity_factor is not None and self.capacity < self.tokens

    def round_slots(self, slots: int) -> int:
        """Return ``slots`` rounded up to a number that can be divided equally among ``mp`` devices and chunks."""
        parts = self.mp * self.degree
        return max(1, ceil(slots / parts)) * parts

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """[experts] share of token assignments of each expert; the sum is 1."""
        return self.load or (1 / self.experts,) * self.experts

    @property
    def inner_width(self) -> int:
        """Total number of columns of an expert's first matrices: its width, or twice its width if it is gated."""
        return (self.matrices - 1) * self.ffn_hidden

    @property
    def gate_parameters(self) -> int:
        """Number of parameters of the gate."""
        return self.experts * (self.hidden + self.router_vector_count)

    def expert_parameters(self, cut: int = 1) -> float:
        """Return the number of parameters of one expert on the first of the ``cut`` devices that share it.

        An expert has two matrices and two biases, or three of each if it is gated; only the first device has the last
        bias.
        """
        biases = self.inner_width / cut + self.hidden if self.has_biases else 0.0
        return self.matrices * self.hidden * self.ffn_hidden / cut + biases

    @property
    def input_bytes(self) -> float:
        """X: size of the input tokens in bytes."""
        return float(self.tokens * self.hidden * self.item_bytes)

    @property
    def slots_bytes(self) -> float:
        """D: size of all slots in bytes."""
        return float(self.experts * self.capacity * self.hidden * self.item_bytes)

    # ---- groups ----

    def size(self, group: str) -> int:
        """Return the number of devices in a group of a kind."""
        return {"mp": self.mp, "esp": self.esp, "ep": self.ep, "ep_esp": self.devices, "": 1}[group]

    def members(self, group: str, device: int) -> tuple[int, ...]:
        """Return the devices of the group of a kind that contains ``device``, in the order of the group."""
        if group == "ep":
            return tuple(range(device % self.esp, self.devices, self.esp))
        size = self.size(group)
        first = device // size * size
        return tuple(range(first, first + size))

    def groups(self, group: str) -> list[tuple[int, ...]]:
        """Return all groups of a kind."""
        if group == "ep":
            return [self.members(group, first) for first in range(self.esp)]
        return [self.members(group, first) for first in range(0, self.devices, self.size(group))]

    def group_table(self, group: str) -> NDArray[np.int64]:
        """Return the devices of all groups of a kind, ``[groups, members]``."""
        if group == "ep":
            return np.arange(self.devices).reshape(self.ep, self.esp).T
        return np.arange(self.devices).reshape(-1, self.size(group))

    @cached_property
    def node_of(self) -> NDArray[np.int64]:
        """[devices] node of each device."""
        return np.asarray(self.nodes if self.nodes else np.zeros(self.devices), np.int64)

    def node(self, device: int) -> int:
        """Return the node of a device."""
        return self.nodes[device] if self.nodes else 0

    # ---- placement ----

    def experts_by_place(self, places: int) -> Placement:
        """Return the experts of each place when all experts are distributed over ``places`` places."""
        return self.placement if self.placement is not None else equal_blocks(self.experts, places)

    def holders(self, places: int) -> tuple[tuple[int, ...], ...]:
        """Return the places that hold each expert, ``[experts]``, in ascending order; a replicated expert has several."""
        return _holders_by_expert(self.experts_by_place(places), self.experts)

    @cached_property
    def folded_rows(self) -> Floats:
        """[mp] number of rows that each place computes if the experts are distributed over the ``mp`` group.

        These are all its slots, or without a capacity its expected tokens (their load factor is the ratio of maximum to
        mean). Replicas of an expert share its rows.
        """
        dropless = self.capacity_factor is None
        rows = np.zeros(self.mp)
        for share, holders in zip(self.shares, self.holders(self.mp), strict=True):
            of_expert = self.top_k * self.tokens * share if dropless else self.capacity
            rows[list(holders)] += of_expert / max(len(holders), 1)
        return rows

    @cached_property
    def serving_places(self) -> NDArray[np.int64]:
        """[places, experts] place that serves each expert to the tokens of each place.

        A place that holds an expert serves itself. Other places are served by a replica on one of their nodes if there
        is one; among candidates, by the place that serves this expert to the fewest places, then by the one with the
        least work so far.
        """
        serves = np.empty((self.ep, self.experts), np.int64)
        nodes = [self._nodes_of(place) for place in range(self.ep)]
        work = np.zeros(self.ep)  # share of all tokens that each place has been assigned
        for expert, holders in enumerate(self.holders(self.ep)):
            if len(holders) == 1:  # fast path for the usual case
                serves[:, expert] = holders[0]
                work[holders[0]] += self.ep * self.shares[expert]
            elif holders:
                serves[:, expert] = self._replicas_serving(expert, holders, nodes, work)
        return serves

    def _replicas_serving(self, expert: int, holders: Sequence[int], nodes: list[set[int]], work: Floats) -> list[int]:
        """Return the place that serves ``expert`` to each place, ``[places]``, and add its load to ``work``."""
        asked = dict.fromkeys(holders, 1)
        found = {place: place for place in holders}
        close = {place: [h for h in holders if nodes[h] & nodes[place]] for place in range(self.ep)}
        for place in sorted(
            range(self.ep), key=lambda place: not close[place]
        ):  # places with several candidates come last
            if place not in found:
                options = close[place] or holders
                found[place] = min(options, key=lambda h: (asked[h], round(float(work[h]), 12), h))
                asked[found[place]] += 1
        for holder, count in asked.items():
            work[holder] += count * self.shares[expert]
        return [found[place] for place in range(self.ep)]

    @cached_property
    def visit_counts(self) -> NDArray[np.int64]:
        """[places, places] number of experts that the tokens of one place visit at another place."""
        count = np.zeros((self.ep, self.ep), np.int64)
        for place in range(self.ep):
            np.add.at(count[place], self.serving_places[place], 1)
        return count

    def _nodes_of(self, place: int) -> set[int]:
        return {self.node(device) for device in range(place * self.esp, (place + 1) * self.esp)}

    # ---- problems ----

    def problems(self) -> Iterator[Problem]:
        """Yield the problems that prevent any schedule from running the layer, located at the invalid field."""
        if self.devices % self.mp:
            params = {"mp": self.mp, "devices": self.devices, "ep": self.ep, "esp": self.esp}
            fixes = [set_key_fix("mp", size) for size in nearest_divisors(self.devices, self.mp)]
            yield Problem("mp", "indivisible_devices", params, fixes=fixes)
        if self.placement is None and self.experts % self.ep:
            yield indivisible_experts(self.experts, self.ep)
        if self.ffn_hidden % self.esp:
            supported = nearest_divisors(self.ffn_hidden, self.esp)
            sizes = {"esp": self.esp, "width": self.ffn_hidden}
            fixes = [set_key_fix("esp", size) for size in supported]
            yield Problem("esp", "indivisible_expert_width", {**sizes, "supported": supported}, fixes=fixes)
        if self.top_k > self.experts:
            params = {"top_k": self.top_k, "experts": self.experts}
            yield Problem("top_k", "top_k", params, fixes=[set_key_fix("top_k", self.experts)])
        yield from self._placement_problems()

    def _placement_problems(self) -> Iterator[Problem]:
        if self.placement is None:
            return
        fixes = [set_key_fix("placement", None)]
        if len(self.placement) != self.ep:
            params = {"given": len(self.placement), "group": f"ep={self.ep}", "expected": self.ep}
            yield Problem("placement", "placement_size", params, fixes=fixes)
        for expert, holders in enumerate(_holders_by_expert(self.placement, self.experts)):
            if not holders:
                yield Problem("placement", "unplaced_expert", {"expert": expert}, fixes=fixes)


def indivisible_experts(experts: int, ep: int) -> Problem:
    """Return the problem of an ``ep`` that does not divide the experts."""
    supported = nearest_divisors(experts, ep)
    params = {"ep": ep, "experts": experts, "supported": supported}
    return Problem("ep", "indivisible_experts", params, fixes=[set_key_fix("ep", size) for size in supported])


@lru_cache(maxsize=64)  # used several times per price
def equal_blocks(experts: int, places: int) -> Placement:
    """Return the experts of each place, ``[places]``, in consecutive blocks whose sizes differ by at most one."""
    return tuple(tuple(block.tolist()) for block in np.array_split(np.arange(experts), places))


def load_shares(load: Load, experts: int) -> tuple[float, ...] | None:
    """Return the share of token assignments of each expert for the load of a design, ``[experts]``; None if uniform.

    ``zipf``: the share of expert ``e`` is proportional to ``1 / (e + 1)``.
    """
    if load is None or load == "uniform":
        return None
    weights = [1 / (expert + 1) for expert in range(experts)] if isinstance(load, str) else list(load)
    total = sum(weights)
    return tuple(weight / total for weight in weights) if total > 0 else None


def _holders_by_expert(placement: Placement, experts: int) -> tuple[tuple[int, ...], ...]:
    """Return the places that hold each expert, ``[experts]``, in ascending order."""
    found: list[list[int]] = [[] for _ in range(experts)]
    for place, held in enumerate(placement):
        for expert in {expert for expert in held if expert < experts}:
            found[expert].append(place)
    return tuple(map(tuple, found))
