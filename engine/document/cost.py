"""The cost section: which cost model predicts a design, and the options of that model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from meshwave.engine.document.members import Member, MemberOf
from meshwave.engine.registry import Registry

if TYPE_CHECKING:
    from meshwave.engine.program.simulation import TransferModel

Unit = Literal["s", "units"]


class CostSection(Member):
    """What a document says of its cost model. :class:`meshwave.engine.costs.CostModel` adds the prices."""

    unit: ClassVar[Unit] = "s"  # of the predicted times: unit costs are no seconds

    if TYPE_CHECKING:  # fields of every member; each declares them where its document has them
        kind: str
        transfer_model: TransferModel

    @property
    def is_in_seconds(self) -> bool:
        """Whether it predicts seconds; otherwise it knows nothing of bytes, links and the inside of a block."""
        return self.unit == "s"

    @property
    def profile_name(self) -> str:
        """The calibration profile that it needs; empty if it needs none."""
        return ""

    @property
    def links_are_drawn(self) -> bool:
        """Whether messages are priced on the links of the cluster, not on measured ones."""
        return True

    def use_drawn_links(self) -> CostSection:
        """Return the same model with messages priced on the links of the cluster."""
        return self

    def portable(self) -> CostSection:
        """Return a model that works without the files of this machine."""
        return self

    def external_data(self) -> str:
        """Return what its prices depend on beside the document, as text that changes when that changes."""
        return ""

    def machine_warning(self) -> str:
        """Return why its predictions are of another machine than this one; empty if they are not."""
        return ""

    def choices(self, key: str) -> Sequence[str]:
        """The values to choose from for a key that names something on this machine; none for any other key."""
        return ()


cost_models: Registry[type[CostSection]] = Registry("cost model", "meshwave.engine.costs.models")

_ANY = MemberOf(cost_models, "kind", default="roofline")
Cost = Annotated[CostSection, _ANY]
default_cost = _ANY.default
