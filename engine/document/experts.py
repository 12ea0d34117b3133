"""Experts section: placement of the experts of a mixture-of-experts model, and the schedule of their layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from meshwave.engine.experts import expert_schedule_names
from meshwave.engine.findings import Problem, set_key_fix
from meshwave.engine.frozen import Part, nullable, option_labels

Share = Annotated[float, Field(ge=0, le=1e30)]
"""Relative frequency with which an expert is chosen; limited so that the sum over all experts stays finite."""
Load = (
    Annotated[Literal["uniform", "zipf"], option_labels({"uniform": "Uniform", "zipf": "Zipf"})]
    | Annotated[tuple[Share, ...], Field(min_length=1)]
)
if TYPE_CHECKING:
    ScheduleName = str
else:
    ScheduleName = Literal[tuple(expert_schedule_names())]
    """All selectable expert schedules."""


def load_problems(load: Load | None, experts: int) -> Iterator[Problem]:
    """Yield the problems of load shares given for ``experts`` experts, located at the key ``load``."""
    if not isinstance(load, tuple):
        return
    fixes = [set_key_fix("load", "uniform")]
    if len(load) != experts:
        yield Problem("load", "load_size", {"given": len(load), "experts": experts}, fixes=fixes)
    elif not any(load):
        yield Problem("load", "zero_load", fixes=fixes)


Placement = tuple[tuple[NonNegativeInt, ...], ...]


class LayerExperts(Part):
    """Placement and load of the experts of one layer."""

    layer: NonNegativeInt
    """Number of the layer in the model, from 0."""
    placement: Placement | None = nullable("that of the other layers")
    """Experts of each device of a mesh, the same on all meshes."""
    load: Load | None = nullable("that of the other layers")
    """Share of the tokens that each expert receives: one number per expert, or a distribution. zipf: the share of expert k,
    counted from 0, is proportional to 1 / (k + 1)."""


class Experts(Part):
    """Distribution of experts over devices."""

    schedule: ScheduleName = "parm-auto"
    """Order of communication and computation inside an expert layer."""
    ep: PositiveInt = 1
    """Expert-parallel size: number of device groups that hold different experts."""
    esp: PositiveInt = 1
    """Expert-sharding size: number of devices that share one expert."""
    degree: Annotated[int, Field(ge=1, le=64)] | None = nullable("the fastest number according to the cost model", 1)
    """Number of chunks into which slots are split, so that exchange and computation of different chunks overlap."""
    variant: Annotated[
        Literal["paper", "pregate", "lanes"],
        option_labels(
            {"paper": "As in Parm's paper", "pregate": "Gather before the gate", "lanes": "One exchange per shard"}
        ),
    ] = "paper"
    """Variant of the DeepSpeed-MoE schedule."""
    placement: Placement | None = nullable("in equal blocks")
    """Experts of each device of a mesh, the same on all meshes."""
    load: Load | None = nullable("uniform")
    """Share of the tokens that each expert receives: one number per expert, or a distribution. zipf: the share of expert k,
    counted from 0, is proportional to 1 / (k + 1)."""
    layers: tuple[LayerExperts, ...] = ()
    """Layers whose experts have a placement or a load of their own."""
    rebalance_steps: PositiveInt | None = nullable("experts stay where they are")
    """Number of training steps after which the experts of a layer move to other devices if its measured load is uneven."""
    rebalance_threshold: Annotated[float, Field(ge=1, le=1e6)] = 1.1
    """Tokens of the most loaded device relative to the mean, above which the load of a layer is uneven."""

    @property
    def has_replicas(self) -> bool:
        """True if several places hold the same expert."""
        placed = [expert for held in self.placement or () for expert in held]
        return len(placed) > len(set(placed)) * self.esp

    @property
    def own_layers(self) -> tuple[int, ...]:
        """Numbers of the layers with a placement or a load of their own."""
        return tuple(each.layer for each in self.layers)

    def section_of_layer(self, number: int) -> Experts:
        """Return the section with the placement and the load of a layer."""
        own = next((each for each in self.layers if each.layer == number), None)
        if own is None:
            return self
        placement, load = own.placement, own.load
        return self.model_copy(
            update={
                "placement": self.placement if placement is None else placement,
                "load": self.load if load is None else load,
                "layers": (),
            }
        )

    @property
    def member(self) -> str:
        """Name of the expert schedule, including its variant."""
        return self.schedule if self.schedule != "deepspeed" or self.variant == "paper" else f"deepspeed-{self.variant}"
