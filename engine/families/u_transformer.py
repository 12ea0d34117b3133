"""U-ViT over bytes, which predicts masked bytes, with long skip connections (Bao et al., arXiv:2209.12152, CVPR 2023).

Its kind in a document is ``u-transformer``. The U-Transformer of the cross-mesh resharding paper is a diffusion U-Net:
see :mod:`meshwave.engine.families.u_net` and :mod:`meshwave.engine.bench.papers.u_transformer_model`.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from meshwave.engine import messages
from meshwave.engine.document.model import model_families, nested_skips
from meshwave.engine.families.bert import MaskedModel
from meshwave.engine.findings import set_key_fix
from meshwave.engine.frozen import validation_error


@model_families.register("u-transformer")
class UTransformer(MaskedModel):
    """U-ViT over bytes: BERT with a skip connection from each block of the first half to its mirror in the second."""

    title: ClassVar = "U-ViT"

    kind: Literal["u-transformer"]
    """u-transformer predicts the masked tokens, with skip connections."""

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Skip connections as (source block, target block)."""
        return nested_skips(self.layers)

    @classmethod
    def stage_builder(cls) -> type[Any]:
        return resolve_name("meshwave.engine.runtime.models.skip_connections:SkippingTransformer")  # type: ignore[no-any-return]

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if self.moe is not None:
            raise validation_error(
                "moe", "unsupported_experts", {}, set_key_fix("moe", None), set_key_fix("kind", "bert")
            )
        return self


messages.add_messages(unsupported_experts="a u-transformer does not support experts; set moe to null, or kind to bert")
