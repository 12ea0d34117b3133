"""The experts of one process: feed-forward blocks of which each sees its own rows.

Cut in ``esp`` an expert is column-parallel, then row-parallel, as in Megatron: a shard has columns of
the first matrix and the rows of the second one that belong to them, and its result is one summand.
The second bias lies on the first shard alone, so that it is added once.

With a capacity rows are padded to the slots of an expert. What comes back to an empty slot is a zero gradient, which
adds nothing to that of a bias either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate as running
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwave.engine.runtime.modules.deferred_gradients import (
    DeferrableModule,
    DeferredGradient,
    GradientQueue,
    add_gradient,
)
from meshwave.engine.runtime.modules.tensor_parallel import WeightShard, weight_shard

MATRICES = ("w_in", "b_in", "w_out", "b_out")


class Expert(DeferrableModule):
    """The weights of one expert, or of one shard of it, left empty.

    ``w_in [hidden, width]``, ``b_in [width]``, ``w_out [width, hidden]``, and on the first shard
    ``b_out [hidden]``; ``width`` is that of the shard.
    """

    def __init__(
        self,
        hidden: int,
        ffn_hidden: int,
        *,
        shard: int = 0,
        shards: int = 1,
        dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
    ) -> None:
        super().__init__()
        width = ffn_hidden // shards
        own = range(shard * width, (shard + 1) * width)

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, dtype=dtype, device=device))

        self.w_in, self.b_in = empty(hidden, width), empty(width)
        self.w_out = empty(width, hidden)
        self.b_out = empty(hidden) if shard == 0 else None
        if shards > 1:
            for weight, dim in ((self.w_in, 1), (self.b_in, 0), (self.w_out, 0)):
                weight.shard = WeightShard(dim, (own,), ffn_hidden)  # type: ignore[attr-defined]

    @torch.no_grad()
    def draw(self, chance: torch.Generator, deviation: float, out_deviation: float) -> None:
        """Normal matrices and zero biases. All shards and copies of an expert draw the whole of it."""
        for weight, of in ((self.w_in, deviation), (self.w_out, out_deviation)):
            cut = weight_shard(weight)
            whole = torch.empty(cut.whole_shape(weight.shape) if cut else weight.shape).normal_(
                0.0, of, generator=chance
            )
            weight.copy_(cut.select(whole) if cut else whole)
        for bias in (self.b_in, self.b_out):
            if bias is not None:
                bias.zero_()


class Run(NamedTuple):
    """Neighbouring experts with the same number of rows: one product of batched matrices."""

    experts: slice
    rows: slice
    each: int  # rows of one

    def of(self, rows: Tensor) -> Tensor:
        """``[experts, each, ...]``"""
        return rows[self.rows].reshape(self.experts.stop - self.experts.start, self.each, *rows.shape[1:])


class Kept(NamedTuple):
    """What the backward of a run needs."""

    run: Run
    x: Tensor  # [experts, each, hidden]
    inner: Tensor  # [experts, each, width], before GELU
    active: Tensor  # and behind it


class FeedForward:
    """Runs all experts of a process at once; the weights of each are views into what they are computed from."""

    def __init__(self, experts: Sequence[Expert], seen: int = 1) -> None:
        """``seen`` is how often each token comes by: the weights' gradients are divided by it."""
        self._experts = experts
        self._scale = 1 / seen
        self.lay()

    def lay(self) -> None:
        """Lay the weights of all experts side by side, and let each expert's be a part of that."""
        self._together: dict[str, Tensor | None] = {}
        self._copies: Mapping[str, Tensor | None] | None = None
        for name in MATRICES:
            weights = [weight for expert in self._experts if (weight := getattr(expert, name)) is not None]
            together = torch.stack([weight.data for weight in weights]) if weights else None
            for at, weight in enumerate(weights):
                assert together is not None
                weight.data = together[at]
            self._together[name] = together

    def copy(self, dtype: torch.dtype) -> None:
        """Have a copy of the weights in the precision of the rows to come, until :meth:`forget`."""
        self._copies = {name: _cast(weight, dtype) for name, weight in self._together.items()}

    def forget(self) -> None:
        """Let go of the copy: the weights have changed, or the step is over."""
        self._copies = None

    @contextmanager
    def cast(self, dtype: torch.dtype) -> Iterator[None]:
        """While it lasts all chunks share one copy of the weights, where there is none that lasts longer."""
        differ = any(weight is not None and weight.dtype is not dtype for weight in self._together.values())
        own = differ and self._copies is None
        if own:
            self.copy(dtype)
        try:
            yield
        finally:
            if own:
                self.forget()

    def forward(self, x: Tensor, counts: Sequence[int]) -> tuple[Tensor, list[Kept]]:
        """``x [rows, hidden]``, ``counts[i]`` rows of each expert, one expert after the other."""
        w_in, b_in, w_out, b_out = (self._weights(name, x.dtype) for name in MATRICES)
        results, kept = [x[:0]], []
        for run in _runs(counts):
            assert w_in is not None and b_in is not None and w_out is not None
            held, rows = run.experts, run.of(x)
            inner = torch.baddbmm(b_in[held].unsqueeze(1), rows, w_in[held])
            active = F.gelu(inner)
            result = active.bmm(w_out[held])
            if b_out is not None:
                result += b_out[held].unsqueeze(1)
            results.append(result.flatten(0, 1))
            kept.append(Kept(run, rows, inner, active))
        return results[1] if len(kept) == 1 else torch.cat(results), kept

    def backward(self, gradient: Tensor, kept: Sequence[Kept], later: GradientQueue | None) -> Tensor:
        """The gradient of the rows. Those of the weights are added to now, or left for ``later``."""
        w_in, w_out = (self._weights(name, gradient.dtype) for name in ("w_in", "w_out"))
        results = [gradient[:0]]
        for each in kept:
            assert w_in is not None and w_out is not None
            of_result = each.run.of(gradient)
            of_inner: Tensor = torch.ops.aten.gelu_backward.default(  # whose gradient lives no longer than this
                of_result.bmm(w_out[each.run.experts].mT), each.inner
            )
            results.append(of_inner.bmm(w_in[each.run.experts].mT).flatten(0, 1))
            due: DeferredGradient = partial(self._add, each, of_inner, of_result)
            due() if later is None else later.add(due)
        return results[1] if len(kept) == 1 else torch.cat(results)

    @torch.no_grad()
    def _add(self, kept: Kept, of_inner: Tensor, of_result: Tensor) -> None:
        found = {
            "w_in": kept.x.mT.bmm(of_inner),
            "b_in": of_inner.sum(1),
            "w_out": kept.active.mT.bmm(of_result),
            "b_out": of_result.sum(1),
        }
        for name, gradients in found.items():
            gradients = gradients if self._scale == 1 else gradients * self._scale
            for expert, gradient in zip(self._experts[kept.run.experts], gradients, strict=True):
                weight = getattr(expert, name)
                if weight is not None:
                    add_gradient(weight, gradient)

    def _weights(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """Those of all experts in the precision of the rows."""
        return _cast((self._copies or self._together)[name], dtype)


def _cast(weight: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if weight is None else weight.to(dtype)


def _runs(counts: Sequence[int]) -> Iterator[Run]:
    ends = list(running(counts, initial=0))
    for count, group in groupby(range(len(counts)), key=lambda expert: counts[expert]):
        held = list(group)
        first, stop = held[0], held[-1] + 1
        yield Run(slice(first, stop), slice(ends[first], ends[stop]), count)
