"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwave.engine.document.architecture import Latent
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.modules.attention_product import AttentionRule
from meshwave.engine.runtime.modules.context_attention import attend_in_context
from meshwave.engine.runtime.modules.context_share import ContextShare
from meshwave.engine.runtime.modules.deferred_gradients import Linear
from meshwave.engine.runtime.modules.positions import apply_rotary_embedding
from meshwave.engine.runtime.modules.rms_norm import RmsNorm
from meshwave.engine.runtime.modules.tensor_parallel import ColumnLinear, RowLinear, copy_to_group, mark_partial

NORM_EPS = 1e-6
"""Epsilon of the RMS norms of the latent vectors; the other norms of a model may have another one."""


class LatentAttention(nn.Module):
    """Attention with keys and values projected from a latent vector, and queries from another one or the input.

    All processes of the group compute the same latent vectors, or with sequence parallelism those of their own tokens,
    and each has its own heads. The first dimensions of a head have rotary positions; all heads share the rotary
    dimensions of the key.
    """

    attend = staticmethod(attend_in_context)

    def __init__(
        self,
        shape: LanguageModel,
        latent: Latent,
        *,
        causal: bool,
        group: Group = ALONE,
        share: ContextShare | None = None,
    ) -> None:
        super().__init__()
        self.share = share
        part, hidden, heads = shape.architecture.attention, shape.hidden, shape.heads
        self.latent, self.positions, self.group = latent, shape.architecture.positions, group
        self.rule = AttentionRule(causal, scale=part.scale)
        queries = heads * (latent.rope_dim + latent.nope_dim)
        if latent.q_rank is None:
            self.query = ColumnLinear(hidden, queries, group=group, bias=False)
            self.query_down = self.query_norm = None
        else:
            self.query_down = Linear(hidden, latent.q_rank, bias=part.qkv_bias)
            self.query_norm = RmsNorm(latent.q_rank, NORM_EPS)
            mark_partial(self.query_down, group)
            mark_partial(self.query_norm, group)
            self.query = ColumnLinear(latent.q_rank, queries, group=group, bias=False)
        self.key_value_down = Linear(hidden, latent.kv_rank + latent.rope_dim, bias=part.qkv_bias)
        self.key_value_norm = RmsNorm(latent.kv_rank, NORM_EPS)
        mark_partial(self.key_value_down, group)
        mark_partial(self.key_value_norm, group)
        made = heads * (latent.nope_dim + latent.value_dim)
        self.key_value = ColumnLinear(latent.kv_rank, made, group=group, bias=False)
        self.out = RowLinear(heads * latent.value_dim, hidden, group, bias=part.out_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention output for ``x``; both have the shape ``[batch, sequence, hidden]``."""
        latent = self.latent
        if self.query_down is None or self.query_norm is None:
            queries = self.query(x)
        else:
            queries = self.query(self.query_norm(self.query_down(x)))
        compressed, key_rope = self.key_value_down(x).split((latent.kv_rank, latent.rope_dim), -1)
        key_value = self.key_value(self.key_value_norm(compressed))
        batch, sequence, _ = key_value.shape
        q, key_value = (
            each.view(batch, sequence, -1, width).transpose(1, 2)
            for each, width in (
                (queries, latent.rope_dim + latent.nope_dim),
                (key_value, latent.nope_dim + latent.value_dim),
            )
        )
        key_nope, v = key_value.split((latent.nope_dim, latent.value_dim), -1)
        key_rope = copy_to_group(key_rope, self.group).unsqueeze(1)
        q, key_rope = self._rotate(q), self._rotate(key_rope)
        k = torch.cat((key_rope.expand(-1, q.shape[1], -1, -1), key_nope), -1)
        values = self.attend(q, k, v, self.rule, self.share)
        out: Tensor = self.out(values.transpose(1, 2).reshape(batch, sequence, -1))
        return out

    def _rotate(self, x: Tensor) -> Tensor:
        if self.positions.kind != "rope":
            return x
        return apply_rotary_embedding(x, self.latent.rope_dim, self.positions.theta, self.positions.scaling, self.share)
