"""Tensors that skip stages are sent once, directly to the consuming mesh, and their gradients return the same way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwave.engine.costs import estimate, layers_per_stage
from meshwave.engine.document import Design
from meshwave.engine.document.model import nested_skips
from meshwave.engine.findings import Problem
from meshwave.engine.lowering.lower import lower
from meshwave.engine.lowering.transfers import add_transfers, skips_by_stages, stage_skips
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program, format_program, parse_program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.program.verification import verify
from meshwave.engine.schedules import schedules
from tests._strategies import GPT, Drawn, compute_programs, examples, pipelines, skips_between
from tests.engine.program.walk import left_over, other_end

some = settings(max_examples=examples(12), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
few = settings(max_examples=examples(30), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
SENDS = (Op.SEND_F, Op.SEND_B)


def split(draw: st.DataObject, stages: int) -> tuple[int, ...]:
    """Draw the number of layers of each stage."""
    return tuple(draw.draw(st.lists(st.integers(1, 4), min_size=stages, max_size=stages)))


def u_transformer(pipeline: Drawn, layers: tuple[int, ...] | None = None, **sections: Any) -> Design:
    stages = pipeline.design().stages
    layers = layers or (2,) * stages
    model = {**GPT, "kind": "u-transformer", "layers": sum(layers), "vocab": 257}
    with_layers = Drawn({**pipeline.pipeline, "stages": layers}, pipeline.ranks)
    return with_layers.design(model=model, **sections)


def test_three_stages_read_as_drawn() -> None:
    """Six layers, two per stage: the output of stage 0 skips stage 1, whose two blocks mirror each other."""
    program = lower(u_transformer(Drawn({"schedule": "1f1b", "microbatches": 2}, 3)))

    assert program.skips.tolist() == [[0, 2, 2]]
    assert format_program(program) == [
        "0RECV_B0 0RECV_B0FROM2 0F0 0RECV_B1 0RECV_B1FROM2 0SEND_F0 0SEND_F0TO2 0F1 0SEND_F1 0SEND_F1TO2 0B0 0B1 STEP".split(),
        "1RECV_F0 1RECV_F1 1RECV_B0 1F0 1RECV_B1 1SEND_F0 1F1 1SEND_F1 1B0 1SEND_B0 1B1 1SEND_B1 STEP".split(),
        "2RECV_F0FROM0 2RECV_F1FROM0 2RECV_F0 2RECV_F1 2F0 2B0 2SEND_B0 2SEND_B0TO0 2F1 2B1 2SEND_B1 2SEND_B1TO0 STEP".split(),
    ]


def test_skips_to_the_next_stage_are_part_of_its_message() -> None:
    """Two stages of two layers: no more messages than in a plain model, of three tensors instead of one."""
    pipeline = Drawn({"schedule": "1f1b", "microbatches": 2}, 2)
    program, plain = lower(u_transformer(pipeline)), lower(pipeline.design())

    assert program.skips.tolist() == [[0, 1, 2]]
    assert format_program(program) == format_program(plain)
    assert set(program.tensors[np.isin(program.op, SENDS)].tolist()) == {3}
    assert program.digest != plain.digest


def test_a_wave_has_both_ends_of_a_skip_on_one_mesh() -> None:
    program = lower(u_transformer(Drawn({"schedule": "hanayo", "waves": 1, "microbatches": 4}, 4)))

    assert program.distant_skips == [(0, 7), (1, 6), (2, 5)]
    assert (program.other < 0).all()


def test_models_without_skips_keep_their_programs() -> None:
    """Digests of programs that have been run are unchanged."""
    program = lower(Drawn({"schedule": "1f1b", "microbatches": 2}, 2).design())

    assert program.digest == "9d5f84653e2aed9c"


@pytest.mark.slow
@pytest.mark.parametrize("name", schedules)
@some
@given(data=st.data())
def test_every_schedule_sends_skips_once_and_never_deadlocks(name: str, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines(name))
    design = u_transformer(pipeline, split(data, pipeline.design().stages))

    program = lower(design)

    assert verify(program) == []
    assert left_over(program) == [[]] * program.ranks
    blocks = skips_by_stages(nested_skips(design.model.layers), layers_per_stage(design))
    assert [tuple(row) for row in program.skips.tolist()] == [(*pair, len(each)) for pair, each in blocks.items()]
    expected = Counter(
        (op, *pair, mb)
        for source, target in program.distant_skips
        for mb in range(program.microbatches)
        for op, pair in ((Op.SEND_F, (source, target)), (Op.SEND_B, (target, source)))
        if len(set(program.placement[program.replica[mb], [source, target]].tolist())) > 1
    )
    skipping = np.flatnonzero((program.other >= 0) & np.isin(program.op, SENDS))
    columns = (program.op, program.stage, program.other, program.microbatch)
    assert Counter(zip(*(column[skipping].tolist() for column in columns), strict=True)) == expected

    timeline = simulate(program, estimate(design, program).seconds)
    assert timeline.makespan > 0
    assert len(timeline) == len(program.spans)


@few
@given(data=st.data(), compute=compute_programs() | compute_programs(slots=True))
def test_sends_follow_their_slot_nearest_stage_first(data: st.DataObject, compute: Program) -> None:
    program = add_transfers(compute, data.draw(skips_between(compute.stages)))

    assert verify(program) == []
    assert format_program(program, compute_only=True) == format_program(compute)
    for rank in range(program.ranks):
        order = program.actions(rank)
        for before, after in zip(order, order[1:], strict=False):
            if before.op in SENDS and after[:3] == before[:3]:
                assert after.other >= 0, "what goes to the next stage is sent before what skips it"
                assert before.other < 0 or abs(before.other - before.stage) < abs(after.other - after.stage)


@few
@given(data=st.data(), compute=compute_programs())
def test_both_ends_name_each_other(data: st.DataObject, compute: Program) -> None:
    program = add_transfers(compute, data.draw(skips_between(compute.stages)))

    ends = {(rank, action) for rank in range(program.ranks) for action in program.actions(rank)}
    for row in np.flatnonzero(np.isin(program.op, SENDS)).tolist():
        assert (int(program.peer[row]), other_end(program.row(row))) in ends
    assert sorted(program.tensors[np.isin(program.op, SENDS)]) == sorted(
        program.tensors[np.isin(program.op, (Op.RECV_F, Op.RECV_B))]
    )


@given(layers=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_every_skip_stays_within_a_stage_or_is_between_two(layers: list[int]) -> None:
    skips = nested_skips(sum(layers))
    found = skips_by_stages(skips, layers)

    ends = np.cumsum(layers)
    apart = [
        pair for pair in skips if np.searchsorted(ends, pair[0], "right") != np.searchsorted(ends, pair[1], "right")
    ]
    assert sorted(skip for blocks in found.values() for skip in blocks) == apart
    assert all(source < target for source, target in found)


def test_only_a_u_transformer_has_skips() -> None:
    design = Drawn({"schedule": "1f1b", "microbatches": 2}, 2).design()
    assert stage_skips(design) == ()
    assert [nested_skips(layers) for layers in (1, 2, 5)] == [(), ((0, 1),), ((0, 4), (1, 3))]


# ---- verification ----

SOUND = """
    0RECV_B0 0RECV_B0FROM2 0F0 0SEND_F0 0SEND_F0TO2 0B0
    1RECV_F0 1RECV_B0 1F0 1SEND_F0 1B0 1SEND_B0
    2RECV_F0FROM0 2RECV_F0 2F0 2B0 2SEND_B0 2SEND_B0TO0
