"""Predictions by jobs: the page while they run, their results, and their cancellation."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.events import DocumentReady
from panel.io.state import state

from meshwave.designer.state import job_processes, predictions
from meshwave.designer.state.design_session import Session, progress_text
from meshwave.designer.state.job_processes import Done, JobProcess, PartialResult
from meshwave.designer.state.jobs import Job, PageCallbacks, page_callback_scheduler, run_now
from meshwave.designer.state.predictions import Predictions
from meshwave.designer.views.problems import Problems
from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.lowering.lower import order_computations
from meshwave.engine.predict.prediction import predict
from tests._strategies import document
from tests.conftest import wait_until
from tests.designer import held

pytestmark = pytest.mark.slow  # most tests start a process
GONE_ON_S = 60.0


class Page:
    """A session, and the callbacks that other threads schedule on its page."""

    def __init__(self, design: Design, shared: Predictions | None = None) -> None:
        self._turns: queue.Queue[Callable[[], None]] = queue.Queue()
        self.session = Session(design, self._turns.put, shared)

    def wait_until(self, holds: Callable[[], Any]) -> None:
        while not holds():
            self._turns.get(timeout=GONE_ON_S)()

    @property
    def job(self) -> Job:
        assert self.session._job is not None
        return self.session._job.job

    def running_job(self) -> tuple[Job, int]:
        """Return the running job of the session and its process."""
        self.wait_until(lambda: self.session.progress.get("share") == 0.5)
        assert self.job.pid is not None
        return self.job, self.job.pid


def design(schedule: str = "1f1b", seed: int = 0, **pipeline: Any) -> Design:
    """Return a design for which no other test has searched an order, since results are cached."""
    found = document({"schedule": schedule, "microbatches": 16, **pipeline}, 4, cost={"kind": "roofline"})
    found["model"]["sequence"] = 512 + 8 * seed
    return parse_design(found)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """A page on which every edit is large, and is computed only when the test releases it."""
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    found = Page(design())
    monkeypatch.setattr(predictions, "SMALL_WORK", 0)
    monkeypatch.setattr(predictions, "compute_prediction", held.compute_after_release)
    return found


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def edit(page: Page, microbatches: int = 24) -> None:
    page.session.edit("pipeline.microbatches", microbatches, f"{microbatches} microbatches")


# ---- while something is computed ----


@pytest.mark.slow
def test_the_last_valid_prediction_stays_while_a_large_edit_is_computed(page: Page) -> None:
    session, before = page.session, page.session.prediction

    edit(page)
    assert session.prediction is before
    assert session.is_stale
    assert session.errors == [], "what takes no longer than a moment is no news"
    with pytest.raises(InputError, match="cannot pin: the step has not been computed: the step is being computed"):
        session.pin()
    page.running_job()
    assert session.progress["state"] == "runs"
    assert progress_text(session.progress) == "Computing: 50%, waiting for the test"
    assert session.errors[0].code == "computing"
    held.let_go()
    page.wait_until(lambda: not session.is_computing)

    assert session.progress == {}
    assert not session.is_stale
    assert session.errors == []
    assert session.prediction.numbers == predict(session.design).numbers
    session.undo()
    assert not session.is_stale, "what was known is not computed again"


def test_an_edit_in_another_tab_is_handled_while_a_large_edit_is_computed(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(page)
    page.running_job()
    monkeypatch.undo()
    other = Session(design(), later=pytest.fail)  # type: ignore[arg-type]

    other.edit("name", "mine", "rename")

    assert other.prediction.numbers["name"] == "mine"
    assert page.session.is_computing
    page.session.close()


def test_an_edit_stops_the_process_of_the_previous_one(page: Page) -> None:
    edit(page)
    overtaken, pid = page.running_job()

    page.session.undo()

    assert not page.session.is_stale
    assert not page.session.is_computing
    assert overtaken.join(GONE_ON_S)
    assert is_gone(pid)


def test_a_computation_can_be_stopped_and_restarted(page: Page) -> None:
    session, before = page.session, page.session.prediction
    edit(page)
    stopped, pid = page.running_job()

    session.stop()
    assert session.progress["state"] == "stopped"
    assert "compute again" in session.errors[0].message
    assert session.prediction is before
    assert session.design.pipeline.microbatches == 24
    assert stopped.join(GONE_ON_S)
    assert is_gone(pid)

    session.compute_again()
    page.running_job()
    held.let_go()
    page.wait_until(lambda: not session.is_computing)
    assert not session.is_stale


def test_a_closed_tab_leaves_no_process(page: Page) -> None:
    edit(page)
    job, pid = page.running_job()

    page.session.close()

    assert job.join(GONE_ON_S)
    assert is_gone(pid)


def test_the_next_computation_uses_the_process_of_the_previous_one(page: Page) -> None:
    edit(page)
    job, pid = page.running_job()
    held.let_go()
    page.wait_until(lambda: not page.session.is_computing)
    assert job.join(GONE_ON_S)
    held.hold_again()

    edit(page, 25)

    second, its_pid = page.running_job()
    assert its_pid == pid
    page.session.close()
    assert second.join(GONE_ON_S)
    assert is_gone(pid)


def test_an_idle_process_ends_after_a_while_and_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_processes, "IDLE_S", 1e-3)
    pids = []
    for keeps in (True, False):
        heard: queue.Queue[Any] = queue.Queue()
        job = Job(os.getpid, keeps_process=keeps)
        job.add_listener(run_now, heard.put)
        pids.append(heard.get(timeout=GONE_ON_S).value)
        assert job.join(GONE_ON_S)
        assert is_gone(pids[-1]) or (keeps and wait_until(lambda: is_gone(pids[-1])))

    assert len(set(pids)) == 2


def test_a_process_that_still_computes_is_not_kept() -> None:
    process = JobProcess()
    updates = process.updates(held.endless_numbers)
    assert next(updates) == PartialResult(0)

    process.keep()

    assert is_gone(process.pid)


def test_a_killed_idle_process_is_replaced() -> None:
    pids = []
    for _ in range(2):
        heard: queue.Queue[Any] = queue.Queue()
        job = Job(os.getpid, keeps_process=True)
        job.add_listener(run_now, heard.put)
        pids.append(heard.get(timeout=GONE_ON_S).value)
        assert job.join(GONE_ON_S)
        os.kill(pids[-1], signal.SIGKILL)
        assert wait_until(lambda: is_gone(pids[-1]))

    assert pids[0] != pids[1]


# ---- computations that several want ----


def test_tabs_share_a_computation_until_the_last_of_them_leaves(page: Page) -> None:
    shared = page.session.predictions
    other = Page(design(), shared)
    assert other.session.prediction.timeline is page.session.prediction.timeline, "what is known is shared"
    edit(page)
    edit(other)
    job, _ = page.running_job()
    assert other.job is job

    page.session.undo()
    assert not job.is_over
    held.let_go()
    other.wait_until(lambda: not other.session.is_computing)

    assert not other.session.is_stale
    page.session.redo()
    assert page.session.prediction.timeline is other.session.prediction.timeline


def test_renaming_a_design_starts_no_computation(page: Page) -> None:
    edit(page)
    job, _ = page.running_job()

    page.session.edit("name", "another", "rename")

    assert page.job is job
    assert not job.is_over
    held.let_go()
    page.wait_until(lambda: not page.session.is_computing)
    assert page.session.prediction.numbers["name"] == "another"
    assert not page.session.is_stale


def test_the_cache_of_predictions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "KEPT_ROWS_LIMIT", 1_000)
    page = Page(design())
    shared = page.session.predictions
    for microbatches in range(17, 40):
        edit(page, microbatches)

    assert sum(len(each.program) for each in shared._cache.values()) <= 1_000
    page.session.undo()
    assert not page.session.is_stale


# ---- computations that fail ----


def test_an_internal_error_is_shown_and_loses_no_edit(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "compute_prediction", held.raise_error)
    session, before = page.session, page.session.prediction

    edit(page)
    page.wait_until(lambda: not session.is_computing)

    assert session.design.pipeline.microbatches == 24
    assert session.prediction is before
    assert "the computation failed: internal error in Meshwave: RuntimeError('broken at 24')" in str(session.errors[0])
    assert session.progress["state"] == "stopped"


def test_a_killed_process_is_reported(page: Page) -> None:
    session = page.session
    edit(page)
    _, pid = page.running_job()

    os.kill(pid, signal.SIGKILL)
    page.wait_until(lambda: not session.is_computing)

    assert "the process ended early (signal 9; the machine may have too little memory)" in str(session.errors[0])
    assert session.design.pipeline.microbatches == 24


def test_a_process_whose_server_has_ended_ends_without_a_traceback(tmp_path: Path) -> None:
    process = JobProcess()
    arrays, path = job_processes._shared_file()
    with arrays:
        process._connection.send((path, None, partial(held.write_errors_to, tmp_path / "errors")))
        assert process.end() == 1
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="this system blocks no signals")
def test_ctrl_c_does_not_reach_the_processes_of_jobs() -> None:
    """The terminal sends it to all processes; the one that jobs are forked from would print a traceback."""
    heard: queue.Queue[Any] = queue.Queue()
    Job(partial(signal.pthread_sigmask, signal.SIG_BLOCK, ())).add_listener(run_now, heard.put)
    assert heard.get(timeout=GONE_ON_S) == Done({signal.SIGINT})


def test_a_function_that_cannot_be_pickled_is_reported() -> None:
    heard: queue.Queue[Any] = queue.Queue()
    Job(lambda: 1).add_listener(heard.put, print)
    assert heard.get(timeout=GONE_ON_S) is not None


def test_a_deadlock_found_by_a_job_is_a_problem_of_the_design(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    actions = [["0F0", "0B0"], ["1B0", "1F0"], ["2F0", "2B0"], ["3F0", "3B0"]]
    held.let_go()

    page.session.edit(
        "pipeline", {"schedule": "custom", "microbatches": 1, "actions": actions}, "an order that deadlocks"
    )
    page.wait_until(lambda: not page.session.is_computing)

    assert page.session.errors[0].code == "deadlock"
    assert page.session.progress == {}


# ---- limits ----


def test_a_step_that_is_too_large_for_the_page_is_refused_without_computation() -> None:
    page = Page(design())
    page.session.edit("model.layers", 4_000, "4,000 layers")

    page.session.edit("pipeline", {"schedule": "hanayo", "waves": 300, "microbatches": 400}, "many waves")

    assert not page.session.is_computing
    assert [str(problem) for problem in page.session.errors] == [
        "pipeline.microbatches: a step of 1,920,000 computations is too large for the page, which computes up to 500,000; "
        "use fewer microbatches or stages, or the command line: meshwave simulate"
    ]
    assert page.session.design.pipeline.microbatches == 400


def test_small_steps_of_many_devices_count_as_large_work() -> None:
    small = design()
    assert predictions.is_small_prediction(small)
    assert not predictions.is_small_prediction(design("auto", seed=3)), "its order is not known"
    devices = small.model_copy(
        update={"meshes": tuple(mesh.model_copy(update={"devices": tuple(range(1_000))}) for mesh in small.meshes)}
    )
    assert not predictions.is_small_prediction(devices)


# ---- orders that are searched ----


def test_an_order_that_was_searched_before_is_available_at_once() -> None:
    auto = design("auto", seed=4)
    predict(auto)

    assert not Page(auto).session.is_stale


def test_an_order_found_by_a_job_is_available_in_the_server() -> None:
    auto = design("auto", seed=10)
    page = Page(auto)
    page.wait_until(lambda: not page.session.is_computing)

    assert predictions.is_small_prediction(auto)
    assert order_computations(auto).digest == order_computations(page.session.design).digest


def test_dragged_layers_keep_the_order_until_they_are_dropped() -> None:
    page = Page(design("auto", seed=5))
    page.wait_until(lambda: not page.session.is_computing)
    session = page.session
    layers = list(session.prediction.costs.layers)
    moved = [layers[0] + 1, layers[1] - 1, *layers[2:]]

    tried = session.predict_edit("pipeline.stages", moved)

    assert tried is not None
    assert tried.program == session.prediction.program
    assert list(tried.costs.layers) == moved


@pytest.mark.slow
def test_a_searched_order_is_the_start_of_a_custom_one() -> None:
    auto = design("auto", seed=6, path="wave", chunks=2)
    program = predict(auto).program
    computed = program.is_compute

    drawn = order_computations(auto)

    assert drawn.stage.tolist() == program.stage[computed].tolist()
    assert drawn.microbatch.tolist() == program.microbatch[computed].tolist()


# ---- would a search find a better order? ----


def test_a_search_uses_the_current_stages_and_its_result_can_be_applied() -> None:
    page = Page(design("gpipe", seed=7, stages=[40, 80, 60, 60]))
    session, asked = page.session, Problems(page.session)
    assert asked.better["state"] == "open"

    asked._handle_msg({"type": "search"})
    assert asked.better["state"] == "runs"
    page.wait_until(lambda: asked.better["state"] == "found")
    assert re.match(
        r"The search found an order of these stages that takes .* ms: .*% shorter, with .*% less memory\.",
        asked.better["words"],
    )
    assert session.design.pipeline.schedule == "gpipe", "nothing is edited before it is asked for"
    before = session.prediction.timeline.makespan
    asked._handle_msg({"type": "use"})
    page.wait_until(lambda: not session.is_computing)

    assert session.design.pipeline.schedule == "auto"
    assert session.design.pipeline.stages == (40, 80, 60, 60)
    assert session.prediction.timeline.makespan < before
    assert asked.better == {}, "it searches already"


def test_an_edit_discards_the_result_of_a_search() -> None:
    session = Session(design("gpipe", seed=8))
    asked = Problems(session)
    asked._handle_msg({"type": "search"})
    assert asked.better["use"]

    session.edit("pipeline.microbatches", 12, "12 microbatches")

    assert asked.better["state"] == "open"
    asked._handle_msg({"type": "use"})
    assert session.design.pipeline.schedule == "gpipe"


@pytest.mark.parametrize("pipeline", [{"schedule": "chimera"}, {"schedule": "auto"}], ids=str)
def test_no_search_is_offered_for_replicas_or_searched_schedules(pipeline: dict[str, Any]) -> None:
    assert Problems(Session(design(**pipeline, seed=9))).better == {}


def run_in_event_loop(page: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the event loop of a page."""
    with ThreadPoolExecutor(1) as elsewhere:  # playwright's loop, if a test before used it, runs in this thread
        elsewhere.submit(lambda: asyncio.run(page())).result()


