"""Fields of the transfer form: how each value of the document is parsed from text and formatted as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

from meshwave.engine.amounts import parse_amount
from meshwave.engine.document.cluster import MAX_DEVICES
from meshwave.engine.findings import Refusal
from meshwave.engine.units import quantity

Document = dict[str, Any]
"""A transfer document as JSON; it may be invalid while it is being edited."""
Shows = Literal["planned", "simulated"]
"""The timeline and times that are shown: the planner's estimate, or the simulation with shared links."""
SHOWN: tuple[Shows, ...] = get_args(Shows)

SIDES = ("source", "destination")
_EVEN = re.compile(r"(\d+)\s*(?:a|per)\s*host(?:,?\s*from\s*(?:host\s*)?(\d+))?")


class Field(NamedTuple):
    """One field of the form."""

    path: str
    label: str
    help: str
    parse: Callable[[str, Document], Any]
    format: Callable[[Any, Document], str]
    unit: str = ""


def parse_sizes(text: str, _: Document) -> list[int]:
    """Parse sizes of axes or dims such as ``2 x 4``.

    Raises:
        Refusal: the text is not a list of whole numbers.
    """
    try:
        return [int(each) for each in re.split(r"[\s,x×*]+", text.strip()) if each]
    except ValueError:
        raise Refusal("not_sizes", {"text": text}) from None


def parse_ranks(text: str, _: Document) -> list[int]:
    """Parse ranks and ranges of ranks such as ``0-3, 8``.

    Raises:
        Refusal: the text is invalid, a range runs backwards, or there are more ranks than a mesh can have.
    """
    found: list[int] = []
    for part in filter(None, re.split(r"[\s,]+", re.sub(r"\s*[-–]\s*", "-", text.strip()))):
        ends = part.split("-")
        if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends) or len(ends) > 2:
            raise Refusal("not_ranks", {"text": part})
        first, last = int(ends[0]), int(ends[-1])
        if last < first:
            raise Refusal("descending_ranks", {"text": part, "first": first, "last": last})
        if last - first >= MAX_DEVICES or len(found) > MAX_DEVICES:
            raise Refusal("too_many_ranks", {"maximum": MAX_DEVICES})
        found += range(first, last + 1)
    return found


def parse_axes(text: str, _: Document) -> list[int]:
    """Parse mesh axes such as ``0, 1``; ``none`` is an empty list.

    Raises:
        Refusal: the text is not a list of whole numbers.
    """
    parts = [] if text.strip().lower() == "none" else [each for each in re.split(r"[\s,]+", text.strip()) if each]
    if not all(each.isascii() and each.isdigit() and len(each) < 3 for each in parts):
        raise Refusal("not_axes", {"text": text})
    return [int(each) for each in parts]


