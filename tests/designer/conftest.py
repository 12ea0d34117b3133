"""Fixtures for the tests of the page's Python side."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def clean(documents_taken_back: None) -> None:
    """Clear the state of sessions after each test."""
