"""What a gesture makes of a transfer's document: fields as texts, axes on dims, meshes of another shape, links."""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64encode
from math import prod
from typing import NamedTuple
from urllib.parse import parse_qs

from meshwave.designer.state.transfer_fields import Document, Shows
from meshwave.engine.document.transfer_document import TransferSpec
from meshwave.engine.errors import InputError

LONGEST_LINK = 64_000
"""Letters of a link; what is longer is sent as a file."""


# ---- links and files ----


def as_document(spec: TransferSpec) -> Document:
    """The document of a transfer, as a file has it."""
    document: Document = spec.model_dump(mode="json")
    return document


def as_file(document: Document) -> bytes:
    """What ``meshwave reshard`` reads."""
    return (json.dumps(document, indent=1) + "\n").encode()


def as_link(document: Document, strategy: str, ordering: str, *, shows: Shows = "planned") -> str:
    """The part of a link behind its #; empty where it would be too long."""
    text = urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode()).decode().rstrip("=")
    link = f"spec={text}&strategy={strategy}&ordering={ordering}{'' if shows == 'planned' else f'&shows={shows}'}"
    return link if len(link) <= LONGEST_LINK else ""


class Linked(NamedTuple):
    """What a link holds."""

    text: bytes  # JSON, not checked yet
    strategy: str | None
    ordering: str | None
    shows: Shows


def read_link(fragment: str) -> Linked:
    """The parts of a link: its spec as JSON, or that in base64.

    Raises:
        InputError: it is too long, or no such link.
    """
    if len(fragment) > LONGEST_LINK:
        raise InputError(f"the link has {len(fragment):,} letters and may have {LONGEST_LINK:,}; send the file instead")
    try:
        parts = parse_qs(fragment.lstrip("#"), max_num_fields=8, strict_parsing=True)
        [spec] = parts["spec"]
        text = spec.encode() if spec.lstrip().startswith("{") else _of_base64(spec)
    except (ValueError, KeyError):
        raise InputError("the link holds no transfer: it should be #spec= with the JSON of one, in base64") from None
    strategy, ordering = (parts.get(name, [None])[0] for name in ("strategy", "ordering"))
    return Linked(text, strategy, ordering, "played" if parts.get("shows") == ["played"] else "planned")


def _of_base64(text: str) -> bytes:
    """
    Raises:
        ValueError: it is not base64 for links.
    """
    return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


# ---- to start from ----


def case(
    source: list[int],
    destination: list[int],
    shape: list[int],
    specs: tuple[str, str],
    per_host: int = 4,
    item: int = 4,
) -> Document:
    """Two disjoint meshes with ``per_host`` ranks a host, and 10 Gb/s between hosts."""
    first, second = prod(source), prod(destination)
    hosts = -(-first // per_host)
    return {
        "format": "meshwave-transfer/1",
        "tensor": {"shape": shape, "item_bytes": item},
        "source": {
            "shape": source,
            "ranks": list(range(first)),
            "hosts": [place // per_host for place in range(first)],
            "spec": specs[0].split(),
            "partial": [],
        },
        "destination": {
            "shape": destination,
            "ranks": list(range(first, first + second)),
            "hosts": [hosts + place // per_host for place in range(second)],
            "spec": specs[1].split(),
            "partial": [],
        },
        "links": {
            "intra_node": {"latency_s": 1e-5, "bandwidth": 4e10},
            "inter_node": {"latency_s": 5e-5, "bandwidth": 1.25e9},
        },
        "nics_per_host": 1,
        "chunks": None,
    }


CUBE = [1024, 1024, 512]


def cases() -> dict[str, tuple[str, Document]]:
    """Transfers to start from: a title and a document each. The numbered ones are those of the paper's
    released artifact (arXiv:2211.05322, section 5)."""
    numbered = (
        ([2, 4], [2, 4], CUBE, ("S0 R R", "S0 R R")),
        ([2, 4], [2, 4], CUBE, ("R R R", "S0 R R")),
        ([2, 4], [2, 4], CUBE, ("R S0 R", "S0 R R")),
        ([2, 4], [2, 4], CUBE, ("R S01 R", "S01 R R")),
        ([2, 4], [2, 4], CUBE, ("S1 R R", "S0 R R")),
        ([2, 4], [3, 4], [3072, 1024, 170], ("S0 R R", "S0 R R")),
        ([1, 4], [2, 4], CUBE, ("S1 R R", "R R R")),
        ([2, 4], [2, 4], CUBE, ("R S0 R", "R R S0")),
    )
    numbers = (1, 2, 3, 4, 5, 6, 7, 9)
    return {
        "rows": (
            "Rows over 2 hosts to rows over 3",
            case([2, 2], [3, 2], [13312, 6144], ("S0 R", "S0 R"), per_host=2, item=2),
        ),
        "uneven": (
            "The same, small and uneven: 13 x 6",
            case([2, 2], [3, 2], [13, 6], ("S0 R", "S0 R"), per_host=2, item=2),
        ),
        "one-to-many": ("One device to 4 hosts", case([1], [4, 2], [2**28], ("R", "R"), per_host=2)),
        **{
            f"case-{number}": (f"Case {number}: {specs[0]} to {specs[1]}", case(source, destination, shape, specs))
            for number, (source, destination, shape, specs) in zip(numbers, numbered, strict=True)
        },
    }
