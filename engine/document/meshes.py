"""Meshes: the devices of each pipeline rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from meshwave.engine.document.cluster import MAX_DEVICES
from meshwave.engine.findings import Fix, Refusal, unknown_name
from meshwave.engine.frozen import Part, Printable, validation_error

DeviceNumber = Annotated[int, Field(ge=0, le=1_000_000_000)]
"""Device number; the checks of a whole design compare it with the devices of the cluster."""


class Mesh(Part):
    """Rectangle of devices that holds one pipeline rank."""

    name: Annotated[str, Field(min_length=1, max_length=60), Printable]
    """Displayed name."""
    devices: Annotated[tuple[DeviceNumber, ...], Field(min_length=1, max_length=MAX_DEVICES)]
    """Devices, row-major over the axes."""
    axes: Mapping[Literal["dp", "cp", "tp"], PositiveInt] = Field(default_factory=dict, validate_default=True)
    """Data-parallel, context-parallel and tensor-parallel sizes, outermost first; an omitted axis is 1."""

    @property
    def dp(self) -> int:
        """Number of replicas of the weights, data-parallel and context-parallel."""
        return self.axes.get("dp", 1) * self.cp

    @property
    def cp(self) -> int:
        """Context-parallel size: number of devices that divide the tokens of a sequence."""
        return self.axes.get("cp", 1)

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.axes.get("tp", 1)

    @model_validator(mode="after")
    def _check_axes(self) -> Self:
        needed = prod(self.axes.values())
        if needed != len(self.devices):
            count = len(self.devices)
            params = {"mesh": self.name, "count": count, "axes": dict(self.axes), "product": needed}
            raise validation_error("devices", "mesh_size", params, use_axes(self.name, count, gcd(self.tp, count)))
        return self


def use_axes(mesh: str, devices: int, tp: int) -> Fix:
    """Return the fix that sets the tp of a mesh, and its dp to the rest of its devices."""
    dp = devices // tp
    return Fix("use_axes", {"mesh": mesh, "dp": dp, "tp": tp}, (("axes", {"dp": dp, "tp": tp}),))


def find_mesh(meshes: Sequence[Mesh], wanted: str) -> int:
    """Return the number of a mesh, given its name or its number.

    Raises:
        InputError: the mesh does not exist.
    """
    names = [mesh.name for mesh in meshes]
    if wanted in names:
        return names.index(wanted)
    if wanted.isdecimal() and int(wanted) < len(names):
        return int(wanted)
    raise Refusal("unknown_member", unknown_name("mesh", wanted, names))
