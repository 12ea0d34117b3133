"""The page receives changed values before the answer to its gesture."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bokeh.protocol.message import Message

from meshwave.designer.bench.page_client import PageClient, widget_messages
from meshwave.designer.server import serve as server


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
