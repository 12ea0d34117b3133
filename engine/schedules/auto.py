"""Auto: the best order found by a search for the design's own costs (after arXiv:2401.10241, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_origin

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from meshwave.engine import messages
from meshwave.engine.findings import Fix, Problem, set_key_fix
from meshwave.engine.frozen import nullable, option_labels
from meshwave.engine.program.program import Program, build_program, from_columns
from meshwave.engine.progress import report_progress
from meshwave.engine.schedules._base import BackwardForm, Count, Pipe, Prices, Schedule, schedules, wave_path
from meshwave.engine.schedules._order_search import (
    Heuristic,
    Orders,
    Shop,
    ensure_minimum_memory,
    fits_memory,
    greedy_order,
    improve_order,
    list_heuristics,
    order_lower_bound,
    program_actions,
    simulate_orders,
)
from meshwave.engine.schedules._steady_state import reduced_microbatches, repeat_pattern
from meshwave.engine.units import percent_change, quantity

MAX_SEARCHED_TASKS = 20_000
"""Maximum number of computations of a step that is searched directly; for a larger step, a shorter one is searched and
its pattern repeated."""
SHORT_STEP_TASKS = 9_000
"""Number of computations of the shorter step; it has more if its pattern needs more."""
GREEDY_TASKS = 600_000
"""Number of computations that the greedy simulation orders to compare heuristics, and again for the best heuristics:
four seconds each."""
MAX_LONG_HEURISTICS = 3
"""Maximum number of heuristics that are simulated in a long step."""
MAX_GREEDY_TASKS = 1_000_000
"""Maximum number of computations of a step that the greedy simulation orders at once; for a longer step only patterns
are repeated."""
MAX_IMPROVEMENT_TASKS = 600_000
"""Number of computations that are simulated to improve one order, in about one second."""
MAX_MOVES = 2_000
"""Maximum number of moves that are tried to improve one order, however short the step."""
MAX_LISTED = 5  # number of named schedules in the findings, best first
IMPROVED_ORDERS = 2
"""Number of best orders that are improved."""

messages.add_messages(
    mesh_without_stage="mesh {mesh} has no stage; place one on it, or remove the mesh",
    odd_chunk_count="a path down and back up needs an even number of chunks, not {chunks}; use {needed}",
)


class Candidate(NamedTuple):
    """Order that was simulated as a whole step."""

    name: str
    seconds: float  # duration of a whole step; infinite for a deadlock
    fits: bool  # into the memory of the devices, and within the limit of the schedule
    is_searched: bool  # True if the search counts it as fitting: it counts gradients and deferred inputs in full


class Answer(NamedTuple):
    """Result of a search: all candidates, and the best one."""

    tried: tuple[Candidate, ...]
    best: Candidate
    program: Program  # program of the best candidate
    least: float  # lower bound in seconds
    heuristics: int  # number of heuristics tried
    searched: int  # microbatches of the searched step


@schedules.register("auto")
class Auto(Schedule):
    """Search for an order for your costs, links and memory.

    The result is never slower than the named schedules on the same path, and faster if stages have different costs.
    """

    title: ClassVar = "Auto"
    depends_on_costs: ClassVar = True

    path: Annotated[Literal["loop", "wave"], option_labels({"loop": "Loop", "wave": "Wave"})] = "loop"
    """Path of the stages over the meshes. loop: down the meshes, once per chunk. wave: down the meshes and back up. Any
    other path can be set as placement."""
    chunks: Count = 1
    """Number of stages on each mesh; a wave has two."""
    backward: BackwardForm = "split"
    """Computation of a backward. split: weight gradients run separately and can fill bubbles. whole: input and weight
    gradients run as one computation."""
    limit: Annotated[float, Field(gt=0, le=1e6)] | None = nullable("limited by device memory")
    """Maximum activations on a mesh, as the number of microbatches for which all of its stages keep them (1F1B: the
    number of meshes)."""

    @property
    def _fixed_route(self) -> tuple[int, ...] | None:
        """Placement that the document sets; None if the schedule chooses it."""
        return getattr(self, "placement", None)

    def stage_count(self, ranks: int) -> int:
        return len(self._fixed_route) if self._fixed_route else ranks * self.chunks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        if self._fixed_route:
            return [list(self._fixed_route)]
        if self.path == "wave":
            return [wave_path(pipe.ranks, self.chunks // 2)]
        return [list(range(pipe.ranks)) * self.chunks]

    def refusal(self, pipe: Pipe) -> Problem | None:
        if self._fixed_route:
            idle = sorted(set(range(pipe.ranks)) - set(self._fixed_route))
            fixes = [Fix("default_placement", {}, (("placement", None),))]
            return Problem("placement", "mesh_without_stage", {"mesh": idle[0]}, fixes=fixes) if idle else None
        if self.path == "wave" and self.chunks % 2:
            chunks = self.chunks + 1
            params = {"chunks": self.chunks, "needed": chunks}
            return Problem("chunks", "odd_chunk_count", params, fixes=[set_key_fix("chunks", chunks)])
        return None

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        program = self.program(pipe)
        rows = np.stack([program.op, program.stage, program.microbatch, program.fused], axis=1).astype(np.int32)
        return np.split(rows, program.offsets[1:-1])

    def program(self, pipe: Pipe) -> Program:
        return self.search_result(pipe).program

    def search_result(self, pipe: Pipe) -> Answer:
        if not self.is_known(pipe):
            self.remember(pipe, _search_order(*self._search_key(pipe)))
        return _results[self._search_key(pipe)]

    def is_known(self, pipe: Pipe) -> bool:
        return self._search_key(pipe) in _results

    def remember(self, pipe: Pipe, result: Answer) -> None:
        while len(_results) >= MAX_REMEMBERED:
            del _results[next(iter(_results))]
        _results[self._search_key(pipe)] = result

    def _search_key(self, pipe: Pipe) -> _SearchKey:
        return pipe, tuple(self.routes(pipe)[0]), self.backward == "split", self.limit

    def search_findings(self, pipe: Pipe) -> Sequence[str]:
        tried, best, _, least, tries, searched = self.search_result(pipe)
        named = [each for each in tried if not each.name.startswith(FOUND)]
        unit = pipe.prices.unit if pipe.prices else "units"
        found = len(tried) - len(named)
        own = f"{found} searched orders (the best of {tries} heuristics)" if found else "no searched orders"
        lines = [
            f"Simulated {len(named)} named orders and {own}; chose {best.name}: {_format_seconds(best.seconds, unit)}."
        ]
        if searched < pipe.microbatches and tries:
            whole = f"of the {pipe.microbatches:,} microbatches, and the best orders were extended to all"
            lines.append(f"The step is long: heuristics and moves were compared on {searched:,} {whole}.")
        for each in sorted(named, key=_result_sort_key)[:MAX_LISTED]:
            over = f" ({percent_change(each.seconds / best.seconds - 1)})" if best.seconds else ""
            result = f"{_format_seconds(each.seconds, unit)}{over}" if each.fits else "exceeds the memory"
            lines.append(f"{each.name}: {result}")
        lines.append(f"Lower bound of the step time for any order on this path: {_format_seconds(least, unit)}.")
        return lines


FOUND = "found"  # prefix of the names of searched orders


def _format_seconds(seconds: float, unit: str) -> str:
    return quantity(seconds, unit) if unit == "s" else f"{seconds:.4g} {unit}"


def _result_sort_key(candidate: Candidate) -> tuple[bool, bool, float]:
    return not candidate.fits, not (candidate.fits or candidate.is_searched), candidate.seconds


_SearchKey = tuple[Pipe, tuple[int, ...], bool, float | None]
_results: dict[_SearchKey, Answer] = {}
MAX_REMEMBERED = 8
"""Maximum number of cached searches."""


def _search_order(pipe: Pipe, route: tuple[int, ...], split: bool, limit: float | None) -> Answer:
    """Simulate the named orders of a route, then search for other orders of the step itself, or of a shorter one."""
    shop = _make_shop(pipe, route, split, limit)
    trials = _Trials(shop, pipe, limit)
    named = list(_named_schedules(pipe, route))
    for number, (name, schedule) in enumerate(named):
        report_progress(NAMED * number / len(named), f"simulating {name}")
        trials.simulate(name, schedule.program(pipe))
    short = pipe if shop.tasks <= MAX_SEARCHED_TASKS else replace(pipe, microbatches=_short_step_microbatches(shop))
    part = replace(shop, microbatches=short.microbatches)
    found = _find_orders(
        part, [(name, _program_orders(schedule.program(short))) for name, schedule in named if trials.is_searched(name)]
    )
    if short is pipe:
        for name, orders in found.orders:
            trials.simulate(name, build_program(program_actions(orders), [route], [0] * pipe.microbatches))
    else:
        _extend_to_whole_step(trials, shop, part, found)
    best, program = trials.best
    return Answer(
        tuple(trials.tried), best, program, order_lower_bound(shop), len(found.heuristics), short.microbatches
    )


def _extend_to_whole_step(trials: _Trials, shop: Shop, part: Shop, found: _FoundOrders) -> None:
    """Extend the orders found for fewer microbatches to the whole step, by their patterns and their heuristics."""
    microbatches = shop.microbatches
    for name, orders in found.orders:
        report_progress(LAST, f"repeating the pattern of {name}")
        simulated = simulate_orders(part, orders)
        for columns in repeat_pattern(part, simulated.ends, microbatches) if simulated else ():
            trials.simulate(f"{name}, repeated", from_columns(columns, [shop.rank], [0] * microbatches), proved=False)
    for name, heuristic in found.heuristics[
        : max(1, min(MAX_LONG_HEURISTICS, GREEDY_TASKS // shop.tasks)) if shop.tasks <= MAX_GREEDY_TASKS else 0
    ]:
        report_progress(LAST, f"ordering all {microbatches:,} microbatches with {name}")
        trials.simulate(
            name, build_program(program_actions(greedy_order(shop, heuristic)), [shop.rank], [0] * microbatches)
        )


NAMED, IMPROVING, LAST = 0.4, 0.7, 0.9
"""Progress after the named orders are simulated, after orders are found, and after the best orders are improved."""


class _Trials:
    """Candidates of a search, simulated as whole steps without duplicates, and the best of them."""

    def __init__(self, shop: Shop, pipe: Pipe, limit: float | None) -> None:
        self.tried: list[Candidate] = []
        self._shop, self._judge = shop, pipe.prices.judge if pipe.prices else None
        self._limited = None if limit is None else _limit_memory(shop, limit)
        self._seen: set[str] = set()
        self._best: tuple[Candidate, Program] | None = None

    def simulate(self, name: str, program: Program, *, proved: bool = True) -> None:
        """Simulate an order and keep its result; an order that may deadlock (not ``proved``) is skipped if it does."""
        if program.digest in self._seen or (not proved and len(program.graph.stuck)):
            return
        self._seen.add(program.digest)
        is_searched = fits_memory(self._shop, program)
        if self._judge:
            seconds, fits = self._judge(program)
            fits = fits and (self._limited is None or fits_memory(self._limited, program))
        else:
            seconds, fits = _simulated_seconds(self._shop, _program_orders(program)), is_searched
        tried = Candidate(name, seconds, fits, is_searched)
        self.tried.append(tried)
        if self._best is None or _result_sort_key(tried) < _result_sort_key(self._best[0]):
            self._best = tried, program

    def is_searched(self, name: str) -> bool:
        return any(each.is_searched for each in self.tried if each.name == name)

    @property
    def best(self) -> tuple[Candidate, Program]:
        assert self._best is not None, "the greedy simulation always finds an order"
        return self._best


def _short_step_microbatches(shop: Shop) -> int:
    """Return the number of microbatches of the short step that is searched instead of a long one."""
    return reduced_microbatches(shop.microbatches, shop.ranks, SHORT_STEP_TASKS * shop.microbatches // shop.tasks)


def _make_shop(pipe: Pipe, route: tuple[int, ...], split: bool, limit: float | None) -> Shop:
    prices = pipe.prices or _uniform_prices(pipe, len(route))
    back, weight = prices.input_gradient, prices.weight_gradient
    whole = tuple(i + w for i, w in zip(back, weight, strict=True))
    across = [a != b for a, b in zip(route, route[1:], strict=False)]
    most = tuple(map(max, prices.activation, prices.deferred)) if split else prices.activation
    shop = Shop(
        microbatches=pipe.microbatches,
        rank=route,
        seconds=(prices.forward, whole, back, weight),
        hop=tuple(seconds * other for seconds, other in zip(prices.hop, across, strict=True)),
        size=most,
        room=prices.room,
        split=split,
    )
    if limit is None:
        return ensure_minimum_memory(shop)
    limited = _limit_memory(shop, limit).room
    return ensure_minimum_memory(replace(shop, room=tuple(map(min, zip(shop.room, limited, strict=True)))))


def _limit_memory(shop: Shop, limit: float) -> Shop:
    """Return the problem with memory for ``limit`` microbatches on every rank, at least for one."""
    own = [sum(size for size, r in zip(shop.size, shop.rank, strict=True) if r == rank) for rank in range(shop.ranks)]
    return ensure_minimum_memory(replace(shop, room=tuple(limit * mine for mine in own)))


def _uniform_prices(pipe: Pipe, stages: int) -> Prices:
    """Return equal durations for all computations and twice the memory of 1F1B, for designs with unknown costs."""
    one, room = (1.0,) * stages, 2.0 * stages
    return Prices(one, one, one, (0.0,) * (stages - 1), one, one, (room,) * pipe.ranks)


class _FoundOrders(NamedTuple):
    """Orders found by a search, and the heuristics that found them."""

    orders: list[tuple[str, Orders]]
    heuristics: list[tuple[str, Heuristic]]  # best first


def _find_orders(shop: Shop, named: list[tuple[str, Orders]]) -> _FoundOrders:
    """Return the greedy orders of several heuristics, and improvements of the best of them and of the named orders."""
    starts = [(_simulated_seconds(shop, orders), name, orders) for name, orders in named]
    least = order_lower_bound(shop) * (1 + 1e-9)
    worth = [*list_heuristics(shop.split)][: max(3, GREEDY_TASKS // shop.tasks)]
    tried: dict[str, Heuristic] = {}
    for number, heuristic in enumerate(worth):
        if min(starts, default=(least + 1,))[0] <= least:
            break  # the lower bound is reached
        report_progress(NAMED + (IMPROVING - NAMED) * number / len(worth), f"heuristic {number + 1} of {len(worth)}")
        name = f"{FOUND} {number + 1}"
        orders, tried[name] = greedy_order(shop, heuristic), heuristic
        starts.append((_simulated_seconds(shop, orders), name, orders))
    found = []
    for number, (seconds, name, orders) in enumerate(sorted(starts)[:IMPROVED_ORDERS]):
        report_progress(IMPROVING + (LAST - IMPROVING) * number / IMPROVED_ORDERS, f"improving {name}")
        if name.startswith(FOUND):
            found.append((name, orders))
        if seconds > least:
            better = improve_order(shop, orders, min(MAX_MOVES, MAX_IMPROVEMENT_TASKS // shop.tasks))
            if better is not orders:
                found.append((f"{FOUND} by improving {name}", better))
    return _FoundOrders(found, [(name, tried[name]) for _, name, _ in sorted(starts) if name in tried])


def _named_schedules(pipe: Pipe, route: tuple[int, ...]) -> Iterator[tuple[str, Schedule]]:
    """Yield every named schedule, with all combinations of its options, whose stages are on this route."""
    for name, schedule in schedules.items():
        if name in ("auto", "custom"):
            continue
        for options in _option_combinations(schedule, len(route)):
            made = schedule(**options)
            if _uses_route(made, pipe, route):
                told = ", ".join(str(value) for value in options.values())
                yield f"{name} ({told})" if told else name, made


def _uses_route(schedule: Schedule, pipe: Pipe, route: tuple[int, ...]) -> bool:
    """Return True if a schedule can order this pipeline and places its stages on this route."""
    if schedule.stage_count(pipe.ranks) != len(route) or schedule.refusal(pipe) is not None:
        return False
    return [tuple(each) for each in schedule.routes(pipe)] == [route]


def _option_combinations(schedule: type[Schedule], most: int) -> Iterator[dict[str, Any]]:
    values = [
        get_args(info.annotation) if get_origin(info.annotation) is Literal else range(1, most + 1)
        for info in schedule.model_fields.values()
    ]
    for chosen in product(*values):
        yield dict(zip(schedule.model_fields, chosen, strict=True))


def _program_orders(program: Program) -> Orders:
    columns = [column.tolist() for column in (program.op, program.stage, program.microbatch)]
    tasks = list(zip(*columns, strict=True))
    return [tasks[program.rows(rank)] for rank in range(program.ranks)]


def _simulated_seconds(shop: Shop, orders: Orders) -> float:
    simulated = simulate_orders(shop, orders)
    return simulated.makespan if simulated else float("inf")
