"""Model section: the family of the model, and its sizes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, model_validator

from meshwave.engine.document.architecture import PLAIN, Architecture, Size
from meshwave.engine.document.members import Member, MemberOf
from meshwave.engine.findings import set_key_fix
from meshwave.engine.frozen import Part, nullable, validation_error
from meshwave.engine.registry import Registry

Example = tuple[NDArray[Any], NDArray[Any]]
"""Inputs and targets of one sample."""
IGNORED = -100
"""Target value of tokens without loss; the default of torch's cross_entropy."""

MAX_EXPERTS = 65_536
"""Maximum number of experts of a layer that can be placed and priced interactively."""
CapacityFactor = Annotated[float, Field(gt=0, le=MAX_EXPERTS)]
"""Slots of an expert relative to an even share; a factor equal to the number of experts drops no token."""


class Router(NamedTuple):
    """The rule by which tokens choose their experts, and the weights of the chosen experts."""

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalize: bool = True
    """Divide the weights of a token by their sum if it is routed to several experts."""
    scale: float = 1.0
    has_bias: bool = False
    """True if the scores have a learned bias."""
    balance_rate: float | None = None
    """Change of the balancing bias of an expert in one step; None if the router has no such bias."""
    groups: int = 1
    """Number of groups of consecutive experts."""
    top_groups: int = 1
    """Number of groups from which a token chooses its experts."""

    @property
    def has_balance(self) -> bool:
        """True if a bias per expert balances the load; it is updated from the load, not from a gradient."""
        return self.balance_rate is not None


PLAIN_ROUTER = Router()
"""Softmax over all experts, and the weights of a token divided by their sum."""


class MoE(Part):
    """Mixture of experts in every n-th block."""

    experts: Annotated[int, Field(ge=1, le=MAX_EXPERTS)]
    """Number of experts of a layer."""
    top_k: Size = 2
    """Number of experts per token."""
    capacity_factor: CapacityFactor | None = nullable("dropless", 1.25)
    """Slots of an expert relative to an even share of the token assignments."""
    every: Size = 2
    """Every n-th block has experts."""
    aux_loss: Annotated[float, Field(ge=0, le=10)] = 0.01
    """Weight of the load-balancing loss; 0 disables it."""
    z_loss: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Weight of the router's z-loss, which keeps its logits small; 0 disables it."""

    def blocks(self, layers: int) -> tuple[int, ...]:
        """Return the indices of the blocks with experts in a model of ``layers`` blocks: every ``every``-th block."""
        return tuple(range(self.every - 1, layers, self.every))

    def expert_width(self, ffn_hidden: int) -> int:
        """Return the inner width of an expert in a model whose MLP has the inner width ``ffn_hidden``."""
        return ffn_hidden

    @property
    def router(self) -> Router:
        """The rule by which tokens choose their experts."""
        return PLAIN_ROUTER

    @property
    def router_vector_count(self) -> int:
        """Number of values per expert in the router, besides its matrix."""
        return int(self.router.has_bias) + int(self.router.has_balance)

    @property
    def shared_width(self) -> int:
        """Inner width of the shared experts, which process every token."""
        return 0

    @property
    def has_shared_gate(self) -> bool:
        """True if a learned gate weights the output of the shared experts."""
        return False

    @model_validator(mode="after")
    def _check_top_k(self) -> Self:
        if self.top_k > self.experts:
            params = {"top_k": self.top_k, "experts": self.experts}
            raise validation_error("top_k", "top_k", params, set_key_fix("top_k", self.experts))
        return self


