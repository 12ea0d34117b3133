"""Which model of cost predicts the design."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from meshwave.engine.frozen import FileName, Part
from meshwave.engine.program.simulation import TransferModel, UnitTransferModel

Overlap = Annotated[float, Field(ge=0, le=1)]
Units = Annotated[float, Field(ge=1e-9, le=1e9)]


class UnitCost(Part):
    """Every stage costs its share: for teaching, and to compare with papers."""

    kind: Literal["unit"] = "unit"
    """Every stage costs its share of these numbers."""
    forward: Units = 1.0
    """One microbatch's forward through the whole model, divided by the number of meshes."""
    backward: Units = 2.0
    """The same for its backward."""
    transfer: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """One boundary between two different meshes."""
    weight: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """The part of backward that is the weight gradient; null: half."""
    fused: Units | None = None
    """A slot that overlaps a forward with a backward; null: their sum."""
    transfer_model: UnitTransferModel = "latency"
    """latency: no transfer disturbs another; sender-blocking: a transfer occupies its sender; link-serial: a NIC carries one transfer at a time; half-duplex: both directions between two meshes share their rate; batched: a send and a receive that stand next to each other between two meshes hold both up until both are done."""

    @model_validator(mode="after")
    def _the_weight_gradient_is_a_part_of_backward(self) -> Self:
        if self.weight is not None and self.weight > self.backward:
            raise PydanticCustomError(
                "weight",
                "the weight gradient ({weight}) is a part of backward ({backward}); use {backward} or less",
                {"weight": f"{self.weight:g}", "backward": f"{self.backward:g}"},
            )
        return self


class RooflineCost(Part):
    """Seconds from FLOPs, bytes and links."""

    kind: Literal["roofline"] = "roofline"
    """Seconds from the shapes of model and cluster."""
    overlap: Overlap = 0.0
    """Of what a forward and a backward in one slot could hide of their exchanges behind each other's computing, the
    share that is hidden: 0 none, 1 all."""
    transfer_model: TransferModel = "shared-links"
    """shared-links: transfers and collectives share NICs and links; latency: none disturbs another; sender-blocking: a transfer occupies its sender; link-serial: a NIC carries one transfer at a time; half-duplex: both directions between two meshes share their rate; batched: a send and a receive that stand next to each other between two meshes hold both up until both are done."""


class CalibratedCost(Part):
    """Seconds from tables that were measured."""

    kind: Literal["calibrated"] = "calibrated"
    """Seconds from a measured profile."""
    profile: FileName
    """File name of the profile, of those that are kept."""
    links: Literal["measured", "drawn"] = "measured"
    """measured: messages as in the profile; drawn: on the cluster's links, which are others than were measured."""
    transfer_model: TransferModel = "shared-links"
    """shared-links: transfers and collectives share NICs and links; latency: none disturbs another; sender-blocking: a transfer occupies its sender; link-serial: a NIC carries one transfer at a time; half-duplex: both directions between two meshes share their rate; batched: a send and a receive that stand next to each other between two meshes hold both up until both are done."""


Cost = Annotated[UnitCost | RooflineCost | CalibratedCost, Field(discriminator="kind")]
