"""The run panel and the dock under the timeline in a real browser."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from meshwave.designer.server.serve import read_design, serve_in_thread
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.launches import Launches
from meshwave.designer.views import runs
from meshwave.designer.views.error_breakdown import ErrorBreakdown
from meshwave.designer.views.run_log import SHOWN_LINES, RunLog
from meshwave.designer.views.run_table import RunTable
from meshwave.designer.views.runs import RunsPanel
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Record, State, write_bundle
from meshwave.engine.runs.annotations import read_annotations
from meshwave.engine.runs.checkpoints import step_folder
from meshwave.engine.runs.process_identity import own_handle
from meshwave.engine.runs.run_folder import RunSpec
from meshwave.engine.runs.training_texts import LARGEST_UPLOAD_BYTES, texts_folder
from tests.browser.gestures import eventually
from tests.engine.runs.recorded import record as record_timeline

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.conftest import Stage

pytestmark = pytest.mark.browser
RUN_MS = 60_000
DOUBLE_CLICK_MS = 800  # as in static/panels/launch.js


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    record = Record(tmp_path)
    yield record
    record.close()


@pytest.fixture
def session() -> Session:
    return Session(load_design(example("03-gpt-on-two-cores")))


@pytest.fixture
def show(record: Record, session: Session, stage: Stage) -> Iterator[Callable[..., Page]]:
    import panel as pn

    looking: list[Any] = []

    def open_panel(first: str = "") -> Page:
        def panels() -> pn.Row:
            runs = RunsPanel(session, Launches(record), first=first, width=320, height=600)
            looking.append(pn.state.add_periodic_callback(runs.refresh, period=100))
            size = {"width": 900, "height": 260}
            log, table = RunLog(runs.followed, **size), RunTable(runs.followed, runs.launches, runs.resume, **size)
            return pn.Row(pn.Column(table, ErrorBreakdown(runs.followed, **size), log), runs)

        return stage.show(panels)

    yield open_panel
    for each in looking:
        each.stop()


def drop_file(page: Page, name: str, content: bytes) -> None:
    page.locator('input[type="file"][aria-label="Training text"]').set_input_files(
        {"name": name, "mimeType": "text/plain", "buffer": content}
    )


def test_an_uploaded_text_becomes_the_training_data(show: Callable[..., Page], session: Session, stage: Stage) -> None:
    page = show()

    drop_file(page, "sonnets.txt", "Shall I compare thee — to a summer's day?\n".encode() * 200)

    expect(page.locator(".mw-text-name")).to_have_text("Training text: sonnets.txt")
    assert session.design.training.data == "sonnets.txt"
    assert session.history[0] == "train on sonnets.txt"
    assert (texts_folder() / "sonnets.txt").read_bytes().startswith("Shall I compare thee —".encode())

    page.get_by_role("button", name="Use default text").click()
    expect(page.locator(".mw-text-name")).to_have_text("Training text: default")
    assert session.design.training.data is None
    stage.run(session.undo)
    expect(page.locator(".mw-text-name")).to_have_text("Training text: sonnets.txt")


def test_a_file_that_is_not_a_training_text_is_refused_with_a_reason(
    show: Callable[..., Page], session: Session
) -> None:
    page = show()
    trouble = page.locator(".mw-text > .mw-run-reason")

    drop_file(page, "picture.png", b"\x89PNG\r\n\x1a\n\xff\xfe")
    expect(trouble).to_have_text("picture.png is not a UTF-8 text file.")
    drop_file(page, "nothing.txt", b"")
    expect(trouble).to_contain_text("nothing.txt is empty")
    drop_file(page, "library.txt", b"a" * (LARGEST_UPLOAD_BYTES + 1))
    expect(trouble).to_contain_text("the limit is 8 MB")

    assert session.design.training.data is None
    assert not list(texts_folder().glob("*")) if texts_folder().exists() else True


@pytest.mark.torch
@pytest.mark.nightly
def test_a_run_trains_on_the_uploaded_text(
    visit: Callable[[str], Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    document = read_design("01-first-wave").model_dump(mode="json")
    document["training"]["steps"] = 3
    with serve_in_thread(parse_design(document), "a-token-for-tests") as link:
        page = visit(link)
        page.get_by_text("Run", exact=True).first.click()
        drop_file(page, "mine.txt", b"to be or not to be, that is the question. " * 500)
        expect(page.locator(".mw-text-name")).to_have_text("Training text: mine.txt")

        page.get_by_role("button", name="Launch").first.click()
        expect(page.locator(".mw-run .mw-state")).to_have_text("succeeded", timeout=RUN_MS)
        page.goto("about:blank")

    [launched] = tmp_path.glob("runs/*/design.json")
    assert json.loads(launched.read_text("utf-8"))["training"]["data"] == "mine.txt"


def test_a_dry_run_is_started_by_keyboard_and_its_timeline_is_overlaid(
    visit: Callable[[str], Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(
        runs, "default_launcher", lambda design, options: "threads"
    )  # no torch, and no seconds until it is there
    document = read_design("01-first-wave").model_dump(mode="json")
    document["training"]["steps"] = 2
    with serve_in_thread(parse_design(document), "a-token-for-tests") as link:
        page = visit(link)
        launch = page.locator(".mw-launchbar")
        rehearse = launch.get_by_role("button", name="Dry run")
        expect(rehearse).to_have_attribute("aria-disabled", "false")
        place = launch.get_by_label("Launch on").locator("option").first
        place.evaluate("option => (option.isFirst = true)")

        launch.get_by_role("button", name="Launch").focus()
        page.keyboard.press("Tab")
        expect(rehearse).to_be_focused()
        with monkeypatch.context() as patch:
            may_start, submit = threading.Event(), Launches.submit
            patch.setattr(Launches, "submit", lambda *spec: may_start.wait(30) and submit(*spec))
            page.keyboard.press("Enter")
            expect(launch.locator(".mw-launchbar-words")).to_have_text("Starting …")
            page.wait_for_timeout(DOUBLE_CLICK_MS + 100)
            page.keyboard.press("Enter")  # the user is impatient
            page.wait_for_timeout(300)
            may_start.set()
            expect(launch.locator(".mw-launchbar-words")).to_contain_text("done: 2 steps", timeout=RUN_MS)
        assert len(list(tmp_path.glob("runs/*/design.json"))) == 1
        expect(launch.locator(".mw-launchbar-words")).to_contain_text("dry run, time x")
        assert place.evaluate("option => option.isFirst"), "a list that was open would have closed"
        expect(page.locator(".mw-run")).to_contain_text("dry run: nothing is computed")
        expect(page.get_by_label("Overlay measured timeline")).to_be_checked()
        page.goto("about:blank")


def test_the_log_follows_its_end_unless_the_user_scrolled_up(
    show: Callable[..., Page], session: Session, record: Record
) -> None:
    run = write(record, session, [5.0, 4.0])
    log = record.folder(run) / "rank-0.log"
    log.write_text("".join(f"step {step}: a line of the log\n" for step in range(1, 41)))
    page = show(run)
    shown = page.locator(".mw-log")
    expect(shown).to_contain_text("step 40:")

    def space_below() -> float:
        return float(shown.evaluate("log => log.scrollHeight - log.clientHeight - log.scrollTop"))

    def append_log(text: str, loss: float) -> None:
        with log.open("a") as file, (log.parent / "metrics.jsonl").open("a") as metrics:
            file.write(text)
            metrics.write(json.dumps({"step": 2, "loss": loss, "seconds": 0.1, "tokens_per_s": 1e3}) + "\n")
        expect(shown).to_contain_text(text.splitlines()[-1], timeout=20_000)
        expect(page.locator(".mw-figure b").first).to_have_text(f"{loss:.4f}")

    assert space_below() < 4
    append_log("step 41: one more\n", 3.5)  # the head of the run is drawn anew with it
    assert space_below() < 4

    shown.evaluate("log => (log.scrollTop = 100)")
    shown.evaluate("log => getSelection().selectAllChildren(log.lastChild)")
    append_log("step 42: and one more\n", 3.25)
    assert shown.evaluate("log => log.scrollTop") == 100
    assert shown.evaluate("log => log.getRootNode().getSelection().toString().trim()") == "[0] step 41: one more"
    append_log("".join(f"step {step}: a line\n" for step in range(43, 80)), 3.0)  # more than are shown
    texts = shown.inner_text().splitlines()
    assert [texts[0], texts[-1], len(texts)] == ["[0] step 20: a line of the log", "[0] step 79: a line", SHOWN_LINES]

    row = page.locator(".mw-run-table tbody tr")
    expect(row).to_contain_text("3 of 23.0000")
    row.locator(".mw-run-open").focus()
    record.change_state(run, State.CANCELLED, "cancelled after 2 steps")
    expect(row.locator(".mw-state")).to_have_text("cancelled")
    expect(row.locator(".mw-run-open")).to_be_focused()
    expect(page.locator(".mw-run .mw-run-reason")).to_have_text("cancelled after 2 steps")
    told, muted = page.locator(".mw-run .mw-run-reason").evaluate(
        "each => [each, each.getRootNode().querySelector('.mw-figure > span')].map((part) => getComputedStyle(part).color)"
    )
    assert told == muted, "a run that a person cancelled is no error"


def test_a_run_is_compared_with_its_prediction_and_calibrates_the_design(
    show: Callable[..., Page], session: Session, record: Record
) -> None:
    slow = 3 * session.prediction.costs.seconds
    ids = [write(record, session, [5.0, 4.0, 3.0]) for _ in range(2)]
    for run in ids:
        record_timeline(record.folder(run), session.prediction, slow)
        record.change_state(run, State.SUCCEEDED, "")
    page = show(ids[0])

    iteration = page.locator(".mw-compare tbody tr").first
    expect(iteration).to_contain_text("+200%")
    expect(page.locator(".mw-cause")).to_contain_text("% of the error of the step.")
    bars = page.locator(".mw-waterfall tr")
    expect(bars.first).to_contain_text("Predicted")
    expect(bars.last).to_contain_text("Measured")
    expect(bars.nth(1)).to_have_attribute("data-kind", "more")
    expect(page.locator(".mw-past tr[aria-current=true]")).to_have_count(1)
    expect(page.locator(".mw-past tr")).to_have_count(2)
    links = page.locator(".mw-compared-part", has_text="Transfer time per link")
    links.locator("summary").click()
    expect(links.locator("tbody tr").first).to_contain_text("+200%")

    page.get_by_role("button", name="Calibrate from this run").click()

    expect(iteration).to_contain_text(re.compile(r"[+−]?0\.\d%"))
    assert session.design.cost.model_dump()["profile"] == f"run-{ids[0]}.json"
    expect(page.locator(".mw-run :focus")).to_have_count(1)
    expect(links.locator("tbody tr").first).to_be_visible()  # it is drawn anew, and stays unfolded


def test_runs_are_sorted_searched_and_annotated(show: Callable[..., Page], session: Session, record: Record) -> None:
    slow, fast = (write(record, session, losses) for losses in ([5.0, 4.0], [5.0, 3.0]))
    for run in (slow, fast):
        record.change_state(run, State.SUCCEEDED, "")
    page = show()
    rows = page.locator(".mw-run-table tbody tr")
    expect(rows).to_have_count(2)

    page.get_by_role("button", name="Loss").click()
    assert [row.get_attribute("data-run") for row in rows.all()] == [fast, slow]
    expect(page.get_by_role("columnheader", name="Loss")).to_have_attribute("aria-sort", "ascending")

    rows.first.locator(".mw-run-tags").fill("baseline,  tp=1, baseline")
    rows.first.locator(".mw-run-note").fill("half the rate")
    rows.first.locator(".mw-run-note").press("Enter")
    expect(rows.first.locator(".mw-run-tags")).to_have_value("baseline, tp=1")
    eventually(page, lambda: read_annotations(record.folder(fast)).note == "half the rate")

    page.get_by_label("Search runs").fill("TP=1 half")
    expect(rows).to_have_count(1)
    expect(page.locator(".mw-run-list .mw-dock-bar")).to_contain_text("1 of 2 runs")


def test_a_run_is_deleted_after_a_confirmation(show: Callable[..., Page], session: Session, record: Record) -> None:
    run = write(record, session, [5.0, 4.0])
    page = show(run)
    more = page.get_by_role("button", name=f"Actions of {session.design.name}")
    more.click()
    expect(page.get_by_role("menuitem", name="Delete …")).to_have_count(0)  # it is not over
    page.keyboard.press("Escape")
    expect(more).to_be_focused()
    record.change_state(run, State.SUCCEEDED, "")
    expect(page.locator(".mw-run-table .mw-state")).to_have_text("succeeded")

    for answer in ("Cancel", "Delete run"):
        page.locator(".mw-run-table tbody td").nth(3).click(button="right")
        page.get_by_role("menuitem", name="Delete …").click()
        assert record.folder(run).exists()
        page.get_by_role("dialog").get_by_role("button", name=answer).click()

    expect(page.locator(".mw-run-list .mw-dock-empty")).to_be_visible()
    assert not record.folder(run).exists()
    expect(page.locator(".mw-run")).to_be_hidden()


def test_a_run_that_ended_early_with_a_checkpoint_is_resumed_from_its_row(
    show: Callable[..., Page], session: Session, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, trained, saved = (write(record, session, [5.0, 4.0]) for _ in range(3))
    for run, steps in ((trained, 2), (saved, 1)):
        step_folder(record.folder(run) / "checkpoints", steps).mkdir(parents=True)
    for run in (plain, trained, saved):
        record.change_state(run, State.SUCCEEDED, "")
    launched: list[Any] = []
    monkeypatch.setattr(RunsPanel, "_submit", lambda panel, launcher, spec, *rest: launched.append(spec))
    page = show()

    for run, offers in ((plain, 0), (trained, 0), (saved, 1)):
        page.locator(f'.mw-run-table tr[data-run="{run}"] .mw-run-more').click()
        resume = page.get_by_role("menuitem", name="Resume")
        expect(resume).to_have_count(offers)
        if offers:
            resume.click()
        else:
            page.keyboard.press("Escape")

    eventually(page, lambda: [spec.options.resume for spec in launched] == [saved])
    assert launched[0].prediction.design == session.design


def test_a_run_is_exported_to_perfetto(show: Callable[..., Page], session: Session, record: Record) -> None:
    run = write(record, session, [5.0, 4.0])
    record_timeline(record.folder(run), session.prediction, session.prediction.costs.seconds)
    record.change_state(run, State.SUCCEEDED, "")
    page = show()

    page.locator(".mw-run-more").focus()
    page.keyboard.press("Enter")
    with page.expect_download() as got:
        page.get_by_role("menuitem", name="Export timeline").click()

    assert got.value.suggested_filename.endswith(f"{run}.trace.json")
    assert json.loads(Path(got.value.path()).read_text("utf-8"))["traceEvents"]


def test_the_log_of_one_process_is_shown_and_searched(
    show: Callable[..., Page], session: Session, record: Record
) -> None:
    run = write(record, session, [5.0, 4.0])
    for process in (0, 1):
        lines = (f"step {step} of process {process}\n" for step in range(100))
        (record.folder(run) / f"rank-{process}.log").write_text("".join(lines))
    page = show(run)
    log = page.get_by_role("log")
    expect(log).to_contain_text("[1] step 99 of process 1")
    expect(log).not_to_contain_text("step 39 of")  # the last lines of each

    page.get_by_label("Process", exact=True).select_option("Process 1")
    expect(log).not_to_contain_text("process 0")
    expect(log).to_contain_text("step 0 of process 1")

    page.get_by_label("Search log").fill("STEP 4")
    expect(page.locator(".mw-run-log .mw-dock-bar")).to_contain_text("11 lines")
    expect(log.locator("mark").first).to_have_text("step 4")


def write(record: Record, session: Session, losses: list[float | None]) -> str:
    """Write a run in progress as a launcher and its processes would, and return its ID."""
    design = session.design
    prediction = predict(design)
    entry, _ = record.submit(
        name=design.name,
        launcher="local",
        handle={"owner": own_handle(), "processes": []},
        digest=prediction.program.digest,
        processes=len(design.meshes),
        steps=len(losses),
        limit=10,
    )
    folder = write_bundle(RunSpec(prediction, design), record.folder(entry.id)).folder
    record.change_state(entry.id, State.RUNNING, "")
    rows = [
        {"step": step, "loss": loss, "grad_norm": loss, "seconds": 0.1, "tokens_per_s": 1e3}
        for step, loss in enumerate(losses)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return entry.id
