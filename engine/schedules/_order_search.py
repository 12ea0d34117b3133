"""Orders that are found: a greedy clock with a few habits, then small moves along the critical path."""

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
    """What has to be ordered: every microbatch through all stages and back, each stage on its rank."""

    microbatches: int
    rank: tuple[int, ...]  # [stages] who computes it
    seconds: tuple[tuple[float, ...], ...]  # [F, B, I, W][stages]
    hop: tuple[float, ...]  # [stages - 1] from one stage to the next, either way; 0 on one rank
    size: tuple[float, ...]  # [stages] what a microbatch keeps, from its forward to the end of its backward
    room: tuple[float, ...]  # [ranks] the most that a rank may keep: a whole microbatch at least
    split: bool  # the backward is an input gradient, and a weight gradient whenever there is time

    @property
    def stages(self) -> int:
        return len(self.rank)

    @property
    def ranks(self) -> int:
        return len(self.room)

    @property
    def backward(self) -> Op:
        """What hands a gradient on."""
        return Op.I if self.split else Op.B

    @property
    def tasks(self) -> int:
        """How many computations a step has."""
        return (3 if self.split else 2) * self.stages * self.microbatches


First = Literal["backward", "turns", "forward"]
Forwards = Literal["deep", "old", "wide"]
Backwards = Literal["old", "far"]


class Habit(NamedTuple):
    """How the greedy clock decides what a free rank does next."""

    first: First = "backward"  # where both could run
    forwards: Forwards = "deep"  # of several: the latest stage, the oldest microbatch, or the earliest stage
    backwards: Backwards = "old"  # of several: the oldest microbatch, or with most still to come
    patience: float = 0.5  # W runs where the next input is at least this part of a W away; 0: whenever nothing else can
    ahead: float = float("inf")  # microbatches that a rank may have on it, as far as its room allows


FIRST: tuple[First, ...] = ("backward", "turns", "forward")
AHEAD = (float("inf"), 2.0, 1.5, 1.0, 0.75)  # times as many as there are ranks
FORWARDS: tuple[Forwards, ...] = ("deep", "old", "wide")
BACKWARDS: tuple[Backwards, ...] = ("old", "far")
PATIENCE = (0.5, 0.0, 1.0)

"""Events of the greedy clock after which it is asked whether anybody still wants its order: some hundredths of a second."""
JUMPS = (1, 2, 3, 5, 8)  # how far a computation is moved to improve an order
SLACK = 0.01  # how much longer than before a step may get by one move, at first


def list_habits(split: bool) -> Iterator[Habit]:
    """Habits worth trying: all pairs of the two choices that matter most, then each other one by one."""
    for first, ahead in product(FIRST, AHEAD):
        yield Habit(first=first, ahead=ahead)
    for forwards, backwards in product(FORWARDS, BACKWARDS):
        if (forwards, backwards) != ("deep", "old"):
            yield Habit(forwards=forwards, backwards=backwards)
    if split:
        for patience in PATIENCE[1:]:
            yield Habit(patience=patience)
            yield Habit(first="turns", patience=patience)


def greedy_order(shop: Shop, habit: Habit) -> Orders:
    """The orders that come about when every free rank starts at once what it can, by habit.

    A rank starts a forward only if it then still has room for those that the oldest microbatch lacks,
    so that this one always gets through: what came before it needs no more room, and leaves as much.
    """
    return _Clock(shop, habit).run()


