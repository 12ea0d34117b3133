"""Architecture of a transformer as data: norms, positions, attention and MLP.

The defaults are those of GPT and BERT as this project builds them: layer norm before attention and MLP, learned
positions, as many key-value heads as heads, a plain GELU MLP, biases, and an untied head.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Annotated, Literal

from pydantic import Field

from meshwave.engine.frozen import Part, nullable, option_labels

Size = Annotated[int, Field(ge=1, le=1_000_000_000)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Norm(Part):
    """Norms of the layers, and the final norm."""

    kind: Annotated[
        Literal["layernorm", "rmsnorm"], option_labels({"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"})
    ] = "layernorm"
    """Kind of norm. layernorm: subtract the mean and divide by the standard deviation. rmsnorm: divide by the root mean
    square."""
    placement: Annotated[
        Literal["before", "after", "both", "post"],
        option_labels(
            {
                "before": "On inputs (pre-norm)",
                "after": "On outputs",
                "both": "On inputs and outputs",
                "post": "After the residual sum (post-norm)",
            }
        ),
    ] = "before"
    """Place of the norms of attention and MLP. after: before the residual sum. post: as in BERT, without a final norm."""
    weight: bool = True
    """Learned scale."""
    bias: bool = True
    """Learned shift of a LayerNorm; RMSNorm has none."""
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-5
    """Value added to the variance."""

    @property
    def places(self) -> tuple[str, ...]:
        """Positions of norms relative to each part of a layer: before it, after it, or both."""
        return {"both": ("before", "after"), "post": ("after",)}.get(self.placement, (self.placement,))

    @property
    def is_final(self) -> bool:
        """True if a norm follows the last layer."""
        return self.placement != "post"

    @property
    def vectors(self) -> int:
        """Number of learned vectors of a norm."""
        return int(self.weight) + int(self.bias and self.kind == "layernorm")

    @property
    def statistics(self) -> int:
        """Number of statistics per row that the backward needs."""
        return 2 if self.kind == "layernorm" else 1


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Return the multiplier of rotated queries and keys in YaRN (arXiv:2309.00071, equation 22)."""
    return 0.1 * weight * log(factor) + 1 if factor > 1 else 1.0


class RopeScaling(Part):
    """Change of the rotary frequencies for contexts longer than in pretraining."""

    kind: Annotated[
        Literal["linear", "dynamic", "llama3", "yarn", "longrope"],
        option_labels(
            {"linear": "Linear", "dynamic": "Dynamic", "llama3": "Llama 3", "yarn": "YaRN", "longrope": "LongRoPE"}
        ),
    ] = "llama3"
    """Rule by which frequencies change. linear: all frequencies are divided by factor. dynamic: theta grows for
    sequences longer than the original context. llama3: low frequencies are divided by factor, and high ones are kept.
    yarn: low frequencies are divided by factor, high ones are kept, and those between change gradually
    (arXiv:2309.00071). longrope: each frequency is divided by a factor of its own (arXiv:2402.13753)."""
    factor: Positive = 8.0
    """Ratio of the new context to the original one."""
    original_context: Size | None = nullable("not stated")
    """Context length of pretraining, in tokens."""
    low_frequency_factor: Positive = 1.0
    """With Llama 3, frequencies whose wavelength exceeds original context / low frequency factor are divided by factor."""
    high_frequency_factor: Positive = 4.0
    """With Llama 3, frequencies whose wavelength is below original context / high frequency factor are kept."""
    beta_fast: Positive = 32.0
    """With YaRN, frequencies with more than this number of turns within the original context are kept."""
    beta_slow: Positive = 1.0
    """With YaRN, frequencies with less than this number of turns within the original context are divided by factor."""
    truncate: bool = True
    """With YaRN, round the two limits to whole dimensions."""
    attention_factor: Positive | None = nullable("that of the paper")
    """Multiplier of rotated queries and keys for YaRN and LongRoPE; in the papers, 0.1 ln(factor) + 1 for YaRN,
    and sqrt(1 + ln(factor) / ln(original context)) for LongRoPE."""
    short_factors: tuple[Positive, ...] = ()
    """Divisors of the frequencies in sequences up to the original context for LongRoPE, one for each pair of rotated
    dimensions."""
    long_factors: tuple[Positive, ...] = ()
    """Divisors of the frequencies in sequences longer than the original context for LongRoPE."""

    @property
    def magnitude(self) -> float:
        """Multiplier of rotated queries and keys."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.kind == "yarn":
            return yarn_magnitude(self.factor)
        return sqrt(1 + log(self.factor) / log(self.original_context or 2)) if self.factor > 1 else 1.0


class Positions(Part):
    """Encoding of the positions of tokens."""

    kind: Annotated[
        Literal["learned", "rope", "alibi", "none"],
        option_labels({"learned": "Learned", "rope": "Rotary (RoPE)", "alibi": "ALiBi", "none": "None"}),
    ] = "learned"
    """Kind of position encoding. learned: a table that is added to the embedding. rope: rotated queries and keys. alibi:
    attention scores decrease linearly with distance (arXiv:2108.12409)."""
    table: Size | None = nullable("the sequence")
    """Number of rows of the table of learned positions."""
    offset: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Row of the table for the first token. RoBERTa does not use the first two rows."""
    theta: Positive = 10_000.0
    """Base of the rotary frequencies."""
    window_theta: Positive | None = nullable("theta")
    """Base of the rotary frequencies of layers with a window."""
    fraction: Fraction = 1.0
    """Share of a head's dimensions that is rotated."""
    scaling: RopeScaling | None = nullable("none")
    """Scaling of the rotary frequencies for long contexts."""
    alibi_scale: Positive = 1.0
    """Multiplier of the slopes of ALiBi."""

    def table_rows(self, sequence: int) -> int:
        """Return the number of rows of the table of learned positions; 0 without learned positions."""
        return (self.table or self.offset + sequence) if self.kind == "learned" else 0


