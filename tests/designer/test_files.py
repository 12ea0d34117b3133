"""Files of the browser: large files are read and written by jobs, and files that are too large are refused."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from typing import Any

import pytest

from meshwave.designer.state import file_jobs as files
from meshwave.designer.state.design_session import Session
from meshwave.designer.views.design_comparison import Comparison
from meshwave.designer.views.topbar import TopBar
from meshwave.engine.document import Design, load_design
from meshwave.engine.exports import exports
from meshwave.engine.files import example
from meshwave.engine.imports import Trace
from meshwave.engine.program.program import format_program
from tests._strategies import document
from tests.engine.imports.traced import range_of

DONE_S = 60.0


class Page:
    """The top bar of a tab, the callbacks that are scheduled on its page, and the messages to the page."""

    def __init__(self, design: Design) -> None:
        self._turns: queue.Queue[Callable[[], None]] = queue.Queue()
        self.session = Session(design, self._turns.put)
        self.bar = TopBar(self.session)
        self.sent: list[dict[str, Any]] = []
        self.bar._send_msg = self.sent.append  # type: ignore[method-assign, assignment]

    def open(self, file: str, text: str) -> None:
        self.bar._handle_msg({"type": "open", "files": [{"file": file, "text": text}]})

    def wait_until(self, holds: Callable[[], Any]) -> None:
        while not holds():
            self._turns.get(timeout=DONE_S)()

    def messages_of_type(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["type"] == kind]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    """A page for which every file is large."""
    monkeypatch.setattr(files, "SMALL_FILE_BYTES", 0)
    monkeypatch.setattr(files, "SMALL_ROWS", 0)
    return Page(load_design(example("02-two-waves")))


def test_a_large_design_is_read_by_a_job_and_opened(page: Page) -> None:
    page.open("other.json", json.dumps(document({"schedule": "gpipe", "microbatches": 7}, 4)))

    assert page.session.notice == "Reading other.json …"
    assert page.messages_of_type("answered")[-1]["refused"] is None, "the page goes on"
    page.wait_until(lambda: page.session.opened)
    assert page.session.design.pipeline.microbatches == 7
    assert page.session.notice == ""


def test_problems_of_a_large_file_are_listed_and_the_design_stays(page: Page) -> None:
    design = page.session.design

    page.open("wrong.json", json.dumps({**document({"schedule": "gpipe", "microbatches": 7}, 4), "meshes": [{}] * 9}))
    page.wait_until(lambda: page.messages_of_type("trouble"))

    assert page.messages_of_type("trouble")[-1]["title"] == "wrong.json was not opened"
    first = page.messages_of_type("trouble")[-1]["lines"][0]
    assert (first["where"], first["message"]) == ("meshes[0].name", "'name' is missing; add it")
    assert page.session.design is design


def test_a_large_schedule_is_imported_by_a_job(page: Page) -> None:
    order = format_program(page.session.prediction.program, compute_only=True)

    page.open("waves.csv", "\n".join(",".join(row) for row in order))
    page.wait_until(lambda: page.session.opened)

    assert page.session.design.pipeline.schedule == "custom"


def test_the_export_of_a_large_step_is_written_by_a_job(page: Page) -> None:
    page.bar._handle_msg({"type": "export", "name": "torch-csv"})

    assert page.messages_of_type("download") == []
    page.wait_until(lambda: page.messages_of_type("download"))
    assert page.messages_of_type("download")[0]["content"] == exports["torch-csv"].to_bytes(page.session.prediction)
    assert page.session.notice == ""


def test_a_large_file_to_compare_with_is_read_by_a_job(page: Page) -> None:
    comparison = Comparison(page.session)
    text = json.dumps(document({"schedule": "gpipe", "microbatches": 7}, 4))

    comparison._handle_msg({"type": "file", "text": text + " " * files.SMALL_FILE_BYTES})
    page.wait_until(lambda: page.session.pinned)
    assert page.session.pinned[0].design.pipeline.microbatches == 7

    comparison._handle_msg({"type": "file", "text": "{" + " " * 60_000})
    page.wait_until(lambda: page.session.notice and "Reading" not in page.session.notice)
    assert "not JSON" in page.session.notice


def test_an_order_that_is_too_long_for_the_page_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwave.designer.state.predictions.LARGEST_BY_HAND", 30)
    page = Page(load_design(example("02-two-waves")))
    order = format_program(page.session.prediction.program, compute_only=True)

    page.open("waves.csv", "\n".join(",".join(row) for row in order))

    assert page.messages_of_type("trouble")[-1]["lines"] == [
        {
            "where": "pipeline.actions",
            "message": "an order of 128 computations is too large for the page, which computes up to 30; use fewer "
            "microbatches or stages, or the command line: meshwave simulate",
            "excerpt": "",
            "fixes": [],
        }
    ]


def test_a_large_trace_is_read_by_a_job_and_several_designs_are_refused(page: Page) -> None:
    found: list[Trace] = []
    page.bar._on_trace = found.append
    text = json.dumps({"traceEvents": [range_of("PP:0F0", 0, 5)]})

    page.bar._handle_msg({"type": "open", "files": [{"file": f"rank{rank}.json", "text": text} for rank in range(2)]})
    page.wait_until(lambda: found)

    assert [len(process.actions) for process in found[0].processes] == [1, 1]
    design = page.session.design.to_json()
    page.bar._handle_msg({"type": "open", "files": [{"file": f"{name}.json", "text": design} for name in "ab"]})
    page.wait_until(lambda: page.messages_of_type("trouble"))
    assert "only traces can consist of several files" in page.messages_of_type("trouble")[-1]["lines"][0]["message"]
