"""Where the pipeline's ranks lie on the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from meshwave.engine.document.cluster import MOST_DEVICES
from meshwave.engine.errors import InputError, nearest
from meshwave.engine.frozen import Part, Printable

DeviceNumber = Annotated[int, Field(ge=0, le=1_000_000_000)]
"""Whether the cluster has it is told where a whole design is looked at, with the numbers that there are."""


class Mesh(Part):
    """A rectangle of devices that holds one pipeline rank."""

    name: Annotated[str, Field(min_length=1, max_length=60), Printable]
    """What people call it."""
    devices: Annotated[tuple[DeviceNumber, ...], Field(min_length=1, max_length=MOST_DEVICES)]
    """The devices, row-major over the axes."""
    axes: Mapping[Literal["dp", "tp"], PositiveInt] = Field(default_factory=dict, validate_default=True)
    """Sizes of data parallel and tensor parallel, outermost first; an axis left out is 1."""

    @property
    def dp(self) -> int:
        """Data-parallel size."""
        return self.axes.get("dp", 1)

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.axes.get("tp", 1)

    @model_validator(mode="after")
    def _axes_cover_the_devices(self) -> Self:
        needed = prod(self.axes.values())
        if needed != len(self.devices):
            raise PydanticCustomError(
                "mesh_size",
                "mesh {name} is drawn over {drawn} {noun}, but {axes} needs {needed}; "
                "resize the mesh or change an axis",
                {
                    "name": self.name,
                    "drawn": len(self.devices),
                    "noun": "device" if len(self.devices) == 1 else "devices",
                    "axes": " x ".join(f"{axis}={size}" for axis, size in self.axes.items()) or "no axis",
                    "needed": needed,
                },
            )
        return self


def mesh_called(meshes: Sequence[Mesh], wanted: str) -> int:
    """The number of a mesh, by its name or its number.

    Raises:
        InputError: there is none.
    """
    names = [mesh.name for mesh in meshes]
    if wanted in names:
        return names.index(wanted)
    if wanted.isdecimal() and int(wanted) < len(names):
        return int(wanted)
    raise InputError(f"there is no mesh called {wanted!r}. {nearest(wanted, names)}")