"""


FROM_FIRST_TO_LAST = np.array([[0, 2, 1]], np.int32)


def test_a_program_with_a_skip_is_valid() -> None:
    assert verify(parse_program(SOUND)) == []


@pytest.mark.parametrize(
    ("was", "now", "code", "params"),
    [
        (
            "0SEND_F0TO2 ",
            "",
            "missing_send",
            {"action": "2RECV_F0FROM0", "send": "0SEND_F0TO2"},
        ),
        (
            "2RECV_F0FROM0 ",
            "",
            "missing_receive",
            {"action": "0SEND_F0TO2", "receive": "2RECV_F0FROM0"},
        ),
        (
            "2B0 2SEND_B0 2SEND_B0TO0",
            "2SEND_B0TO0 2B0 2SEND_B0",
            "early_send",
            {"rank": 2, "action": "2SEND_B0TO0", "computation": "2B0"},
        ),
        (
            "2RECV_F0FROM0 2RECV_F0 2F0",
            "2RECV_F0 2F0 2RECV_F0FROM0",
            "late_receive",
            {"rank": 2, "action": "2RECV_F0FROM0", "computation": "2F0"},
        ),
        (
            "1SEND_F0 1B0",
            "1SEND_F0 1SEND_F0TO0 1B0",
            "unknown_skip",
            {"action": "1SEND_F0TO0"},
        ),
    ],
)
def test_each_problem_of_a_skip_names_both_ends(was: str, now: str, code: str, params: dict[str, Any]) -> None:
    assert was in SOUND
    program = replace(parse_program(SOUND.replace(was, now)), skips=FROM_FIRST_TO_LAST)

    assert verify(program) == [Problem("", code, params)]


@pytest.mark.parametrize("stray", ["0SEND_F0TO9", "1SEND_B0TO2", "2SEND_F0TO0", "0RECV_B0FROM1", "1SEND_F0TO1"])
def test_a_message_along_an_unknown_skip_is_reported(stray: str) -> None:
    program = parse_program(SOUND.replace("0B0\n", f"{stray} 0B0\n", 1))

    assert verify(program) == [Problem("", "unknown_skip", {"action": stray})]


def test_a_skip_that_is_never_sent_is_reported() -> None:
    plain = add_transfers(parse_program("0F0 0B0\n1F0 1B0\n2F0 2B0"))
    found = verify(replace(plain, skips=FROM_FIRST_TO_LAST))

    assert [(each.code, each.params["action"], each.params["receive"]) for each in found] == [
        ("missing_message", "0SEND_F0TO2", "2RECV_F0FROM0"),
        ("missing_message", "2SEND_B0TO0", "0RECV_B0FROM2"),
    ]


def test_messages_of_a_pair_are_received_in_the_order_of_their_sends() -> None:
    """Messages to the next stage and skipping messages between two ranks are distinguished by their order only."""
    program = add_transfers(parse_program("0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0"), ((0, 3, 1),))
    orders = format_program(program)
    at, after = orders[1].index("1RECV_F0"), orders[1].index("3RECV_F0FROM0")
    assert verify(program) == []
    assert at < after

    orders[1][at], orders[1][after] = orders[1][after], orders[1][at]

    params = {"action": "0SEND_F0", "receive": "3RECV_F0FROM0", "rank": 0, "peer": 1}
    assert verify(parse_program(orders)) == [Problem("", "receive_order", params)]
