"""Experts of one process: feed-forward blocks, each of which computes its own rows.

An expert that is sharded over ``esp`` devices is column-parallel, then row-parallel, as in Megatron: a shard has
columns of the first matrix (of both halves if the expert is gated) and the matching rows of the second matrix, and its
result is a partial sum. Only the first shard has the second bias, so that it is added once.

With a capacity, rows are padded to the slots of an expert. The gradient of an empty slot is zero, so it does not
contribute to the gradient of a bias.

In fp8, every expert has scales of its own, as in the grouped linear layers of Transformer Engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, groupby, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from meshwave.engine.runtime.modules.activations import Activation
from meshwave.engine.runtime.modules.batched_products import FLOAT8_BATCHES, PLAIN_BATCHES, BatchedProducts
from meshwave.engine.runtime.modules.deferred_gradients import (
    DeferrableModule,
    DeferredGradient,
    GradientQueue,
    add_gradient,
)
from meshwave.engine.runtime.modules.products import Kept, fits_float8
from meshwave.engine.runtime.modules.tensor_parallel import WeightShard, weight_shard

WEIGHTS = ("w_in", "b_in", "w_out", "b_out")


class Expert(DeferrableModule):
    """Weights of one expert, or of one shard of it, uninitialized.

    ``w_in [hidden, inner]``, ``b_in [inner]``, ``w_out [width, hidden]``, and on the first shard ``b_out [hidden]``;
    ``width`` is the width of the shard, and ``inner`` is ``width``, or twice that if the expert is gated.
    """

    def __init__(
        self,
        hidden: int,
        ffn_hidden: int,
        *,
        is_gated: bool = False,
        has_biases: bool = True,
        shard: int = 0,
        shards: int = 1,
        dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
    ) -> None:
        super().__init__()
        width = ffn_hidden // shards
        own = range(shard * width, (shard + 1) * width)
        halves = 2 if is_gated else 1

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, dtype=dtype, device=device))

        self.w_in, self.b_in = empty(hidden, halves * width), empty(halves * width) if has_biases else None
        self.w_out = empty(width, hidden)
        self.b_out = empty(hidden) if has_biases and shard == 0 else None
        if shards > 1:
            inner = tuple(
                range(own.start + half, own.stop + half) for half in range(0, halves * ffn_hidden, ffn_hidden)
            )
            self.w_in.shard = WeightShard(1, inner, halves * ffn_hidden)  # type: ignore[attr-defined]
            self.w_out.shard = WeightShard(0, (own,), ffn_hidden)  # type: ignore[attr-defined]
            if self.b_in is not None:
                self.b_in.shard = WeightShard(0, inner, halves * ffn_hidden)  # type: ignore[attr-defined]

    @torch.no_grad()
    def draw_weights(self, generator: torch.Generator, std_in: float, std_out: float) -> None:
        """Draw normal weight matrices and set biases to zero. Every shard and copy of an expert draws the whole expert."""
        for weight, std in ((self.w_in, std_in), (self.w_out, std_out)):
            shard = weight_shard(weight)
            shape = shard.whole_shape(weight.shape) if shard else weight.shape
            whole = torch.empty(shape).normal_(0.0, std, generator=generator)
            weight.copy_(shard.select_part(whole) if shard else whole)
        for bias in (self.b_in, self.b_out):
            if bias is not None:
                bias.zero_()


class ExpertRun(NamedTuple):
    """Consecutive experts with equal numbers of rows, which are computed by one batched matrix product."""

    experts: slice
    rows: slice
    rows_each: int

    def batched_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of these experts as ``[experts, rows_each, ...]``."""
        return rows[self.rows].reshape(self.experts.stop - self.experts.start, self.rows_each, *rows.shape[1:])


