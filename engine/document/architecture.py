"""Architecture of a transformer: norms, positions, attention and MLP as data.

The defaults are those of GPT and BERT as this project builds them: layer norm before attention and MLP, learned
positions, as many key-value heads as heads, a plain GELU MLP, biases, and a head of its own.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from meshwave.engine.frozen import Part, nullable

Size = Annotated[int, Field(ge=1, le=1_000_000_000)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Norm(Part):
    """Norms of the layers, and the last norm."""

    kind: Literal["layernorm", "rmsnorm"] = "layernorm"
    """layernorm subtracts the mean and divides by the deviation; rmsnorm divides by the root mean square."""
    placement: Literal["before", "after", "both"] = "before"
    """before attention and MLP, after them (before the residual sum), or both."""
    weight: bool = True
    """Learned scale."""
    bias: bool = True
    """Learned shift of a layernorm; rmsnorm has none."""
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-5
    """Added to the variance."""

    @property
    def vectors(self) -> int:
        """Learned numbers per unit of width."""
        return int(self.weight) + int(self.bias and self.kind == "layernorm")

    @property
    def statistics(self) -> int:
        """Numbers per row that the backward needs."""
        return 2 if self.kind == "layernorm" else 1


class RopeScaling(Part):
    """Change of the rotary frequencies for contexts longer than those of pretraining."""

    kind: Literal["linear", "llama3", "yarn"] = "llama3"
    """Rule by which frequencies are divided."""
    factor: Positive = 8.0
    """Ratio of the new context to the original one."""
    original_context: Size | None = nullable("not stated")
    """Tokens of the context of pretraining."""
    low_frequency_factor: Positive = 1.0
    """llama3: context over the wavelength below which frequencies are divided by the whole factor."""
    high_frequency_factor: Positive = 4.0
    """llama3: context over the wavelength above which frequencies stay."""


class Positions(Part):
    """Encoding of the positions of tokens."""

    kind: Literal["learned", "rope", "alibi", "none"] = "learned"
    """learned: a table added to the embedding; rope: rotated queries and keys; alibi: a bias of the scores."""
    table: Size | None = nullable("the sequence")
    """Rows of the table of learned positions."""
    theta: Positive = 10_000.0
    """Base of the rotary frequencies."""
    window_theta: Positive | None = nullable("theta")
    """Base of the rotary frequencies of layers with a window."""
    fraction: Fraction = 1.0
    """Share of a head's dimensions that is rotated."""
    scaling: RopeScaling | None = nullable("none")
    """Change of the rotary frequencies for long contexts."""


class Latent(Part):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): queries, keys and values from narrow vectors.

    The defaults are those of DeepSeek-V2 and V3.
    """

    q_rank: Size | None = nullable("queries are projected directly")
    """Width of the vector that queries are made of."""
    kv_rank: Size = 512
    """Width of the vector that keys and values are made of."""
    nope_dim: Size = 128
    """Dimensions of a query or key head without positions."""
    rope_dim: Size = 64
    """Dimensions of a query or key head with rotary positions; all heads share those of the key."""
    value_dim: Size = 128
    """Dimensions of a value head."""


class Attention(Part):
    """Self-attention."""

    kv_heads: Size | None = nullable("as many as heads")
    """Heads of keys and values, each shared by a group of query heads."""
    head_dim: Size | None = nullable("hidden over heads")
    """Dimensions of a head."""
    qkv_bias: bool = True
    """Biases of queries, keys and values."""
    out_bias: bool = True
    """Bias of the output projection."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """Norm of queries and keys: per head, or over the full projected width."""
    window: Size | None = nullable("the whole sequence")
    """Tokens that a token attends to."""
    full_every: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Every n-th layer ignores the window; 0: none does."""
    sinks: bool = False
    """A learned score per head that takes part in the softmax without a value."""
    scale: Positive | None = nullable("1 / sqrt(head_dim)")
    """Factor of the scores."""
    soft_cap: Positive | None = nullable("none")
    """Bound of the scores, by a scaled tanh."""
    latent: Latent | None = nullable("none")
    """Multi-head latent attention."""


class Mlp(Part):
    """Feed-forward block; experts are built like it."""

    gated: bool = False
    """A third matrix, whose output multiplies the activation."""
    activation: Literal["gelu", "gelu_tanh", "silu", "clamped_swish", "relu", "relu2"] = "gelu"
    """Activation between the matrices; clamped_swish is that of gpt-oss, relu2 the square of relu."""
    bias: bool = True
    """Biases of the matrices."""


class Architecture(Part):
    """Architecture of a transformer without its sizes and experts."""

    residual: Literal["sequential", "parallel", "parallel-one-norm"] = "sequential"
    """parallel: attention and MLP take the same input, with a norm each or with one norm."""
    tied_embeddings: bool = False
    """The head uses the table of the embedding; if they are on different devices, each has a copy."""
    head_bias: bool = False
    """Bias of the logits."""
    embedding_norm: bool = False
    """Norm of the embedding."""
    embedding_scale: Positive = 1.0
    """Factor of the embedding."""
    logit_soft_cap: Positive | None = nullable("none")
    """Bound of the logits, by a scaled tanh."""
    attention: Attention = Attention()
    """Self-attention of each layer."""
    mlp: Mlp = Mlp()
    """Feed-forward block of each layer."""
    norm: Norm = Norm()
    """Norms of the layers, and the last norm."""
    positions: Positions = Positions()
    """Encoding of the positions of tokens."""


PLAIN = Architecture()
"""The architecture of GPT and BERT as this project builds them."""
