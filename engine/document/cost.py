"""Cost section: the cost model that predicts a design, and the options of that model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from meshwave.engine.document.members import Member, MemberOf
from meshwave.engine.frozen import Part, nullable, validation_error
from meshwave.engine.registry import Registry

if TYPE_CHECKING:
    from meshwave.engine.program.simulation import TransferModel

Unit = Literal["s", "units"]
Positive = Annotated[float, Field(ge=1e-9, le=1e9)]
NonNegative = Annotated[float, Field(ge=0, le=1e9)]


class StageCosts(Part):
    """Time of one microbatch on each stage, in the unit of the cost model; every list has one entry per stage."""

    forward: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Forward. A stage that recomputes runs its forward again before its backward."""
    input: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Gradient of the input."""
    weight: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    """Gradient of the weights. A full backward takes the sum of both gradients."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        lengths = {name: len(column) for name, column in self}
        if len(set(lengths.values())) > 1:
            raise validation_error("", "stage_cost_columns", lengths)
        return self

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.forward)

    def redistribute(self, stages: int) -> StageCosts:
        """Return the costs for another number of equal stages of the same model; the total cost is unchanged."""
        return self.model_copy(update={name: _redistribute_costs(column, stages) for name, column in self})


def _redistribute_costs(costs: Sequence[float], stages: int) -> tuple[float, ...]:
    """Divide a model of equally long stages with these ``costs`` into ``stages`` equal parts; return their costs."""
    before = len(costs)  # a present stage is `stages` units long, and a new one `before` units

    def cost(start: int, end: int) -> float:
        parts = range(start // stages, -(-end // stages))
        shares = ((min(end, (part + 1) * stages) - max(start, part * stages)) / stages for part in parts)
        return sum(costs[part] * share for part, share in zip(parts, shares, strict=True))

    return tuple(cost(stage * before, (stage + 1) * before) for stage in range(stages))


class CostSection(Member):
    """Options of a cost model in a document. :class:`meshwave.engine.costs.CostModel` adds the pricing."""

    unit: ClassVar[Unit] = "s"  # unit of the predicted times; "units" for unit costs

    kind: str
    """Name of the cost model, which each member declares as a constant."""
    stage_costs: StageCosts | None = nullable("computed by the cost model")
    """Costs of each stage, in seconds, or in time units for unit costs. These costs replace those that the cost model
    computes."""

    if TYPE_CHECKING:  # a field of every member; each declares it where its document has it
        transfer_model: TransferModel

    @property
    def is_in_seconds(self) -> bool:
        """True if the model predicts seconds; otherwise it ignores bytes, links and the inside of blocks."""
        return self.unit == "s"

    @property
    def profile_name(self) -> str:
        """Calibration profile of the model; empty if it uses none."""
        return ""

    @property
    def links_are_drawn(self) -> bool:
        """True if messages are priced by the links of the cluster instead of measured links."""
        return True

    def use_drawn_links(self) -> CostSection:
        """Return the same cost model with messages priced by the links of the cluster."""
        return self

    def redistribute_costs(self, stages: int) -> Self:
        """Return the same model with its given costs, if any, spread over a number of stages."""
        given = self.stage_costs
        if given is None or given.stages == stages:
            return self
        return self.model_copy(update={"stage_costs": given.redistribute(stages)})

    def portable_model(self) -> CostSection:
        """Return a cost model that does not need files of this machine."""
        return self

    def external_data(self) -> str:
        """Return a text that identifies the data outside the document on which prices depend."""
        return ""

    def fit_error(self) -> float | None:
        """Return the largest relative deviation of measured block times from their fit; None without a fit."""
        return None

    def machine_warning(self) -> str:
        """Return a warning if the predictions are for another machine; empty otherwise."""
        return ""

    def choices(self, key: str) -> Sequence[str]:
        """Return the valid values of a key that names a file on this machine; empty for other keys."""
        return ()


cost_models: Registry[type[CostSection]] = Registry("cost model", "meshwave.engine.costs.models")

_ANY = MemberOf(cost_models, "kind", default="roofline")
Cost = Annotated[CostSection, _ANY]
default_cost = _ANY.default
