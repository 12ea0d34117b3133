"""Helpers for tests of widgets without a browser."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.designer.forms import Field, form_sections
from meshwave.engine.document import Design


def fields_by_path(design: Design) -> dict[str, Field]:
    """Return the fields of the form of a design by their paths."""
    return {field["path"]: field for section in form_sections(design) for field in section["fields"]}


class SentMessages:
    """Messages that a widget sent to its page."""

    def __init__(self, widget: Any, patch: pytest.MonkeyPatch) -> None:
        self.messages: list[dict[str, Any]] = []
        patch.setattr(widget, "_send_msg", self.messages.append)

    def messages_of_type(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]
