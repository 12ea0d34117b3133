"""Cost section: the cost model that predicts a design, and the options of that model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from meshwave.engine.document.members import Member, MemberOf
from meshwave.engine.registry import Registry

if TYPE_CHECKING:
    from meshwave.engine.program.simulation import TransferModel

Unit = Literal["s", "units"]


class CostSection(Member):
    """Options of a cost model in a document. :class:`meshwave.engine.costs.CostModel` adds the pricing."""

    unit: ClassVar[Unit] = "s"  # unit of the predicted times; "units" for unit costs

    if TYPE_CHECKING:  # fields of every member; each declares them where its document has them
        kind: str
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

    def portable_model(self) -> CostSection:
        """Return a cost model that does not need files of this machine."""
        return self

    def external_data(self) -> str:
        """Return a text that identifies the data outside the document on which prices depend."""
        return ""

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
