"""The simulator compared with a slow event-by-event reference, bit by bit."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshwave.engine.program.acknowledgements import find_messages
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program, parse_program
from meshwave.engine.program.simulation import TransferModel, simulate
from meshwave.engine.program.timeline import Timeline
from tests._strategies import programs, seconds, seeds
from tests.engine.schedules.play import makespan
from tests.engine.schedules.play import program as pipeline

MODELS: tuple[TransferModel, ...] = ("latency", "sender-blocking", "link-serial", "batched")
models = st.sampled_from(MODELS)
Task = tuple[int, Action]  # (rank, action)


# ---- the slow clock ----


def tasks_of(program: Program) -> Iterator[tuple[Task, int, int]]:
    """Return everything that takes time: (task, row, the other rank of a send)."""
    for row in range(len(program)):
        if program.op[row] not in (Op.RECV_F, Op.RECV_B):
            yield (int(program.rank[row]), program.row(row)), row, int(program.peer[row])


def waits_of(program: Program, model: TransferModel) -> dict[Task, set[Task]]:
    """Return the tasks for which each task waits, defined independently of the graph."""
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
    if model == "batched":
        hold_batches(program, waits)
    return waits


def batches_of(program: Program) -> list[set[Task]]:
    """Return the SENDs of each batch: the messages that two ranks exchange between two computations of each."""
    lines: dict[int, list[tuple[int, int]]] = defaultdict(list)  # of each rank the (first, last) row of its slots
    for row in np.flatnonzero(program.is_compute).tolist():
        line = lines[int(program.rank[row])]
        if program.fused[row]:
            line[-1] = line[-1][0], row
        else:
            line.append((row, row))
    gaps = {  # the rows of two computations that follow each other: one gap
        row: (rank, number) for rank, line in lines.items() for number, slot in enumerate(line) for row in slot
    }
    messages = find_messages(program)
    ends = {
        int(send): (gaps[int(maker)], (gaps[int(taker)][0], gaps[int(taker)][1] - 1), int(taker))
        for send, maker, taker in zip(*messages, strict=True)
    }
    found = []
    for gap, other in {tuple(sorted(end[:2])) for end in ends.values()}:
        here = {send: end for send, end in ends.items() if set(end[:2]) == {gap, other}}
        first_sent = all(
            gaps[end[2]][1] <= gaps[later[2]][1]
            for send, end in here.items()
            for after, later in ends.items()
            if after > send and program.rank[after] == program.rank[send] and later[1][0] == end[1][0]
        )
        if len({end[:2] for end in here.values()}) == 2 and first_sent:
            found.append({(int(program.rank[send]), program.row(send)) for send in here})
    return found


def hold_batches(program: Program, waits: dict[Task, set[Task]]) -> None:
    """Make all sends of a batch wait for the inputs of each, and the next computations for all sends."""
    for batch in batches_of(program):
        makers = set().union(*(waits[send] for send in batch))
        for send in batch:
            waits[send] = makers
        for needed in waits.values():
            if needed & batch:
                needed |= batch


def tensors(task: Task, program: Program, every: dict[Task, int]) -> set[Task]:
    """Return the sources of a computation's inputs: computations of the same rank, or sends to it."""
    rank, (op, stage, mb, *_) = task

    def arrival_tasks(by: int, makers: tuple[Op, ...], send: Op, to: int = -1) -> set[Task]:
        here = {(rank, Action(maker, by, mb, fused)) for maker in makers for fused in (0, 1)} & every.keys()
        message = Action(send, by, mb, 0, to)
        return here or {sent for sent, peer in every.items() if sent[1] == message and peer == rank}

    def skip_tasks(end: int, makers: tuple[Op, ...], send: Op) -> set[Task]:
        others = [pair[1 - end] for pair in program.distant_skips if pair[end] == stage]
        return set().union(*(arrival_tasks(by, makers, send, stage) for by in others))

    if op == Op.F and stage > 0:
        return arrival_tasks(stage - 1, (Op.F,), Op.SEND_F) | skip_tasks(1, (Op.F,), Op.SEND_F)
    if op in (Op.B, Op.I):
        gradient = arrival_tasks(stage + 1, (Op.B, Op.I), Op.SEND_B) if stage + 1 < program.stages else set()
        return gradient | skip_tasks(0, (Op.B, Op.I), Op.SEND_B) | {(rank, Action(Op.F, stage, mb))}
    return {(rank, Action(Op.I, stage, mb, fused)) for fused in (0, 1)} & every.keys() if op == Op.W else set()


