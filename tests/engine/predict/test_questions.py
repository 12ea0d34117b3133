"""Questions about a timeline: sums are consistent, reasons are correct, and answers agree with a new simulation."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs import Costs
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import example, examples
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.predict.questions import (
    Change,
    Inspector,
    Query,
    changed_makespan,
    parse_query,
    rank_changes,
    stage_flops,
)
from meshwave.engine.program.action import Op, backward, forward, overlap
from meshwave.engine.program.program import Program, build_program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.program.timeline import Timeline

NAMES = (*examples(), "dualpipe", "zb-v", "chimera")


@cache
def prediction(name: str) -> Prediction:
    """Return the prediction of an example, or of a schedule with shared slots, split backwards or replicas."""
    if name in examples():
        return predict(load_design(example(name)))
    document = load_design(example("02-two-waves")).model_dump(mode="json")
    return predict(parse_design({**document, "pipeline": {"schedule": name, "microbatches": 16}}))


def inspector(of: Prediction) -> Inspector:
    return Inspector(of.timeline, of.costs.bytes[of.program.spans], of.costs.unit)


def play(program: Program, seconds: Any, transfer: float = 0.0, **options: Any) -> Timeline:
    """Simulate a program whose computations take ``seconds`` by op, and whose transfers all take the same time."""
    taken = np.array([seconds.get(Op(op), transfer if Op(op).name.startswith("SEND") else 0.0) for op in program.op])
    return simulate(program, taken, meshes=tuple("ABCDEFGH"[: program.ranks]), **options)


def two_stages(microbatches: int = 1) -> Program:
    """Return GPipe on two ranks with its messages."""
    from meshwave.engine.lowering.transfers import add_transfers

    down = [[forward(rank, mb) for mb in range(microbatches)] for rank in range(2)]
    up = [[backward(rank, mb) for mb in range(microbatches)] for rank in range(2)]
    return add_transfers(build_program([f + b for f, b in zip(down, up, strict=True)]))


# areas


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_area_of_the_whole_step_has_the_figures_of_the_timeline(name: str) -> None:
    timeline = prediction(name).timeline

    area = inspector(prediction(name)).summarize_area(0, timeline.makespan)

    assert area.busy_s == pytest.approx(timeline.busy.sum())
    assert area.idle_share == pytest.approx(timeline.bubble_ratio)
    assert area.link_s == pytest.approx(timeline.exposed_communication.sum())
    assert sum(area.by_kind_s.values()) == pytest.approx(area.busy_s)
    assert area.link_s + area.fill_s + area.drain_s + area.waits_s == pytest.approx(area.idle_s)
    assert area.critical_share == pytest.approx(1)
    assert area.transfers == timeline.is_transfer.sum()
    assert [mesh.mesh for mesh in area.by_mesh] == list(timeline.meshes)


@given(
    name=st.sampled_from(NAMES),
    cuts=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    which=st.sets(st.integers(0, 3), min_size=1),
)
def test_adjacent_areas_add_up(name: str, cuts: list[float], which: set[int]) -> None:
    timeline, ask = prediction(name).timeline, inspector(prediction(name))
    ranks = [rank for rank in sorted(which) if rank < timeline.ranks] or [0]
    first, middle, last = (cut * timeline.makespan for cut in sorted(cuts))

    whole, left, right = (ask.summarize_area(a, b, ranks) for a, b in ((first, last), (first, middle), (middle, last)))

    for field in (
        "available_s",
        "busy_s",
        "idle_s",
        "link_s",
        "fill_s",
        "drain_s",
        "transfers_s",
        "reductions_s",
        "critical_s",
    ):
        assert getattr(left, field) + getattr(right, field) == pytest.approx(getattr(whole, field), abs=1e-12), field
    assert whole.busy_s + whole.idle_s == pytest.approx(whole.available_s)


def test_an_area_is_clipped_to_the_step_and_its_ends_may_be_swapped() -> None:
    timeline, ask = prediction("02-two-waves").timeline, inspector(prediction("02-two-waves"))

    assert ask.summarize_area(2 * timeline.makespan, -1) == ask.summarize_area(0, timeline.makespan)
    nothing = ask.summarize_area(2 * timeline.makespan, 3 * timeline.makespan)
    assert (nothing.seconds, nothing.available_s, nothing.idle_share, nothing.critical_share) == (0, 0, 0, 0)


def test_a_small_area_has_times_by_kind_and_reason() -> None:
    timeline = play(two_stages(), {Op.F: 1, Op.B: 2}, transfer=0.5)  # A 0-1 F, 6.0-8.0 B; B 1.5-2.5 F, 2.5-4.5 B

    area = Inspector(timeline).summarize_area(0, 7)

    assert timeline.makespan == 7
    assert area.by_kind_s == {"F": 2, "B": 4}
    assert area.blocks == {"F": 2, "B": 2}
    assert area.idle_s == pytest.approx(8)
    assert area.link_s == pytest.approx(1)  # half a second each way
    assert area.fill_s == pytest.approx(1)  # B before its first, less the transfer
    assert area.drain_s == pytest.approx(2.5)
    assert area.waits_s == pytest.approx(3.5)  # A while B computes
    assert [round(mesh.idle_s, 9) for mesh in area.by_mesh] == [4, 4]


def test_actions_of_a_shared_slot_count_half_each() -> None:
    program = build_program(
        [[forward(0, 0), forward(0, 1), *overlap(forward(0, 2), backward(0, 0)), backward(0, 1), backward(0, 2)]]
    )
    timeline = play(program, {Op.F: 1, Op.B: 2})

    area = Inspector(timeline).summarize_area(0, timeline.makespan)

    assert area.busy_s == timeline.makespan == 9
    assert area.by_kind_s == {"F": 3.5, "B": 5.5}  # of the slot of 3 s each has half
    assert area.idle_s == 0
    assert Inspector(timeline).path.summary == "100% compute"
    assert Inspector(timeline).explain_idle(0, 2.5) is None


# the critical path


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_the_critical_path_add_up_to_the_step(name: str) -> None:
    path = inspector(prediction(name)).path

    assert sum(path.seconds_by_category.values()) == pytest.approx(path.makespan_s)
    assert sum(path.seconds_by_kind.values()) + path.seconds_by_category["waiting"] == pytest.approx(path.makespan_s)
    assert sum(path.seconds_by_stage.values()) == pytest.approx(path.seconds_by_category["compute"])
    assert path.seconds_by_category["waiting"] == pytest.approx(0)  # a prediction does everything as early as it can


def test_the_critical_path_is_summarized_as_text() -> None:
    timeline = play(two_stages(), {Op.F: 1, Op.B: 2}, transfer=0.5)
    late = np.where(timeline.rank == 1, 1.0, 0.0) * timeline.is_compute  # B begins a second after its input came
    measured = replace(timeline, source="measured", start=timeline.start + late, end=timeline.end + late)

    assert Inspector(timeline).path.summary == "85.7% compute, 14.3% transfer"
    assert (
        Inspector(measured).path.summary == "78.6% compute, 14.3% waiting, 7.1% transfer"
    )  # it hides half of the way back
    assert Inspector(timeline).path.seconds_by_stage == {0: 3, 1: 3}


# what if


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_if_is_a_simulation_with_changed_costs(name: str) -> None:
    found = prediction(name)
    path = inspector(found).path

    for answer in rank_changes(found.program, found.costs, path, faster=0.2):
        rows = answer.change.rows(found.program)
        factors = np.where(rows, 0.8, 1.0)
        scaled = found.costs.scale_latencies(found.program, factors)
        anew = replace(scaled, seconds=factors * found.costs.seconds)
        assert answer.makespan_s == pytest.approx(anew.simulate(found.program).makespan, rel=1e-12)
        assert answer.saved_s == pytest.approx(path.makespan_s - answer.makespan_s)
        free = simulate(found.program, found.costs.seconds)  # where links are shared, less of one leaves more to others
        if np.array_equal(free.end, found.timeline.end):
            assert -1e-12 <= answer.saved_s <= 0.2 * answer.on_path_s + 1e-9 * path.makespan_s


def test_changes_off_the_critical_path_save_nothing() -> None:
    found = prediction("01-first-wave")
    slow = replace(found.costs, seconds=np.where(found.program.stage == 2, 9.0, 1.0) * (found.costs.seconds > 0))

    before = changed_makespan(found.program, slow, Change("stage", 2), faster=0.0)

    assert changed_makespan(found.program, slow, Change("stage", 2), faster=0.1) < before
    assert changed_makespan(found.program, slow, Change("reductions"), faster=0.5) == before


def test_the_best_change_comes_first_and_is_named() -> None:
    found = prediction("03-gpt-on-two-cores")

    answers = rank_changes(found.program, found.costs, inspector(found).path, most=4)

    assert len(answers) == 4
    assert answers[0].name == "stage 3"  # the head makes the last stage the longest
    assert [answer.saved_s for answer in answers] == sorted((answer.saved_s for answer in answers), reverse=True)


def test_changes_use_the_names_of_meshes() -> None:
    assert Change("mesh", 1).name(("left", "right")) == "mesh right"
    assert Change("stage", 3).name(()) == "stage 3"
    assert Change("transfers").name(()) == "transfers"


# bubbles


def test_an_idle_gap_names_the_awaited_activity() -> None:
    timeline = play(two_stages(), {Op.F: 1, Op.B: 2}, transfer=0.5)
    ask = Inspector(timeline)

    def idle_words(rank: int, at: float) -> str:
        idle = ask.explain_idle(rank, at)
        return idle.words if idle else ""

    assert idle_words(1, 0.5) == "mesh B waits 1.5 s for 0F0 of mesh A: 1 s computing, then 500 ms on the link"
    assert idle_words(0, 3.0) == (
        "mesh A waits 4 s for 1B0 of mesh B: 500 ms while mesh B itself waits for 0F0 of mesh A, "
        "1 s while mesh B computes 1F0 before it, 2 s computing, then 500 ms on the link"
    )
    assert idle_words(1, 5.5) == "mesh B is done; it waits 2.5 s for 0B0 of mesh A, which ends the step"
    assert ask.explain_idle(0, 0.5) is None  # it works
    assert ask.explain_idle(0, 99) is None  # the step is over


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_an_idle_gap_add_up_to_it(name: str) -> None:
    found = prediction(name)
    ask = inspector(found)
    for rank in range(found.timeline.ranks):
        for at in np.linspace(0, found.timeline.makespan, 37, endpoint=False):
            idle = ask.explain_idle(rank, float(at))
            if idle and idle.parts:
                assert sum(part.seconds for part in idle.parts) == pytest.approx(idle.seconds, rel=0.03)
                assert idle.words.startswith(f"mesh {found.timeline.meshes[rank]} ")
                assert idle.start_s <= at < idle.end_s


def test_an_occupied_link_is_named_as_the_reason() -> None:
    slow = play(two_stages(3), {Op.F: 1, Op.B: 1}, transfer=3.0, transfer_model="link-serial")

    reasons = {
        part.what
        for at in np.arange(0, slow.makespan, 0.5)
        if (i := Inspector(slow).explain_idle(1, at))
        for part in i.parts
    }

    assert {"computing", "link"} <= reasons
    waits = Inspector(slow).explain_idle(1, 9.5)  # the second tensor is made at 2 and leaves at 4
    assert waits is not None
    assert "on the link" in waits.words


def test_a_blocked_sender_is_named_as_the_reason() -> None:
    blocked = play(two_stages(2), {Op.F: 1, Op.B: 1}, transfer=2.0, transfer_model="sender-blocking")

    idle = Inspector(blocked).explain_idle(0, 1.5)

    assert idle is not None
    assert "sending it, which blocks the sender" in idle.words


def test_units_have_no_seconds() -> None:
    timeline = play(two_stages(), {Op.F: 1, Op.B: 2})

    idle = Inspector(timeline, unit="units").explain_idle(1, 0.5)

    assert idle is not None
    assert idle.words == "mesh B waits 1 for 0F0 of mesh A: 1 computing"


def test_an_unexplained_pause_has_no_reason() -> None:
    timeline = play(build_program([[forward(0, 0), backward(0, 0)]]), {Op.F: 1, Op.B: 1})
    late = np.array([0.0, 2.0])
    paused = replace(timeline, source="measured", start=timeline.start + late, end=timeline.end + late)

    idle = Inspector(paused).explain_idle(0, 2.0)

    assert idle is not None
    assert idle.words == "mesh A is idle for 2 s before 0B0; the cause is not known"


# search


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("3F7", Query((Op.F,), stage=3, microbatch=7)),
        ("F7", Query((Op.F,), microbatch=7)),
        ("3F", Query((Op.F,), stage=3)),
        ("b", Query((Op.B,))),
        ("B of stage 2", Query((Op.B,), stage=2)),
        ("backward of stage 2", Query((Op.B, Op.I, Op.W), stage=2)),
        ("stage 2", Query(stage=2)),
        ("stage2 microbatch 5", Query(stage=2, microbatch=5)),
        ("mb 5", Query(microbatch=5)),
        ("mesh C", Query(rank=2)),
        ("forwards on mesh long name in stage 1", Query((Op.F,), stage=1, rank=4)),
        ("transfers of mesh a", Query((Op.SEND_F, Op.SEND_B), rank=0)),
        ("2SEND_B3", Query((Op.SEND_B,), stage=2, microbatch=3)),
        ("step", Query((Op.STEP,))),
    ],
)
def test_search_queries_are_parsed(text: str, meant: Query) -> None:
    assert parse_query(text, ("A", "B", "C", "D", "long name"), 5, 9) == meant


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "search for an action such as 3F7"),
        ("stage", "the number of the stage is missing"),
        ("stage 9", "there is no stage 9; numbers range from 0 to 4"),
        ("F12", "there is no microbatch 12"),
        ("mesh Q", "there is no mesh Q; meshes are A, B, C"),
        ("forwad", "did you mean forward?"),
        ("F B", "only one kind of action"),
        ("send F", "type SEND_F"),
        ("transfer of gradients", "type SEND_B"),
        ("B send", "type SEND_B"),
        ("stage 1 stage 2", "only one stage"),
        ("xyzzy", 'unknown search term "xyzzy"'),
        ("x\0yz", 'unknown search term "x\ufffdyz"'),
    ],
)
def test_a_query_that_names_nothing_is_refused_with_a_message(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse_query(text, ("A", "B", "C"), 5, 9)


def test_a_query_selects_spans_by_microbatch_and_by_mesh() -> None:
    found = prediction("02-two-waves")
    ask = inspector(found)
    timeline = found.timeline

    hits = ask.parse_query("microbatch 1").matches(timeline)
    assert hits.any()

    assert (timeline.microbatch[hits] == 1).all()
    assert not timeline.is_transfer[hits].any()
    sent = ask.parse_query("transfers of mesh B").matches(timeline)
    assert sent.any()
    assert ((timeline.rank[sent] == 1) | (timeline.peer[sent] == 1)).all()


def test_what_if_questions_do_not_change_the_costs() -> None:
    found = prediction("02-two-waves")
    before: Costs = replace(found.costs, seconds=found.costs.seconds.copy())

    rank_changes(found.program, found.costs, inspector(found).path)

    np.testing.assert_array_equal(found.costs.seconds, before.seconds)


# what computations compute


@pytest.mark.parametrize("name", ["11-eight-by-32", "09-bert-masked", "06-data-parallel"])
def test_flops_of_all_computations_equal_those_of_the_model(name: str) -> None:
    """They agree to a few percent, because the papers' convention omits small products."""
    of = prediction(name)
    found = stage_flops(of.design, of.program, of.costs)
    assert found is not None

    devices = len(of.design.meshes[0].devices)
    step = found.flops[[Op.F, Op.B], 0].sum() * of.design.pipe.microbatches * devices
    assert step == pytest.approx(of.costs.model_flops, rel=0.05)
    assert found.flops[Op.I] + found.flops[Op.W] == pytest.approx(found.flops[Op.B])
    assert (found.placement == of.program.placement).all()


def test_recomputation_adds_a_forward() -> None:
    plain = load_design(example("11-eight-by-32")).model_dump(mode="json")
    again = parse_design({**plain, "pipeline": {**plain["pipeline"], "recompute": "full"}})
    of = predict(again)
    found = stage_flops(again, of.program, of.costs)
    assert found is not None

    assert (found.flops[Op.B] > 2.9 * found.flops[Op.F]).all()


def test_unit_costs_define_no_flops() -> None:
    of = prediction("01-first-wave")

    assert stage_flops(of.design, of.program, of.costs) is None
