"""The network that is trained, by its shape."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, model_validator
from pydantic_core import PydanticCustomError

from engine.part import Part

Size = Annotated[int, Field(ge=1, le=1_000_000_000)]


class MoE(Part):
    """Mixture of experts in every n-th block."""

    experts: Size
    """Experts in a layer."""
    top_k: Size = 2
    """Experts that a token visits."""
    capacity_factor: PositiveFloat | None = 1.25
    """Room of an expert over an even share; null: dropless."""
    every: Size = 2
    """Every n-th block has experts."""
    aux_loss: Annotated[float, Field(ge=0, le=10)] = 0.01
    """Weight of the load-balancing loss; 0: none."""
    z_loss: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Weight of the router's z-loss, which keeps its scores small; 0: none."""

    def blocks(self, layers: int) -> tuple[int, ...]:
        """The blocks of a model of so many layers that have experts: the ``every``-th, and so on."""
        return tuple(range(self.every - 1, layers, self.every))

    @model_validator(mode="after")
    def _a_token_has_enough_experts(self) -> Self:
        if self.top_k > self.experts:
            raise PydanticCustomError(
                "top_k",
                "a token cannot visit {top_k} of {experts} experts; use a top_k of {experts} or less",
                {"top_k": self.top_k, "experts": self.experts},
            )
        return self


class Model(Part):
    """A GPT (causal) or BERT (masked) language model of equal transformer layers."""

    kind: Literal["gpt", "bert"]
    """gpt predicts the next token, bert the masked ones."""
    layers: Annotated[int, Field(ge=1, le=100_000)]
    """Transformer layers."""
    hidden: Size
    """Width of the residual stream."""
    heads: Size
    """Attention heads; they divide the width."""
    sequence: Size
    """Tokens of one sample."""
    vocab: Size
    """Tokens that the embedding and the head know."""
    ffn: Size | None = None
    """Width inside the MLP; null: four times hidden."""
    moe: MoE | None = None
    """Experts instead of some MLPs; null: none."""

    @property
    def ffn_hidden(self) -> int:
        """The width inside the MLP."""
        return self.ffn or 4 * self.hidden

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.hidden % self.heads:
            near = self.heads * max(1, round(self.hidden / self.heads))
            raise PydanticCustomError(
                "heads",
                "{heads} heads do not divide a hidden width of {hidden}; use a width of {near}",
                {"heads": self.heads, "hidden": self.hidden, "near": near},
            )
        return self
