"""Escaping of text for XML and HTML."""

from __future__ import annotations

import html
import re

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that are invalid in XML 1.0 or HTML."""


def escape(text: str) -> str:
    """Escape text for XML and HTML; invalid characters, such as control characters, become U+FFFD."""
    return html.escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text))
