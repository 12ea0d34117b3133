"""Meshes: the devices of each pipeline rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count
from math import gcd, prod
from string import ascii_uppercase
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator

from meshwave.engine.document.cluster import MAX_DEVICES
from meshwave.engine.findings import Fix, Refusal, unknown_member_params
from meshwave.engine.frozen import Part, Printable, validation_error

DeviceNumber = Annotated[int, Field(ge=0, le=1_000_000_000)]
"""Device number; the checks of a whole design compare it with the devices of the cluster."""


Axis = Literal["dp", "cp", "tp"]
AXES: tuple[Axis, ...] = ("dp", "cp", "tp")


class Mesh(Part):
    """Rectangle of devices that holds one pipeline rank."""

    name: Annotated[str, Field(min_length=1, max_length=60), Printable]
    """Displayed name."""
    devices: Annotated[tuple[DeviceNumber, ...], Field(min_length=1, max_length=MAX_DEVICES)]
    """Devices, row-major over the axes."""
    axes: Mapping[Axis, PositiveInt] = Field(default_factory=dict, validate_default=True)
    """Data-parallel, context-parallel and tensor-parallel sizes, outermost first; an omitted axis is 1. Devices along the last
    axis are neighbours in the list of devices. The position of an axis of size 1 has no effect."""

    def __eq__(self, other: object) -> bool:
        """Compare all values, and the order of the axes."""
        return isinstance(other, Mesh) and super().__eq__(other) and [*self.axes] == [*other.axes]

    @property
    def dp(self) -> int:
        """Number of replicas of the weights, data-parallel and context-parallel."""
        return self.data_parallel * self.cp

    @property
    def data_parallel(self) -> int:
        """Size of the axis ``dp``: number of parts into which the sequences of a microbatch are divided."""
        return self.axes.get("dp", 1)

    @property
    def cp(self) -> int:
        """Context-parallel size: number of devices that divide the tokens of a sequence."""
        return self.axes.get("cp", 1)

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.axes.get("tp", 1)

    def _grid(self) -> NDArray[np.int64]:
        """Return ``[dp, cp, tp]`` devices."""
        sizes = {**dict.fromkeys(AXES, 1), **self.axes}
        outermost_first = [*self.axes, *(axis for axis in AXES if axis not in self.axes)]
        grid = np.reshape(self.devices, [sizes[axis] for axis in outermost_first])
        return grid.transpose([outermost_first.index(axis) for axis in AXES])

    @cached_property
    def ordered_devices(self) -> tuple[int, ...]:
        """Devices by their index along dp, then cp, then tp, whatever the order of the axes.

        Consecutive devices are a tensor-parallel group. The processes of a run are numbered in this order.
        """
        return tuple(self._grid().ravel().tolist())

    def groups(self, axis: Axis) -> list[tuple[int, ...]]:
        """Return the devices of each group along an axis: those that differ in their index along that axis only."""
        along = np.moveaxis(self._grid(), AXES.index(axis), -1)
        return [tuple(group) for group in along.reshape(-1, along.shape[-1]).tolist()]

    def place_on(self, devices: Sequence[int]) -> Mesh:
        """Return the mesh on other devices, given in the order of :attr:`ordered_devices`."""
        axes = {axis: self.axes[axis] for axis in AXES if axis in self.axes}
        return self.model_copy(update={"devices": tuple(devices), "axes": axes})

    @model_validator(mode="after")
    def _check_axes(self) -> Self:
        needed = prod(self.axes.values())
        if needed != len(self.devices):
            count = len(self.devices)
            params = {"mesh": self.name, "count": count, "axes": dict(self.axes), "product": needed}
            raise validation_error("devices", "mesh_size", params, axes_fix(self.name, count, gcd(self.tp, count)))
        return self


def equal_meshes(ranks: int, axes: Mapping[Axis, int], names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return equal meshes over consecutive devices, as entries of a document; default names: A to Z, A1 and so on."""
    size = prod(axes.values())
    letters = (letter + (str(turn) if turn else "") for turn in count() for letter in ascii_uppercase)
    return [
        {"name": name, "devices": [*range(rank * size, (rank + 1) * size)], "axes": dict(axes)}
        for rank, name in zip(range(ranks), names or letters, strict=False)
    ]


def axes_fix(mesh: str, devices: int, tp: int) -> Fix:
    """Return the fix that sets the tp size of a mesh, and its dp size to the number of devices divided by tp."""
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
    raise Refusal("unknown_member", unknown_member_params("mesh", wanted, names))
