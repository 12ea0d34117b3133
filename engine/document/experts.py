"""Where the experts of a mixture-of-experts model lie, and how their layer is scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from meshwave.engine.experts import expert_schedule_names
from meshwave.engine.findings import Problem, set_value
from meshwave.engine.frozen import Part, nullable

Share = Annotated[float, Field(ge=0, le=1e30)]
"""How often an expert is chosen, in any measure: within what the sum over all experts can still hold."""
Load = Literal["uniform", "zipf"] | Annotated[tuple[Share, ...], Field(min_length=1)]
if TYPE_CHECKING:
    ScheduleName = str
else:
    ScheduleName = Literal[tuple(expert_schedule_names())]
    """Every schedule that lies in its folder and is offered."""


def load_problems(load: Load | None, experts: int) -> Iterator[Problem]:
    """Yield what is wrong with a list of loads for a number of experts, at ``load``."""
    if not isinstance(load, tuple):
        return
    fixes = [set_value("load", "uniform")]
    if len(load) != experts:
        yield Problem("load", "load_size", {"given": len(load), "experts": experts}, fixes=fixes)
    elif not any(load):
        yield Problem("load", "zero_load", fixes=fixes)


class Experts(Part):
    """Experts on devices."""

    schedule: ScheduleName = "parm-auto"
    """The order of communication and compute inside an expert layer."""
    ep: PositiveInt = 1
    """Expert-parallel size: groups of devices that hold different experts."""
    esp: PositiveInt = 1
    """Expert-sharding size: devices that share one expert."""
    degree: Annotated[int, Field(ge=1, le=64)] | None = nullable("the fastest by the model", 1)
    """Chunks in which slots are exchanged and computed, so that one hides behind another."""
    variant: Literal["paper", "pregate", "lanes"] = "paper"
    """Which deepspeed: as Parm's paper has it, gathering before the gate, or a lane for each shard."""
    placement: tuple[tuple[NonNegativeInt, ...], ...] | None = nullable("in equal blocks")
    """The experts of each device of a mesh, the same on all meshes."""
    load: Load | None = nullable("uniform")
    """How tokens spread over the experts: uniform, zipf, or a share for each."""

    @property
    def member(self) -> str:
        """The expert schedule by its name among all, variants included."""
        return self.schedule if self.schedule != "deepspeed" or self.variant == "paper" else f"deepspeed-{self.variant}"
