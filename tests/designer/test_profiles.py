"""Calibration profiles on the page: selection in the form, charts, and calibration in the background."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwave.designer.forms import Field, form_sections, make_edit
from meshwave.designer.state import background_calibration as beside
from meshwave.designer.state.background_calibration import BackgroundCalibration
from meshwave.designer.state.design_session import Session
from meshwave.designer.views.profiles import Profiles, describe_machine, log_axis, profile_charts, profile_entries
from meshwave.engine.costs.profile import MeasuredCollective, Profile
from meshwave.engine.costs.profile_store import describe_other_machine, list_profiles, store_profile
from meshwave.engine.document import Design, load_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import example
from meshwave.engine.machine import processor_name
from meshwave.engine.runtime.calibration import CalibrationOptions, CalibrationProgress
from tests._findings import refusal
from tests.engine.costs.profiles import contention, example_profile, profile_of_actions

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))


@pytest.fixture
def session() -> Session:
    return Session(load_design(example("01-first-wave")))


def fields_by_path(design: Design) -> dict[str, Field]:
    return {field["path"]: field for section in form_sections(design) for field in section["fields"]}


def follow(calibrating: BackgroundCalibration) -> Callable[[str], None]:
    """Return a function that waits for a state of the calibration."""
    changed = threading.Condition()

    def receive_status() -> None:
        with changed:
            changed.notify_all()

    calibrating.subscribe(receive_status)

    def wait_until(state: str) -> None:
        with changed:
            assert changed.wait_for(lambda: calibrating.status.state == state, PATIENCE_S), calibrating.status

    return wait_until


# ---- in the form ----


def test_calibrated_costs_are_offered_as_soon_as_a_profile_is_stored(session: Session) -> None:
    kinds = [option["value"] for option in fields_by_path(session.design)["cost.kind"]["options"]]
    store_profile(example_profile(), "a")

    offered = [option["value"] for option in fields_by_path(session.design)["cost.kind"]["options"]]

    assert kinds == ["roofline", "unit"]
    assert sorted(offered) == ["calibrated", "roofline", "unit"]


def test_a_profile_is_chosen_from_the_stored_ones(session: Session) -> None:
    for name in ("b", "a", "this-machine"):
        store_profile(example_profile(), name)

    session.edit(*make_edit(session.design, fields_by_path(session.design)["cost.kind"], "calibrated"))
    field = fields_by_path(session.design)["cost.profile"]

    assert (field["kind"], field["value"]) == ("choice", "this-machine.json")
    assert [option["title"] for option in field["options"]] == ["a", "b", "this-machine"]
    session.edit(*make_edit(session.design, field, "b.json"))
    assert not session.errors
    assert session.prediction.costs.unit == "s"


def test_a_missing_profile_is_reported_at_its_field(session: Session) -> None:
    session.edit("cost", {"kind": "calibrated", "profile": "gone.json"}, "a profile")

    assert [problem.where for problem in session.errors] == ["cost.profile"]
    assert [option["value"] for option in fields_by_path(session.design)["cost.profile"]["options"]] == ["gone.json"]


# ---- charts ----


def line(size: int) -> MeasuredCollective:
    return MeasuredCollective(
        collective="all_reduce", group="mp", size=size, alpha_s=1e-3, beta_s_per_byte=1e-9, r2=1.0,
        samples=((1e3, 1e-3), (1e6, 2e-3)),
    )  # fmt: skip


def test_measured_times_are_charted_over_fitted_ones() -> None:
    found = {chart["key"]: chart for chart in profile_charts(example_profile(collectives=(line(4), line(2))))}

    assert list(found) == ["layer-fp32", "embedding-fp32", "head-fp32", "links", "optimizer", "all_reduce"]
    layer = found["layer-fp32"]
    ((by_line, measured, words),) = layer["series"][0]["points"]
    assert (by_line, measured) == (pytest.approx(1.1e-3), 1e-3)  # 1e-4 an action, 1e-3 a block
    assert "hidden 64, 1 x 32 tokens: 1 ms measured, 1.1 ms fitted" in words
    assert layer["rows"][0] == ["forward", "1.1 ms", "1 TFLOP/s", "333 GFLOP/s", "100 GB/s", "–", "–"]
    assert [series["name"] for series in found["all_reduce"]["series"]] == ["2 ranks", "4 ranks"]


def test_a_line_through_as_many_points_as_it_has_coefficients_has_no_error() -> None:
    through_three = line(2).model_copy(update={"samples": ((1e3, 1e-3), (1e6, 2e-3), (2e6, 3.6e-3))})

    *_, exact, fitted = (profile_charts(example_profile(collectives=(line(1), through_three)))[-1]["rows"],)[0]

    assert exact[-2:] == ["–", "–"]
    assert fitted[-2:] == ["1.000", "+20.0%"]


def test_the_largest_deviation_from_a_fit_leaves_out_exact_fits() -> None:
    exact = example_profile()
    (block, *_), seconds = exact.blocks, {"forward": 1.25e-3, "backward": 2.2e-3}  # fitted: 1.1 ms and 2.2 ms
    timed = {
        phase: each.model_copy(update={"seconds": seconds.get(phase, each.seconds)})
        for phase, each in block.samples[0].phases.items()
    }
    phases = {phase: timed[phase] for phase in seconds}
    fitted = block.model_copy(update={"samples": (block.samples[0].model_copy(update={"phases": phases}),) * 6})

    assert exact.worst_residual is None
    assert example_profile(blocks=(fitted,)).worst_residual == pytest.approx(0.15 / 1.1)


def test_actions_of_a_run_are_charted_over_roofline_times() -> None:
    (chart,) = profile_charts(profile_of_actions({"op": "F"}, {"op": "B", "seconds": 4.0}))

    assert [(series["name"], series["points"][0][:2]) for series in chart["series"]] == [
        ("F", [1.0, 2.0]),
        ("B", [1.0, 4.0]),
    ]


def test_contention_is_a_table_with_a_column_for_each_kind_of_link() -> None:
    inside = contention("same_node", shared_rate=None)
    found = {chart["key"]: chart for chart in profile_charts(example_profile(contention=(inside, contention())))}

    assert "contention" not in {chart["key"] for chart in profile_charts(example_profile())}
    table = found["contention"]
    assert table["head"] == ["", "inside a node", "between nodes"]
    rows = {name: cells for name, *cells in table["rows"]}
    assert rows["one message alone"] == ["2.5 MB in 100 ms, 25 MB/s"] * 2
    assert rows["two pairs of processes at once"] == [
        "not measured",
        "25 MB/s in total, 1.00x (IQR 0.95-1.05) one alone",
    ]
    assert "Medians of 1 repetition;" in table["note"]


def test_an_axis_covers_whole_decades() -> None:
    found = log_axis("bytes", (2e3, 4e6), "B")

    assert (found["from"], found["to"]) == (1e3, 1e7)
    assert [words for _, words in found["ticks"]] == ["1 kB", "10 kB", "100 kB", "1 MB", "10 MB"]


def test_a_file_that_is_not_a_profile_is_listed_as_unreadable() -> None:
    store_profile(example_profile(), "a.json").write_text("{}")

    assert profile_entries(list_profiles(), "a.json") == [
        {"name": "a.json", "title": "a", "note": "cannot be read", "used": True}
    ]


def test_the_reason_why_a_profile_is_unreadable_replaces_its_charts(session: Session) -> None:
    path = store_profile(example_profile(), "a.json")
    path.write_bytes(path.read_bytes()[:500])  # cut short, as by a disk that was full
    view = Profiles(session, BackgroundCalibration())

    view.open()

    assert view.chosen == "a.json"
    assert view.machine[0].startswith("a.json cannot be read: line ")
    assert not view.charts


def test_a_profile_of_another_machine_is_marked() -> None:
    machine = example_profile().machine.model_copy(update={"cores": 48, "processor": "A64FX"})

    assert describe_other_machine(example_profile()) == "", "it does not say where it was measured"
    assert describe_other_machine(example_profile(machine=machine)).startswith(
        "measured on another machine: 48 cores of A64FX, and this one"
    )
    assert describe_machine(example_profile(machine=machine))[0] == describe_other_machine(
        example_profile(machine=machine)
    )
    mine = machine.model_copy(update={"cores": os.cpu_count(), "processor": processor_name()})
    assert describe_other_machine(example_profile(machine=mine)) == ""


def test_the_selected_profile_can_be_used_by_the_design(session: Session) -> None:
    store_profile(example_profile(), "a")
    view = Profiles(session, BackgroundCalibration())

    view.open()
    view._handle_msg({"type": "use"})

    assert session.design.cost.model_dump()["profile"] == "a.json"
    assert view.used
    assert any("is outside the measured range" in words for words in view.warnings)


# ---- beside the page ----


def test_a_calibration_is_stored_under_its_name_and_shown(session: Session) -> None:
    told: list[str] = []

    def measure(wanted: CalibrationOptions, heard: Callable[[CalibrationProgress], None]) -> Profile:
        heard(CalibrationProgress(0.5, "half"))
        return example_profile()

    calibrating = BackgroundCalibration(measure)
    wait_until = follow(calibrating)
    view = Profiles(session, calibrating, on_stored=lambda: told.append("kept"))
    view.open()

    view._handle_msg({"type": "measure", "name": "mine"})
    wait_until("done")
    calibrating.close()

    assert list_profiles() == ["mine.json"]
    assert (view.chosen, told) == ("mine.json", ["kept"])
    assert view.standing["share"] == 1


def test_a_design_is_predicted_again_when_its_profile_changes(session: Session) -> None:
    store_profile(example_profile(), "mine")
    session.edit("cost", {"kind": "calibrated", "profile": "mine.json"}, "a profile")
    before = session.prediction.numbers["makespan_s"]
    layer, *ends = example_profile().blocks
    twice = {phase: fit.model_copy(update={"per": {**fit.per, "block": 1.0}}) for phase, fit in layer.fits.items()}
    slow = example_profile(blocks=(layer.model_copy(update={"fits": twice}), *ends))
    calibrating = BackgroundCalibration(lambda wanted, heard: slow)
    wait_until = follow(calibrating)
    view = Profiles(session, calibrating)

    calibrating.start("mine")
    wait_until("done")
    calibrating.close()  # when all have heard of it

    assert view.standing["state"] == "done"
    assert session.prediction.numbers["makespan_s"] > 10 * before


def test_a_stopped_calibration_stores_nothing(session: Session) -> None:
    started, go = threading.Event(), threading.Event()

    def measure(wanted: CalibrationOptions, heard: Callable[[CalibrationProgress], None]) -> Profile:
        started.set()
        go.wait(PATIENCE_S)
        heard(CalibrationProgress(0.5, "half"))
        return example_profile()

    calibrating = BackgroundCalibration(measure)
    wait_until = follow(calibrating)

    calibrating.start("mine")
    assert started.wait(PATIENCE_S)
    assert refusal(lambda: calibrating.start("other")).code == "already_calibrating"
    calibrating.stop()
    assert calibrating.status.words == "stopping"
    go.set()
    wait_until("stopped")

    assert list_profiles() == []


def test_an_invalid_profile_name_is_refused_before_the_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").touch()
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    calibrating = BackgroundCalibration(lambda wanted, heard: pytest.fail("it was measured"))

    with pytest.raises(InputError, match="cannot store profiles in .*: Not a directory"):
        calibrating.start("mine")

    assert not calibrating.status.is_running


def test_a_profile_that_cannot_be_stored_is_saved_elsewhere(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*given: object) -> None:
        raise InputError("cannot write it: No space left on device")

    monkeypatch.setattr(beside, "store_profile", raise_error)
    monkeypatch.setattr(beside, "write_spare_profile", lambda profile: "/aside.json")
    calibrating = BackgroundCalibration(lambda wanted, heard: example_profile())
    wait_until = follow(calibrating)

    calibrating.start("mine")
    wait_until("failed")

    assert calibrating.status.words == "cannot write it: No space left on device; the profile was saved as /aside.json"


def test_a_calibration_that_cannot_run_shows_the_reason() -> None:
    def measure(wanted: CalibrationOptions, heard: Callable[[CalibrationProgress], None]) -> Profile:
        raise InputError("there is no torch here")

    calibrating = BackgroundCalibration(measure)
    wait_until = follow(calibrating)

    calibrating.start("mine")
    wait_until("failed")

    assert calibrating.status.words == "there is no torch here"
    with pytest.raises(InputError, match="is not a valid profile name"):
        calibrating.start("../mine")
