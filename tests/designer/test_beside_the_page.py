"""What goes on beside a page ends with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, NoReturn

import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc

from meshwave.designer.canvases import transfer
from meshwave.designer.state import transfer_links as edits
from meshwave.designer.state.background_search import Stopped
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.transfer_session import Bench
from meshwave.designer.views import expert_schedules
from meshwave.engine.document import load_design
from meshwave.engine.document.transfer_document import TransferSpec, parse_transfer
from meshwave.engine.files import example
from meshwave.engine.predict import expert_map as expert_grid
from meshwave.engine.schedules import go_on, watched
from tests.conftest import PATIENCE_S


def thread_of(name: str, document: Document, begin: Callable[[], Any]) -> threading.Thread:
    """The thread of that name that something begins in a page."""
    before = set(threading.enumerate())
    with set_curdoc(document):
        begin()
    [found] = [each for each in threading.enumerate() if each.name == name and each not in before]
    return found


def destroy(document: Document) -> None:
    """As the server does with a page that nobody looks at any more."""
    for callback in document.session_destroyed_callbacks:
        callback(None)  # type: ignore[arg-type]


def test_plans_of_a_transfer_are_no_longer_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(spec: TransferSpec) -> Iterator[dict[str, Any]]:
        yield from cycle([{"makespan_s": 1.0, "played_s": 1.0, "bound_s": 1.0}])

    monkeypatch.setattr(transfer, "compared", endless)
    document = Document()

    def begin() -> None:
        spec = parse_transfer(json.dumps(edits.cases()["uneven"][1]))
        transfer.TransferView(Bench(spec))._begin()

    thread = thread_of("plans of a transfer", document, begin)
    destroy(document)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_the_map_of_expert_layers_is_no_longer_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(cluster: expert_grid.GridCluster) -> NoReturn:
        while True:
            go_on()

    monkeypatch.setattr(expert_schedules, "map_of_layers", endless)
    document, session = Document(), Session(load_design(example("01-first-wave")))

    def begin() -> None:
        expert_schedules.ExpertSchedules(session)._handle_msg({"type": "map", "links": "pcie"})

    thread = thread_of("map of expert layers", document, begin)
    destroy(document)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_whoever_prices_the_grid_can_stop_it_between_two_layers() -> None:
    priced = []

    def watch(done: float | None, words: str) -> None:
        priced.append(words)
        if len(priced) > 2:
            raise Stopped

    with watched(watch), pytest.raises(Stopped):
        expert_grid.grid.__wrapped__()
    assert len(priced) == 3
