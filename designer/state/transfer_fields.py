"""What a gesture makes of a transfer's document: fields as texts, axes on dims, meshes of another shape, links."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

from meshwave.engine.document.cluster import MOST_DEVICES
from meshwave.engine.errors import InputError
from meshwave.engine.units import amount, quantity

Document = dict[str, Any]
"""A transfer as JSON has it; it may be wrong while somebody works on it."""
Shows = Literal["planned", "played"]
"""Which timeline of the links is drawn, and which time of the plans is told."""
SHOWN: tuple[Shows, ...] = get_args(Shows)

SIDES = ("source", "destination")
_EVEN = re.compile(r"(\d+)\s*(?:a|per)\s*host(?:,?\s*from\s*(\d+))?")


# ---- texts of fields ----


class Field(NamedTuple):
    """One field of the form."""

    path: str
    label: str
    help: str
    read: Callable[[str, Document], Any]
    show: Callable[[Any, Document], str]


def sizes_of(text: str, _: Document) -> list[int]:
    """``2 x 4``: sizes of axes or dims.

    Raises:
        InputError: it is no list of whole numbers.
    """
    try:
        return [int(each) for each in re.split(r"[\s,x×*]+", text.strip()) if each]
    except ValueError:
        raise InputError(f"{_cut(text)} should be sizes such as 2 x 4") from None


def ranks_of(text: str, _: Document) -> list[int]:
    """``0-3, 8``: ranks and ranges of them.

    Raises:
        InputError: it is something else, runs backwards, or names more ranks than a mesh can have.
    """
    found: list[int] = []
    for part in filter(None, re.split(r"[\s,]+", re.sub(r"\s*[-–]\s*", "-", text.strip()))):
        ends = part.split("-")
        if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends) or len(ends) > 2:
            raise InputError(f"{_cut(part)} should be a rank, or a range of ranks such as 0-7")
        first, last = int(ends[0]), int(ends[-1])
        if last < first:
            raise InputError(
                f"{_cut(part)} runs backwards: write {last}-{first}, or each rank where its order is meant"
            )
        if last - first >= MOST_DEVICES or len(found) > MOST_DEVICES:
            raise InputError(f"a mesh has at most {MOST_DEVICES} ranks")
        found += range(first, last + 1)
    return found


def axes_of(text: str, _: Document) -> list[int]:
    """``0, 1``: mesh axes; ``none`` is none.

    Raises:
        InputError: it is no list of whole numbers.
    """
    parts = [] if text.strip().lower() == "none" else [each for each in re.split(r"[\s,]+", text.strip()) if each]
    if not all(each.isascii() and each.isdigit() and len(each) < 3 for each in parts):
        raise InputError(f"{_cut(text)} should be mesh axes such as 0, 1, or none")
    return [int(each) for each in parts]


def _hosts_reader(side: str) -> Callable[[str, Document], list[int]]:
    def read(text: str, document: Document) -> list[int]:
        """``4 a host, from 2``, or each host with its number of ranks: ``0*4 1*2``."""
        own = document[side]
        if even := _EVEN.fullmatch(text.strip()):
            each, first = int(even[1]), int(even[2]) if even[2] else min(own["hosts"], default=0)
            if not each:
                raise InputError("a host has at least one rank")
            return [first + place // each for place in range(len(own["ranks"]))]
        found: list[int] = []
        for part in filter(None, re.split(r"[\s,]+", re.sub(r"\s*[*x×]\s*", "*", text.strip()))):
            numbers = part.split("*")
            if not all(each.isascii() and each.isdigit() and len(each) < 10 for each in numbers) or len(numbers) > 2:
                raise InputError(f"{_cut(text)} should be hosts such as 0*4 1*4, or 4 a host")
            if len(found) + int(numbers[1] if len(numbers) > 1 else 1) > MOST_DEVICES:
                raise InputError(f"a mesh has at most {MOST_DEVICES} ranks")
            found += [int(numbers[0])] * int(numbers[1] if len(numbers) > 1 else 1)
        return found

    return read


def _whole(text: str, _: Document) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{_cut(text)} should be a whole number") from None


def _chunks(text: str, document: Document) -> int | None:
    return None if text.strip().lower() in ("", "best") else _whole(text, document)


def _rate_reader(path: str) -> Callable[[str, Document], float | None]:
    def read(text: str, document: Document) -> float | None:
        """``1.25 GB/s`` or ``10 Gbit/s``; ``free`` is no cost."""
        if text.strip().lower() in ("", "free"):
            return None
        rate = amount(text, "B/s", _of_rate(_at(document, path), document))
        if rate < 1:
            raise InputError(f"{_cut(text.strip())} is too little to send by: at least 1 B/s, or free for no cost")
        return rate

    return read


def _latency_reader(path: str) -> Callable[[str, Document], float]:
    def read(text: str, document: Document) -> float:
        """``50 us``; ``free`` is none."""
        if text.strip().lower() in ("", "free"):
            return 0.0
        return amount(text, "s", _of_seconds(_at(document, path), document))

    return read


def _of_sizes(sizes: Any, _: Document) -> str:
    return " x ".join(map(str, sizes))


def _of_ranks(ranks: Sequence[int], _: Document) -> str:
    """Ranks, those that follow one another as a range."""
    runs = [list(run) for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs)


def _of_axes(axes: Any, _: Document) -> str:
    return ", ".join(map(str, axes)) or "none"


def _hosts_shower(side: str) -> Callable[[Sequence[int], Document], str]:
    def show(hosts: Sequence[int], document: Document) -> str:
        """``4 a host, from 2`` where that says the same of the mesh's ranks."""
        runs = [(host, len(list(run))) for host, run in groupby(hosts)]
        each, first = (runs[0][1], runs[0][0]) if runs else (1, 0)
        if hosts and list(hosts) == [first + place // each for place in range(len(document[side]["ranks"]))]:
            return f"{each} a host, from {first}"
        return ", ".join(f"{host}*{length}" if length > 1 else str(host) for host, length in runs)

    return show


def _of_seconds(value: Any, _: Document) -> str:
    return quantity(value, "s", 6) if value else "0 s"


def _of_rate(value: Any, _: Document) -> str:
    return quantity(value, "B/s", 6) if value else "free"


def _of_whole(value: Any, _: Document) -> str:
    return str(value)


def _of_chunks(value: Any, _: Document) -> str:
    return "best" if value is None else str(value)


def _fields() -> tuple[Field, ...]:
    sides = [
        field
        for side in SIDES
        for field in (
            Field(f"{side}.shape", "Mesh", "Sizes of the mesh's axes, outermost first", sizes_of, _of_sizes),
            Field(f"{side}.hosts", "Hosts", "4 a host, or hosts with their numbers of ranks: 0*4 1*4", _hosts_reader(side), _hosts_shower(side)),
            Field(f"{side}.ranks", "Ranks", "Ranks of the mesh, row by row: 0-7", ranks_of, _of_ranks),
        )
    ]  # fmt: skip
    links = [
        field
        for link, where in (("inter_node", "between hosts"), ("intra_node", "inside a host"))
        for rate, latency in [(f"links.{link}.bandwidth", f"links.{link}.latency_s")]
        for field in (
            Field(rate, "Bandwidth", f"Bytes/s or bit/s {where}, one direction; free for no cost", _rate_reader(rate), _of_rate),
            Field(latency, "Latency", f"Seconds that any message {where} takes at least", _latency_reader(latency), _of_seconds),
        )
    ]  # fmt: skip
    return (
        Field("tensor.shape", "Shape", "Elements of each dim", sizes_of, _of_sizes),
        Field("tensor.item_bytes", "Bytes each", "Bytes of one element", _whole, _of_whole),
        *sides,
        Field(
            "source.partial",
            "Partial axes",
            "Mesh axes along which ranks hold addends, whose sum travels; none for a tensor that is whole",
            axes_of,
            _of_axes,
        ),
        *links,
        Field(
            "nics_per_host",
            "NICs a host",
            "So many tasks send from a host, or receive there, at once",
            _whole,
            _of_whole,
        ),
        Field("chunks", "Chunks", "Chunks of a chain; best: the best number for each task", _chunks, _of_chunks),
    )


FIELDS: Mapping[str, Field] = {field.path: field for field in _fields()}


def texts(document: Document) -> dict[str, str]:
    """What stands in each field."""
    found = {}
    for path, field in FIELDS.items():
        try:
            found[path] = field.show(_at(document, path), document)
        except (TypeError, ValueError, KeyError, AttributeError):  # a document that is wrong there
            found[path] = ""
    return found


def _at(document: Any, path: str) -> Any:
    defaults: dict[str, Any] = {"chunks": None, "nics_per_host": 1, "tensor.item_bytes": 4, "source.partial": []}
    for step in path.split("."):
        document = document.get(step, defaults.get(path)) if isinstance(document, Mapping) else None
    return document


def _cut(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
