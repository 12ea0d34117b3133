"""Pipeline section: the split of the model into stages, and the schedule of microbatches.

Each schedule has its own section model with the keys of every pipeline and the options of the schedule, so that an
option of another schedule is an unknown key.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, create_model

from meshwave.engine.frozen import Part, nullable, option_labels
from meshwave.engine.schedules import MAX_MICROBATCHES, Schedule, schedules

RecomputedPart = Literal["attention", "operators", "layers", "layers-early-stop"]
"""Part of every layer that its backward recomputes."""


class Section(Part):
    """Keys of every pipeline."""

    schedule: str
    """Rule that orders the computations of every mesh."""
    microbatches: Annotated[int, Field(ge=1, le=MAX_MICROBATCHES)]
    """Number of microbatches in one training step."""
    stages: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = nullable("balanced by cost")
    """Number of layers of each stage."""
    placement: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = nullable(
        "the default of the schedule"
    )
    """Mesh of each stage."""
    actions: Annotated[tuple[tuple[str, ...], ...], Field(min_length=1)] | None = None
    """Hand-drawn order of actions for each mesh, such as 0F0 0B0; only for the schedule custom."""
    recompute: (
        Annotated[
            Literal["none", RecomputedPart, "full"],
            option_labels(
                {
                    "none": "None",
                    "attention": "Attention kernels",
                    "operators": "Selected operators",
                    "layers": "Layers",
                    "layers-early-stop": "Layers with early stop",
                    "full": "All stages",
                }
            ),
        ]
        | tuple[NonNegativeInt, ...]
    ) = "none"
    """Activation recomputation, which saves memory at the cost of time (Chen et al., arXiv:1604.06174). none: all
    activations are kept. full: each stage keeps only its input and runs its forward again before its backward. Numbers
    of stages: only these stages run their forward again. layers: each layer is run again from its input.
    layers-early-stop: each layer is run again up to the last tensor that its backward needs. attention: only the
    attention kernel is run again. operators: all operators of a layer are run again, except attention and every second
    matrix product."""

    @property
    def recomputed_part(self) -> RecomputedPart | None:
        """Part of every layer that its backward recomputes; None if stages are recomputed as a whole or not at all."""
        part = self.recompute
        return None if isinstance(part, tuple) or part == "none" or part == "full" else part

    @property
    def recomputes_layers(self) -> bool:
        """True if each layer keeps only its input."""
        return self.recompute in ("layers", "layers-early-stop")

    def recomputes(self, stage: int) -> bool:
        """Return True if a stage runs its forward twice."""
        return stage in self.recompute if isinstance(self.recompute, tuple) else self.recompute == "full"


def _make_section(name: str, schedule: type[Schedule]) -> Any:
    fields: dict[str, Any] = {
        "schedule": (Literal[name], Field(default=name, description="Rule that orders the actions of each rank."))
    }
    title = "".join(word.capitalize() for word in name.split("-")) + "Pipeline"
    made = create_model(title, __base__=(schedule, Section), __doc__=schedule.help(), __module__=__name__, **fields)
    globals()[title] = made  # pickle finds a class by its name
    return made


if TYPE_CHECKING:

    class Pipeline(Schedule, Section):
        """Common interface of all pipeline sections."""

else:
    Pipeline = Annotated[
        reduce(or_, (_make_section(name, schedule) for name, schedule in schedules.items())),
        Field(discriminator="schedule"),
    ]
