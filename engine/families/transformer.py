"""Transformer: a language model of any usual architecture, described as data."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal, Self

from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, model_validator

from meshwave.engine import messages
from meshwave.engine.document.architecture import Architecture, Size
from meshwave.engine.document.model import Example, MoE, Router, model_families
from meshwave.engine.families.bert import MASK, mask_tokens
from meshwave.engine.families.gpt import NextToken
from meshwave.engine.findings import set_key_fix
from meshwave.engine.frozen import nullable, option_labels, validation_error

Width = Annotated[int, Field(ge=0, le=1_000_000_000)]


class RoutedExperts(MoE):
    """Mixture of experts in every n-th block, with shared experts in addition to the routed ones."""

    ffn: Size | None = nullable("that of the MLP")
    """Inner width of an expert."""
    first_dense: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Number of initial blocks with an MLP instead of experts."""
    shared_ffn: Width = 0
    """Total inner width of the shared experts, which process every token; 0 for none."""
    shared_gate: bool = False
    """Weight the output of the shared experts by a learned gate."""
    score: Annotated[Literal["softmax", "sigmoid"], option_labels({"softmax": "Softmax", "sigmoid": "Sigmoid"})] = (
        "softmax"
    )
    """Function that turns the router's logits into scores."""
    normalize: bool = True
    """Divide the weights of a token's experts by their sum, if it is routed to several."""
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor by which the weights of a token's experts are multiplied."""
    router_bias: bool = False
    """Add a bias to the router's logits."""
    bias_correction: bool = False
    """Balance the load by a bias per expert that affects the choice of experts but not their weights
    (arXiv:2408.15664)."""
    bias_update_rate: Annotated[float, Field(ge=0, le=1)] = 1e-3
    """Change of the balancing bias per step: up for an expert with less than the mean load, down for one with more."""
    groups: Size = 1
    """Number of expert groups. A token is routed to experts of its best groups only, ranked by the score of their best
    expert, or with bias correction by the sum of their two best scores."""
    top_groups: Size = 1
    """Number of expert groups that a token is routed to."""

    def blocks(self, layers: int) -> tuple[int, ...]:
        return tuple(block for block in super().blocks(layers) if block >= self.first_dense)

    def expert_width(self, ffn_hidden: int) -> int:
        return self.ffn or ffn_hidden

    @property
    def router(self) -> Router:
        """The rule by which tokens choose their experts."""
        rate = self.bias_update_rate if self.bias_correction else None
        rule = self.score, self.normalize, self.scale, self.router_bias, rate, self.groups, self.top_groups
        return Router(*rule)

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
                "groups", "expert_groups", params, set_key_fix("groups", 1), set_key_fix("top_groups", 1)
            )
        if self.top_k > (reachable := self.experts // self.groups * self.top_groups):
            params = {"top_k": self.top_k, "reachable": reachable}
            raise validation_error("top_groups", "top_k_of_groups", params, set_key_fix("top_groups", self.groups))
        return self


@model_families.register("transformer")
class Transformer(Architecture, NextToken):
    """Language model with a choice of norms, position embeddings, attention, MLP, experts and objective.

    Models such as Llama, Mistral, Qwen, DeepSeek, OLMo, Gemma, Phi, Falcon, Pythia and BERT belong to this family.
    """

    title: ClassVar = "Transformer"

    kind: Literal["transformer"]
    """transformer lets you choose each part of its architecture."""
    objective: Annotated[
        Literal["next-token", "masked"], option_labels({"next-token": "Next token", "masked": "Masked tokens"})
    ] = "next-token"
    """Objective of the training. next-token: each token attends to earlier tokens and predicts the next one. masked: each
    token attends to all tokens, and the model predicts the masked ones."""
    mask_token: Annotated[int, Field(ge=0, le=1_000_000_000)] = MASK
    """ID of the token that replaces masked tokens: 256, which follows the byte values, or 103 in BERT's own vocabulary."""
    moe: RoutedExperts | None = nullable("none")
    """Experts that replace some of the MLPs."""

    @property
    def causal(self) -> bool:
        """True if a token attends only to earlier tokens."""
        return self.objective == "next-token"

    @property
    def smallest_vocab(self) -> int:
        """Minimum size of the vocabulary: byte tokens and the mask token."""
        return super().smallest_vocab if self.causal else max(super().smallest_vocab, self.mask_token + 1)

    def example(self, window: NDArray[Any], chance: Generator) -> Example:
        return super().example(window, chance) if self.causal else mask_tokens(window, chance, self.mask_token)

    @property
    def architecture(self) -> Architecture:
        """Architecture of a block: norms, position embeddings, attention and MLP."""
        return Architecture.model_construct(**{name: getattr(self, name) for name in Architecture.model_fields})

    @classmethod
    def stage_builder(cls) -> type[Any]:
        """Import and return the class that builds stages with multi-token prediction."""
        return resolve_name("meshwave.engine.runtime.models.multi_token:PredictingTransformer")  # type: ignore[no-any-return]

    @model_validator(mode="after")
    def _check_mtp_layers(self) -> Self:
        if self.mtp_layers >= min(self.layers, self.sequence) and self.mtp_layers:
            params = {"mtp_layers": self.mtp_layers, "layers": self.layers, "sequence": self.sequence}
            raise validation_error("mtp_layers", "mtp_layers", params, set_key_fix("mtp_layers", 0))
        return self

    @model_validator(mode="after")
    def _check_kv_heads(self) -> Self:
        kv_heads = self.attention.kv_heads
        if kv_heads is not None and self.heads % kv_heads:
            params = {"heads": self.heads, "kv_heads": kv_heads}
            raise validation_error(
                "attention.kv_heads", "indivisible_kv_heads", params, set_key_fix("attention.kv_heads", None)
            )
        return self


messages.add_messages(
    mtp_layers="mtp_layers = {mtp_layers} must be less than the {layers} layers and the {sequence} tokens of a sequence",
    expert_groups="{experts} experts cannot be divided into {groups} groups, of which a token uses {top}; set groups and top_groups to 1",
    top_k_of_groups="a token is routed to {top_k} experts, but its groups have {reachable}; increase top_groups",
    indivisible_kv_heads="{kv_heads} key-value heads do not divide {heads} heads; use a divisor, or null for {heads}",
)