def _hosts_parser(side: str) -> Callable[[str, Document], list[int]]:
    def parse(text: str, document: Document) -> list[int]:
        """Parse ``4 per host, from host 2``, or hosts with their numbers of ranks: ``0*4 1*2``."""
        own = document[side]
        if even := _EVEN.fullmatch(text.strip()):
            each, first = int(even[1]), int(even[2]) if even[2] else min(own["hosts"], default=0)
            if not each:
                raise Refusal("empty_host")
            return [first + place // each for place in range(len(own["ranks"]))]
        found: list[int] = []
        for part in filter(None, re.split(r"[\s,]+", re.sub(r"\s*[*x×]\s*", "*", text.strip()))):
            numbers = part.split("*")
            if not all(each.isascii() and each.isdigit() and len(each) < 10 for each in numbers) or len(numbers) > 2:
                raise Refusal("not_hosts", {"text": text})
            if len(found) + int(numbers[1] if len(numbers) > 1 else 1) > MAX_DEVICES:
                raise Refusal("too_many_ranks", {"maximum": MAX_DEVICES})
            found += [int(numbers[0])] * int(numbers[1] if len(numbers) > 1 else 1)
        return found

    return parse


def _parse_integer(text: str, _: Document) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refusal("not_a_whole_number", {"text": text}) from None


def _parse_chunks(text: str, document: Document) -> int | None:
    return None if text.strip().lower() in ("", "best") else _parse_integer(text, document)


def _rate_parser(path: str) -> Callable[[str, Document], float | None]:
    def parse(text: str, document: Document) -> float | None:
        """Parse a rate such as ``1.25 GB/s`` or ``10 Gbit/s``; ``free`` is None."""
        if text.strip().lower() in ("", "free"):
            return None
        rate = parse_amount(text, "B/s", _format_rate(_value_at(document, path), document))
        if rate < 1:
            raise Refusal("rate_too_low", {"text": text})
        return rate

    return parse


def _latency_parser(path: str) -> Callable[[str, Document], float]:
    def parse(text: str, document: Document) -> float:
        """Parse a time such as ``50 us``; ``free`` is 0."""
        if text.strip().lower() in ("", "free"):
            return 0.0
        return parse_amount(text, "s", _format_seconds(_value_at(document, path), document))

    return parse


def _format_sizes(sizes: Any, _: Document) -> str:
    return " x ".join(map(str, sizes))


def _format_ranks(ranks: Sequence[int], _: Document) -> str:
    """Format ranks, consecutive ones as a range."""
    runs = [list(run) for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs)


def _format_axes(axes: Any, _: Document) -> str:
    return ", ".join(map(str, axes)) or "none"


def _hosts_formatter(side: str) -> Callable[[Sequence[int], Document], str]:
    def format(hosts: Sequence[int], document: Document) -> str:
        """Format hosts as ``4 per host, from host 2`` if possible, else as ``0*4, 1*2``."""
        runs = [(host, len(list(run))) for host, run in groupby(hosts)]
        each, first = (runs[0][1], runs[0][0]) if runs else (1, 0)
        if hosts and list(hosts) == [first + place // each for place in range(len(document[side]["ranks"]))]:
            return f"{each} per host, from host {first}"
        return ", ".join(f"{host}*{length}" if length > 1 else str(host) for host, length in runs)

    return format


def _format_seconds(value: Any, _: Document) -> str:
    return quantity(value, "s", 6) if value else "0 s"


def _format_rate(value: Any, _: Document) -> str:
    return quantity(value, "B/s", 6) if value else "free"


def _format_integer(value: Any, _: Document) -> str:
    return str(value)


def _format_chunks(value: Any, _: Document) -> str:
    return "best" if value is None else str(value)


def _fields() -> tuple[Field, ...]:
    sides = [
        field
        for side in SIDES
        for field in (
            Field(f"{side}.shape", "Mesh", "Sizes of the mesh axes, outermost first, such as 2 x 4", parse_sizes, _format_sizes),
            Field(f"{side}.hosts", "Hosts", "'4 per host' for 4 ranks on each host, or a list of host*ranks: 0*4 1*4", _hosts_parser(side), _hosts_formatter(side)),
            Field(f"{side}.ranks", "Ranks", "Ranks of the mesh, row by row: 0-7", parse_ranks, _format_ranks),
        )
    ]  # fmt: skip
    links = [
        field
        for link, where in (("inter_node", "between hosts"), ("intra_node", "inside a host"))
        for rate, latency in [(f"links.{link}.bandwidth", f"links.{link}.latency_s")]
        for field in (
            Field(rate, "Bandwidth", f"Bandwidth {where} in one direction, in bytes/s or bit/s; enter 'free' for no cost", _rate_parser(rate), _format_rate, "B/s"),
            Field(latency, "Latency", f"Fixed time per message {where}", _latency_parser(latency), _format_seconds, "s"),
        )
    ]  # fmt: skip
    return (
        Field("tensor.shape", "Shape", "Elements per dim", parse_sizes, _format_sizes),
        Field("tensor.item_bytes", "Element size", "Bytes per element", _parse_integer, _format_integer),
        *sides,
        Field(
            "source.partial",
            "Partial axes",
            "Mesh axes along which ranks hold partial sums, which are reduced before the transfer; or none",
            parse_axes,
            _format_axes,
        ),
        *links,
        Field(
            "nics_per_host",
            "NICs per host",
            "Number of tasks that a host can send, and receive, at the same time",
            _parse_integer,
            _format_integer,
        ),
        Field(
            "chunks",
            "Chunks",
            "Chunks per broadcast chain; best: the fastest number for each task",
            _parse_chunks,
            _format_chunks,
        ),
    )


FIELDS: Mapping[str, Field] = {field.path: field for field in _fields()}


def field_texts(document: Document) -> dict[str, str]:
    """Return the text of each field; empty where the document is invalid."""
    found = {}
    for path, field in FIELDS.items():
        try:
            found[path] = field.format(_value_at(document, path), document)
        except (TypeError, ValueError, KeyError, AttributeError):  # the document is invalid at this path
            found[path] = ""
    return found


def _value_at(document: Any, path: str) -> Any:
    defaults: dict[str, Any] = {"chunks": None, "nics_per_host": 1, "tensor.item_bytes": 4, "source.partial": []}
    for step in path.split("."):
        document = document.get(step, defaults.get(path)) if isinstance(document, Mapping) else None
    return document