def test_the_result_for_a_closed_page_is_dropped() -> None:
    document, browser = Document(), object()
    heard: list[Any] = []

    async def page() -> None:
        later = page_callback_scheduler(document)
        document.on_change_dispatch_to(browser)
        document.destroy(browser)  # what Bokeh does when a session ends
        job = Job(int)
        job.add_listener(later, heard.append)
        assert await asyncio.to_thread(job.join, GONE_ON_S)
        assert job.is_over
        await asyncio.sleep(0)

    run_in_event_loop(page)
    assert not heard


def test_the_result_for_a_stopped_server_is_dropped() -> None:
    kept: list[Any] = []

    async def page() -> None:
        kept.append(page_callback_scheduler(Document()))

    run_in_event_loop(page)
    job = Job(int)
    job.add_listener(kept[0], kept.append)

    assert job.join(GONE_ON_S)
    assert len(kept) == 1


def test_a_call_waits_until_a_large_timeline_is_sent() -> None:
    parts = ["first", "second"]  # of the timeline; the network takes one each time the socket is asked

    class Stream:
        def writing(self) -> bool:
            return bool(parts and parts.pop())

    connection = SimpleNamespace(_socket=SimpleNamespace(ws_connection=SimpleNamespace(stream=Stream())))
    document, unsent = shown_document(connection), list[tuple[int, bool]]()

    async def page() -> None:
        PageCallbacks(document)(lambda: unsent.append((len(parts), state.curdoc is document)))
        await run_scheduled(document)

    run_in_event_loop(page)
    assert unsent == [(0, True)], "nothing is unsent, and Panel sends the changes of the call at once"