def nested_skips(layers: int) -> tuple[tuple[int, int], ...]:
    """Return the skip connections of a U-ViT as pairs of source block and target block.

    The output of block ``i`` of the first half is also sent to block ``layers - 1 - i``, which joins it with the output
    of its previous block; an odd middle block has no skip connection (U-ViT: Bao et al., "All are Worth Words: A ViT
    Backbone for Diffusion Models", arXiv:2209.12152, CVPR 2023).
    """
    return tuple((block, layers - 1 - block) for block in range(layers // 2))


class Model(Member):
    """Sizes of a model in a document. A model family is one file in ``engine/families``.

    The fields of a family are its sizes: its keys in the document and its form on the page. A family of equal
    transformer layers is a :class:`LanguageModel`; a family of other blocks is a
    :class:`meshwave.engine.costs.block_models.BlockModel`, which defines the operators of each block.
    """

    if TYPE_CHECKING:  # each is a field or a property in every family

        @property
        def kind(self) -> str:
            """Name of the model family."""

        @property
        def layers(self) -> int:
            """Number of blocks; each stage consists of whole blocks."""

        @property
        def sequence(self) -> int:
            """Rows of a message for one sample."""

        @property
        def hidden(self) -> int:
            """Elements in a row of a message unit."""

        @property
        def moe(self) -> MoE | None:
            """Mixture-of-experts settings; None if no block has experts."""

        @property
        def skips(self) -> tuple[tuple[int, int], ...]:
            """Skip connections as pairs of source block and target block."""

    @property
    def expert_blocks(self) -> tuple[int, ...]:
        """Indices of the blocks with experts; empty if ``every`` exceeds the number of layers."""
        return self.moe.blocks(self.layers) if self.moe is not None else ()

    @property
    def ffn_hidden(self) -> int:
        """Inner width of the MLP that experts replace; 0 if the model has no MLP."""
        return 0

    @property
    def architecture(self) -> Architecture:
        """Norms, positions, attention and MLP of a transformer; those of GPT unless the family overrides them."""
        return PLAIN

    def supports_tensor_parallelism(self, tp: int) -> bool:
        """Return True if ``tp`` devices can share a layer by tensor parallelism."""
        return tp == 1

    def onward_message_units(self, block: int) -> int:
        """Return the number of message units that a block passes to the next block."""
        return 1

    def skip_message_units(self, block: int) -> int:
        """Return the number of message units that the skip connection of a block carries."""
        return 1

    def resize_messages(self, sequence: int, hidden: int) -> Model:
        """Return a model whose message units have the given size; dry runs use it to shrink messages."""
        sizes = {"layers": self.layers, "hidden": hidden, "heads": 1, "sequence": sequence, "vocab": 1}
        return model_families["gpt"].model_validate({"kind": "gpt", **sizes})

    # ---- training data ----

    @property
    def window(self) -> int:
        """Number of text bytes per example; 0 if examples are random."""
        return 0

    @abstractmethod
    def example(self, window: NDArray[Any], chance: Generator) -> Example:
        """Return the inputs and targets of an example made from ``window`` bytes.

        Every example has the same number of targets, so that the mean over microbatches of the mean loss is the mean
        over the global batch.
        """

    @classmethod
    @abstractmethod
    def stage_builder(cls) -> type[Any]:
        """Import and return the class that builds stages with torch.

        It is a :class:`meshwave.engine.runtime.models.StageBuilder`. Only the processes of a run call this; the rest of
        a family must not import torch.
        """


class LanguageModel(Model):
    """Language model of identical transformer layers, trained on the bytes of a text."""

    takes_tokens: ClassVar[bool] = False
    """True if it can be trained on any tokens, and not on bytes alone."""

    kind: str
    """Name of the model family."""
    layers: Annotated[int, Field(ge=1, le=100_000)]
    """Number of transformer layers."""
    hidden: Size
    """Width of the residual stream (hidden size)."""
    heads: Size
    """Number of attention heads, a divisor of the hidden size."""
    sequence: Size
    """Number of tokens of one sample."""
    vocab: Size
    """Vocabulary size of embedding and head."""
    ffn: Size | None = nullable("four times hidden")
    """Inner width of the MLP."""
    moe: MoE | None = nullable("none")
    """Experts instead of some MLPs."""

    @property
    @abstractmethod
    def causal(self) -> bool:
        """True if a token attends only to earlier tokens."""

    @property
    def smallest_vocab(self) -> int:
        """Minimum size of the vocabulary: byte tokens and special tokens of the family."""
        return 256

    @property
    def lookahead(self) -> int:
        """Number of text bytes that an example needs beyond its sequence."""
        return int(self.causal)

    @property
    def ffn_hidden(self) -> int:
        """Inner width of the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Skip connections as pairs of source block and target block."""
        return ()

    @property
    def window(self) -> int:
        """Number of bytes or tokens of the text per example, including those used only as targets."""
        return self.sequence + self.lookahead

    @property
    def shared_heads(self) -> int:
        """Number of heads that tensor-parallel devices can divide: those of keys and values."""
        attention = self.architecture.attention
        return self.heads if attention.latent else attention.kv_heads or self.heads

    @property
    def rotated_dims(self) -> int:
        """Number of dimensions of a query or key head with rotary positions."""
        part, positions = self.architecture.attention, self.architecture.positions
        if positions.kind != "rope":
            return 0
        if part.latent is not None:
            return part.latent.rope_dim
        return int(positions.fraction * (part.head_dim or self.hidden // self.heads)) // 2 * 2

    def attended_share(self, length: int | NDArray[np.int64]) -> Any:
        """Return the fraction of the sequence to which a token of a document of ``length`` tokens attends.

        A window limits it. The result is averaged over the layers and ignores the causal mask, which halves the number of
        pairs: of a causal window of ``w`` tokens, ``length w - w^2 / 2`` pairs remain.
        """
        attention, share = self.architecture.attention, length / self.sequence
        if attention.window is None:
            return share
        unbounded = self.layers // attention.full_every if attention.full_every else 0
        bound = np.minimum(share, attention.window / self.sequence)
        if self.causal:
            bound = bound * (2 - bound / np.maximum(share, 1 / self.sequence))
        return (unbounded * share + (self.layers - unbounded) * bound) / self.layers

    def supports_tensor_parallelism(self, tp: int) -> bool:
        """Return True if ``tp`` divides the number of heads of keys and values."""
        return self.shared_heads % tp == 0

    def resize_messages(self, sequence: int, hidden: int) -> Self:
        """Return the model with messages of another size between stages."""
        return self.model_copy(update={"sequence": sequence, "hidden": hidden})

    @classmethod
    def initial_values(cls) -> Mapping[str, Any]:
        """Return the sizes of a small model."""
        return {"layers": 12, "hidden": 64, "heads": 4, "sequence": 64, "vocab": 257}

    @classmethod
    def stage_builder(cls) -> type[Any]:
        """Import and return the class that builds transformer stages."""
        return resolve_name("meshwave.engine.runtime.models.transformer:Transformer")  # type: ignore[no-any-return]

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        attention = self.architecture.attention
        follows_hidden = attention.head_dim is None and attention.latent is None
        if follows_hidden and self.hidden % self.heads:
            near = self.heads * max(1, round(self.hidden / self.heads))
            params = {"heads": self.heads, "hidden": self.hidden, "near": near, "suitable": []}
            raise validation_error("heads", "indivisible_width", params, set_key_fix("hidden", near))
        return self


model_families: Registry[type[Model]] = Registry("model family", "meshwave.engine.families")

AnyModel = Annotated[Model, MemberOf(model_families, "kind")]
