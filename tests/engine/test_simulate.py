"""The simulator against a slow clock: event by event, and to the last bit."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.program.action import Action, Op
from engine.program.program import Program, parse_program
from engine.simulate import TransferModel, simulate
from engine.timeline import Timeline
from tests._strategies import programs, seconds, seeds
from tests.engine.schedules.play import makespan

MODELS: tuple[TransferModel, ...] = ("latency", "sender-blocking", "link-serial")
models = st.sampled_from(MODELS)
some = settings(max_examples=60)
Task = tuple[int, Action]  # (rank, action)


# ---- the slow clock ----


def tasks_of(program: Program) -> Iterator[tuple[Task, int, int]]:
    """Everything that takes time: (task, row, the other rank of a send)."""
    for row in range(len(program)):
        if program.op[row] not in (Op.RECV_F, Op.RECV_B):
            yield (int(program.rank[row]), program.row(row)), row, int(program.peer[row])


def waits_of(program: Program, model: TransferModel) -> dict[Task, set[Task]]:
    """What each task waits for, as a person would say it of a pipeline."""
    every = {task: peer for task, _, peer in tasks_of(program)}
    last_on: dict[int, set[Task]] = defaultdict(set)  # the last computation of a rank, or the sends that it blocks for
    last_link: dict[tuple[int, int], Task] = {}
    last_reduce: dict[int, Task] = {}
    last_of_stage: dict[tuple[int, int], set[Task]] = {}  # (rank, stage): its last computation, or the sends after it
    maker: Task | None = None
    waits: dict[Task, set[Task]] = {}
    for task, peer in every.items():
        rank, (op, stage, *_) = task
        waits[task] = found = set()
        if op.is_compute or op == Op.STEP:
            found |= last_on[rank] | tensors(task, program, every)
            last_on[rank], last_of_stage[rank, stage] = {task}, {task}
            maker = task
        if op in (Op.SEND_F, Op.SEND_B):
            assert maker is not None
            found.add(maker)
            if model == "sender-blocking":
                last_on[rank] = {one for one in last_on[rank] if not one[1].op.is_compute} | {task}
                sent = {one for one in last_of_stage[rank, stage] if not one[1].op.is_compute}
                last_of_stage[rank, stage] = sent | {task}
            if model == "link-serial":
                found |= {last_link[rank, peer]} if (rank, peer) in last_link else set()
                last_link[rank, peer] = task
        if op in (Op.REDUCE_GRAD, Op.STEP):
            found |= {last_reduce[rank]} if rank in last_reduce else set()
            last_reduce[rank] = task
    for rank, action in every:
        if action.op == Op.REDUCE_GRAD:
            holders = program.ranks_of(action.stage)
            waits[rank, action] |= set().union(*(last_of_stage[other, action.stage] for other in holders))
    ends = {task for task in every if task[1].op == Op.REDUCE_GRAD}
    ends |= {[(r, a) for r, a in every if r == rank and a.op.is_compute][-1] for rank in range(program.ranks)}
    for task in every:
        if task[1].op == Op.STEP and program.clips:
            waits[task] |= ends
    return waits


def tensors(task: Task, program: Program, every: dict[Task, int]) -> set[Task]:
    """Where the inputs of a computation come from: made here, or sent here."""
    rank, (op, stage, mb, *_) = task

    def arrives(by: int, makers: tuple[Op, ...], send: Op, to: int = -1) -> set[Task]:
        here = {(rank, Action(maker, by, mb, fused)) for maker in makers for fused in (0, 1)} & every.keys()
        message = Action(send, by, mb, 0, to)
        return here or {sent for sent, peer in every.items() if sent[1] == message and peer == rank}

    def skips(end: int, makers: tuple[Op, ...], send: Op) -> set[Task]:
        others = [pair[1 - end] for pair in program.beyond if pair[end] == stage]
        return set().union(*(arrives(by, makers, send, stage) for by in others))

    if op == Op.F and stage > 0:
        return arrives(stage - 1, (Op.F,), Op.SEND_F) | skips(1, (Op.F,), Op.SEND_F)
    if op in (Op.B, Op.I):
        gradient = arrives(stage + 1, (Op.B, Op.I), Op.SEND_B) if stage + 1 < program.stages else set()
        return gradient | skips(0, (Op.B, Op.I), Op.SEND_B) | {(rank, Action(Op.F, stage, mb))}
    return {(rank, Action(Op.I, stage, mb, fused)) for fused in (0, 1)} & every.keys() if op == Op.W else set()


def by_the_clock(program: Program, takes: NDArray[np.float64], model: TransferModel) -> dict[Task, tuple[float, float]]:
    """Start what can start, look at the clock when the next thing ends, and again."""
    took = {task: float(takes[row]) for task, row, _ in tasks_of(program)}
    waiting = waits_of(program, model)
    slot = {
        (rank, second): (rank, first)
        for rank in range(program.ranks)
        for first, second in pairwise(program.actions(rank))
        if second.fused
    }
    for second, first in slot.items():
        took[first] += took[second]
        waiting[first] |= waiting.pop(second)
    waiting = {task: {slot.get(one, one) for one in needed} - {task} for task, needed in waiting.items()}
    wakes: dict[Task, list[Task]] = defaultdict(list)
    for task, needed in waiting.items():
        for one in needed:
            wakes[one].append(task)
    spans: dict[Task, tuple[float, float]] = {}
    running: list[tuple[float, int, Task]] = []

    def start(task: Task, now: float) -> None:
        spans[task] = now, now + took[task]
        heapq.heappush(running, (now + took[task], len(spans), task))

    for task, needed in waiting.items():
        if not needed:
            start(task, 0.0)
    while running:
        now, _, ended = heapq.heappop(running)
        for task in wakes[ended]:
            waiting[task].discard(ended)
            if not waiting[task]:
                start(task, now)
    return spans | {second: spans[first] for second, first in slot.items()}


def spans_of(timeline: Timeline) -> dict[Task, tuple[float, float]]:
    return {
        (int(timeline.rank[span]), timeline.action(span)): (float(timeline.start[span]), float(timeline.end[span]))
        for span in range(len(timeline))
    }


# ---- promises ----


@some
@given(program=programs() | programs(slots=True), seed=seeds, model=models)
def test_plays_as_a_slow_clock_does(program: Program, seed: int, model: TransferModel) -> None:
    takes = seconds(program, seed)

    assert spans_of(simulate(program, takes, model)) == by_the_clock(program, takes, model)


@some
@given(program=programs(), seed=seeds, model=models)
def test_a_cause_ends_exactly_when_what_it_held_up_begins(program: Program, seed: int, model: TransferModel) -> None:
    """And it is something that was waited for; what waited for nothing begins with the step."""
    timeline = simulate(program, seconds(program, seed), model)
    waits = waits_of(program, model)
    names = [(int(timeline.rank[span]), timeline.action(span)) for span in range(len(timeline))]

    for span, cause in enumerate(timeline.cause.tolist()):
        if cause < 0:
            assert timeline.start[span] == 0
        else:
            assert timeline.end[cause] == timeline.start[span]
            assert names[cause] in waits[names[span]]


@some
@given(program=programs(), seed=seeds, model=models)
def test_the_critical_path_is_without_gaps_and_as_long_as_the_step(
    program: Program, seed: int, model: TransferModel
) -> None:
    timeline = simulate(program, seconds(program, seed), model)
    path = timeline.critical_path

    assert timeline.start[path[0]] == 0
    assert timeline.end[path[-1]] == timeline.makespan
    assert timeline.start[path[1:]].tolist() == timeline.end[path[:-1]].tolist()


@some
@given(program=programs() | programs(slots=True), seed=seeds, model=models, slower=st.floats(0, 10))
def test_slower_work_never_shortens_the_step(program: Program, seed: int, model: TransferModel, slower: float) -> None:
    takes = seconds(program, seed)
    more = takes.copy()
    more[seed % len(program)] += slower

    assert simulate(program, more, model).makespan >= simulate(program, takes, model).makespan


@some
@given(program=programs(), seed=seeds)
def test_contention_never_helps(program: Program, seed: int) -> None:
    takes = seconds(program, seed)
    latency, blocking, serial = (simulate(program, takes, model) for model in MODELS)

    assert all(other >= free for other, free in zip(blocking.end, latency.end, strict=True))
    assert all(other >= free for other, free in zip(serial.end, latency.end, strict=True))


@some
@given(program=programs(), seed=seeds, model=models)
def test_plays_the_same_every_time_and_on_any_clock(program: Program, seed: int, model: TransferModel) -> None:
    """A clock that counts in eighths gives eight times the numbers."""
    takes = seconds(program, seed)
    once, twice, fine = (simulate(program, each, model) for each in (takes, takes, 8 * takes))

    for column in ("start", "end", "cause"):
        assert getattr(once, column).tolist() == getattr(twice, column).tolist()
    assert (8 * once.end).tolist() == fine.end.tolist()


@some
@given(program=programs(), seed=seeds)
def test_models_of_transfers_agree_where_transfers_are_free(program: Program, seed: int) -> None:
    takes = seconds(program, seed)
    takes[np.isin(program.op, (Op.SEND_F, Op.SEND_B))] = 0

    latency, blocking, serial = (simulate(program, takes, model) for model in MODELS)

    assert latency.end.tolist() == blocking.end.tolist() == serial.end.tolist()


# ---- the three models on one small case ----

TWO = parse_program("""
    0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
    1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1
