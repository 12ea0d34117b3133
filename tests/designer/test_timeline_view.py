"""The messages between Python and the timeline on the page."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwave.designer.views.timeline import Pin, TimelineChart
from meshwave.designer.views.timeline_columns import CRITICAL, TICKS, Layer, pack_layers
from meshwave.engine.document import load_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.predict.questions import Inspector
from meshwave.engine.program.action import Action, Op, backward, forward, overlap
from meshwave.engine.program.program import build_program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.program.timeline import Timeline
from tests.designer.timelines import critical, memory, one_f_one_b


def unpack(data: bytes) -> dict[str, Any]:
    """Return the header, with the columns of each layer instead of their offsets."""
    length = int.from_bytes(data[:4], "little")
    header: dict[str, Any] = json.loads(data[4 : 4 + length])
    for layer in header["layers"]:
        layer["columns"] = {
            name: np.frombuffer(data, dtype, size, 4 + length + offset)
            for name, (dtype, offset, size) in layer["columns"].items()
        }
    return header


def test_an_empty_chart_sends_nothing() -> None:
    assert pack_layers([]) == b""


def test_blocks_of_a_rank_are_contiguous_and_ordered() -> None:
    timeline = one_f_one_b(3, 4)

    [layer] = unpack(pack_layers([Layer(timeline, "Open design")]))["layers"]

    columns = layer["columns"]
    first, last = columns["bounds"][1:3]
    names = [
        str(Action(Op(int(op)), int(stage), int(mb)))
        for op, stage, mb in zip(*(columns[c][first:last] for c in ("op", "stage", "microbatch")), strict=True)
    ]
    assert " ".join(names) == "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3"
    assert columns["bounds"][3] == 3 * 4 * 2
    assert columns["bounds"][-1] == len(timeline)


def test_packed_times_are_exact_to_a_part_in_a_billion() -> None:
    timeline = one_f_one_b(8, 32)

    header = unpack(pack_layers([Layer(timeline, "Open design")]))

    [layer] = header["layers"]
    ends = np.sort(layer["columns"]["end"].astype(float)) * header["horizon"] / TICKS
    np.testing.assert_allclose(ends, np.sort(timeline.end), rtol=0, atol=header["horizon"] * 1e-9)


def test_a_cause_refers_to_the_new_row_of_a_span() -> None:
    timeline = one_f_one_b(4, 6)

    columns = unpack(pack_layers([Layer(timeline, "Open design")]))["layers"][0]["columns"]

    caused = columns["cause"] >= 0
    causes = columns["cause"][caused]
    assert (columns["end"][causes] <= columns["start"][caused]).all()
    was = {str(timeline.action(span)): timeline.cause[span] for span in range(len(timeline))}
    for span in np.flatnonzero(caused)[:40]:
        action, cause = (
            Action(Op(int(columns["op"][s])), int(columns["stage"][s]), int(columns["microbatch"][s]))
            for s in (span, columns["cause"][span])
        )
        assert str(timeline.action(int(was[str(action)]))) == str(cause)


def test_unordered_spans_are_sorted() -> None:
    timeline = one_f_one_b(3, 5)
    shuffled = shuffle(timeline, np.random.default_rng(1).permutation(len(timeline)))

    there, here = (unpack(pack_layers([Layer(t, "x")]))["layers"][0]["columns"] for t in (shuffled, timeline))

    for name in ("op", "stage", "microbatch", "start", "end", "cause"):
        np.testing.assert_array_equal(there[name], here[name])


def shuffle(timeline: Timeline, order: np.ndarray) -> Timeline:
    place = np.empty(len(order) + 1, np.int64)
    place[order], place[-1] = np.arange(len(order)), -1
    columns = {
        name: getattr(timeline, name)[order] for name in ("rank", "peer", "op", "stage", "microbatch", "start", "end")
    }
    return replace(timeline, **columns, cause=place[timeline.cause[order]])


def test_the_critical_path_is_a_flag_on_the_op() -> None:
    timeline = one_f_one_b(4, 8)
    flags = critical(timeline)

    [layer] = unpack(pack_layers([Layer(timeline, "x", critical=flags)]))["layers"]

    assert layer["critical"]
    assert (layer["columns"]["op"] & CRITICAL > 0).sum() == flags.sum()


def test_memory_and_bytes_are_packed_if_they_are_known() -> None:
    timeline = one_f_one_b(3, 4)
    curves = memory(timeline)
    carried = np.where(timeline.is_transfer, 5e6, 0.0)

    known, unknown = unpack(
        pack_layers([Layer(timeline, "x", memory=curves, capacity=80e9, bytes=carried), Layer(timeline, "y")])
    )["layers"]

    columns = known["columns"]
    assert columns["memory_bounds"].tolist() == np.cumsum([0, *(len(times) for times, _ in curves)]).tolist()
    np.testing.assert_allclose(columns["memory_bytes"][: columns["memory_bounds"][1]], curves[0][1])
    assert set(columns["bytes"].tolist()) == {5e6}
    assert known["capacity"] == 80e9
    assert not {"memory_bytes", "bytes"} & set(unknown["columns"])


def test_a_measured_timeline_shares_the_lanes_of_its_own_prediction_only() -> None:
    predicted, other = one_f_one_b(4, 8), one_f_one_b(4, 9)
    measured = one_f_one_b(4, 8, source="measured", slower=0.1)

    def rows(*layers: Layer) -> list[int]:
        return [layer["row"] for layer in unpack(pack_layers(layers))["layers"]]

    over = Layer(measured, "Run 1", over=True)
    assert rows(Layer(predicted, "Open design"), over) == [0, 0]
    assert rows(Layer(other, "Pinned"), Layer(predicted, "Open design"), over) == [0, 1, 1]
    assert rows(Layer(other, "Open design"), over) == [0, 1]
    assert rows(over) == [0]


def test_all_layers_share_one_axis() -> None:
    short, long = one_f_one_b(4, 8), one_f_one_b(4, 16)

    header = unpack(pack_layers([Layer(short, "a"), Layer(long, "b")]))

    assert header["horizon"] == pytest.approx(long.makespan)
    first, second = (layer["columns"]["end"].max() / TICKS for layer in header["layers"])
    assert first == pytest.approx(short.makespan / long.makespan)
    assert second == pytest.approx(1)


def test_a_span_of_a_large_step_takes_about_twenty_bytes() -> None:
    timeline = one_f_one_b(32, 64)

    assert len(pack_layers([Layer(timeline, "x")])) / len(timeline) < 19


def test_a_step_that_takes_no_time_is_packed() -> None:
    nothing = one_f_one_b(2, 2, forward_s=0.0)

    assert unpack(pack_layers([Layer(nothing, "x")]))["layers"][0]["makespan"] == 0


def test_a_pin_names_its_action() -> None:
    heard: list[Pin | None] = []
    chart = TimelineChart(on_pin=heard.append)

    chart._handle_msg({"type": "pin", "layer": 0, "rank": 2, "op": "B", "stage": 2, "microbatch": 5})
    chart._handle_msg({"type": "pin", "layer": 1, "rank": 0, "op": "F", "stage": 0, "microbatch": 0})
    chart._handle_msg({"type": "unpin"})
    chart._handle_msg({"type": "something else"})

    assert heard == [Pin(0, 2, backward(2, 5)), Pin(1, 0, forward(0, 0)), None]


def test_a_pin_that_names_nothing_is_refused() -> None:
    chart = TimelineChart(on_pin=lambda pin: None)

    with pytest.raises(InputError, match="an invalid value of 'op'"):
        chart._handle_msg({"type": "pin", "layer": 0, "rank": 2, "op": "Q", "stage": 2, "microbatch": 5})


def test_showing_layers_sets_the_packed_data_and_the_reason() -> None:
    chart = TimelineChart()

    chart.show([Layer(one_f_one_b(2, 2), "Open design")], stale="mesh B is drawn twice")

    assert chart.packed
    assert chart.stale == "mesh B is drawn twice"


# what the page asks


def chart_and_replies(*layers: Layer) -> tuple[TimelineChart, list[dict[str, Any]]]:
    """Return a chart that shows layers, and its messages to the page."""
    chart = TimelineChart()
    chart.show(layers)
    told: list[dict[str, Any]] = []
    chart._send_msg = told.append  # type: ignore[method-assign]
    return chart, told


def ask(chart: TimelineChart, what: str, layer: int = 0, **question: Any) -> None:
    chart._handle_msg({"type": "ask", "ask": 7, "what": what, "layer": layer, **question})


def test_questions_are_answered_with_plain_data_under_their_number() -> None:
    timeline = one_f_one_b(4, 8)
    chart, told = chart_and_replies(Layer(timeline, "x"))

    ask(chart, "area", start=0, end=timeline.makespan, ranks=[0, 1])
    ask(chart, "idle", rank=0, at=7e-3)
    ask(chart, "idle", rank=0, at=0)
    ask(chart, "path")
    ask(chart, "find", text="B of stage 2")

    json.dumps(told)
    assert {(message["type"], message["ask"]) for message in told} == {("told", 7)}
    area, idle, none, path, query = (message["found"] for message in told)
    assert area["meshes"] == ("A", "B")
    assert idle["words"].startswith("mesh A waits 6 ms for 1B0 of mesh B")
    assert none is None
    assert path["bubble_ratio"] == pytest.approx(timeline.bubble_ratio)
    assert path["span_bubble_ratio"] == pytest.approx(timeline.span_bubble_ratio)
    assert not path["can_change"]
    assert query == {"ops": [int(Op.B)], "stage": 2, "microbatch": None, "rank": None}


def test_what_if_questions_need_a_prediction() -> None:
    found = predict(load_design(example("03-gpt-on-two-cores")))
    chart, told = chart_and_replies(
        Layer(found.timeline, "open", priced=(found.program, found.costs)), Layer(one_f_one_b(2, 2), "run")
    )

    ask(chart, "what_if", faster=0.1)
    ask(chart, "what_if", 1, faster=0.1)
    ask(chart, "what_if", faster=1.5)

    json.dumps(told)
    best = told[0]["found"][0]
    assert best["name"] == "stage 3"
    assert 0 < best["saved_share"] < 0.1
    assert told[1]["refused"] == "a measured timeline cannot be simulated with other costs; show the prediction"
    assert "the fraction of time saved" in told[2]["refused"]


@pytest.mark.parametrize(
    ("question", "told_words"),
    [
        ({"what": "find", "text": "stage 99"}, "there is no stage 99"),
        ({"what": "path", "layer": 5}, "no longer shown"),
    ],
)
def test_a_question_without_an_answer_is_refused_with_a_reason(question: dict[str, Any], told_words: str) -> None:
    chart, told = chart_and_replies(Layer(one_f_one_b(2, 2), "x"))

    ask(chart, **question)

    assert told_words in told[0]["refused"]


def test_unknown_questions_are_refused() -> None:
    chart, told = chart_and_replies(Layer(one_f_one_b(2, 2), "x"))

    ask(chart, "no such question")

    assert told[0]["refused"] == "the page sent an invalid value of 'what'; reload the page"


def test_an_internal_error_is_returned_as_a_refusal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chart, told = chart_and_replies(Layer(one_f_one_b(2, 2), "x"))
    monkeypatch.setattr(Inspector, "parse_query", lambda ask, text: {}["defect"])

    ask(chart, "find", text="stage 1")

    assert "internal error in Meshwave" in told[0]["refused"]
    assert "KeyError" in capsys.readouterr().err


def test_two_blocks_in_one_slot_are_marked_as_halves_of_the_lane() -> None:
    program = build_program(
        [[forward(0, 0), forward(0, 1), *overlap(forward(0, 2), backward(0, 0)), backward(0, 1), backward(0, 2)]]
    )
    timeline = simulate(program, np.ones(len(program)))

    [layer] = unpack(pack_layers([Layer(timeline, "x")]))["layers"]
    [plain] = unpack(pack_layers([Layer(one_f_one_b(2, 2), "x")]))["layers"]

    assert layer["columns"]["half"].tolist() == [0, 0, 1, 2, 0, 0]
    assert "half" not in plain["columns"]
