"""The inside of a block as data of the chart: every step has a name, a colour and a label."""

from __future__ import annotations

import json

import numpy as np
import pytest

from meshwave.designer.pages.timeline_layers import pinned_prediction
from meshwave.designer.state.design_session import Session
from meshwave.designer.views.block_layers import KINDS, MeasuredBlock, block_layers
from meshwave.designer.views.timeline import Pin, TimelineChart
from meshwave.designer.views.timeline_columns import Layer, pack_layers
from meshwave.engine.document import parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.experts import LAYER_OPS
from meshwave.engine.predict.block_timeline import predict_block
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.predict.slot_timeline import slot_actions
from meshwave.engine.program.action import Action, Op
from meshwave.engine.runs.accuracy.measured_block import measured_block_timeline
from meshwave.engine.runs.recording import STEP, MeasuredLayerSteps
from tests.designer.test_experts import design
from tests.engine.predict.test_overlapped_slots import case


def session() -> Session:
    document = design(dp=2, tp=2, ep=2, esp=2, schedule="parm-s2", degree=2).model_dump(mode="json")
    return Session(parse_design({**document, "cost": {"kind": "roofline"}}))


def test_a_step_is_identified_by_kind_lane_and_number() -> None:
    (layer,), crumbs = block_layers(session().prediction, 0, Action(Op.F, 0, 1))

    timeline = layer.timeline
    assert crumbs == ["iteration", "0F1 on mesh A"]
    names = set(zip(timeline.op.tolist(), timeline.stage.tolist(), timeline.microbatch.tolist(), strict=True))
    assert len(names) == len(timeline)
    assert layer.steps is not None
    assert set(layer.steps.kinds) == {Op(op) for op in timeline.op.tolist()} <= set(KINDS)
    assert len(layer.steps.tones) == timeline.ranks == 12
    said = {layer.steps.labels[each].split()[0]: op for each, op in zip(layer.steps.label, timeline.op, strict=True)}
    assert (said["dispatch"], said["combine"], said["experts"], said["gate"]) == (Op.B, Op.I, Op.F, Op.STEP)
    assert layer.steps.bytes[timeline.op == Op.B].min() > 0


def test_the_packed_block_has_labels_and_a_path() -> None:
    (layer,), crumbs = block_layers(session().prediction, 0, Action(Op.B, 0, 0))

    packed = pack_layers([layer], crumbs)

    size = int.from_bytes(packed[:4], "little")
    header = json.loads(packed[4 : 4 + size])
    assert header["crumbs"] == ["iteration", "0B0 on mesh A"]
    inner = header["layers"][0]
    assert inner["labels"] == list(layer.steps.labels)  # type: ignore[union-attr]
    assert inner["kinds"]["B"] == "dispatch"
    assert {"text", "carried"} <= set(inner["columns"])
    assert not inner["opens"]


def test_a_shared_slot_shows_both_actions_with_the_name_of_the_other_one() -> None:
    prediction = case()
    action = next(each for each in prediction.program.actions(0) if each.fused)
    forward = next(each for each in slot_actions(prediction.program, 0, action) if each != action)

    (layer,), crumbs = block_layers(prediction, 0, action)

    assert crumbs == ["iteration", f"{action} on mesh m0"]
    assert layer.steps is not None
    of_other = [label.endswith(f" of {forward}") for label in layer.steps.labels]
    assert any(of_other) and not all(of_other)
    timeline = layer.timeline
    names = set(zip(timeline.op.tolist(), timeline.stage.tolist(), timeline.microbatch.tolist(), strict=True))
    assert len(names) == len(timeline)


def recorded_block(prediction: Prediction, rank: int, op: Op, slower: float) -> MeasuredBlock:
    """Return the recording of a run whose expert steps took ``factor`` times their predicted time."""
    predicted, rows = predict_block(prediction.design, rank, 0, op), []
    timeline = predicted.timeline
    for device in range(len(predicted.block)):
        mine: dict[str, tuple[int, ...]] = {}  # one that is predicted on two lanes is measured as one
        for span, (words, step) in enumerate(zip(predicted.labels, predicted.steps, strict=True)):
            if predicted.lanes[timeline.rank[span]][0] == device and step is not None:
                number, _, chunk = words.removeprefix(f"{step.value} ").partition(", chunk ")
                start, end = (int(column[span] * slower * 1e9) for column in (timeline.start, timeline.end))
                start = mine[words][-2] if words in mine else start
                mine[words] = 4, int(number), LAYER_OPS.index(step), op != Op.F, int(chunk or -1), start, end
        rows.append(np.sort(np.array(list(mine.values()), STEP), order="start_ns"))
    count, whole = len(rows), int(predicted.timeline.makespan * slower * 1e9)
    found = MeasuredLayerSteps(4, tuple(LAYER_OPS), (0,) * count, (whole,) * count, tuple(rows))
    return MeasuredBlock(measured_block_timeline(prediction.design, rank, op, found), "Measured in step 5")


def test_measured_steps_are_overlaid_on_predicted_ones() -> None:
    prediction = session().prediction

    (below, above), _ = block_layers(prediction, 0, Action(Op.F, 0, 1), recorded_block(prediction, 0, Op.F, 2.0))

    assert above.over and (above.label, above.timeline.source) == ("Measured in step 5", "measured")
    assert above.timeline.meshes == below.timeline.meshes
    assert above.timeline.makespan == pytest.approx(2 * below.timeline.makespan, rel=1e-6)
    assert below.steps is not None and above.steps is not None

    def spans_by_name(layer: Layer) -> dict[tuple[int, ...], tuple[str, float]]:
        timeline, steps = layer.timeline, layer.steps
        assert steps is not None
        names = zip(timeline.rank.tolist(), timeline.op.tolist(), timeline.microbatch.tolist(), strict=True)
        said = zip(
            (steps.labels[label] for label in steps.label), (timeline.end - timeline.start).tolist(), strict=True
        )
        return dict(zip(names, said, strict=True))

    predicted, measured = spans_by_name(below), spans_by_name(above)
    both = predicted.keys() & measured.keys()
    assert len(both) == sum(not words.startswith("dense") for words, _ in measured.values()) > 20
    for name in both:
        assert measured[name][0] == predicted[name][0]
    computed = [name for name in both if predicted[name][0].startswith("experts")]
    assert all(measured[name][1] == pytest.approx(2 * predicted[name][1], rel=1e-5) for name in computed)


def test_the_page_shows_why_a_block_cannot_be_opened() -> None:
    def refuse(pin: Pin | None) -> None:
        raise InputError("units say nothing of it")

    told: list[dict[str, object]] = []
    chart = TimelineChart(on_open=refuse)
    chart._send_msg = told.append  # type: ignore[method-assign, assignment]
    chart._handle_msg({"type": "open", "layer": 0, "rank": 0, "op": "F", "stage": 0, "microbatch": 0})

    assert told == [{"type": "not-opened", "words": "units say nothing of it"}]


def test_a_block_is_looked_up_in_the_prediction_where_it_was_pinned() -> None:
    opened = session()
    pin = Pin(0, 0, Action(Op.F, 0, 0))
    assert pinned_prediction(opened, pin) is opened.prediction
    with pytest.raises(InputError, match="this mesh no longer has 7F0"):
        pinned_prediction(opened, Pin(0, 0, Action(Op.F, 7, 0)))
    with pytest.raises(InputError, match="no longer shown"):
        pinned_prediction(opened, Pin(3, 0, Action(Op.F, 0, 0)))
