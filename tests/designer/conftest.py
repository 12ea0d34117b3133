"""What the tests of the page's Python side share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def clean(documents_taken_back: None) -> None:
    """Nothing of a session is left to the next test."""
