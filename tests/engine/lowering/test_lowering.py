"""Lowering adds transfers and updates to a schedule's computations, without other changes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.lowering.lower import lower, lower_and_use
from meshwave.engine.lowering.transfers import LOOKAHEAD, add_transfers
from meshwave.engine.lowering.updates import add_updates
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program, format_program, parse_program
from meshwave.engine.program.program_file import from_json, to_json
from meshwave.engine.program.verification import verify
from meshwave.engine.schedules import schedules
from tests._strategies import Drawn, compute_programs, document, examples, pipelines, skips_between
from tests.engine.program.walk import inputs, other_end

few = settings(max_examples=examples(15), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def computations(order: list[Action]) -> list[Action]:
    return [action for action in order if action.op.is_compute]


# ---- transfers ----


@few
@given(compute=compute_programs())
def test_a_tensor_is_sent_if_and_only_if_its_consumer_is_on_another_rank(compute: Program) -> None:
    rank_of = {action: rank for rank in range(compute.ranks) for action in compute.actions(rank)}
    hops = [(made, taker) for taker in rank_of for made in inputs(compute, taker) if rank_of[made] != rank_of[taker]]

    program = add_transfers(compute)

    sends = [
        action
        for rank in range(program.ranks)
        for action in program.actions(rank)
        if action.op in (Op.SEND_F, Op.SEND_B)
    ]
    assert sorted(action[1:] for action in sends if action.op == Op.SEND_F) == sorted(
        made[1:] for made, _ in hops if made.op == Op.F
    )
    assert sorted(action[1:] for action in sends if action.op == Op.SEND_B) == sorted(
        made[1:] for made, _ in hops if made.op != Op.F
    )


@few
@given(compute=compute_programs() | compute_programs(slots=True))
def test_computations_keep_their_order(compute: Program) -> None:
    program = add_transfers(compute)

    assert format_program(program, compute_only=True) == format_program(compute)


@few
@given(compute=compute_programs())
def test_a_send_follows_the_computation_that_produced_its_tensor(compute: Program) -> None:
    program = add_transfers(compute)

    for rank in range(program.ranks):
        made: Action | None = None
        for action in program.actions(rank):
            if action.op in (Op.SEND_F, Op.SEND_B):
                assert made is not None
                assert made[1:] == action[1:]
                assert made.op in ((Op.F,) if action.op == Op.SEND_F else (Op.B, Op.I))
            made = action if action.op.is_compute else made


@few
@given(compute=compute_programs(slots=True))
def test_the_sends_of_a_shared_slot_follow_it(compute: Program) -> None:
    program = add_updates(add_transfers(compute), (2,) * compute.ranks)

    assert verify(program) == []
    for rank in range(program.ranks):
        order = program.actions(rank)
        for at, action in enumerate(order):
            if action.fused:
                first, after = order[at - 1], order[at + 1 : at + 3]
                assert first.op == Op.F
                sends = [send.op for send in after if send.op in (Op.SEND_F, Op.SEND_B)]
                assert sends == sorted(sends)  # the forward's first


@few
@given(compute=compute_programs())
def test_receives_are_posted_ahead_and_before_the_sends_of_the_same_gap(compute: Program) -> None:
    """Two computations before their consumer, or at the start of the rank."""
    program = add_transfers(compute)

    for rank in range(program.ranks):
        order = program.actions(rank)
        for at, action in enumerate(order):
            if action.op in (Op.RECV_F, Op.RECV_B):
                ahead = computations(order[at:])
                kinds = (Op.F,) if action.op == Op.RECV_F else (Op.B, Op.I)
                taker = next(n for n, later in enumerate(ahead) if later.op in kinds and later[1:] == action[1:])
                assert taker >= LOOKAHEAD or len(ahead) == len(computations(order))
                assert at == 0 or order[at - 1].op not in (Op.SEND_F, Op.SEND_B)


@few
@given(compute=compute_programs())
def test_no_receive_is_posted_earlier_than_required(compute: Program) -> None:
    """Each is two computations before its own consumer, or before that of a later message from the same sender."""
    program = add_transfers(compute)

    for rank in range(program.ranks):
        order, rows = program.actions(rank), program.rows(rank)
        peers = program.peer[rows].tolist()
        for at, action in enumerate(order):
            if action.op in (Op.RECV_F, Op.RECV_B):
                later = [
                    order[n]
                    for n in range(at, len(order))
                    if order[n].op in (Op.RECV_F, Op.RECV_B) and peers[n] == peers[at]
                ]
                ahead = computations(order[at:])
                takers = [n for n, made in enumerate(ahead) for recv in later if consumes(made, recv)]
                assert min(takers) <= LOOKAHEAD


def consumes(made: Action, recv: Action) -> bool:
    return made[1:] == recv[1:] and made.op in ((Op.F,) if recv.op == Op.RECV_F else (Op.B, Op.I))


def test_adjacent_stages_on_one_rank_need_no_message() -> None:
    assert format_program(add_transfers(parse_program("0F0 1F0 1B0 0B0"))) == [["0F0", "1F0", "1B0", "0B0"]]


def test_the_two_ends_of_a_message_name_each_other() -> None:
    program = add_transfers(parse_program("0F0 0B0\n1F0 1B0"))

    assert format_program(program) == [
        ["0RECV_B0", "0F0", "0SEND_F0", "0B0"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0"],
    ]
    assert program.peer.tolist() == [1, -1, 1, -1, 0, -1, -1, 0]
    assert other_end(Action(Op.SEND_F, 0, 0)) in program.actions(1)


# ---- updates ----


@pytest.mark.parametrize("name", schedules)
@few
@given(data=st.data(), dp=st.integers(1, 3))
def test_a_stage_with_copies_is_reduced_once_on_every_rank_that_holds_it(
    name: str, data: st.DataObject, dp: int
) -> None:
    program = lower(data.draw(pipelines(name)).design(dp))

    for rank in range(program.ranks):
        order = program.actions(rank)
        reduced = [action.stage for action in order if action.op == Op.REDUCE_GRAD]
        has_copies = dp > 1 or program.replicas > 1
        assert sorted(reduced) == (program.stages_of(rank) if has_copies else [])
        for stage in reduced:
            after = order[order.index(Action(Op.REDUCE_GRAD, stage)) :]
            assert not any(action.stage == stage for action in computations(after)), "its gradient is complete"
        assert [action.op for action in order].index(Op.STEP) == len(order) - 1


@pytest.mark.slow
@pytest.mark.parametrize("name", schedules)
@few
@given(data=st.data(), buckets=st.lists(st.integers(1, 4), min_size=40, max_size=40))
def test_buckets_of_a_stage_are_reduced_in_order_where_the_whole_stage_is(
    name: str, data: st.DataObject, buckets: list[int]
) -> None:
    whole = lower(data.draw(pipelines(name)).design(dp=2))
    rows = whole.op < Op.REDUCE_GRAD
    offsets = np.concatenate(([0], np.cumsum(np.bincount(whole.rank[rows], minlength=whole.ranks))))
    columns = {each: getattr(whole, each)[rows] for each in ("op", "stage", "microbatch", "peer", "fused", "other")}
    counts = [buckets[stage % len(buckets)] for stage in range(whole.stages)]

    program = add_updates(replace(whole, offsets=offsets, **columns), (2,) * whole.ranks, counts)

    assert verify(program) == []
    assert from_json(to_json(program)) == program
    for rank in range(program.ranks):
        expected = [
            action._replace(microbatch=bucket)
            for action in whole.actions(rank)
            for bucket in (range(counts[action.stage]) if action.op == Op.REDUCE_GRAD else [action.microbatch])
        ]
        assert program.actions(rank) == expected


@few
@given(compute=compute_programs())
def test_ranks_that_reduce_together_do_so_in_one_order(compute: Program) -> None:
    program = lower(custom(compute).design())

    for rank in range(program.ranks):
        reduced = [action.stage for action in program.actions(rank) if action.op == Op.REDUCE_GRAD]
        assert reduced == sorted(reduced)


def custom(program: Program) -> Drawn:
    orders = format_program(program, compute_only=True)
    return Drawn({"schedule": "custom", "microbatches": program.microbatches, "actions": orders}, program.ranks)


def test_a_reduction_starts_when_its_gradient_is_complete_and_pending_sends_are_issued() -> None:
    """It overlaps the remaining stages."""
    program = lower(Drawn({"schedule": "hanayo", "microbatches": 1}, 2).design(dp=2))

    assert format_program(program)[1] == [
        "1RECV_F0", "2RECV_B0", "1F0", "2F0", "2SEND_F0",
        "2B0", "2REDUCE_GRAD", "1B0", "1SEND_B0", "1REDUCE_GRAD", "STEP",
    ]  # fmt: skip


# ---- placement ----


@few
@given(data=st.data())
def test_a_placement_only_renames_ranks(data: st.DataObject) -> None:
    """Receives between the same two computations may be reordered."""
    drawn = data.draw(st.sampled_from(["1f1b", "hanayo", "interleaved-1f1b"]).flatmap(pipelines))
    mesh_of = data.draw(st.permutations(range(drawn.ranks)))
    own = lower(drawn.design())
    placement = [mesh_of[rank] for rank in own.placement[0].tolist()]

    program = lower(Drawn({**drawn.pipeline, "placement": placement}, drawn.ranks).design())

    assert program.placement.tolist() == [placement]
    for rank in range(drawn.ranks):
        assert gaps(program.actions(mesh_of[rank])) == gaps(own.actions(rank))


def gaps(order: list[Action]) -> list[Action | frozenset[Action]]:
    """Return an order in which receives that are posted together form one group."""
    posts = groupby(order, key=lambda action: action.op in (Op.RECV_F, Op.RECV_B))
    return [each for received, group in posts for each in ([frozenset(group)] if received else group)]


@few
@given(data=st.data())
def test_a_placement_that_changes_the_schedule_is_refused(data: st.DataObject) -> None:
    drawn = data.draw(pipelines("hanayo", ranks=4))
    own = lower(drawn.design()).placement[0].tolist()
    placement = data.draw(st.lists(st.integers(0, drawn.ranks - 1), min_size=len(own), max_size=len(own)))
    assume(len(set(zip(own, placement, strict=True))) > drawn.ranks)

    with pytest.raises(DesignError, match="hanayo supports only the placement") as refused:
        Drawn({**drawn.pipeline, "placement": placement}, drawn.ranks).design()

    assert refused.value.problems[0].where == "pipeline.placement"


# ---- what is refused ----


@pytest.mark.parametrize(
    ("actions", "where", "message"),
    [
        (
            [["0F0", "0F1", "0B0"]],
            "[0]",
            "0B1 is missing; every stage runs every microbatch forward and backward",
        ),
        (
            [["0B0", "0F0", "0F1", "0B1"]],
            "[0][0]",
            "deadlock: mesh m0 waits at 0B0, which needs 0F0; mesh m0 runs 0F0 only after 0B0. Move 0B0 after 0F0",
        ),
        (
            [["0F0", "0F1", "0B0", "0B1"], ["1F1", "1B1", "1B0", "1F0"]],
            "[1][2]",
            "deadlock: mesh m1 waits at 1B0, which needs 1F0; mesh m1 runs 1F0 only after 1B0. Move 1B0 after 1F0",
        ),
        (
            [["0F0", "0B0", "0F1", "0B1"], []],
            "[1]",
            "mesh m1 computes nothing; give it actions such as 0F0 0B0, or remove its mesh",
        ),
        (
            [["0F0", "0B0", "0F1", "0B1", "0F1"], ["1F0", "1B0", "1F1", "1B1"]],
            "[0][4]",
            "0F1 occurs 2 times; keep one",
        ),
        (
            [["0F0", "0B0", "0F1", "0B1"], ["0F1", "1F0", "1B0", "1F1", "1B1"]],
            "[1][0]",
            "0F1 occurs 2 times (meshes m0 and m1); keep one",
        ),
        (
            [["0F0", "(0F1;0B0)OVERLAP_F_B"], ["1F0", "1B0", "1F1", "1B1"]],
            "[0]",
            "0B1 is missing; every stage runs every microbatch forward and backward",
        ),
        (
            [["0F0", "0F1", "0B0"], ["0B1", "1F0", "1B0", "1F1", "1B1"]],
            "[0][1]",
            "0F1 is on mesh m0, but mesh m1 holds stage 0 of microbatch 1; "
            "a stage runs forward and backward of a microbatch on one rank",
        ),
        ([[], []], "", "the program has no computations; give every mesh its actions, such as 0F0 0B0"),
    ],
)
def test_an_order_that_cannot_run_is_refused_at_its_cell_with_names_of_meshes(
    actions: list[list[str]], where: str, message: str
) -> None:
    drawn = Drawn({"schedule": "custom", "microbatches": 2, "actions": actions}, len(actions))

    with pytest.raises(DesignError) as refused:
        lower(drawn.design())

    found = [(problem.where, problem.message) for problem in refused.value.problems]
    assert found[0] == (f"pipeline.actions{where}", message)


def test_problems_of_an_order_are_reported_instead_of_errors_of_code_that_uses_it_meanwhile() -> None:
    def refuse(program: Program) -> None:
        raise Refusal("not_computed")

    for order, error in ((["0F0", "0B0"], Refusal), (["0B0", "0F0"], DesignError)):
        drawn = Drawn({"schedule": "custom", "microbatches": 1, "actions": [order]}, 1)
        with pytest.raises(error):
            lower_and_use(drawn.design(), refuse)


def test_the_number_of_devices_in_a_mesh_does_not_change_the_order() -> None:
    pipeline = document({"schedule": "1f1b", "microbatches": 4}, 3)["pipeline"]
    one, two = (lower(Drawn(pipeline, 3).design(dp)) for dp in (1, 2))

    assert format_program(one, compute_only=True) == format_program(two, compute_only=True)


# ---- batches ----


@few
@given(compute=compute_programs(slots=True) | compute_programs(), data=st.data())
def test_a_batch_receives_and_sends_between_the_same_two_computations_of_both_ranks(
    compute: Program, data: st.DataObject
) -> None:
    program = add_transfers(compute, data.draw(skips_between(compute.stages)), batched=True)

    assert verify(program) == []
    gap = np.cumsum(program.is_compute & ~program.fused)
    rows = {(int(program.rank[row]), program.row(row)): row for row in range(len(program))}
    places: dict[int, list[set[tuple[int, int]]]] = defaultdict(list)
    for send in np.flatnonzero(program.batch >= 0).tolist():
        receive = rows[int(program.peer[send]), other_end(program.row(send))]
        ends = {(int(program.rank[row]), int(gap[row])) for row in (send, receive)}
        places[int(program.batch[send])].append(ends)
    for ends in places.values():
        assert len(ends) >= 2, "one message each way at least"
        assert all(each == ends[0] and len(each) == 2 for each in ends)


def test_a_steady_state_of_1f1b_is_batched() -> None:
    compute = parse_program("0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2")

    program = add_transfers(compute, batched=True)

    assert format_program(program) == [
        "0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0B0 0F2 0RECV_B1 0RECV_B2 0SEND_F2 0B1 0B2".split(),
        "1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1RECV_F2 1SEND_B1 1F2 1B2 1SEND_B2".split(),
    ]
    batches = [{str(program.row(row)) for row in np.flatnonzero(program.batch == number)} for number in (0, 1)]
    assert batches == [{"0SEND_F1", "1SEND_B0"}, {"0SEND_F2", "1SEND_B1"}]
    assert from_json(to_json(program)) == program != add_transfers(compute)
