"""What a gesture makes of a transfer's document: fields as texts, axes on dims, meshes of another shape, links."""

from __future__ import annotations

import json
import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import groupby
from math import prod
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import parse_qs

from engine.design.cluster import MOST_DEVICES
from engine.design.transfer_spec import TransferSpec
from engine.errors import InputError
from engine.units import amount, quantity

Document = dict[str, Any]
"""A transfer as JSON has it; it may be wrong while somebody works on it."""
Shows = Literal["planned", "played"]
"""Which timeline of the links is drawn, and which time of the plans is told."""
SHOWN: tuple[Shows, ...] = get_args(Shows)

SIDES = ("source", "destination")
LONGEST_LINK = 64_000
"""Letters of a link; what is longer is sent as a file."""
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
    defaults = {"chunks": None, "nics_per_host": 1, "tensor.item_bytes": 4, "source.partial": []}
    for step in path.split("."):
        document = document.get(step, defaults.get(path)) if isinstance(document, Mapping) else None
    return document


def with_text(document: Document, path: str, text: str) -> Document:
    """The document with what was typed into a field.

    Raises:
        InputError: it cannot be read.
    """
    if path not in FIELDS:
        raise InputError(f"there is no field {path!r}")
    value = FIELDS[path].read(text, document)
    if path == "tensor.shape":
        return with_dims(document, value)
    side, _, key = path.partition(".")
    if side in SIDES and key == "shape":
        return with_shape(document, side, value)
    changed = deepcopy(document)
    here = changed
    *owners, last = path.split(".")
    for step in owners:
        here = here[step]
    here[last] = value
    return changed


# ---- sizes and axes ----


def with_dims(document: Document, shape: list[int]) -> Document:
    """Another shape; a spec gets an R for each new dim."""
    changed = deepcopy(document)
    changed["tensor"]["shape"] = shape
    for side in SIDES:
        spec = changed[side]["spec"]
        changed[side]["spec"] = [*spec[: len(shape)], *["R"] * (len(shape) - len(spec))]
    return changed


def with_shape(document: Document, side: str, shape: list[int]) -> Document:
    """A mesh of another shape: ranks and hosts are numbered anew, as many ranks a host as before, and a
    destination that lay right behind the source still does. Axes that are gone cut nothing any more."""
    changed = deepcopy(document)
    own = changed[side]
    before = {key: list(own[key]) for key in ("ranks", "hosts")}
    own["shape"] = shape
    own["spec"] = [_entry([axis for axis in _axes(entry) if axis < len(shape)]) for entry in own["spec"]]
    own["partial"] = [axis for axis in own.get("partial", []) if axis < len(shape)]
    size = prod(shape)
    if not 0 < size <= MOST_DEVICES or not all(before.values()):
        return changed
    each = before["hosts"].count(before["hosts"][0])
    own["ranks"] = list(range(before["ranks"][0], before["ranks"][0] + size))
    own["hosts"] = [before["hosts"][0] + place // each for place in range(size)]
    if side == "source":
        other = changed["destination"]
        for key in ("ranks", "hosts"):
            if other[key] and min(other[key]) == max(before[key]) + 1:
                other[key] = [number + max(own[key]) - max(before[key]) for number in other[key]]
    return changed


def with_axis(document: Document, side: str, axis: int, dim: int | None, at: int) -> Document:
    """Let a mesh axis cut a dim as its ``at``-th axis, outermost first; without a dim it replicates.

    Raises:
        InputError: there is no such axis or dim.
    """
    if side not in SIDES or not 0 <= axis < len(document[side]["shape"]):
        raise InputError("there is no such axis")
    changed = deepcopy(document)
    cuts = [[each for each in _axes(entry) if each != axis] for entry in changed[side]["spec"]]
    if dim is not None:
        if not 0 <= dim < len(cuts):
            raise InputError("there is no such dim")
        cuts[dim].insert(at, axis)
        changed[side]["partial"] = [each for each in changed[side].get("partial", []) if each != axis]
    changed[side]["spec"] = [_entry(axes) for axes in cuts]
    return changed


def _axes(entry: str) -> list[int]:
    return [int(each) for each in str(entry)[1:] if each.isdigit()]


def _entry(axes: Sequence[int]) -> str:
    return f"S{''.join(map(str, axes))}" if axes else "R"


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


def _cut(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


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
