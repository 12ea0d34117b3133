"""Messages of the import of files of other tools."""

from __future__ import annotations

from meshwave.engine.messages import Message

MESSAGES: dict[str, Message] = {
    "import_not_text": "{file} is not text; save it as text in UTF-8",
    "unknown_import": "{file} is in none of the formats that can be imported: {formats:list}; name one with --from",
    "ambiguous_import": "{file} may be in several formats: {formats:list}; name one with --from",
    "no_design_in_link": "the link has no design: expected #design= with a compressed document",
    "long_link": "the design needs a link of {length:,} characters and links have at most {most:,}; share the file instead",
}
