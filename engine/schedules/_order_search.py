"""Search for orders: greedy simulation with several heuristics, then local search along the critical path."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program

Task = tuple[int, int, int]  # op, stage, microbatch
Orders = list[list[Task]]


@dataclass(frozen=True)
class Shop:
    """Job-shop problem of a step: each microbatch runs forward through all stages, then backward through them."""

    microbatches: int
    rank: tuple[int, ...]  # [stages] rank of each stage
    seconds: tuple[tuple[float, ...], ...]  # [F, B, I, W][stages] seconds of a computation
    hop: tuple[float, ...]  # [stages - 1] seconds of a transfer to the next stage, either way; 0 on one rank
    size: tuple[float, ...]  # [stages] bytes kept for a microbatch from its forward to the end of its backward
    room: tuple[float, ...]  # [ranks] maximum bytes that a rank may keep: a whole microbatch at least
    split: bool  # True if the backward is split into input and weight gradients

    @property
    def stages(self) -> int:
        return len(self.rank)

    @property
    def ranks(self) -> int:
        return len(self.room)

    @property
    def backward(self) -> Op:
        """Op that computes the gradient for the previous stage."""
        return Op.I if self.split else Op.B

    @property
    def tasks(self) -> int:
        """Number of computations in a step."""
        return (3 if self.split else 2) * self.stages * self.microbatches


First = Literal["backward", "turns", "forward"]
Forwards = Literal["deep", "old", "wide"]
Backwards = Literal["old", "far"]


class Heuristic(NamedTuple):
    """Rules by which the greedy simulation chooses the next computation of a free rank."""

    first: First = "backward"  # kind that is preferred if both can run
    forwards: Forwards = "deep"  # preferred forward: latest stage, oldest microbatch, or earliest stage
    backwards: Backwards = "old"  # preferred backward: oldest microbatch, or the one with most stages left
    patience: float = (
        0.5  # minimum time to the next input for which W runs, as a fraction of a W; 0: whenever nothing else can run
    )
    ahead: float = float("inf")  # maximum microbatches kept per rank, as a multiple of the ranks


FIRST: tuple[First, ...] = ("backward", "turns", "forward")
AHEAD = (float("inf"), 2.0, 1.5, 1.0, 0.75)
FORWARDS: tuple[Forwards, ...] = ("deep", "old", "wide")
BACKWARDS: tuple[Backwards, ...] = ("old", "far")
PATIENCE = (0.5, 0.0, 1.0)
JUMPS = (1, 2, 3, 5, 8)  # distances by which a computation is moved to improve an order
SLACK = 0.01  # initial relative increase of the step time that a move may cause


def list_heuristics(split: bool) -> Iterator[Heuristic]:
    """Yield the heuristics to try: all combinations of ``first`` and ``ahead``, then variations of each other choice."""
    for first, ahead in product(FIRST, AHEAD):
        yield Heuristic(first=first, ahead=ahead)
    for forwards, backwards in product(FORWARDS, BACKWARDS):
        if (forwards, backwards) != ("deep", "old"):
            yield Heuristic(forwards=forwards, backwards=backwards)
    if split:
        for patience in PATIENCE[1:]:
            yield Heuristic(patience=patience)
            yield Heuristic(first="turns", patience=patience)


def greedy_order(shop: Shop, heuristic: Heuristic) -> Orders:
    """Return the orders that result if every free rank immediately starts a computation chosen by the heuristic.

    A rank starts a forward only if enough memory is left for the remaining forwards of the oldest microbatch, so that
    this microbatch always completes: earlier ones need no more memory, and free as much.
    """
    return _GreedySimulation(shop, heuristic).run()


class _GreedySimulation:
    def __init__(self, shop: Shop, heuristic: Heuristic) -> None:
        self.shop, self.heuristic = shop, heuristic
        ranks, stages, mbs = shop.ranks, shop.stages, shop.microbatches
        own = [sum(size for size, rank in zip(shop.size, shop.rank, strict=True) if rank == r) for r in range(ranks)]
        self.room = [
            min(room, max(1.0, heuristic.ahead * ranks) * mine) for room, mine in zip(shop.room, own, strict=True)
        ]
        self.coming: list[list[tuple[float, Task]]] = [[] for _ in range(ranks)]  # heaps by arrival
        self.forwards: list[list[tuple[tuple[int, int], Task]]] = [[] for _ in range(ranks)]  # sorted by key
        self.backwards: list[list[tuple[tuple[int, int], Task]]] = [[] for _ in range(ranks)]  # heaps by key
        self.weights: list[deque[Task]] = [deque() for _ in range(ranks)]
        self.free = [0.0] * ranks
        self.kept = [0.0] * ranks
        self.to_come = [[mine] * mbs for mine in own]  # [ranks][microbatches] bytes of forwards that have not run
        stages_on = [shop.rank.count(rank) for rank in range(ranks)]
        self.to_run = [[count] * mbs for count in stages_on]  # [ranks][microbatches] number of these forwards
        self.oldest = [0] * ranks
        self.turn = [Op.F] * ranks
        self.orders: Orders = [[] for _ in range(ranks)]
        self.events: list[tuple[float, int]] = []
        assert stages
        self._add_arrival((Op.F, 0, 0), 0.0)

    def run(self) -> Orders:
        while self.events:
            now, rank = heapq.heappop(self.events)
            if self.free[rank] <= now:
                task = self._next_task(rank, now)
                if task:
                    self._start_task(task, rank, now)
        return self.orders

    def _add_arrival(self, task: Task, when: float) -> None:
        rank = self.shop.rank[task[1]]
        heapq.heappush(self.coming[rank], (when, task))
        heapq.heappush(self.events, (max(when, self.free[rank]), rank))

    def _next_task(self, rank: int, now: float) -> Task | None:
        coming = self.coming[rank]
        while coming and coming[0][0] <= now:
            self._insert_sorted(heapq.heappop(coming)[1], rank)
        forward = self._fitting_forward(rank)
        backward = bool(self.backwards[rank])
        if backward and (forward is None or self._prefers_backward(rank)):
            return heapq.heappop(self.backwards[rank])[1]
        if forward is not None:
            return self.forwards[rank].pop(forward)[1]
        weights = self.weights[rank]
        if weights:
            full = bool(self.forwards[rank])  # a forward waits for memory
            wait = coming[0][0] - now if coming else float("inf")
            if full or wait >= self.heuristic.patience * self.shop.seconds[Op.W][weights[0][1]]:
                return weights.popleft()
        return None

    def _insert_sorted(self, task: Task, rank: int) -> None:
        op, stage, mb = task
        if op == Op.F:
            key = {"deep": (-stage, mb), "old": (mb, -stage), "wide": (stage, mb)}[self.heuristic.forwards]
            heapq.heappush(self.forwards[rank], (key, task))
            self.forwards[rank].sort()
        else:
            key = {"old": (mb, -stage), "far": (-stage, mb)}[self.heuristic.backwards]
            heapq.heappush(self.backwards[rank], (key, task))

    def _prefers_backward(self, rank: int) -> bool:
        match self.heuristic.first:
            case "backward":
                return True
            case "forward":
                return False
        return self.turn[rank] != Op.F

    def _fitting_forward(self, rank: int) -> int | None:
        """Return the index of the first available forward that leaves enough memory for the oldest microbatch."""
        oldest, room = self.oldest[rank], self.room[rank] * (1 + 1e-12)
        for place, (_, (_, stage, mb)) in enumerate(self.forwards[rank]):
            kept = self.kept[rank] + self.shop.size[stage]
            if kept + (self.to_come[rank][oldest] if mb != oldest else 0.0) <= room:
                return place
        return None

    def _start_task(self, task: Task, rank: int, now: float) -> None:
        op, stage, mb = task
        shop = self.shop
        end = now + shop.seconds[op][stage]
        self.free[rank] = end
        self.orders[rank].append(task)
        heapq.heappush(self.events, (end, rank))
        if op == Op.F:
            self.turn[rank] = shop.backward
            self.kept[rank] += shop.size[stage]
            self.to_come[rank][mb] -= shop.size[stage]
            self.to_run[rank][mb] -= 1
            while self.oldest[rank] < shop.microbatches - 1 and not self.to_run[rank][self.oldest[rank]]:
                self.oldest[rank] += 1
            if stage == 0 and mb + 1 < shop.microbatches:
                self._add_arrival((Op.F, 0, mb + 1), end)
            if stage + 1 < shop.stages:
                self._add_arrival((Op.F, stage + 1, mb), end + shop.hop[stage])
            else:
                self._add_arrival((shop.backward, stage, mb), end)
            return
        if op != Op.W:
            self.turn[rank] = Op.F
            if stage:
                self._add_arrival((shop.backward, stage - 1, mb), end + shop.hop[stage - 1])
        if op == Op.I:
            self.weights[rank].append((Op.W, stage, mb))
        else:
            self.kept[rank] -= shop.size[stage]


class SimulatedOrders(NamedTuple):
    """Result of a simulation in which all computations run as early as possible."""

    makespan: float
    critical: list[tuple[int, int]]  # (rank, position in its order) along the critical path, from its end
    ends: dict[Task, float]


def simulate_orders(shop: Shop, orders: Orders) -> SimulatedOrders | None:
    """Simulate orders with fixed transfer delays; None if they deadlock."""
    at = [0] * shop.ranks
    free = [0.0] * shop.ranks
    ends: dict[Task, float] = {}
    where: dict[Task, tuple[int, int]] = {}
    by_rank: dict[Task, bool] = {}  # True if its start waited for its rank rather than for an input
    waiting: dict[Task, int] = {}
    todo = list(range(shop.ranks))
    while todo:
        rank = todo.pop()
        order = orders[rank]
        while at[rank] < len(order):
            task = order[at[rank]]
            ready = 0.0
            for need, lag in _list_dependencies(shop, task):
                end = ends.get(need)
                if end is None:
                    waiting[need] = rank
                    break
                ready = max(ready, end + lag)
            else:
                by_rank[task] = free[rank] >= ready
                ends[task] = free[rank] = max(free[rank], ready) + shop.seconds[task[0]][task[1]]
                where[task] = rank, at[rank]
                at[rank] += 1
                if task in waiting:
                    todo.append(waiting.pop(task))
                continue
            break
    if len(ends) < sum(map(len, orders)):
        return None
    task = max(ends, key=ends.__getitem__)
    makespan, critical = ends[task], []
    while True:
        rank, place = where[task]
        critical.append((rank, place))
        if by_rank[task] and place:
            task = orders[rank][place - 1]
        else:
            needs = list(_list_dependencies(shop, task))
            if not needs or by_rank[task]:
                return SimulatedOrders(makespan, critical, ends)
            task = max(needs, key=lambda need: ends[need[0]] + need[1])[0]


def _list_dependencies(shop: Shop, task: Task) -> list[tuple[Task, float]]:
    """Return the dependencies of a task, each with its delay in seconds."""
    op, stage, mb = task
    if op == Op.F:
        return [((Op.F, stage - 1, mb), shop.hop[stage - 1])] if stage else []
    if op == Op.W:
        return [((Op.I, stage, mb), 0.0)]
    needs: list[tuple[Task, float]] = [((Op.F, stage, mb), 0.0)]
    if stage + 1 < shop.stages:
        needs.append(((op, stage + 1, mb), shop.hop[stage]))
    return needs


def rank_fits_memory(shop: Shop, rank: int, order: Sequence[Task]) -> bool:
    """Return True if a rank that runs ``order`` never exceeds its maximum memory."""
    kept, room = 0.0, shop.room[rank] * (1 + 1e-9)
    for op, stage, _ in order:
        if op == Op.F:
            kept += shop.size[stage]
            if kept > room:
                return False
        elif op != Op.I:
            kept -= shop.size[stage]
    return True


def fits_memory(shop: Shop, program: Program) -> bool:
    """Return True if no rank of a program of computations exceeds its maximum memory."""
    size = np.array(shop.size)[program.stage]
    kept = np.cumsum(np.where(program.op == Op.F, size, np.where(program.op == Op.I, 0.0, -size)))
    before = np.append(0.0, kept)[program.offsets[:-1]]
    most = np.maximum.reduceat(kept, program.offsets[:-1]) - before
    return bool((most <= np.array(shop.room) * (1 + 1e-9)).all())


def improve_order(shop: Shop, orders: Orders, tries: int) -> Orders:
    """Return orders with a shorter step, found by moving computations on or near the critical path.

    A move that makes the step slightly longer is also accepted, within a threshold that decreases with the number of
    tries (threshold accepting, Dueck and Scheuer 1990), so that the search can leave a local optimum. The random
    numbers have a fixed seed: equal inputs give equal results.
    """
    chance = random.Random(0)
    simulated = simulate_orders(shop, orders)
    assert simulated is not None, "only orders that run are improved"
    best, least, shortest = orders, simulated.makespan, order_lower_bound(shop) * (1 + 1e-9)
    slack = SLACK * simulated.makespan
    for used in range(tries):
        if least <= shortest:
            break
        rank, place = chance.choice(simulated.critical)
        jump = chance.choice(JUMPS)
        changed = _move_task(shop, orders, rank, *chance.choice([(place - 1, place - 1 + jump), (place, place - jump)]))
        now = simulate_orders(shop, changed) if changed else None
        if changed is None or now is None or now.makespan > simulated.makespan + slack * (1 - used / tries):
            continue
        orders, simulated = changed, now
        if now.makespan < least * (1 - 1e-12):
            best, least = orders, now.makespan
    return best


def _move_task(shop: Shop, orders: Orders, rank: int, place: int, to: int) -> Orders | None:
    """Return the orders with one computation of a rank moved from ``place`` to ``to``; None if the move is invalid."""
    order = orders[rank]
    if not (0 <= place < len(order) and 0 <= to < len(order)) or place == to:
        return None
    _, stage, mb = order[place]
    passed = order[place + 1 : to + 1] if to > place else order[to:place]
    if any(mb == other and stage == at for _, at, other in passed):
        return None
    changed = [*order[:place], *order[place + 1 :]]
    changed.insert(to, order[place])
    return [*orders[:rank], changed, *orders[rank + 1 :]] if rank_fits_memory(shop, rank, changed) else None


def order_lower_bound(shop: Shop) -> float:
    """Return a lower bound on the step time of any order, in seconds.

    A rank does all its work between its first input and the computations that follow its last one. The first input of a
    rank is delayed by one microbatch in the earlier stages; after the last input gradient of a rank, one microbatch
    passes through the stages before its first one.
    """
    forward, back, weight = shop.seconds[Op.F], shop.seconds[shop.backward], shop.seconds[Op.W]
    least = 0.0
    for rank in range(shop.ranks):
        mine = [stage for stage in range(shop.stages) if shop.rank[stage] == rank]
        first = mine[0]
        work = sum(forward[s] + back[s] + (weight[s] if shop.split else 0.0) for s in mine) * shop.microbatches
        before = sum(forward[:first]) + sum(shop.hop[:first])
        after = 0.0 if shop.split else sum(back[:first]) + sum(shop.hop[:first])
        least = max(least, before + work + after)
    chain = sum(forward) + sum(back) + 2 * sum(shop.hop)
    return max(least, chain)


def program_actions(orders: Orders) -> list[list[Action]]:
    """Return orders as actions of a program, one list per rank."""
    return [[Action(Op(op), stage, mb) for op, stage, mb in order] for order in orders]


def ensure_minimum_memory(shop: Shop) -> Shop:
    """Return the problem with memory for at least one microbatch on every rank, without which no order is feasible."""
    whole = [sum(s for s, r in zip(shop.size, shop.rank, strict=True) if r == rank) for rank in range(shop.ranks)]
    return replace(shop, room=tuple(max(pair) for pair in zip(shop.room, whole, strict=True)))
