"""The page receives changed values before the answer to its gesture, and changes that happen while it loads."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bokeh.protocol.message import Message

from meshwave.designer.bench.page_client import PageClient, has_timeline, widget_messages
from meshwave.designer.server import serve as server
from meshwave.designer.state import predictions
from meshwave.designer.state.jobs import running_jobs
from tests.designer import held

ENDS_IN_S, SETTLES_IN_S = 20, 0.3


async def messages_until_answered(link: str, widget: str, gesture: dict[str, Any]) -> list[Message[Any]]:
    """Open a page, send a gesture, and return all messages up to the one with its answer."""
    page, received = await PageClient.open(link), []

    def has_answer(message: Message[Any]) -> bool:
        received.append(message)
        return any(each["type"] in ("answered", "changed") for each in widget_messages(message))

    await page.gesture(widget, gesture)
    await page.receive(has_answer)
    await page.leave()
    return received


def changed_values(messages: list[Message[Any]], attribute: str) -> list[Any]:
    events = (event for message in messages for event in message.content.get("events", []))
    return [json.loads(event["new"]) for event in events if event.get("attr") == attribute]


@pytest.mark.slow
def test_changes_precede_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    with server.serve_in_thread(server.read_design(None), "a-token-for-tests") as link:
        pressed = {"type": "microbatches", "value": 7}
        typed = {"type": "change", "path": "pipeline.microbatches", "value": "5"}
        with ThreadPoolExecutor(1) as elsewhere:  # playwright's loop, if a test before used it, runs in this thread
            of_canvas = elsewhere.submit(asyncio.run, messages_until_answered(link, "WaveCanvas", pressed)).result()
            of_form = elsewhere.submit(asyncio.run, messages_until_answered(link, "Form", typed)).result()

    assert changed_values(of_canvas, "picture")[-1]["microbatches"] == 7
    fields = [field for section in changed_values(of_form, "sections")[-1] for field in section["fields"]]
    assert {field["path"]: field["value"] for field in fields}["pipeline.microbatches"] == 5


@pytest.mark.slow
def test_a_prediction_that_ends_while_the_page_loads_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def load_slowly(link: str) -> None:
        page = await PageClient.open(link, shows=False)
        held.let_go()
        async with asyncio.timeout(ENDS_IN_S):
            while running_jobs():
                await asyncio.sleep(0.05)
            await asyncio.sleep(SETTLES_IN_S)
            await page.report_shown()
            await page.receive(has_timeline)
        await page.leave()

    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(predictions, "SMALL_WORK", 0)
    monkeypatch.setattr(predictions, "compute_prediction", held.compute_after_release)
    serving = server.serve_in_thread(server.read_design(None), "a-token-for-tests")
    with serving as link, ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(asyncio.run, load_slowly(link)).result()