class SavedRun(NamedTuple):
    """Tensors that the backward of an :class:`ExpertRun` needs."""

    run: ExpertRun
    products: tuple[BatchedProducts, BatchedProducts]  # of w_in and w_out
    tensors: tuple[Tensor, ...]  # inner, and what the products keep of their inputs

    @property
    def inner(self) -> Tensor:
        """Result of the first product before the activation, ``[experts, rows_each, inner columns]``."""
        return self.tensors[0]

    @property
    def kept_inputs(self) -> tuple[Kept, Kept]:
        """Inputs of both products, ``[experts, rows_each, hidden]`` and ``[experts, rows_each, width]``, as they are kept."""
        second = 1 + self.products[0].kept_tensors
        return self.tensors[1:second], self.tensors[second:]

    def with_tensors(self, tensors: Iterator[Tensor]) -> SavedRun:
        """Return the same run with its tensors replaced by the next ones of ``tensors``."""
        count = 1 + sum(each.kept_tensors for each in self.products)
        return self._replace(tensors=tuple(islice(tensors, count)))


class FeedForward:
    """All experts of a process, computed together; the weights of each expert are views of stacked weights."""

    def __init__(self, experts: Sequence[Expert], activation: Activation, visits: int = 1) -> None:
        """Stack the experts. ``visits`` is the number of times each token is computed; it divides the weight gradients."""
        self._experts, self._activation = experts, activation
        self._scale = 1 / visits
        self._products = PLAIN_BATCHES, PLAIN_BATCHES
        self.stack_weights()

    def stack_weights(self) -> None:
        """Stack the weights of all experts, and make the weights of each expert views of the stack."""
        self._stacked: dict[str, Tensor | None] = {}
        self._cast: Mapping[str, Tensor | None] | None = None
        for name in WEIGHTS:
            weights = self._weights(name)
            stacked = torch.stack([weight.data for weight in weights]) if weights else None
            for index, weight in enumerate(weights):
                assert stacked is not None
                weight.data = stacked[index]
            self._stacked[name] = stacked

    def use_weights_in_place(self) -> None:
        """Use the weights where they now are: through views if they are equally spaced in one storage.

        The stack is not kept; weights that are not equally spaced are stacked again for each use.
        """
        self._stacked = {name: view_stacked(self._weights(name)) for name in WEIGHTS}

    def cast_weights(self, dtype: torch.dtype) -> None:
        """Make copies of the weights in ``dtype``, used until :meth:`drop_cast_weights`."""
        self._cast = {name: _to_dtype(weight, dtype) for name, weight in self._stacked.items()}

    def drop_cast_weights(self) -> None:
        """Drop the copies of the weights, because the weights have changed or the step is over."""
        self._cast = None

    @contextmanager
    def share_cast_weights(self, dtype: torch.dtype) -> Iterator[None]:
        """Share one copy of the weights in ``dtype`` among all chunks of a ``with`` block, unless a copy exists."""
        differ = any(weight is not None and weight.dtype is not dtype for weight in self._stacked.values())
        makes_copy = differ and self._cast is None
        if makes_copy:
            self.cast_weights(dtype)
        try:
            yield
        finally:
            if makes_copy:
                self.drop_cast_weights()

    def use_float8(self) -> tuple[int, int]:
        """Multiply in fp8 by matrices whose sizes the kernels support; return the numbers of these and of all matrices."""
        chosen = [[fits_float8(getattr(each, name)) for each in self._experts] for name in ("w_in", "w_out")]
        first, second = (FLOAT8_BATCHES if any(each) else PLAIN_BATCHES for each in chosen)
        self._products = first, second
        return sum(map(sum, chosen)), sum(map(len, chosen))

    def forward(self, x: Tensor, counts: Sequence[int]) -> tuple[Tensor, list[SavedRun]]:
        """Apply the experts to ``x [rows, hidden]``, sorted by expert, of which expert ``e`` has ``counts[e]`` rows.

        Returns:
            The outputs ``[rows, hidden]``, and the tensors that the backward needs.
        """
        w_in, b_in, w_out, b_out = (self._stacked_weights(name, x.dtype) for name in WEIGHTS)
        results, saved = [x[:0]], []
        for run in _equal_runs(counts):
            assert w_in is not None and w_out is not None
            experts = run.experts
            first, second = self._products if run.rows_each else (PLAIN_BATCHES, PLAIN_BATCHES)
            rows = first.keep(run.batched_rows(x))
            inner = first.output(rows, w_in[experts], None if b_in is None else b_in[experts])
            activated = second.keep(self._activation.apply(inner))
            result = second.output(activated, w_out[experts], None)
            if b_out is not None:
                result += b_out[experts].unsqueeze(1)
            results.append(result.flatten(0, 1))
            saved.append(SavedRun(run, (first, second), (inner, *rows, *activated)))
        return results[1] if len(saved) == 1 else torch.cat(results), saved

    def backward(self, gradient: Tensor, saved: Sequence[SavedRun], queue: GradientQueue | None) -> Tensor:
        """Return the gradient of the rows. Weight gradients are accumulated at once, or deferred to ``queue`` if given."""
        w_in, w_out = (self._stacked_weights(name, gradient.dtype) for name in ("w_in", "w_out"))
        results = [gradient[:0]]
        for each in saved:
            assert w_in is not None and w_out is not None
            (first, second), experts = each.products, each.run.experts
            result_gradient = each.run.batched_rows(gradient)
            inner_gradient = self._activation.gradient(  # whose first argument is freed at once
                second.input_gradient(result_gradient, w_out[experts]), each.inner
            )
            results.append(first.input_gradient(inner_gradient, w_in[experts]).flatten(0, 1))
            deferred: DeferredGradient = partial(
                self._accumulate_weight_gradients,
                each.run,
                inner_gradient,
                result_gradient,
                each.products,
                each.kept_inputs,
            )
            deferred() if queue is None else queue.add(deferred)
        return results[1] if len(saved) == 1 else torch.cat(results)

    @torch.no_grad()
    def _accumulate_weight_gradients(
        self,
        run: ExpertRun,
        inner_gradient: Tensor,
        result_gradient: Tensor,
        products: tuple[BatchedProducts, BatchedProducts],
        kept: tuple[Kept, Kept],
    ) -> None:
        gradients_by_name = {
            "w_in": products[0].weight_gradient(inner_gradient, kept[0]),
            "w_out": products[1].weight_gradient(result_gradient, kept[1]),
            **{
                name: gradient.sum(1)
                for name, gradient in (("b_in", inner_gradient), ("b_out", result_gradient))
                if self._weights(name)
            },
        }
        for name, gradients in gradients_by_name.items():
            gradients = gradients if self._scale == 1 else gradients * self._scale
            for expert, gradient in zip(self._experts[run.experts], gradients, strict=True):
                add_gradient(getattr(expert, name), gradient)

    def _stacked_weights(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """Return the stacked weights ``name`` in ``dtype``; None if the experts have no such weight."""
        stacked = (self._cast or self._stacked)[name]
        if stacked is None and (weights := self._weights(name)):
            stacked = torch.stack([weight.data for weight in weights])
        return _to_dtype(stacked, dtype)

    def _weights(self, name: str) -> list[nn.Parameter]:
        return [weight for expert in self._experts if (weight := getattr(expert, name)) is not None]


def view_stacked(weights: Sequence[Tensor]) -> Tensor | None:
    """Return weights of equal shape as one view ``[weights, ...]``; None if they are not equally spaced in one storage."""
    if not weights:
        return None
    first, starts = weights[0].detach(), [weight.storage_offset() for weight in weights]
    step = starts[1] - starts[0] if len(starts) > 1 else first.numel()
    is_one = len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    if not is_one or starts != [starts[0] + number * step for number in range(len(starts))]:
        return None
    return first.as_strided((len(weights), *first.shape), (step, *first.stride()), starts[0])


def _to_dtype(weight: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if weight is None else weight.to(dtype)


def _equal_runs(counts: Sequence[int]) -> Iterator[ExpertRun]:
    ends = list(accumulate(counts, initial=0))
    for count, group in groupby(range(len(counts)), key=lambda expert: counts[expert]):
        experts = list(group)
        first, stop = experts[0], experts[-1] + 1
        yield ExpertRun(slice(first, stop), slice(ends[first], ends[stop]), count)
