"""The document that asks about one transfer alone: ``meshwave reshard SPEC.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from meshwave.engine.document.cluster import MOST_DEVICES, Nics, Rate
from meshwave.engine.document.reading import read_json, read_part
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.frozen import Part, Printable
from meshwave.engine.resharding import Link, Links, Load, Mesh, SpecError, Tensor, boxes

MOST_CUTS = 100_000
"""Of devices in the source times devices in the destination: each pair may share a slice."""
Ranks = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=MOST_DEVICES)]

Spec = Annotated[tuple[str, ...], Field(max_length=8)]
Axes = Annotated[tuple[Annotated[int, Field(ge=0, le=9)], ...], Field(max_length=6)]
MOST_TENSORS = 10_000


class TransferTensor(Part):
    """The tensor that travels."""

    shape: Annotated[tuple[Annotated[int, Field(ge=1, le=2**40)], ...], Field(max_length=8)]
    """Elements of each dim."""
    item_bytes: Annotated[int, Field(ge=1, le=64)] = 4
    """Bytes of one element."""


class TransferMesh(Part):
    """A mesh of ranks."""

    shape: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=6)]
    """The mesh's axes, outermost first."""
    ranks: Ranks
    """Its ranks, row-major."""
    hosts: Ranks
    """The host of each rank, in the same order."""

    @property
    def mesh(self) -> Mesh:
        return Mesh(self.shape, self.ranks, self.hosts)


class TransferSide(TransferMesh):
    """A mesh, and how the tensor lies on it."""

    spec: Spec
    """For each tensor dim R, or S with the mesh axes that cut it, outer first, such as S0 or S01."""
    partial: Axes = ()
    """Mesh axes over which the tensor is partial: ranks along them hold addends, and their sum travels. Source only."""

    @property
    def entries(self) -> tuple[str, ...]:
        """The spec with its partial axes, as a plan takes it."""
        return spec_entries(self.spec, self.partial)


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


class _Asked(Part):
    """What a transfer of one tensor and one of several have in common."""

    format: Literal["meshwave-transfer/1"]
    """The version of this document."""
    links: TransferLinks
    nics_per_host: Nics = 1
    """NICs of a host: so many tasks send from it, or receive there, at once."""
    chunks: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Chunks of a chain; null: the best number of each task."""

    def _lines(self, *sides: TransferMesh) -> Links:
        host = {rank: host for side in sides for rank, host in zip(side.ranks, side.hosts, strict=True)}
        return Links(self.links.intra_node.link, self.links.inter_node.link, host, self.nics_per_host)


class TransferSpec(_Asked):
    """One tensor from one mesh and sharding to another."""

    tensor: TransferTensor
    source: TransferSide
    destination: TransferSide

    @property
    def what(self) -> Tensor:
        return Tensor(self.tensor.shape, self.tensor.item_bytes)

    @property
    def load(self) -> Load:
        """The tensor with both its ends."""
        return Load(
            self.what, (self.source.mesh, self.source.entries), (self.destination.mesh, self.destination.entries)
        )

    @property
    def loads(self) -> tuple[Load, ...]:
        return (self.load,)

    @property
    def lines(self) -> Links:
        return self._lines(self.source, self.destination)


class ListedTensor(TransferTensor):
    """One of several tensors, with a sharding at either end."""

    name: Annotated[str, Field(max_length=200), Printable] = ""
    """The tensor's name, such as that of a parameter."""
    source_spec: Spec
    """For each tensor dim R, or S with the mesh axes that cut it in the source."""
    source_partial: Axes = ()
    """Mesh axes of the source over which the tensor is partial: ranks along them hold addends."""
    destination_spec: Spec
    """For each tensor dim R, or S with the mesh axes that cut it in the destination."""


class TransferListSpec(_Asked):
    """Several tensors from one mesh to another, as one plan: weights from a trainer to a server, for example."""

    tensors: Annotated[tuple[ListedTensor, ...], Field(min_length=1, max_length=MOST_TENSORS)]
    source: TransferMesh
    destination: TransferMesh

    @property
    def loads(self) -> tuple[Load, ...]:
        """Each tensor with both its ends; one without a name is called by its place."""
        source, destination = self.source.mesh, self.destination.mesh
        return tuple(
            Load(
                Tensor(each.shape, each.item_bytes),
                (source, spec_entries(each.source_spec, each.source_partial)),
                (destination, each.destination_spec),
                each.name or f"tensor {number}",
            )
            for number, each in enumerate(self.tensors)
        )

    @property
    def lines(self) -> Links:
        return self._lines(self.source, self.destination)


