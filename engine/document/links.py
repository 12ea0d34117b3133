"""Links and exported files that contain a design."""

from __future__ import annotations

import re
import zlib
from base64 import b64decode, b64encode, urlsafe_b64encode

from meshwave.engine.document.design import Design
from meshwave.engine.document.loading import parse_design
from meshwave.engine.findings import Refusal

LONGEST_LINK = 64_000
"""Maximum number of characters of a link; larger designs are shared as files."""
LARGEST_DOCUMENT_BYTES = 6_000_000
_KEY = "design="
_DATA_URL = "data:application/json;base64,"
_EMBEDDED = re.compile(re.escape(_DATA_URL) + "([A-Za-z0-9+/]+=*)")
_RAW = -zlib.MAX_WBITS  # a deflate stream without a header


def design_link(design: Design) -> str:
    """Return the fragment of a link that contains a design.

    Raises:
        Refusal: the design is too large for a link.
    """
    text = design.model_dump_json().encode()
    packer = zlib.compressobj(9, wbits=_RAW)
    packed = packer.compress(text) + packer.flush()
    fragment = _KEY + urlsafe_b64encode(packed).decode().rstrip("=")
    if len(fragment) > LONGEST_LINK:
        raise Refusal("long_link", {"document": "design", "length": len(fragment), "most": LONGEST_LINK})
    return fragment


def read_design_link(link: str) -> Design:
    """Return the design in a link or its fragment.

    Raises:
        Refusal: the link contains no design.
        DesignError: the document in the link is not a valid design.
    """
    _, found, text = link.partition(_KEY)
    try:
        if not found or len(text) > LONGEST_LINK:
            raise ValueError
        packed = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj(_RAW)
        document = unpacker.decompress(packed, LARGEST_DOCUMENT_BYTES)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError
    except (ValueError, zlib.error):
        raise Refusal("no_design_in_link", {}) from None
    return parse_design(document, draft=True)


def data_url(design: Design) -> str:
    """Return a data URL with the document of a design, for exported pages and pictures."""
    return _DATA_URL + b64encode(design.to_json().encode()).decode()


def embedded_document(text: str) -> str | None:
    """Return the document in an exported page or picture; None if it contains none.

    A picture may be decoded with any encoding, since the embedded document is ASCII.
    """
    found = _EMBEDDED.search(text)
    try:
        # in pictures of earlier versions, bytes of the file can follow that look like further base64
        return b64decode(found[1][: len(found[1]) // 4 * 4]).decode() if found else None
    except ValueError:
        return None
