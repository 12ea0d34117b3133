"""The model section: which family the model is of, and its sizes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, model_validator

from meshwave.engine.document.members import Member, MemberOf
from meshwave.engine.findings import set_value
from meshwave.engine.frozen import Part, invalid, nullable
from meshwave.engine.registry import Registry

Example = tuple[NDArray[Any], NDArray[Any]]
"""What goes in and what should come out, of one sample."""
IGNORED = -100
"""The target of a token that no loss is taken of; the default of torch's cross_entropy."""

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
    capacity_factor: CapacityFactor | None = nullable("dropless", 1.25)
    """Room of an expert over an even share."""
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
    def _check_top_k(self) -> Self:
        if self.top_k > self.experts:
            params = {"top_k": self.top_k, "experts": self.experts}
            raise invalid("top_k", "top_k", params, set_value("top_k", self.experts))
        return self


def nested_skips(layers: int) -> tuple[tuple[int, int], ...]:
    """Blocks (from, to): what block ``i`` of the first half makes also goes to block ``layers - 1 - i``, which joins
    it with what the block before it made; an odd middle block has none (U-ViT: Bao et al., "All are Worth Words: A
    ViT Backbone for Diffusion Models", arXiv:2209.12152, CVPR 2023)."""
    return tuple((block, layers - 1 - block) for block in range(layers // 2))


class Model(Member):
    """What the document says of a model. A family of models is one file in ``engine/families``.

    The fields of a family are its sizes: its keys in the document and its form on the page. A family of equal
    transformer layers is a :class:`LanguageModel`; one of any other blocks is a
    :class:`meshwave.engine.costs.block_models.BlockModel`, which says what its blocks compute.
    """

    if TYPE_CHECKING:  # a field or a property of every family

        @property
        def kind(self) -> str:
            """The name of the family."""

        @property
        def layers(self) -> int:
            """Blocks, which stages are cut between."""

        @property
        def sequence(self) -> int:
            """Rows of a message a sample."""

        @property
        def hidden(self) -> int:
            """Numbers in a row of one unit of a message."""

        @property
        def moe(self) -> MoE | None:
            """The experts of its blocks."""

        @property
        def skips(self) -> tuple[tuple[int, int], ...]:
            """Blocks (from, to) of its skip connections."""

    @property
    def expert_blocks(self) -> tuple[int, ...]:
        """The blocks that have experts; none also where ``every`` is more than there are layers."""
        return self.moe.blocks(self.layers) if self.moe is not None else ()

    @property
    def ffn_hidden(self) -> int:
        """The width inside the MLP that experts replace; 0 of a model without."""
        return 0

    def can_be_cut(self, tp: int) -> bool:
        """Whether so many tensor-parallel devices can hold it."""
        return tp == 1

    def onward_units(self, block: int) -> int:
        """Units of a message that a block hands to the next one."""
        return 1

    def skip_units(self, block: int) -> int:
        """Units of a message that the skip connection of a block carries."""
        return 1

    def with_message_unit(self, sequence: int, hidden: int) -> Model:
        """Return a model whose messages have units of this size, which a dry run sends in place of its own."""
        sizes = {"layers": self.layers, "hidden": hidden, "heads": 1, "sequence": sequence, "vocab": 1}
        return model_families["gpt"].model_validate({"kind": "gpt", **sizes})

    # ---- what it is trained on ----

    @property
    def window(self) -> int:
        """Bytes of text that an example is made of; 0 where it is made by chance alone."""
        return 0

    @abstractmethod
    def example(self, window: NDArray[np.uint8], chance: Generator) -> Example:
        """Turn ``window`` bytes into inputs and targets.

        Every example has the same number of targets, so that the mean over microbatches of the
        mean loss is the mean over the global batch.
        """

    @classmethod
    @abstractmethod
    def stage_builder(cls) -> type[Any]:
        """Import what builds the stages with torch: a :class:`meshwave.engine.runtime.models.StageBuilder`.

        Only the processes of a run call this; nothing else of a family may import torch.
        """


class LanguageModel(Model):
    """A language model of equal transformer layers over the bytes of a text."""

    causal: ClassVar[bool]
    """Whether a token sees only those before it."""
    smallest_vocab: ClassVar[int] = 256
    """Tokens that bytes and the family's own take."""
    lookahead: ClassVar[int] = 0
    """Bytes of text that an example needs beyond its sequence."""

    kind: str
    """The family of the model."""
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
    ffn: Size | None = nullable("four times hidden")
    """Width inside the MLP."""
    moe: MoE | None = nullable("none")
    """Experts instead of some MLPs."""

    @property
    def ffn_hidden(self) -> int:
        """The width inside the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Blocks (from, to) of its skip connections."""
        return ()

    @property
    def window(self) -> int:
        """Bytes of text that an example is made of."""
        return self.sequence + self.lookahead

    def can_be_cut(self, tp: int) -> bool:
        return self.heads % tp == 0

    def with_message_unit(self, sequence: int, hidden: int) -> Self:
        return self.model_copy(update={"sequence": sequence, "hidden": hidden})

    @classmethod
    def initial_values(cls) -> Mapping[str, Any]:
        """Sizes of a small model."""
        return {"layers": 12, "hidden": 64, "heads": 4, "sequence": 64, "vocab": 257}

    @classmethod
    def stage_builder(cls) -> type[Any]:
        return resolve_name("meshwave.engine.runtime.models.transformer:Transformer")  # type: ignore[no-any-return]

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.hidden % self.heads:
            near = self.heads * max(1, round(self.hidden / self.heads))
            params = {"heads": self.heads, "hidden": self.hidden, "near": near, "suitable": []}
            raise invalid("heads", "indivisible_width", params, set_value("hidden", near))
        return self


model_families: Registry[type[Model]] = Registry("model family", "meshwave.engine.families")

AnyModel = Annotated[Model, MemberOf(model_families, "kind")]
