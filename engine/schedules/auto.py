"""Auto: the best order that a search finds for the design's own costs (after arXiv:2401.10241, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_origin

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from engine.program.program import Program, build
from engine.schedules._base import Count, Pipe, Prices, Schedule, folded, schedules
from engine.schedules._search import Orders, Shop, actions, bound, climb, fits, greedy, habits, play, roomier
from engine.units import quantity

SEARCHED = 20_000
"""Computations of the largest step that is searched; of a larger one the best named schedule is taken."""
CLIMBED = 600_000
"""Computations that are played again while one order is improved: a second."""
CLIMBS = 2_000
"""Moves that are tried at most, however small the step."""
TOLD = 5  # named schedules are told of, the best first
IMPROVED = 2
"""So many of the best orders are improved, and simulated with all that a step has beside its stages."""


class Candidate(NamedTuple):
    """An order that was simulated as a whole step."""

    name: str
    seconds: float  # a whole step
    program: Program
    fits: bool


@schedules.register("auto")
class Auto(Schedule):
    """Search the order for your own costs, links and memory: never slower than the named schedules
    on the same path, faster where stages cost unlike."""

    title: ClassVar = "Auto"
    weighs: ClassVar = True

    path: Literal["loop", "wave"] = "loop"
    """How the stages lie on the meshes: down, and down again for each chunk; or down and back up.
    Any other way can be given as placement."""
    chunks: Count = 1
    """Stages on each mesh; a wave has two."""
    backward: Literal["split", "whole"] = "split"
    """Split lets weight gradients fill the bubbles."""
    limit: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Most activations that a mesh may keep, in microbatches of its share of the model (1F1B keeps as
    many as there are meshes); null: what the device's memory allows."""

    @property
    def _given(self) -> tuple[int, ...] | None:
        """The placement of the document, whose keys lie beside the options."""
        return getattr(self, "placement", None)

    def stage_count(self, ranks: int) -> int:
        return len(self._given) if self._given else ranks * self.chunks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        if self._given:
            return [list(self._given)]
        if self.path == "wave":
            return [folded(pipe.ranks, self.chunks // 2)]
        return [list(range(pipe.ranks)) * self.chunks]

    def refuses(self, pipe: Pipe) -> str | None:
        if self._given:
            idle = sorted(set(range(pipe.ranks)) - set(self._given))
            return f"mesh {idle[0]} has no stage; place one on it, or take it away" if idle else None
        if self.path == "wave" and self.chunks % 2:
            return f"a path down and back up needs an even number of chunks, not {self.chunks}; use {self.chunks + 1}"
        return None

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        program = self.program(pipe)
        rows = np.stack([program.op, program.stage, program.microbatch, program.fused], axis=1).astype(np.int32)
        return np.split(rows, program.offsets[1:-1])

    def program(self, pipe: Pipe) -> Program:
        return min(self._tried(pipe)[0], key=_rank_of).program

    def findings(self, pipe: Pipe) -> Sequence[str]:
        tried, least = self._tried(pipe)
        best = min(tried, key=_rank_of)
        named = [each for each in tried if not each.name.startswith(FOUND)]
        unit = pipe.prices.unit if pipe.prices else "units"
        found = len(tried) - len(named)
        own = (
            f"{found} of its own, the best of {len([*habits(self.backward == 'split')])} habits"
            if found
            else "none of its own"
        )
        lines = [f"Tried {len(named)} named orders and {own}; took {best.name}: {_told(best.seconds, unit)}."]
        for each in sorted(named, key=_rank_of)[:TOLD]:
            over = f" ({each.seconds / best.seconds - 1:+.1%})" if best.seconds else ""
            told = f"{_told(each.seconds, unit)}{over}" if each.fits else "too little memory"
            lines.append(f"{each.name}: {told}")
        lines.append(f"In any order of this path the stages alone take {_told(least, unit)} or more.")
        return lines

    def _tried(self, pipe: Pipe) -> tuple[tuple[Candidate, ...], float]:
        route = tuple(self.routes(pipe)[0])
        return _search(pipe, route, self.backward == "split", self.limit)


FOUND = "found"  # how the names of orders begin that no schedule has


def _told(seconds: float, unit: str) -> str:
    return quantity(seconds, unit) if unit == "s" else f"{seconds:.4g} {unit}"


def _rank_of(candidate: Candidate) -> tuple[bool, float]:
    return not candidate.fits, candidate.seconds


@lru_cache(maxsize=4)
def _search(
    pipe: Pipe, route: tuple[int, ...], split: bool, limit: float | None
) -> tuple[tuple[Candidate, ...], float]:
    """Every order that was tried, and seconds that none can beat."""
    shop = _shop(pipe, route, split, limit)
    judge = pipe.prices.judge if pipe.prices else None

    def judged(name: str, program: Program, orders: Orders) -> Candidate:
        there = all(fits(shop, rank, order) for rank, order in enumerate(orders))
        return Candidate(name, judge(program) if judge else _seconds(shop, orders), program, there)

    named = [(name, program, _orders(program)) for name, program in _named(pipe, route)]
    tried = [judged(*each) for each in named]
    if shop.tasks <= SEARCHED or not any(candidate.fits for candidate in tried):
        starts = [(each.name, orders) for each, (_, _, orders) in zip(tried, named, strict=True) if each.fits]
        for name, orders in _found(shop, starts):
            tried.append(judged(name, build(actions(orders), [route], [0] * pipe.microbatches), orders))
    return tuple(tried), bound(shop)


def _shop(pipe: Pipe, route: tuple[int, ...], split: bool, limit: float | None) -> Shop:
    prices = pipe.prices or _even(pipe, len(route))
    back, weight = prices.input_gradient, prices.weight_gradient
    whole = tuple(i + w for i, w in zip(back, weight, strict=True))
    across = [a != b for a, b in zip(route, route[1:], strict=False)]
    most = tuple(map(max, prices.activation, prices.deferred)) if split else prices.activation
    room = prices.room
    if limit is not None:
        own = [sum(size for size, r in zip(most, route, strict=True) if r == rank) for rank in range(pipe.ranks)]
        room = tuple(min(free, limit * mine) for free, mine in zip(room, own, strict=True))
    return roomier(
        Shop(
            microbatches=pipe.microbatches,
            rank=route,
            seconds=(prices.forward, whole, back, weight),
            hop=tuple(seconds * other for seconds, other in zip(prices.hop, across, strict=True)),
            size=most,
            room=room,
            split=split,
        )
    )


def _even(pipe: Pipe, stages: int) -> Prices:
    """Where nothing is known all computations take the same time, and 1F1B's memory is there twice."""
    one, room = (1.0,) * stages, 2.0 * stages
    return Prices(one, one, one, (0.0,) * (stages - 1), one, one, (room,) * pipe.ranks)


def _found(shop: Shop, named: list[tuple[str, Orders]]) -> Iterator[tuple[str, Orders]]:
    """The greedy orders of some habits; the best of them and of the named ones improved."""
    starts = [(_seconds(shop, orders), name, orders) for name, orders in named]
    least = bound(shop) * (1 + 1e-9)
    for number, habit in enumerate(habits(shop.split)):
        if min(starts, default=(least + 1,))[0] <= least:
            break  # there is nothing better
        orders = greedy(shop, habit)
        starts.append((_seconds(shop, orders), f"{FOUND} {number + 1}", orders))
    tries = min(CLIMBS, CLIMBED // shop.tasks)
    for seconds, name, orders in sorted(starts)[:IMPROVED]:
        if name.startswith(FOUND):
            yield name, orders
        if seconds > least:
            better = climb(shop, orders, tries)
            if better is not orders:
                yield f"{FOUND} by improving {name}", better


def _named(pipe: Pipe, route: tuple[int, ...]) -> Iterator[tuple[str, Program]]:
    """Every named schedule, with any of its options, whose stages lie on this route; of equal orders one."""
    seen: set[str] = set()
    for name, schedule in schedules.items():
        if name in ("auto", "custom"):
            continue
        for options in _options(schedule, len(route)):
            made = schedule(**options)
            program = made.program(pipe) if _lies_on(made, pipe, route) else None
            if program is not None and program.digest not in seen:
                seen.add(program.digest)
                told = ", ".join(str(value) for value in options.values())
                yield f"{name} ({told})" if told else name, program


def _lies_on(schedule: Schedule, pipe: Pipe, route: tuple[int, ...]) -> bool:
    """Whether a schedule can order this pipeline, and lays its stages on this route."""
    if schedule.stage_count(pipe.ranks) != len(route) or schedule.refuses(pipe) is not None:
        return False
    return [tuple(each) for each in schedule.routes(pipe)] == [route]


def _options(schedule: type[Schedule], most: int) -> Iterator[dict[str, Any]]:
    values = [
        get_args(info.annotation) if get_origin(info.annotation) is Literal else range(1, most + 1)
        for info in schedule.model_fields.values()
    ]
    for chosen in product(*values):
        yield dict(zip(schedule.model_fields, chosen, strict=True))


def _orders(program: Program) -> Orders:
    return [[(int(a.op), a.stage, a.microbatch) for a in program.actions(rank)] for rank in range(program.ranks)]


def _seconds(shop: Shop, orders: Orders) -> float:
    played = play(shop, orders)
    return played.makespan if played else float("inf")
