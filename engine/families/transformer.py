"""Transformer: a causal language model of any usual architecture, described as data."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from meshwave.engine import messages
from meshwave.engine.document.architecture import Architecture, Size
from meshwave.engine.document.model import MoE, model_families
from meshwave.engine.families.gpt import NextToken
from meshwave.engine.findings import set_value
from meshwave.engine.frozen import nullable, validation_error

Width = Annotated[int, Field(ge=0, le=1_000_000_000)]


class RoutedExperts(MoE):
    """Mixture of experts in every n-th block, with shared experts beside those that a token chooses."""

    ffn: Size | None = nullable("that of the MLP")
    """Width inside an expert."""
    first_dense: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Blocks at the beginning that have an MLP instead."""
    shared_ffn: Width = 0
    """Width inside the shared experts, which every token visits, together; 0: none."""
    shared_gate: bool = False
    """Weight the shared experts' output by a learned gate."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    """Function of the router's scores."""
    normalize: bool = True
    """Divide the weights of a token's experts by their sum."""
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor of the weights of a token's experts."""
    router_bias: bool = False
    """Bias of the router's scores."""
    bias_correction: bool = False
    """A number per expert that balances the load: it changes the choice of experts and not their weights
    (arXiv:2408.15664)."""
    groups: Size = 1
    """Groups of experts, of which a token visits some only."""
    top_groups: Size = 1
    """Groups of experts that a token visits."""

    def blocks(self, layers: int) -> tuple[int, ...]:
        return tuple(block for block in super().blocks(layers) if block >= self.first_dense)

    def expert_width(self, ffn_hidden: int) -> int:
        return self.ffn or ffn_hidden

    @property
    def router_vectors(self) -> int:
        """Learned numbers per expert in the router besides its matrix."""
        return int(self.router_bias) + int(self.bias_correction)

    @property
    def shared_width(self) -> int:
        """Inner width of the shared experts, which process every token."""
        return self.shared_ffn

    @property
    def has_shared_gate(self) -> bool:
        """True if a learned gate weights the output of the shared experts."""
        return self.shared_gate

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.experts % self.groups or self.top_groups > self.groups:
            params = {"experts": self.experts, "groups": self.groups, "top": self.top_groups}
            raise validation_error(
                "groups", "expert_groups", params, set_value("groups", 1), set_value("top_groups", 1)
            )
        return self


@model_families.register("transformer")
class Transformer(Architecture, NextToken):
    """A causal language model with a choice of norms, positions, attention, MLP and experts.

    It represents models such as Llama, Mistral, Qwen, DeepSeek, OLMo, Gemma, Phi, Falcon and Pythia.
    """

    title: ClassVar = "Transformer"

    kind: Literal["transformer"]
    """transformer predicts the next token; its architecture is chosen part by part."""
    moe: RoutedExperts | None = nullable("none")
    """Experts instead of some MLPs."""

    @property
    def architecture(self) -> Architecture:
        """Norms, positions, attention and MLP."""
        return Architecture.model_construct(**{name: getattr(self, name) for name in Architecture.model_fields})

    @model_validator(mode="after")
    def _check_kv_heads(self) -> Self:
        kv_heads = self.attention.kv_heads
        if kv_heads is not None and self.heads % kv_heads:
            params = {"heads": self.heads, "kv_heads": kv_heads}
            raise validation_error(
                "attention.kv_heads", "indivisible_kv_heads", params, set_value("attention.kv_heads", None)
            )
        return self


messages.add(
    expert_groups="{experts} experts cannot be divided into {groups} groups of which a token visits {top}",
    indivisible_kv_heads="{kv_heads} key-value heads do not divide {heads} heads",
)
