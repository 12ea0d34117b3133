"""A residual MLP that learns a random function: a family with torch modules of its own."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field

from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.costs.operators import Operator, Work, Workload, elementwise_operator, product_operator
from meshwave.engine.document.architecture import Size
from meshwave.engine.document.model import Example, model_families

ITEM_BYTES = 4  # of a number of an example


@model_families.register("mlp")
class Mlp(BlockModel):
    """A residual MLP, which learns the sine of the sum of its inputs."""

    title: ClassVar = "MLP"

    kind: Literal["mlp"]
    """mlp learns a function of random vectors."""
    layers: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Residual blocks."""
    hidden: Size = 64
    """Width of the residual stream."""
    inputs: Size = 4
    """Numbers of an input."""

    @property
    def sequence(self) -> int:
        """Rows of a message a sample."""
        return 1

    # ---- what it computes: every operator with its FLOPs, bytes and parameters ----

    def block_operators(self, load: Workload, number: int) -> tuple[Operator, ...]:
        wide = 4 * self.hidden
        return (
            product_operator("first linear", load, self.hidden, wide),
            elementwise_operator("GELU", load, wide, kept=1, read_and_written=(2, 3)),
            product_operator("second linear", load, wide, self.hidden),
            elementwise_operator("residual", load, self.hidden, kept=0, read_and_written=(3, 3)),
        )

    def embedding_operators(self, load: Workload) -> tuple[Operator, ...]:
        return (product_operator("input", load, self.inputs, self.hidden)._replace(input_gradient=Work()),)

    def head_operators(self, load: Workload) -> tuple[Operator, ...]:
        item = load.batch * load.precision.item
        return (
            product_operator("output", load, self.hidden, 1),
            Operator("loss", Work(bytes=2 * item), Work(bytes=2 * item)),
        )

    @property
    def example_bytes(self) -> tuple[float, float]:
        return self.inputs * ITEM_BYTES, ITEM_BYTES

    # ---- what it is trained on ----

    def example(self, window: NDArray[np.uint8], chance: Generator) -> Example:
        inputs = chance.standard_normal(self.inputs, np.float32)
        return inputs, np.sin(inputs.sum(keepdims=True))

    @classmethod
    def stage_builder(cls) -> type[Any]:
        return stage_builder()


def stage_builder() -> type[Any]:
    """The torch half. Nothing else may import torch: the planner and the page work without it."""
    import torch.nn.functional as F
    from torch import Tensor, nn

    from meshwave.engine.runtime.models import StageBuilder
    from meshwave.engine.runtime.modules.deferred_gradients import Linear

    class Inputs(nn.Module):
        def __init__(self, model: Mlp) -> None:
            super().__init__()
            self.linear = Linear(model.inputs, model.hidden)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.linear(x.to(self.linear.weight.dtype))
            return made[:, None]  # [batch, sequence, hidden]

    class Block(nn.Module):
        def __init__(self, model: Mlp) -> None:
            super().__init__()
            self.first, self.out = Linear(model.hidden, 4 * model.hidden), Linear(4 * model.hidden, model.hidden)

        def forward(self, x: Tensor) -> Tensor:
            more: Tensor = self.out(F.gelu(self.first(x)))
            return x + more

    class Loss(nn.Module):
        def __init__(self, model: Mlp) -> None:
            super().__init__()
            self.linear = Linear(model.hidden, 1)

        def forward(self, x: Tensor, targets: Tensor) -> Tensor:
            made: Tensor = self.linear(x[:, 0])
            return F.mse_loss(made, targets.to(made.dtype))

    class MlpStages(StageBuilder):
        shape: Mlp

        def make_embedding(self) -> nn.Module:
            return Inputs(self.shape)

        def make_layer(self, number: int) -> nn.Module:
            return Block(self.shape)

        def make_head(self) -> nn.Module:
            return Loss(self.shape)

        def weight_std(self, name: str, weight: Tensor) -> float:
            return float(weight.shape[1] ** -0.5)

    return MlpStages
