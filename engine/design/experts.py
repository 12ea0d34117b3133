"""Where the experts of a mixture-of-experts model lie, and how their layer is scheduled."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from engine.part import Part

Load = Literal["uniform", "zipf"] | Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)]


class Experts(Part):
    """Experts on devices."""

    schedule: Literal["expert-parallel", "deepspeed", "a2a-allgather", "parm-s1", "parm-s2", "parm-auto", "ppmoe"] = (
        "parm-auto"
    )
    """The order of communication and compute inside an expert layer."""
    ep: PositiveInt = 1
    """Expert-parallel size: groups of devices that hold different experts."""
    esp: PositiveInt = 1
    """Expert-sharding size: devices that share one expert."""
    placement: tuple[tuple[NonNegativeInt, ...], ...] | None = None
    """The experts of each device; null: in equal blocks."""
    load: Load | None = None
    """How tokens spread over the experts: uniform, zipf, or a share for each; null: uniform."""