def test_calls_of_other_threads_are_scheduled_in_the_thread_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that collects its changes can lose a callback that another thread adds."""
    document, threads, heard = Document(), set[int](), list[int]()
    add = document.add_next_tick_callback
    monkeypatch.setattr(
        document, "add_next_tick_callback", lambda call: (threads.add(threading.get_ident()), add(call))[1]
    )

    async def page() -> None:
        threads_of_page.append(threading.get_ident())
        later = page_callback_scheduler(document)
        await asyncio.to_thread(lambda: [later(partial(heard.append, number)) for number in range(100)])
        await run_scheduled(document)

    threads_of_page: list[int] = []
    run_in_event_loop(page)
    assert threads == {*threads_of_page}
    assert heard == list(range(100))


def test_calls_that_waited_for_the_page_run_before_later_ones() -> None:
    heard: list[str] = []

    async def page() -> None:
        document = shown_document(SimpleNamespace(_socket=SimpleNamespace(ws_connection=None)))
        later = PageCallbacks(document)
        state._connected[document] = False
        later(lambda: heard.append("while the page is loaded"))
        await run_scheduled(document)
        assert not heard
        later(lambda: heard.append("before the browser reports the page"))
        await asyncio.sleep(0)
        state._connected[document] = True
        document.callbacks.trigger_event(DocumentReady())
        later(lambda: heard.append("after it"))
        await run_scheduled(document)

    run_in_event_loop(page)
    assert heard == ["while the page is loaded", "before the browser reports the page", "after it"]


def test_calls_after_one_that_fails_run() -> None:
    heard: list[str] = []

    async def page() -> None:
        document = Document()
        later = PageCallbacks(document)
        later(lambda: heard[0])
        later(lambda: heard.append("after the failure"))
        with pytest.raises(IndexError):
            await run_scheduled(document)
        await run_scheduled(document)

    run_in_event_loop(page)
    assert heard == ["after the failure"]


def shown_document(connection: Any) -> Document:
    """Return the document of a page that a browser shows."""
    document, session = Document(), SimpleNamespace(_subscribed_connections=[connection])
    document._session_context = lambda: SimpleNamespace(session=session)  # type: ignore[assignment]
    state._connected[document] = True
    return document


async def run_scheduled(document: Document) -> None:
    """Run the callbacks of a document one after another, as its session does."""
    await asyncio.sleep(0)
    for each in sorted(document.session_callbacks, key=lambda each: int(each.id.strip("p"))):
        await each.callback()  # type: ignore[misc]