class Latent(Part):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): projections from compressed vectors.

    The defaults are those of DeepSeek-V2 and V3.
    """

    q_rank: Size | None = nullable("queries are projected directly")
    """Rank of the compressed query vector (q_lora_rank)."""
    kv_rank: Size = 512
    """Rank of the compressed key/value vector (kv_lora_rank)."""
    nope_dim: Size = 128
    """Dimensions of a query or key head that have no rotary embedding (qk_nope_head_dim)."""
    rope_dim: Size = 64
    """Dimensions of a query or key head with rotary positions; all heads share those of the key."""
    value_dim: Size = 128
    """Dimensions of a value head."""


class Attention(Part):
    """Self-attention."""

    kv_heads: Size | None = nullable("as many as heads")
    """Number of key and value heads; each is shared by a group of query heads."""
    head_dim: Size | None = nullable("hidden / heads")
    """Dimensions of a head."""
    qkv_bias: bool = True
    """Biases of queries, keys and values."""
    out_bias: bool = True
    """Bias of the output projection."""
    qk_norm: Annotated[
        Literal["none", "head", "full"],
        option_labels({"none": "None", "head": "Over each head", "full": "Over the full width"}),
    ] = "none"
    """Norm of queries and keys."""
    window: Size | None = nullable("the whole sequence")
    """Sliding-window size: number of tokens that each token attends to."""
    full_every: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Every n-th layer ignores the window; 0 if none does."""
    sinks: bool = False
    """Attention sink: a learned logit per head that is added to the softmax denominator and has no value vector."""
    scale: Positive | None = nullable("1 / sqrt(head_dim)")
    """Multiplier of the attention scores before the softmax."""
    soft_cap: Positive | None = nullable("none")
    """Soft cap of the attention scores: cap * tanh(score / cap)."""
    latent: Latent | None = nullable("none")
    """Multi-head latent attention."""


class Mlp(Part):
    """Feed-forward block; experts have the same structure."""

    gated: bool = False
    """Gated MLP, such as SwiGLU: a third projection is multiplied elementwise with the activation."""
    activation: Annotated[
        Literal["gelu", "gelu_tanh", "silu", "clamped_swish", "relu", "relu2"],
        option_labels(
            {
                "gelu": "GELU",
                "gelu_tanh": "GELU (tanh approximation)",
                "silu": "SiLU",
                "clamped_swish": "Clamped Swish (gpt-oss)",
                "relu": "ReLU",
                "relu2": "Squared ReLU",
            }
        ),
    ] = "gelu"
    """Activation function between the matrices."""
    bias: bool = True
    """Biases of the matrices."""


class Architecture(Part):
    """Architecture of a transformer without its sizes and experts."""

    residual: Annotated[
        Literal["sequential", "parallel", "parallel-one-norm"],
        option_labels(
            {"sequential": "Sequential", "parallel": "Parallel, two norms", "parallel-one-norm": "Parallel, one norm"}
        ),
    ] = "sequential"
    """Order of attention and MLP. If attention and MLP are parallel, both take the same input."""
    tied_embeddings: bool = False
    """The output head shares the weights of the embedding; if they are on different devices, each has a copy."""
    head_bias: bool = False
    """Bias of the logits."""
    head_transform: bool = False
    """Product, activation and norm of the hidden state before the logits, as in BERT."""
    token_types: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Rows of a table of token types that is added to the embedding, 0 for no table; all tokens have type 0."""
    embedding_norm: bool = False
    """Norm of the embedding."""
    embedding_scale: Positive = 1.0
    """Multiplier of the embedding output."""
    logit_soft_cap: Positive | None = nullable("none")
    """Soft cap of the logits: cap * tanh(logit / cap)."""
    attention: Attention = Attention()
    """Self-attention of each layer."""
    mlp: Mlp = Mlp()
    """Feed-forward block of each layer."""
    norm: Norm = Norm()
    """Norms of the layers, and the final norm."""
    mtp_layers: Annotated[int, Field(ge=0, le=100)] = 0
    """Number of the last layers that predict further tokens (multi-token prediction, DeepSeek-V3, arXiv:2412.19437):
    each layer joins its input with the embeddings of the next tokens and shares the output head. These layers are on
    the last stage."""
    mtp_loss_weight: Annotated[float, Field(ge=0, le=100)] = 0.3
    """Weight of the mean loss of multi-token prediction, which is added to the loss of the next token."""
    positions: Positions = Positions()
    """Encoding of the positions of tokens."""

    @property
    def copies_embedding(self) -> bool:
        """True if the last stage uses the embedding table, of which it has a copy if it is not the first stage."""
        return self.tied_embeddings or self.mtp_layers > 0


PLAIN = Architecture()
"""The architecture of GPT and BERT as this project builds them."""
