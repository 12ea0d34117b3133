"""Documents of a single transfer, for ``meshwave reshard SPEC.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from meshwave.engine.document.cluster import MAX_DEVICES, Nics, Rate
from meshwave.engine.document.reading import read_json, read_part
from meshwave.engine.findings import DesignError, Problem, set_key_fix
from meshwave.engine.frozen import Part, Printable, nullable
from meshwave.engine.resharding import Link, Links, Load, Mesh, SpecError, Tensor, rank_boxes

MAX_SLICES = 100_000
"""Maximum of tensors x source devices x destination devices, since each pair of devices may share a slice."""
Ranks = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=MAX_DEVICES)]

Spec = Annotated[tuple[str, ...], Field(max_length=8)]
Axes = Annotated[tuple[Annotated[int, Field(ge=0, le=9)], ...], Field(max_length=6)]
MAX_TENSORS = 10_000


class TransferTensor(Part):
    """Tensor to transfer."""

    shape: Annotated[tuple[Annotated[int, Field(ge=1, le=2**40)], ...], Field(max_length=8)]
    """Number of elements of each dim."""
    item_bytes: Annotated[int, Field(ge=1, le=64)] = 4
    """Bytes of one element."""


class TransferMesh(Part):
    """Mesh of ranks."""

    shape: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=6)]
    """Sizes of the mesh axes, outermost first."""
    ranks: Ranks
    """Ranks in row-major order."""
    hosts: Ranks
    """Host of each rank, in the same order."""

    @property
    def mesh(self) -> Mesh:
        """The mesh in the format of the planner."""
        return Mesh(self.shape, self.ranks, self.hosts)


class TransferSide(TransferMesh):
    """Mesh, and the sharding of the tensor on it."""

    spec: Spec
    """Entry per tensor dim: R, or S with the mesh axes that shard it, outer first, such as S0 or S01."""
    partial: Axes = ()
    """Mesh axes along which ranks hold partial sums; the sum is sent. Source only."""

    @property
    def entries(self) -> tuple[str, ...]:
        """Sharding spec with its partial axes, in the format of the planner."""
        return spec_entries(self.spec, self.partial)


class TransferLink(Part):
    """Connection that takes ``latency_s + bytes / bandwidth``."""

    latency_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Fixed seconds per message (alpha)."""
    bandwidth: Rate | None = nullable("bytes are free")
    """Bandwidth in one direction, in bytes/s."""

    @property
    def link(self) -> Link:
        """The link in the format of the planner."""
        return Link(self.latency_s, self.bandwidth)


class TransferLinks(Part):
    """Links inside a host and between hosts."""

    intra_node: TransferLink
    inter_node: TransferLink


class _TransferBase(Part):
    """Common keys of transfers of one tensor and of several tensors."""

    format: Literal["meshwave-transfer/1"]
    """Version of the document format."""
    links: TransferLinks
    nics_per_host: Nics = 1
    """Number of NICs per host, which is the number of tasks that can send from it, or receive on it, at once."""
    chunks: Annotated[int, Field(ge=1, le=1_000_000)] | None = nullable("the fastest number for each task")
    """Number of chunks into which slices are split by strategies that forward them along a chain."""

    def _lines(self, *sides: TransferMesh) -> Links:
        host = {rank: host for side in sides for rank, host in zip(side.ranks, side.hosts, strict=True)}
        return Links(self.links.intra_node.link, self.links.inter_node.link, host, self.nics_per_host)


class TransferSpec(_TransferBase):
    """Transfer of one tensor from one mesh and sharding to another."""

    tensor: TransferTensor
    source: TransferSide
    destination: TransferSide

    @property
    def planned_tensor(self) -> Tensor:
        """The tensor in the format of the planner."""
        return Tensor(self.tensor.shape, self.tensor.item_bytes)

    @property
    def load(self) -> Load:
        """The tensor with its source and destination."""
        return Load(
            self.planned_tensor,
            (self.source.mesh, self.source.entries),
            (self.destination.mesh, self.destination.entries),
        )

    @property
    def loads(self) -> tuple[Load, ...]:
        """The tensor with its source and destination, as a tuple of one."""
        return (self.load,)

    @property
    def lines(self) -> Links:
        """Links between the ranks of both meshes."""
        return self._lines(self.source, self.destination)


class ListedTensor(TransferTensor):
    """One of several tensors, with its sharding on both meshes."""

    name: Annotated[str, Field(max_length=200), Printable] = ""
    """Name of the tensor, such as that of a parameter."""
    source_spec: Spec
    """Entry per tensor dim: R, or S with the mesh axes that shard it in the source."""
    source_partial: Axes = ()
    """Mesh axes of the source along which ranks hold partial sums of the tensor."""
    destination_spec: Spec
    """Entry per tensor dim: R, or S with the mesh axes that shard it in the destination."""


class TransferListSpec(_TransferBase):
    """Transfer of several tensors from one mesh to another in one plan, such as weights from a trainer to a server."""

    tensors: Annotated[tuple[ListedTensor, ...], Field(min_length=1, max_length=MAX_TENSORS)]
    source: TransferMesh
    destination: TransferMesh

    @property
    def loads(self) -> tuple[Load, ...]:
        """The tensors with their sources and destinations; a tensor without a name is named by its number."""
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
        """Links between the ranks of both meshes."""
        return self._lines(self.source, self.destination)


