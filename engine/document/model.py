"""A language model of equal transformer layers, by its shape; :mod:`meshwave.engine.document.u_net` has the U-Net."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from meshwave.engine.frozen import Part

Size = Annotated[int, Field(ge=1, le=1_000_000_000)]
MOST_EXPERTS = 65_536
"""Experts of the largest layer: what can still be placed and priced while somebody draws."""
CapacityFactor = Annotated[float, Field(gt=0, le=MOST_EXPERTS)]
"""Room of an expert over an even share; as many as there are experts leave room for every token at every one of them."""


class MoE(Part):
    """Mixture of experts in every n-th block."""

    experts: Annotated[int, Field(ge=1, le=MOST_EXPERTS)]
    """Experts in a layer."""
    top_k: Size = 2
    """Experts that a token visits."""
    capacity_factor: CapacityFactor | None = 1.25
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


def nested_skips(layers: int) -> tuple[tuple[int, int], ...]:
    """Blocks (from, to): what block ``i`` of the first half makes also goes to block ``layers - 1 - i``, which joins
    it with what the block before it made; an odd middle block has none (U-ViT: Bao et al., "All are Worth Words: A
    ViT Backbone for Diffusion Models", arXiv:2209.12152, CVPR 2023)."""
    return tuple((block, layers - 1 - block) for block in range(layers // 2))


class Model(Part):
    """A GPT (causal) or BERT (masked) language model of equal transformer layers, or a U-ViT over bytes
    (``u-transformer``): a BERT whose first half skips to the second."""

    has_equal_blocks: ClassVar = True
    reads_text: ClassVar = True
    supports_tensor_parallelism: ClassVar = True

    kind: Literal["gpt", "bert", "u-transformer"]
    """gpt predicts the next token, bert the masked ones; so does u-transformer, a U-ViT with skip connections."""
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

    @property
    def expert_blocks(self) -> tuple[int, ...]:
        """The blocks that have experts; none also where ``every`` is more than there are layers."""
        return self.moe.blocks(self.layers) if self.moe is not None else ()

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Blocks (from, to) of its skip connections."""
        return nested_skips(self.layers) if self.kind == "u-transformer" else ()

    def onward_units(self, block: int) -> int:
        """Tensors that a block hands to the next one: all are of one size, which is the unit of messages."""
        return 1

    def skip_units(self, block: int) -> int:
        """Tensors that the skip connection of a block carries."""
        return 1

    def with_message_unit(self, sequence: int, hidden: int) -> Self:
        """Return a model whose messages have units of this size, which a dry run sends in place of its own."""
        return self.model_copy(update={"sequence": sequence, "hidden": hidden})

    @model_validator(mode="after")
    def _skips_and_experts_are_of_different_models(self) -> Self:
        if self.moe is not None and self.kind == "u-transformer":
            raise PydanticCustomError(
                "skips_with_experts",
                "a u-transformer has no experts in this version; set moe to null, or kind to bert",
            )
        return self

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