""")


@pytest.mark.parametrize(
    ("model", "starts"),
    [
        ("latency", {"0F0": 0, "0SEND_F0": 1, "0F1": 1, "0SEND_F1": 2, "1F0": 4, "1F1": 5, "0B0": 11, "0B1": 13}),
        (
            "sender-blocking",
            {"0F0": 0, "0SEND_F0": 1, "0F1": 4, "0SEND_F1": 5, "1F0": 4, "1F1": 8, "1B0": 9, "0B0": 14, "1B1": 14},
        ),
        ("link-serial", {"0F0": 0, "0SEND_F0": 1, "0F1": 1, "0SEND_F1": 4, "1F0": 4, "1F1": 7, "0B0": 13}),
    ],
)
def test_a_transfer_of_three_between_forwards_of_one_and_backwards_of_two(
    model: TransferModel, starts: dict[str, float]
) -> None:
    """Overlapped; holding up its sender; one at a time on the link."""
    cost = {Op.F: 1.0, Op.B: 2.0, Op.SEND_F: 3.0, Op.SEND_B: 3.0}
    takes = np.array([cost.get(Op(op), 0.0) for op in TWO.op.tolist()])

    timeline = simulate(TWO, takes, model)

    found = {str(timeline.action(span)): timeline.start[span] for span in range(len(timeline))}
    assert {name: found[name] for name in starts} == starts


def test_names_the_meshes_and_keeps_the_digest() -> None:
    takes = np.zeros(len(TWO))

    assert simulate(TWO, takes).meshes == ("rank 0", "rank 1")
    timeline = simulate(TWO, takes, meshes=("A", "B"))
    assert (timeline.meshes, timeline.digest, timeline.source) == (("A", "B"), TWO.digest, "predicted")


def test_an_optimizer_step_waits_for_the_reductions_and_these_for_all_copies() -> None:
    """Two replicas: stage 0 is reduced by both ranks, when the later of them has its gradient."""
    program = parse_program("""
        1RECV_F1 0F0 0RECV_B0 0SEND_F0 1F1 1B1 1SEND_B1 0B0 0REDUCE_GRAD 1REDUCE_GRAD STEP
        1RECV_F0 0F1 0RECV_B1 0SEND_F1 1F0 1B0 1SEND_B0 0B1 0REDUCE_GRAD 1REDUCE_GRAD STEP
    """)
    cost = {Op.F: 1.0, Op.B: 1.0, Op.REDUCE_GRAD: 5.0, Op.STEP: 0.5}
    takes = np.array([cost.get(Op(op), 0.0) for op in program.op.tolist()])
    takes[0:11] *= np.where(program.is_compute[0:11], 2, 1)  # rank 0 computes at half the speed

    spans = spans_of(simulate(program, takes))

    made = {rank: spans[rank, Action(Op.B, 0, rank)][1] for rank in (0, 1)}
    reduced = [spans[rank, Action(Op.REDUCE_GRAD, 0)] for rank in (0, 1)]
    assert made[0] > made[1]
    assert reduced == [(made[0], made[0] + 5)] * 2
    assert spans[1, Action(Op.STEP)] == (made[0] + 10, made[0] + 10.5)


def test_a_program_of_computations_alone_plays_with_free_transfers() -> None:
    program = parse_program("0F0 0B0\n1F0 1B0")

    assert simulate(program, np.ones(len(program))).makespan == 4


def test_long_programs_play_without_a_recursion_or_a_quadratic_step() -> None:
    assert makespan("1f1b", 16, 512) == (512 + 15) * 3


def test_costs_can_change_without_a_new_graph() -> None:
    program = replace(TWO)
    simulate(program, np.ones(len(program)))
    graph = program.graph

    simulate(program, np.full(len(program), 2.0))

    assert program.graph is graph