def simulate_by_events(
    program: Program, takes: NDArray[np.float64], model: TransferModel
) -> dict[Task, tuple[float, float]]:
    """Return the timeline by a slow reference: start all tasks that can start, advance to the next end, and repeat."""
    took = {task: float(takes[row]) for task, row, _ in tasks_of(program)}
    waiting = waits_of(program, model)
    for batch in batches_of(program) if model == "batched" else ():
        took |= dict.fromkeys(batch, max(took[send] for send in batch))
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


@given(program=programs() | programs(slots=True), seed=seeds, model=models)
def test_the_simulation_equals_a_reference_clock(program: Program, seed: int, model: TransferModel) -> None:
    takes = seconds(program, seed)

    assert spans_of(simulate(program, takes, model)) == simulate_by_events(program, takes, model)


@given(program=programs(), seed=seeds, model=models)
def test_a_cause_ends_exactly_when_the_span_that_it_delayed_begins(
    program: Program, seed: int, model: TransferModel
) -> None:
    """The cause is a dependency; a span without a cause begins at the start of the step."""
    timeline = simulate(program, seconds(program, seed), model)
    waits = waits_of(program, model)
    names = [(int(timeline.rank[span]), timeline.action(span)) for span in range(len(timeline))]

    for span, cause in enumerate(timeline.cause.tolist()):
        if cause < 0:
            assert timeline.start[span] == 0
        else:
            assert timeline.end[cause] == timeline.start[span]
            assert names[cause] in waits[names[span]]


@given(program=programs(), seed=seeds, model=models)
def test_the_critical_path_is_without_gaps_and_as_long_as_the_step(
    program: Program, seed: int, model: TransferModel
) -> None:
    timeline = simulate(program, seconds(program, seed), model)
    path = timeline.critical_path

    assert timeline.start[path[0]] == 0
    assert timeline.end[path[-1]] == timeline.makespan
    assert timeline.start[path[1:]].tolist() == timeline.end[path[:-1]].tolist()


@given(program=programs() | programs(slots=True), seed=seeds, model=models, slower=st.floats(0, 10))
def test_slower_work_never_shortens_the_step(program: Program, seed: int, model: TransferModel, slower: float) -> None:
    takes = seconds(program, seed)
    more = takes.copy()
    more[seed % len(program)] += slower

    assert simulate(program, more, model).makespan >= simulate(program, takes, model).makespan


@given(program=programs(), seed=seeds)
def test_contention_never_helps(program: Program, seed: int) -> None:
    takes = seconds(program, seed)
    latency, *others = (simulate(program, takes, model) for model in (*MODELS, "half-duplex"))

    for contended in others:
        assert (contended.end >= latency.end - 1e-9).all()


@given(program=programs(), seed=seeds, model=models)
def test_the_simulation_is_deterministic_and_scales_with_the_time_unit(
    program: Program, seed: int, model: TransferModel
) -> None:
    """In units of one eighth, all times are eight times as large."""
    takes = seconds(program, seed)
    once, twice, fine = (simulate(program, each, model) for each in (takes, takes, 8 * takes))

    for column in ("start", "end", "cause"):
        assert getattr(once, column).tolist() == getattr(twice, column).tolist()
    assert (8 * once.end).tolist() == fine.end.tolist()


@given(program=programs(), seed=seeds)
def test_transfer_models_agree_if_transfers_are_free(program: Program, seed: int) -> None:
    takes = seconds(program, seed)
    takes[np.isin(program.op, (Op.SEND_F, Op.SEND_B))] = 0

    latency, blocking, serial, batched = (simulate(program, takes, model) for model in MODELS)

    assert latency.end.tolist() == blocking.end.tolist() == serial.end.tolist()
    assert latency.end[latency.is_compute].tolist() == batched.end[latency.is_compute].tolist()


# ---- the models on small cases ----

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
        ("batched", {"0F0": 0, "0SEND_F0": 1, "0F1": 1, "0SEND_F1": 2, "1F0": 4, "1F1": 5, "0B0": 11, "0B1": 13}),
    ],
)
def test_transfer_models_of_a_small_example(model: TransferModel, starts: dict[str, float]) -> None:
    """Transfers of 3, forwards of 1, backwards of 2: overlapped, blocking the sender, and sequential on the link."""
    cost = {Op.F: 1.0, Op.B: 2.0, Op.SEND_F: 3.0, Op.SEND_B: 3.0}
    takes = np.array([cost.get(Op(op), 0.0) for op in TWO.op.tolist()])

    timeline = simulate(TWO, takes, model)

    found = {str(timeline.action(span)): timeline.start[span] for span in range(len(timeline))}
    assert {name: found[name] for name in starts} == starts


STEADY = parse_program("""
    0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
    1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1
""")