def spec_entries(spec: Sequence[str], partial: Sequence[int]) -> tuple[str, ...]:
    """Return a sharding spec with its partial axes, if any, as the last entry."""
    return (*spec, *([f"P{''.join(map(str, partial))}"] if partial else []))


def transfer_problems(spec: TransferSpec | TransferListSpec) -> Iterator[Problem]:
    """Yield problems of a transfer with individually valid keys."""
    for find in (
        _mesh_problems,
        _size_problems,
        _sharding_problems,
        _host_problems,
    ):  # each relies on the previous ones
        found = list(find(spec))
        yield from found
        if found:
            return


def _mesh_problems(spec: TransferSpec | TransferListSpec) -> Iterator[Problem]:
    for name in ("source", "destination"):
        yield from _rank_problems(name, getattr(spec, name))


def _rank_problems(name: str, mesh: TransferMesh) -> Iterator[Problem]:
    needed = prod(mesh.shape)
    for key in ("ranks", "hosts"):
        given = len(getattr(mesh, key))
        if given != needed:
            params = {"shape": list(mesh.shape), "needed": needed, "given": given, "key": key}
            yield Problem(f"{name}.{key}", "mesh_rank_count", params)
            return
    seen: set[int] = set()
    for number, rank in enumerate(mesh.ranks):
        if rank in seen:
            yield Problem(f"{name}.ranks[{number}]", "repeated_rank", {"rank": rank})
        seen.add(rank)


def _size_problems(spec: TransferSpec | TransferListSpec) -> Iterator[Problem]:
    count, source, destination = len(spec.loads), len(spec.source.ranks), len(spec.destination.ranks)
    if count * source * destination > MAX_SLICES:
        params = {"tensors": count, "source": source, "destination": destination, "maximum": MAX_SLICES}
        yield Problem("destination.ranks", "transfer_size", params)


def _host_problems(spec: TransferSpec | TransferListSpec) -> Iterator[Problem]:
    hosts = dict(zip(spec.source.ranks, spec.source.hosts, strict=True))
    for number, (rank, host) in enumerate(zip(spec.destination.ranks, spec.destination.hosts, strict=True)):
        expected = hosts.get(rank, host)
        if expected != host:
            where, params = f"destination.hosts[{number}]", {"rank": rank, "source": expected, "destination": host}
            yield Problem(where, "different_hosts", params, fixes=[set_key_fix(where, expected)])


def _sharding_problems(spec: TransferSpec | TransferListSpec) -> Iterator[Problem]:
    if isinstance(spec, TransferSpec):
        sides = {"source": spec.source, "destination": spec.destination}
        for name, side in sides.items():
            yield from _spec_problems(f"{name}.", side.mesh, side.spec, side.partial, spec.tensor.shape)
        if spec.destination.partial:
            where = "destination.partial"
            yield Problem(where, "partial_destination", fixes=[set_key_fix(where, [])])
        return
    source, destination = spec.source.mesh, spec.destination.mesh
    for number, each in enumerate(spec.tensors):
        where = f"tensors[{number}]."
        yield from _spec_problems(f"{where}source_", source, each.source_spec, each.source_partial, each.shape)
        yield from _spec_problems(f"{where}destination_", destination, each.destination_spec, (), each.shape)


def _spec_problems(
    where: str, mesh: Mesh, spec: Sequence[str], partial: Sequence[int], shape: Sequence[int]
) -> Iterator[Problem]:
    """Yield problems of one side of a tensor; ``where`` is the path prefix of its spec and partial axes."""
    listed = next((dim for dim, entry in enumerate(spec) if entry.startswith("P")), None)
    if listed is not None:
        yield Problem(f"{where}spec", "partial_entry", {"entry": spec[listed]})
        return
    try:
        rank_boxes(mesh, spec_entries(spec, partial), shape)
    except SpecError as error:
        is_partial = error.dim is not None and error.dim >= len(spec)
        place = "" if error.dim is None else f"[{error.dim}]"
        yield error.problem.replace(where=f"{where}partial" if is_partial else f"{where}spec{place}")


def parse_transfer(text: str | bytes) -> TransferSpec:
    """Parse the document of a transfer of one tensor.

    Raises:
        DesignError: the document is invalid; the error lists every problem with its path.
    """
    spec = parse_transfers(text)
    if isinstance(spec, TransferListSpec):
        raise DesignError([Problem("tensors", "several_tensors")])
    return spec


def parse_transfers(text: str | bytes) -> TransferSpec | TransferListSpec:
    """Parse the document of a transfer of one tensor, or of several tensors if it has the key ``tensors``.

    Raises:
        DesignError: the document is invalid; the error lists every problem with its path.
    """
    document = read_json(text, "transfer")
    spec: TransferSpec | TransferListSpec
    if isinstance(document, Mapping) and "tensors" in document:
        spec = read_part(text, TransferListSpec, "transfer", "tensors, source, destination and links")
    else:
        spec = read_part(text, TransferSpec, "transfer", "tensor, source, destination and links")
    if found := list(transfer_problems(spec)):
        raise DesignError(found)
    return spec
