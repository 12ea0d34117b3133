"""Custom orders, checked by a separate implementation that shares no code with the engine."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from meshwave.engine.document import parse_design
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.prediction import check_design, predict
from meshwave.engine.program.program import format_program
from tests._strategies import compute_programs, document
from tests.fuzz.oracle import Act, Complaint
from tests.fuzz.target import Target, draw_examples, envelope

MADE = 120
_CELL = re.compile(r"(\d+)([FBIW])(\d+)")
Orders = Sequence[Sequence[str]]


class Cell(NamedTuple):
    """A computation of an order."""

    stage: int
    op: str
    microbatch: int


class HandDrawnOrders(Target):
    """``check`` refuses exactly the orders that are incomplete or deadlock, and ``predict`` simulates the others."""

    def seeds(self) -> Iterator[bytes]:
        yield b'[["0F0", "0B0"], ["1F0", "1B0"]]'
        programs = draw_examples(compute_programs(4, 4), MADE)
        yield from (json.dumps(format_program(program, compute_only=True)).encode() for program in programs)

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        orders: list[list[str]] = json.loads(chance.choice(seeds))
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            _disturb(chance, orders)
        return json.dumps(orders).encode()

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        with envelope():
            orders = json.loads(path.read_bytes())
            sound = fault_of(orders) == ""
        yield "check", lambda: compare_with_check(orders)
        if sound:
            yield "predict", lambda: check_simulation(orders)


def _disturb(chance: Random, orders: list[list[str]]) -> None:
    order = chance.choice(orders)
    if not order:
        return
    at, to = (chance.randrange(len(order)) for _ in range(2))
    match chance.randrange(8):
        case 0:
            del order[at]
        case 1:
            order.insert(to, order[at])
        case 2:
            chance.choice(orders).append(order.pop(at))
        case 3:
            order[at] = chance.choice(chance.choice([each for each in orders if each] or [["0F0"]]))
        case _:
            order.insert(to, order.pop(at))


def _design(orders: Orders) -> dict[str, Any]:
    microbatches = 1 + max((cell.microbatch for cell in _cells(orders)), default=0)
    return document({"schedule": "custom", "microbatches": microbatches, "actions": orders}, len(orders))


def compare_with_check(orders: Orders) -> Iterator[Complaint]:
    expected = fault_of(orders)
    try:
        problems = check_design(parse_design(_design(orders), draft=True))
    except DesignError as error:
        problems = list(error.problems)
    refused = [str(problem) for problem in problems if problem.severity == "error"]
    if bool(refused) != bool(expected):
        yield Complaint("check disagrees with the walk", f"walk: {expected or 'sound'}; check: {refused or 'sound'}")


def check_simulation(orders: Orders) -> Iterator[Complaint]:
    makespan = predict(parse_design(_design(orders))).timeline.makespan
    if not makespan > 0:
        yield Complaint("a sound order takes no time", str(makespan))


# ---- the walk ----


def fault_of(orders: Orders) -> str:
    """Return the reason why an order cannot run; empty if it can."""
    return _idle(orders) or find_incomplete(orders) or find_split_microbatch(orders) or find_deadlock(orders)


def parse_cell_text(cell: str) -> Cell:
    found = _CELL.fullmatch(cell)
    if found is None:
        raise ValueError(f"{cell!r} is no computation")
    return Cell(int(found[1]), found[2], int(found[3]))


def _cells(orders: Orders) -> list[Cell]:
    return [parse_cell_text(cell) for order in orders for cell in order]


def _idle(orders: Orders) -> str:
    return "" if all(orders) else "a mesh has no action"


def find_incomplete(orders: Orders) -> str:
    """Return a sentence about a stage whose actions of a microbatch are incomplete; empty if there is none.

    Each stage needs one forward and one backward of each microbatch; the backward is full or split.
    """
    count = Counter(_cells(orders))
    stages = 1 + max(cell.stage for cell in count)
    microbatches = 1 + max(cell.microbatch for cell in count)
    for stage in range(stages):
        for microbatch in range(microbatches):
            ran = tuple(count[Cell(stage, op, microbatch)] for op in "FBIW")
            if ran not in ((1, 1, 0, 0), (1, 0, 1, 1)):
                return f"stage {stage} runs microbatch {microbatch} so often: {ran}"
    return ""


def find_split_microbatch(orders: Orders) -> str:
    """Return a sentence about a stage that runs one microbatch on two meshes; empty if there is none."""
    homes: dict[tuple[int, int], int] = {}
    for rank, order in enumerate(orders):
        for cell in map(parse_cell_text, order):
            if homes.setdefault((cell.stage, cell.microbatch), rank) != rank:
                return f"stage {cell.stage} runs microbatch {cell.microbatch} on two meshes"
    return ""


def find_deadlock(orders: Orders) -> str:
    """Run each mesh until none can continue; return a sentence about the remaining actions, empty if there are none."""
    left = [[parse_cell_text(cell) for cell in order] for order in orders]
    last = max(cell.stage for order in left for cell in order)
    done: set[Cell] = set()
    moved = True
    while moved:
        moved = False
        for order in left:
            while order and _needs(order[0], last) <= {(c.stage, c.op.replace("I", "B"), c.microbatch) for c in done}:
                done.add(order.pop(0))
                moved = True
    stuck = [order[0] for order in left if order]
    return f"deadlock at {stuck}" if stuck else ""


def _needs(cell: Cell, last: int) -> set[tuple[int, str, int]]:
    stage, op, microbatch = cell
    if op == "F":
        return {(stage - 1, "F", microbatch)} if stage else set()
    if op == "W":
        return {(stage, "B", microbatch)}
    return {(stage, "F", microbatch)} | ({(stage + 1, "B", microbatch)} if stage < last else set())


TARGET = HandDrawnOrders()
