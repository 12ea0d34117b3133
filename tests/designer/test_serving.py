"""The server of the tests reports exceptions in sessions and keeps nothing of a session."""

from __future__ import annotations

import threading
import urllib.request

import panel as pn
import pytest
from bokeh.document import Document

from tests.conftest import PATIENCE_S, open_server


def test_an_exception_of_a_callback_is_reported_and_its_document_is_released() -> None:
    kept: list[Document] = []
    logged = threading.Event()

    def raise_error() -> None:
        kept[0].add_next_tick_callback(logged.set)
        raise ValueError("in a callback")

    def app() -> pn.pane.Str:
        assert pn.state.curdoc is not None
        kept.append(pn.state.curdoc)  # or it would be gone with its session
        kept[0].add_next_tick_callback(raise_error)
        return pn.pane.Str("served")

    def visit_page() -> None:
        with open_server() as serve:
            urllib.request.urlopen(serve(app)).read()
            assert logged.wait(PATIENCE_S)

    with pytest.raises(AssertionError, match="in a callback"):
        visit_page()
    assert pn.state.curdoc is None
