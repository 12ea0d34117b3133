"""Expert loads measured by runs, with run folders written by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwave.designer.canvases.experts import ExpertsCanvas
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.measured_load import MeasuredLoads
from meshwave.engine.document import Design, load_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Record, State, write_bundle
from meshwave.engine.runs.recording import write_routing
from meshwave.engine.runs.run_folder import RunSpec


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    record = Record(tmp_path)
    yield record
    record.close()


@pytest.fixture
def session() -> Session:
    return Session(load_design(example("17-experts-on-two-cores")))


Ran = Callable[..., str]


@pytest.fixture
def write_finished_run(record: Record, session: Session) -> Ran:
    """Write a finished run as its launcher and its two logging processes would have."""

    def write_finished_run(design: Design | None = None, state: State = State.SUCCEEDED, **counts: list[float]) -> str:
        made = predict(design or session.design)
        entry, _ = record.submit(
            name="run", launcher="local", handle={}, digest=made.program.digest, processes=4, steps=3, limit=9
        )
        folder = write_bundle(RunSpec(made, made.design), record.folder(entry.id)).folder
        record.change_state(entry.id, State.RUNNING)
        (folder / "metrics.jsonl").write_text('{"step": 2, "seconds": 1, "tokens_per_s": 1}\n')
        write_routing(folder, 0, {int(layer.removeprefix("layer")): each for layer, each in counts.items()})
        if state is not State.RUNNING:
            record.change_state(entry.id, state)
        return entry.id

    return write_finished_run


def canvas(session: Session, record: Record) -> tuple[ExpertsCanvas, list[dict[str, Any]]]:
    made = ExpertsCanvas(session.edit, find_loads=MeasuredLoads(record).find_loads)
    told: list[dict[str, Any]] = []
    made._send_msg = told.append  # type: ignore[method-assign, assignment]
    session.param.watch(lambda *_: made.show(session.design), "design")
    made.show(session.design)
    return made, told


def load_setting(made: ExpertsCanvas) -> dict[str, Any]:
    return next(control for control in made.picture["controls"] if control["key"] == "load")


HOT = [5.0, 1, 1, 1, 0, 0, 0, 0]
EVEN = [1.0] * 8


def test_a_measured_load_is_applied_as_one_undo_step(session: Session, record: Record, write_finished_run: Ran) -> None:
    run = write_finished_run(layer1=HOT, layer3=EVEN)
    made, told = canvas(session, record)
    assert [option["value"] for option in load_setting(made)["options"]] == ["uniform", "zipf", run]

    made._handle_msg({"type": "setting", "key": "load", "value": run})

    assert told[-1]["refused"] is None
    assert session.design.experts.load == (3.0, 1, 1, 1, 0.5, 0.5, 0.5, 0.5)  # the mean over both layers
    assert session.history[0].startswith("set the expert load to measured ")
    assert load_setting(made)["value"] == run
    assert load_setting(made)["text"].endswith(", 3 steps")
    assert next(figure for figure in made.picture["figures"] if figure["key"] == "load")["value"] == "2×"
    session.undo()
    assert session.design.experts.load is None
    assert load_setting(made)["value"] == "uniform"


def test_a_missing_measured_load_is_reported(session: Session, record: Record, write_finished_run: Ran) -> None:
    write_finished_run()  # its processes wrote none
    made, told = canvas(session, record)
    assert load_setting(made)["options"][-1]["text"] == "measured (no run yet)"

    made._handle_msg({"type": "setting", "key": "load", "value": load_setting(made)["options"][-1]["value"]})

    assert told[-1]["refused"].startswith("no completed run has measured the routing of this model")
    assert session.history[0] == ""


def test_only_loads_of_completed_runs_of_this_model_are_offered(
    session: Session, record: Record, write_finished_run: Ran
) -> None:
    larger = session.design.model.model_copy(update={"hidden": 64})
    write_finished_run(session.design.model_copy(update={"model": larger}), layer1=HOT)
    other_tokens = session.design.training.model_copy(update={"tokenizer": "tokenizer.json"})
    write_finished_run(session.design.model_copy(update={"training": other_tokens}), layer1=HOT)
    moved = session.design.experts.model_copy(update={"ep": 2})
    first = write_finished_run(session.design.model_copy(update={"experts": moved}), layer1=HOT)
    live = write_finished_run(state=State.RUNNING, layer1=EVEN)
    made, _ = canvas(session, record)
    known = MeasuredLoads(record)
    assert [routed.run for routed in known.find_loads(session.design)] == [first]

    record.change_state(live, State.CANCELLED)
    made.refresh_loads()

    assert [option["value"] for option in load_setting(made)["options"][2:]] == [live, first]


def test_a_manual_load_is_kept(session: Session, record: Record, write_finished_run: Ran) -> None:
    write_finished_run(layer1=HOT)
    session.edit("experts.load", [2.0, *EVEN[1:]], "by hand")
    made, told = canvas(session, record)

    made._handle_msg({"type": "setting", "key": "load", "value": load_setting(made)["value"]})

    assert told[-1]["refused"] is None
    assert load_setting(made)["text"] == "custom"
    assert session.history[0] == "by hand"
