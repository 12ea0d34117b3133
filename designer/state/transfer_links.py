"""Links and files that contain a transfer document, and the predefined transfers."""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64encode
from math import prod
from typing import NamedTuple
from urllib.parse import parse_qs

from meshwave.designer.state.transfer_fields import Document, Shows
from meshwave.engine.document.transfer_document import TransferSpec
from meshwave.engine.findings import Refusal

LONGEST_LINK = 64_000
"""Largest number of characters of a link; longer documents are shared as files."""


# ---- links and files ----


def transfer_document(spec: TransferSpec) -> Document:
    """Return a transfer as a JSON document."""
    document: Document = spec.model_dump(mode="json")
    return document


def transfer_file(document: Document) -> bytes:
    """Return the contents of a file that ``meshwave reshard`` reads."""
    return (json.dumps(document, indent=1) + "\n").encode()


def link_fragment(document: Document, strategy: str, ordering: str, *, shows: Shows = "planned") -> str:
    """Return the fragment of a link (the part behind ``#``); empty if it would be too long."""
    text = urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode()).decode().rstrip("=")
    link = f"spec={text}&strategy={strategy}&ordering={ordering}{'' if shows == 'planned' else f'&shows={shows}'}"
    return link if len(link) <= LONGEST_LINK else ""


class LinkParts(NamedTuple):
    """The parts of a link."""

    text: bytes  # unchecked JSON
    strategy: str | None
    ordering: str | None
    shows: Shows


def read_link(fragment: str) -> LinkParts:
    """Parse the fragment of a link, which contains the transfer document as JSON or as base64 of JSON.

    Raises:
        Refusal: the link is too long or contains no transfer.
    """
    if len(fragment) > LONGEST_LINK:
        raise Refusal("long_link", {"document": "transfer", "length": len(fragment), "most": LONGEST_LINK})
    try:
        parts = parse_qs(fragment.lstrip("#"), max_num_fields=8, strict_parsing=True)
        [spec] = parts["spec"]
        text = spec.encode() if spec.lstrip().startswith("{") else _decode(spec)
    except (ValueError, KeyError):
        raise Refusal("no_transfer_in_link") from None
    strategy, ordering = (parts.get(name, [None])[0] for name in ("strategy", "ordering"))
    is_simulated = parts.get("shows") in (["simulated"], ["played"])  # "played" in links of earlier versions
    return LinkParts(text, strategy, ordering, "simulated" if is_simulated else "planned")


def _decode(text: str) -> bytes:
    return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


# ---- predefined transfers ----


def make_transfer(
    source: list[int],
    destination: list[int],
    shape: list[int],
    specs: tuple[str, str],
    per_host: int = 4,
    item: int = 4,
) -> Document:
    """Return the document of a transfer between disjoint meshes with ``per_host`` ranks per host, and 10 Gbit/s between hosts."""
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


CUBE_SHAPE = [1024, 1024, 512]


def starting_transfers() -> dict[str, tuple[str, Document]]:
    """Return titles and documents of the predefined transfers, by key.

    The keys of the numbered ones are their numbers in the artifact of arXiv:2211.05322, section 5.
    """
    numbered = (
        (1, "Same sharding", [2, 4], [2, 4], CUBE_SHAPE, ("S0 R R", "S0 R R")),
        (2, "Replicated to sharded", [2, 4], [2, 4], CUBE_SHAPE, ("R R R", "S0 R R")),
        (3, "Another tensor dim", [2, 4], [2, 4], CUBE_SHAPE, ("R S0 R", "S0 R R")),
        (4, "Another tensor dim, both mesh axes", [2, 4], [2, 4], CUBE_SHAPE, ("R S01 R", "S01 R R")),
        (5, "Another mesh axis", [2, 4], [2, 4], CUBE_SHAPE, ("S1 R R", "S0 R R")),
        (6, "2 hosts to 3 hosts", [2, 4], [3, 4], [3072, 1024, 170], ("S0 R R", "S0 R R")),
        (7, "Sharded on 1 host to replicated on 2", [1, 4], [2, 4], CUBE_SHAPE, ("S1 R R", "R R R")),
        (9, "Second tensor dim to third", [2, 4], [2, 4], CUBE_SHAPE, ("R S0 R", "R R S0")),
    )
    return {
        "rows": (
            "Row-sharded: 2 hosts to 3 hosts",
            make_transfer([2, 2], [3, 2], [13312, 6144], ("S0 R", "S0 R"), per_host=2, item=2),
        ),
        "uneven": (
            "Uneven row sharding: 13 x 6",
            make_transfer([2, 2], [3, 2], [13, 6], ("S0 R", "S0 R"), per_host=2, item=2),
        ),
        "one-to-many": ("One device to 4 hosts", make_transfer([1], [4, 2], [2**28], ("R", "R"), per_host=2)),
        **{
            f"case-{number}": (
                f"{title}: {specs[0]} to {specs[1]}",
                make_transfer(source, destination, shape, specs),
            )
            for number, title, source, destination, shape, specs in numbered
        },
    }
