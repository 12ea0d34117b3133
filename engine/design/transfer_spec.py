"""The document that asks about one transfer alone: ``meshwave reshard SPEC.json``."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from engine.design.cluster import MOST_DEVICES, Nics, Rate
from engine.design.reading import read_part
from engine.errors import DesignError, Problem
from engine.part import Part
from engine.transfer import Link, Links, Mesh, SpecError, Tensor, boxes

MOST_CUTS = 100_000
"""Of devices in the source times devices in the destination: each pair may share a slice."""
Ranks = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=MOST_DEVICES)]


class TransferTensor(Part):
    """The tensor that travels."""

    shape: Annotated[tuple[Annotated[int, Field(ge=1, le=2**40)], ...], Field(max_length=8)]
    """Elements of each dim."""
    item_bytes: Annotated[int, Field(ge=1, le=64)] = 4
    """Bytes of one element."""


class TransferSide(Part):
    """A mesh, and how the tensor lies on it."""

    shape: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=6)]
    """The mesh's axes, outermost first."""
    ranks: Ranks
    """Its ranks, row-major."""
    hosts: Ranks
    """The host of each rank, in the same order."""
    spec: Annotated[tuple[str, ...], Field(max_length=8)]
    """For each tensor dim R, or S with the mesh axes that cut it, outer first, such as S0 or S01."""

    @property
    def mesh(self) -> Mesh:
        return Mesh(self.shape, self.ranks, self.hosts)


class TransferLink(Part):
    """A connection that costs ``latency_s + bytes / bandwidth``."""

    latency_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Seconds that any message takes at least (alpha)."""
    bandwidth: Rate | None = None
    """Bytes/s in one direction; null: bytes are free."""

    @property
    def link(self) -> Link:
        return Link(self.latency_s, self.bandwidth)


class TransferLinks(Part):
    """Inside a host and between hosts."""

    intra_node: TransferLink
    inter_node: TransferLink


class TransferSpec(Part):
    """One tensor from one mesh and sharding to another."""

    format: Literal["meshwave-transfer/1"]
    """The version of this document."""
    tensor: TransferTensor
    source: TransferSide
    destination: TransferSide
    links: TransferLinks
    nics_per_host: Nics = 1
    """NICs of a host: so many tasks send from it, or receive there, at once."""
    chunks: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Chunks of a chain; null: the best number of each task."""

    @property
    def what(self) -> Tensor:
        return Tensor(self.tensor.shape, self.tensor.item_bytes)

    @property
    def lines(self) -> Links:
        host = {
            rank: host
            for side in (self.source, self.destination)
            for rank, host in zip(side.ranks, side.hosts, strict=True)
        }
        return Links(self.links.intra_node.link, self.links.inter_node.link, host, self.nics_per_host)


def problems(spec: TransferSpec) -> Iterator[Problem]:
    """What is wrong with a transfer whose parts are sound by themselves."""
    found = [problem for name in ("source", "destination") for problem in _side(name, getattr(spec, name), spec)]
    yield from found
    if found:
        return
    first = dict(zip(spec.source.ranks, spec.source.hosts, strict=True))
    for number, (rank, host) in enumerate(zip(spec.destination.ranks, spec.destination.hosts, strict=True)):
        if first.get(rank, host) != host:
            message = f"rank {rank} is on host {first[rank]} in the source and on host {host} here; a rank has one host"
            yield Problem(f"destination.hosts[{number}]", "two_hosts", message)
    if len(spec.source.ranks) * len(spec.destination.ranks) > MOST_CUTS:
        message = (
            f"{len(spec.source.ranks)} x {len(spec.destination.ranks)} ranks could share more slices than can be "
            f"planned; the product may be {MOST_CUTS:,}"
        )
        yield Problem("destination.ranks", "too_large", message)


def _side(name: str, side: TransferSide, spec: TransferSpec) -> Iterator[Problem]:
    needed = prod(side.shape)
    for key in ("ranks", "hosts"):
        given = len(getattr(side, key))
        if given != needed:
            message = f"a mesh of {' x '.join(map(str, side.shape))} has {needed} ranks, and {given} {key} are given"
            yield Problem(f"{name}.{key}", "mesh_size", message)
            return
    seen: set[int] = set()
    for number, rank in enumerate(side.ranks):
        if rank in seen:
            yield Problem(f"{name}.ranks[{number}]", "rank_repeated", f"rank {rank} stands twice; name each rank once")
        seen.add(rank)
    try:
        boxes(side.mesh, side.spec, spec.tensor.shape)
    except SpecError as error:
        place = "" if error.dim is None else f"[{error.dim}]"
        yield Problem(f"{name}.spec{place}", "spec", str(error))


def parse_transfer(text: str | bytes) -> TransferSpec:
    """
    Raises:
        DesignError: with every problem that was found, each with its place.
    """
    spec = read_part(text, TransferSpec, "transfer", "tensor, source, destination and links")
    if found := list(problems(spec)):
        raise DesignError(found)
    return spec