class _Clock:
    def __init__(self, shop: Shop, habit: Habit) -> None:
        self.shop, self.habit = shop, habit
        ranks, stages, mbs = shop.ranks, shop.stages, shop.microbatches
        own = [sum(size for size, rank in zip(shop.size, shop.rank, strict=True) if rank == r) for r in range(ranks)]
        self.room = [min(room, max(1.0, habit.ahead * ranks) * mine) for room, mine in zip(shop.room, own, strict=True)]
        self.coming: list[list[tuple[float, Task]]] = [[] for _ in range(ranks)]  # heaps by arrival
        self.forwards: list[list[tuple[tuple[int, int], Task]]] = [[] for _ in range(ranks)]  # sorted by key
        self.backwards: list[list[tuple[tuple[int, int], Task]]] = [[] for _ in range(ranks)]  # heaps by key
        self.weights: list[deque[Task]] = [deque() for _ in range(ranks)]
        self.free = [0.0] * ranks
        self.kept = [0.0] * ranks
        self.to_come = [[mine] * mbs for mine in own]  # [ranks][microbatches] of forwards that have not run
        stages_on = [shop.rank.count(rank) for rank in range(ranks)]
        self.to_run = [[count] * mbs for count in stages_on]  # [ranks][microbatches] how many those are
        self.oldest = [0] * ranks
        self.turn = [Op.F] * ranks
        self.orders: Orders = [[] for _ in range(ranks)]
        self.events: list[tuple[float, int]] = []
        assert stages
        self._arrives((Op.F, 0, 0), 0.0)

    def run(self) -> Orders:
        while self.events:
            now, rank = heapq.heappop(self.events)
            if self.free[rank] <= now:
                task = self._next(rank, now)
                if task:
                    self._start(task, rank, now)
        return self.orders

    def _arrives(self, task: Task, when: float) -> None:
        rank = self.shop.rank[task[1]]
        heapq.heappush(self.coming[rank], (when, task))
        heapq.heappush(self.events, (max(when, self.free[rank]), rank))

    def _next(self, rank: int, now: float) -> Task | None:
        coming = self.coming[rank]
        while coming and coming[0][0] <= now:
            self._sort_in(heapq.heappop(coming)[1], rank)
        forward = self._fitting(rank)
        backward = bool(self.backwards[rank])
        if backward and (forward is None or self._prefers_backward(rank)):
            return heapq.heappop(self.backwards[rank])[1]
        if forward is not None:
            return self.forwards[rank].pop(forward)[1]
        weights = self.weights[rank]
        if weights:
            full = bool(self.forwards[rank])  # something waits for room
            wait = coming[0][0] - now if coming else float("inf")
            if full or wait >= self.habit.patience * self.shop.seconds[Op.W][weights[0][1]]:
                return weights.popleft()
        return None

    def _sort_in(self, task: Task, rank: int) -> None:
        op, stage, mb = task
        if op == Op.F:
            key = {"deep": (-stage, mb), "old": (mb, -stage), "wide": (stage, mb)}[self.habit.forwards]
            heapq.heappush(self.forwards[rank], (key, task))
            self.forwards[rank].sort()
        else:
            key = {"old": (mb, -stage), "far": (-stage, mb)}[self.habit.backwards]
            heapq.heappush(self.backwards[rank], (key, task))

    def _prefers_backward(self, rank: int) -> bool:
        match self.habit.first:
            case "backward":
                return True
            case "forward":
                return False
        return self.turn[rank] != Op.F

    def _fitting(self, rank: int) -> int | None:
        """The first of the forwards that are there which leaves room for the oldest microbatch."""
        oldest, room = self.oldest[rank], self.room[rank] * (1 + 1e-12)
        for place, (_, (_, stage, mb)) in enumerate(self.forwards[rank]):
            kept = self.kept[rank] + self.shop.size[stage]
            if kept + (self.to_come[rank][oldest] if mb != oldest else 0.0) <= room:
                return place
        return None

    def _start(self, task: Task, rank: int, now: float) -> None:
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
                self._arrives((Op.F, 0, mb + 1), end)
            if stage + 1 < shop.stages:
                self._arrives((Op.F, stage + 1, mb), end + shop.hop[stage])
            else:
                self._arrives((shop.backward, stage, mb), end)
            return
        if op != Op.W:
            self.turn[rank] = Op.F
            if stage:
                self._arrives((shop.backward, stage - 1, mb), end + shop.hop[stage - 1])
        if op == Op.I:
            self.weights[rank].append((Op.W, stage, mb))
        else:
            self.kept[rank] -= shop.size[stage]