def spec_entries(spec: Sequence[str], partial: Sequence[int]) -> tuple[str, ...]:
    """Return a spec with its partial axes as a last entry; none where there are none."""
    return (*spec, *([f"P{''.join(map(str, partial))}"] if partial else []))


def problems(spec: TransferSpec | TransferListSpec) -> Iterator[Problem]:
    """What is wrong with a transfer whose parts are sound by themselves."""
    for find in (_both_meshes, _size_problems, _all_specs, _host_problems):  # each relies on those before it
        found = list(find(spec))
        yield from found
        if found:
            return


def _both_meshes(spec: TransferSpec | TransferListSpec) -> Iterator[Problem]:
    for name in ("source", "destination"):
        yield from _mesh_problems(name, getattr(spec, name))


def _size_problems(spec: TransferSpec | TransferListSpec) -> Iterator[Problem]:
    count, source, destination = len(spec.loads), len(spec.source.ranks), len(spec.destination.ranks)
    if count * source * destination > MOST_CUTS:
        ranks = f"{f'{count} tensors on ' * (count > 1)}{source} x {destination} ranks"
        message = f"{ranks} could share more slices than can be planned; the product may be {MOST_CUTS:,}"
        yield Problem("destination.ranks", "too_large", message)


def _host_problems(spec: TransferSpec | TransferListSpec) -> Iterator[Problem]:
    first = dict(zip(spec.source.ranks, spec.source.hosts, strict=True))
    for number, (rank, host) in enumerate(zip(spec.destination.ranks, spec.destination.hosts, strict=True)):
        if first.get(rank, host) != host:
            message = f"rank {rank} is on host {first[rank]} in the source and on host {host} here; a rank has one host"
            yield Problem(f"destination.hosts[{number}]", "two_hosts", message)


def _mesh_problems(name: str, side: TransferMesh) -> Iterator[Problem]:
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


def _all_specs(spec: TransferSpec | TransferListSpec) -> Iterator[Problem]:
    if isinstance(spec, TransferSpec):
        sides = {"source": spec.source, "destination": spec.destination}
        for name, side in sides.items():
            yield from _spec_problems(f"{name}.", side.mesh, side.spec, side.partial, spec.tensor.shape)
        if spec.destination.partial:
            message = "the destination gets the sum, and cannot be partial itself; leave the key out"
            yield Problem("destination.partial", "partial_destination", message)
        return
    source, destination = spec.source.mesh, spec.destination.mesh
    for number, each in enumerate(spec.tensors):
        where = f"tensors[{number}]."
        yield from _spec_problems(f"{where}source_", source, each.source_spec, each.source_partial, each.shape)
        yield from _spec_problems(f"{where}destination_", destination, each.destination_spec, (), each.shape)


def _spec_problems(
    where: str, mesh: Mesh, spec: Sequence[str], partial: Sequence[int], shape: Sequence[int]
) -> Iterator[Problem]:
    """The problems of one end of a tensor; ``where`` stands before the keys of its spec and its partial axes."""
    try:
        if any(entry.startswith("P") for entry in spec):
            raise SpecError(None, "a spec has R or S with axes for each dim; name partial axes under the key 'partial'")
        boxes(mesh, spec_entries(spec, partial), shape)
    except SpecError as error:
        is_partial = error.dim is not None and error.dim >= len(spec)
        place = "" if error.dim is None else f"[{error.dim}]"
        yield Problem(f"{where}partial" if is_partial else f"{where}spec{place}", "spec", str(error))


def parse_transfer(text: str | bytes) -> TransferSpec:
    """
    Raises:
        DesignError: with every problem that was found, each with its place.
    """
    spec = parse_transfers(text)
    if isinstance(spec, TransferListSpec):
        message = "several tensors are planned by meshwave reshard; here a transfer has one tensor, under 'tensor'"
        raise DesignError([Problem("tensors", "several_tensors", message)])
    return spec


def parse_transfers(text: str | bytes) -> TransferSpec | TransferListSpec:
    """Read a transfer of one tensor, or one of several where the document has the key ``tensors``.

    Raises:
        DesignError: with every problem that was found, each with its place.
    """
    document = read_json(text, "transfer")
    spec: TransferSpec | TransferListSpec
    if isinstance(document, Mapping) and "tensors" in document:
        spec = read_part(text, TransferListSpec, "transfer", "tensors, source, destination and links")
    else:
        spec = read_part(text, TransferSpec, "transfer", "tensor, source, destination and links")
    if found := list(problems(spec)):
        raise DesignError(found)
    return spec
