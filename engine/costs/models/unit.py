"""Unit costs: every stage costs its share of one number, for teaching and for comparison with papers.

``forward`` and ``backward`` are the times of one microbatch through the whole model divided by the number of meshes,
the ``T_F`` and ``T_B`` of the Hanayo paper (arXiv:2308.15762). A stage that has ``1/k`` of that share costs ``1/k``. If
the design sets the layers of each stage, stages cost in proportion to their layers. Otherwise all stages cost the same,
as in papers, even if the layers cannot be divided equally; the prediction then has a warning. ``stage_costs`` replaces
these costs by given ones. A recomputed stage runs its forward again before its backward. A message takes ``transfer``
for each of its tensors; if tensors differ in size, for the largest tensor that a stage passes to the next. Reductions
and optimizer steps are free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from meshwave.engine import messages
from meshwave.engine.costs.cost_model import TRANSFER_MODEL_LABELS, CostModel, Floats
from meshwave.engine.costs.device_sizes import Sizes
from meshwave.engine.costs.distinct_actions import Kinds
from meshwave.engine.costs.network import serial_network
from meshwave.engine.costs.stage_balance import equal_split
from meshwave.engine.costs.stage_costs import given_seconds, recompute_forward
from meshwave.engine.document import Design
from meshwave.engine.document.cost import Unit, cost_models
from meshwave.engine.findings import Fix, Problem, set_key_fix
from meshwave.engine.frozen import nullable, validation_error
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network
from meshwave.engine.program.simulation import UnitTransferModel

Units = Annotated[float, Field(ge=1e-9, le=1e9)]

messages.add_messages(
    weight_gradient="the weight gradient ({weight:g}) cannot take longer than the full backward ({backward:g}); use {backward:g} or less",
)


@cost_models.register("unit")
class UnitCost(CostModel):
    """Each stage takes a fixed share of the model's time, in time units. For teaching and for comparison with papers."""

    title: ClassVar = "Unit"
    unit: ClassVar[Unit] = "units"

    kind: Literal["unit"] = "unit"
    """Each stage takes a fixed share of the model's time, in time units."""
    forward: Units = 1.0
    """Time of one microbatch's forward through the whole model, divided by the number of meshes."""
    backward: Units = 2.0
    """Time of one microbatch's backward through the whole model, divided by the number of meshes."""
    transfer: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """Time of one transfer between two different meshes."""
    weight: Annotated[float, Field(ge=0, le=1e9)] | None = nullable("half of the backward")
    """The part of backward that is the weight gradient."""
    fused: Units | None = nullable("the sum of both")
    """Time of a slot in which a forward and a backward overlap."""
    transfer_model: Annotated[UnitTransferModel, TRANSFER_MODEL_LABELS] = "latency"
    """Effect of transfers on each other and on computations. latency: no transfer delays another. sender-blocking: a
    transfer occupies its sender. link-serial: a NIC carries one transfer at a time. half-duplex: the two directions between
    two meshes share their bandwidth. batched: an adjacent send and receive between two meshes form one batch, and both
    meshes wait until the batch is done."""

    @model_validator(mode="after")
    def _check_weight(self) -> Self:
        if self.weight is not None and self.weight > self.backward:
            params = {"weight": self.weight, "backward": self.backward}
            raise validation_error("weight", "weight_gradient", params, set_key_fix("weight", self.backward))
        return self

    def layers_per_stage(self, design: Design) -> tuple[int, ...]:
        return equal_split(design.model.layers, design.stages)

    def seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes) -> Floats:
        given = given_seconds(design)
        table = self._shares(design, layers) if given is None else given
        compute = kinds.indices_of(Op.F, Op.B, Op.I, Op.W)
        seconds = np.zeros(len(kinds))
        seconds[compute] = table[kinds.op[compute], kinds.stage[compute]]
        seconds[kinds.sends] = self.transfer * kinds.tensors[kinds.sends] / program.onward_units.max(initial=1)
        return seconds

    def _shares(self, design: Design, layers: tuple[int, ...]) -> Floats:
        """Return ``[op, stages]`` the time of F, B, I and W of each stage: its share of the model."""
        weight = self.backward / 2 if self.weight is None else self.weight
        whole = np.zeros(Op.W + 1)
        whole[[Op.F, Op.B, Op.I, Op.W]] = self.forward, self.backward, self.backward - weight, weight
        return recompute_forward(design, np.outer(whole, _mesh_shares(design, layers)))

    def network(
        self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes, seconds: Floats
    ) -> tuple[Network | None, Floats]:
        return serial_network(design, program, kinds, seconds), seconds

    def slot_seconds(
        self,
        design: Design,
        program: Program,
        kinds: Kinds,
        layers: tuple[int, ...],
        seconds: Floats,
        pairs: NDArray[np.int64],
    ) -> Floats:
        both = self.forward + self.backward
        ratio = 1.0 if self.fused is None or not both else self.fused / both
        return ratio * super().slot_seconds(design, program, kinds, layers, seconds, pairs)

    def warnings(self, design: Design) -> Iterator[Problem]:
        """Warn if stages without given layers are priced equally although the layers cannot be divided equally."""
        layers, stages = design.model.layers, design.stages
        if design.pipeline.stages is None and self.stage_costs is None and layers % stages:
            least, larger = divmod(layers, stages)
            params = {"stages": stages, "layers": layers, "least": least, "most": least + 1}
            split = [least + (stage < larger) for stage in range(stages)]
            fix = Fix("set_stage_layers", {"layers": split}, (("pipeline.stages", split),))
            yield Problem("pipeline.stages", "equal_shares", params, "warning", [fix] if least else [])


def _mesh_shares(design: Design, layers: tuple[int, ...]) -> Floats:
    """Return the size of each stage relative to one mesh's share of the model, ``[stages]``."""
    if design.pipeline.stages is None:  # all the same, even if the layers cannot be divided equally
        return np.full(design.stages, design.ranks / design.stages)
    return np.array(layers) * design.ranks / sum(layers)