class Played(NamedTuple):
    """When everything ends if the orders are run as soon as they can."""

    makespan: float
    critical: list[tuple[int, int]]  # (rank, place in its order) of what makes it as long as it is, from the end
    ends: dict[Task, float]


def simulate_orders(shop: Shop, orders: Orders) -> Played | None:
    """Run orders in the latency model; None if they wait for ever."""
    at = [0] * shop.ranks
    free = [0.0] * shop.ranks
    ends: dict[Task, float] = {}
    where: dict[Task, tuple[int, int]] = {}
    by_rank: dict[Task, bool] = {}  # whether it started because its rank was free at last
    waiting: dict[Task, int] = {}
    todo = list(range(shop.ranks))
    while todo:
        rank = todo.pop()
        order = orders[rank]
        while at[rank] < len(order):
            task = order[at[rank]]
            ready = 0.0
            for need, lag in _needs(shop, task):
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
            needs = list(_needs(shop, task))
            if not needs or by_rank[task]:
                return Played(makespan, critical, ends)
            task = max(needs, key=lambda need: ends[need[0]] + need[1])[0]


def _needs(shop: Shop, task: Task) -> list[tuple[Task, float]]:
    """What a task waits for, and how long after."""
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
    """Whether a rank that runs ``order`` never keeps more than it has room for."""
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
    """The same of all ranks of a program of computations."""
    size = np.array(shop.size)[program.stage]
    kept = np.cumsum(np.where(program.op == Op.F, size, np.where(program.op == Op.I, 0.0, -size)))
    before = np.append(0.0, kept)[program.offsets[:-1]]
    most = np.maximum.reduceat(kept, program.offsets[:-1]) - before
    return bool((most <= np.array(shop.room) * (1 + 1e-9)).all())


def improve_order(shop: Shop, orders: Orders, tries: int) -> Orders:
    """Move critical computations, and what stands before them, as long as the step gets shorter.

    A move that makes it a little longer is kept too, ever less as the tries run out (threshold
    accepting, Dueck and Scheuer 1990), so that a better order behind a worse one is found. The
    chance is drawn from a fixed seed: the same shop has the same answer.
    """
    chance = random.Random(0)
    played = simulate_orders(shop, orders)
    assert played is not None, "only orders that run are improved"
    best, least, shortest = orders, played.makespan, lower_bound(shop) * (1 + 1e-9)
    slack = SLACK * played.makespan
    for used in range(tries):
        if least <= shortest:
            break
        rank, place = chance.choice(played.critical)
        jump = chance.choice(JUMPS)
        changed = _moved(shop, orders, rank, *chance.choice([(place - 1, place - 1 + jump), (place, place - jump)]))
        now = simulate_orders(shop, changed) if changed else None
        if changed is None or now is None or now.makespan > played.makespan + slack * (1 - used / tries):
            continue
        orders, played = changed, now
        if now.makespan < least * (1 - 1e-12):
            best, least = orders, now.makespan
    return best


def _moved(shop: Shop, orders: Orders, rank: int, place: int, to: int) -> Orders | None:
    """Orders in which one computation of a rank stands elsewhere; None if it cannot."""
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


def lower_bound(shop: Shop) -> float:
    """No order is faster: a rank does all its work, after its first input and before what follows it.

    The first input of a rank is one microbatch through the stages before; after the last input
    gradient of a rank comes one through the stages before its first.
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
    """As a program takes them."""
    return [[Action(Op(op), stage, mb) for op, stage, mb in order] for order in orders]


def with_minimum_memory(shop: Shop) -> Shop:
    """The same with room for one microbatch at least on every rank: with less nothing could run."""
    whole = [sum(s for s, r in zip(shop.size, shop.rank, strict=True) if r == rank) for rank in range(shop.ranks)]
    return replace(shop, room=tuple(max(pair) for pair in zip(shop.room, whole, strict=True)))