def test_a_batch_starts_when_both_ranks_reach_it_and_blocks_both() -> None:
    """0SEND_F1 and 1SEND_B0 are one batch: rank 1 ends 1B0 at 7, and the batch takes as long as its longest message."""
    cost = {Op.F: 1.0, Op.B: 2.0, Op.SEND_F: 3.0, Op.SEND_B: 1.0}
    takes = np.array([cost.get(Op(op), 0.0) for op in STEADY.op.tolist()])

    spans = {str(action): span for (_, action), span in spans_of(simulate(STEADY, takes, "batched")).items()}
    alone = {str(action): span for (_, action), span in spans_of(simulate(STEADY, takes)).items()}

    assert (spans["0SEND_F1"], spans["1SEND_B0"]) == ((7, 10), (7, 10))
    assert (spans["0B0"], spans["1F1"]) == ((10, 12), (10, 11))
    assert (alone["0B0"], alone["1F1"]) == ((8, 10), (7, 8))


@pytest.mark.parametrize("ranks", [4, 6, 8, 10])
def test_chimera_exposes_as_many_transfers_as_hanayo_prints_on_half_duplex_links(ranks: int) -> None:
    """Opposite concurrent transfers of two ranks take two T_C: (3D-2) T_C instead of (3D-5)."""
    exposed = {model: exposed_transfers("chimera", ranks, model) for model in ("latency", "half-duplex", "batched")}

    assert exposed == {"latency": 3 * ranks - 5, "half-duplex": 3 * ranks - 2, "batched": 3 * ranks - 4}


@pytest.mark.parametrize(
    ("name", "options"), [("gpipe", {}), ("1f1b", {}), ("hanayo", {"waves": 1}), ("hanayo", {"waves": 2})]
)
def test_half_duplex_links_do_not_change_the_other_figures_of_hanayo(name: str, options: dict[str, int]) -> None:
    """No transfers are opposite in figures 3(a), (b), (d) and (e), whose lengths are those of the latency model."""
    assert exposed_transfers(name, 4, "half-duplex", **options) == exposed_transfers(name, 4, "latency", **options)


def exposed_transfers(name: str, ranks: int, model: TransferModel, **options: int) -> float:
    """Return the number of exposed transfers in a step of as many microbatches as ranks, with B = 2F."""
    program, transfer = pipeline(name, ranks, ranks, **options), 1 / 16
    cost = {Op.F: 1.0, Op.B: 2.0}
    takes = np.array([cost.get(Op(op), 0.0) for op in program.op.tolist()])
    free = simulate(program, takes, model).makespan
    takes[program.is_send] = transfer
    return round((simulate(program, takes, model).makespan - free) / transfer, 9)


def test_a_blocked_sender_waits_for_skipping_messages_of_zero_duration() -> None:
    """Stages 0 and 1 are on one rank, so a forward of stage 0 sends only its skip connection."""
    program = parse_program("""
        0F0 0SEND_F0TO2 0F1 0SEND_F1TO2 1F0 1SEND_F0 1F1 1SEND_F1
        2RECV_F0FROM0 2RECV_F1FROM0 2RECV_F0 2F0 2RECV_F1 2F1
    """)
    takes = np.where(program.is_compute, 1.0, 0.0)

    timeline = simulate(program, takes, "sender-blocking")

    causes = {
        str(timeline.action(span)): str(timeline.action(cause))
        for span, cause in enumerate(timeline.cause.tolist())
        if cause >= 0
    }
    assert (causes["0F1"], causes["1F0"]) == ("0SEND_F0TO2", "0SEND_F1TO2")


def test_the_timeline_has_the_mesh_names_and_the_digest() -> None:
    takes = np.zeros(len(TWO))

    assert simulate(TWO, takes).meshes == ("rank 0", "rank 1")
    timeline = simulate(TWO, takes, meshes=("A", "B"))
    assert (timeline.meshes, timeline.digest, timeline.source) == (("A", "B"), TWO.digest, "predicted")


def test_an_optimizer_step_waits_for_reductions_and_reductions_for_all_copies() -> None:
    """Two replicas: both ranks reduce stage 0 when the later of them has its gradient."""
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


def test_a_program_of_computations_only_is_simulated_with_free_transfers() -> None:
    program = parse_program("0F0 0B0\n1F0 1B0")

    assert simulate(program, np.ones(len(program))).makespan == 4


def test_long_programs_are_simulated_in_linear_time() -> None:
    assert makespan("1f1b", 16, 512) == (512 + 15) * 3


def test_costs_can_change_without_a_new_graph() -> None:
    program = replace(TWO)
    simulate(program, np.ones(len(program)))
    graph = program.graph

    simulate(program, np.full(len(program), 2.0))

    assert program.graph is graph
