"""Fixtures for the tests of the page's Python side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bokeh.io import doc

from meshwave.designer.state.design_session import Session
from meshwave.designer.state.studio import Studio
from meshwave.engine.document import Design, load_design
from meshwave.engine.files import example
from meshwave.engine.runs.launchers import launchers

FIRST = load_design(example("02-two-waves"))
"""The design of new tabs."""


@pytest.fixture(autouse=True, scope="session")
def clean(documents_taken_back: None) -> None:
    """Clear the state of sessions after each test."""


@pytest.fixture(autouse=True, scope="module")
def forget_documents_of_earlier_servers() -> None:
    """Forget the documents whose callbacks had not ended when the servers of earlier modules were stopped.

    Bokeh would return one of them as the current document of a view that is created without a page.
    """
    doc._PATCHED_CURDOCS.clear()


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Studio]:
    """Return a studio in an empty folder; nothing is launched there."""
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)
    studio = Studio(FIRST)
    yield studio
    studio.close()


@pytest.fixture
def design() -> Design:
    """Return a design with unit costs."""
    return FIRST


@pytest.fixture
def seconds() -> Design:
    """Return a design with roofline costs."""
    return load_design(example("10-bert-on-tacc"))


@pytest.fixture
def session(design: Design) -> Session:
    """Return the session of a page with the design."""
    return Session(design)
