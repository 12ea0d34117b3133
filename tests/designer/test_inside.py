"""The inside of a block as the chart is given it: every step has a name, a colour and its words."""

from __future__ import annotations

import json

import pytest

from designer.app import _of_pin
from designer.session import Session
from designer.views.layers import KINDS, inside_of
from designer.views.timeline import Pin, TimelineChart, pack
from engine.design import parse_design
from engine.errors import InputError
from engine.program.action import Action, Op
from tests.designer.test_experts import design


def session() -> Session:
    document = design(dp=2, tp=2, ep=2, esp=2, schedule="parm-s2", degree=2).model_dump(mode="json")
    return Session(parse_design({**document, "cost": {"kind": "roofline"}}))


def test_a_step_is_named_by_its_kind_its_lane_and_its_place_there() -> None:
    layer, crumbs = inside_of(session().prediction, 0, Action(Op.F, 0, 1))

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


def test_what_travels_holds_the_words_and_the_way() -> None:
    layer, crumbs = inside_of(session().prediction, 0, Action(Op.B, 0, 0))

    packed = pack([layer], crumbs)

    size = int.from_bytes(packed[:4], "little")
    header = json.loads(packed[4 : 4 + size])
    assert header["crumbs"] == ["iteration", "0B0 on mesh A"]
    inner = header["layers"][0]
    assert inner["labels"] == list(layer.steps.labels)  # type: ignore[union-attr]
    assert inner["kinds"]["B"] == "dispatch"
    assert {"text", "carried"} <= set(inner["columns"])
    assert not inner["opens"]


def test_why_a_block_cannot_be_opened_is_said_on_the_page() -> None:
    def refuse(pin: Pin | None) -> None:
        raise InputError("units say nothing of it")

    told: list[dict[str, object]] = []
    chart = TimelineChart(on_open=refuse)
    chart._send_msg = told.append  # type: ignore[method-assign, assignment]
    chart._handle_msg({"type": "open", "layer": 0, "rank": 0, "op": "F", "stage": 0, "microbatch": 0})

    assert told == [{"type": "not-opened", "words": "units say nothing of it"}]


def test_a_block_is_looked_for_where_it_was_pinned() -> None:
    opened = session()
    pin = Pin(0, 0, Action(Op.F, 0, 0))
    assert _of_pin(opened, pin) is opened.prediction
    with pytest.raises(InputError, match="there is no 7F0 on this mesh any more"):
        _of_pin(opened, Pin(0, 0, Action(Op.F, 7, 0)))
    with pytest.raises(InputError, match="no longer shown"):
        _of_pin(opened, Pin(3, 0, Action(Op.F, 0, 0)))
