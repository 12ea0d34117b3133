"""Weights of a block as one flat tensor, of which each process that uses the weights owns an equal part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from meshwave.engine.runtime.communication.communicator import Communicator, PendingTensor
from meshwave.engine.runtime.execution.checkpoint import Elements
from meshwave.engine.runtime.execution.update import Members

NamedWeight = tuple[str, nn.Parameter]


class OwnPart(NamedTuple):
    """Part of a weight that this process owns."""

    name: str
    parameter: nn.Parameter
    elements: Elements
    at: range  # in the flat part of the process


class FlatWeights:
    """Flat tensor of the weights of a block that several processes use, each of which owns an equal part."""

    def __init__(
        self,
        named: Sequence[NamedWeight],
        stage: int,
        members: Members,
        process: int,
        communicator: Communicator,
        *,
        dtype: torch.dtype,
        gradient_dtype: torch.dtype,
        is_counted: bool,
        frees: bool,
    ) -> None:
        """Make the weights views of one flat tensor.

        Args:
            named: the weights with their names in the whole model.
            stage: the stage of the weights.
            members: the processes that use the weights.
            process: this process.
            communicator: gathers weights and reduces gradients.
            dtype: dtype in which the weights are gathered and used.
            gradient_dtype: dtype in which gradients are reduced.
            is_counted: True if this process adds its part of the gradients to the gradient norm.
            frees: True if the parts of other processes are freed between the computations that need them.
        """
        self._named, self._stage, self._members, self._communicator = named, stage, members, communicator
        self._gradient_dtype, self.is_counted = gradient_dtype, is_counted
        self._accumulated: Tensor | None = None  # gradients of several microbatches
        self._shapes = [parameter.shape for _, parameter in named]
        flat = torch.cat([parameter.detach().flatten() for _, parameter in named])
        share = -(-len(flat) // len(members))
        self._first = members.index(process) * share
        flat = nn.functional.pad(flat, (0, share * len(members) - len(flat)))
        self._whole = flat if flat.dtype is dtype else flat.to(dtype)
        own = flat[self._first : self._first + share]
        self.part = own.clone() if frees or self._whole is not flat else own
        self.gradient: Tensor | None = None
        self._scattering: list[PendingTensor] = []
        self._gathering: PendingTensor | None = None
        self._is_whole = self._is_owner = True
        for (_, parameter), view in zip(named, self._views(self._whole), strict=True):
            parameter.data = view

    def _views(self, flat: Tensor) -> Iterator[Tensor]:
        """Yield a view of each weight in a flat tensor."""
        sizes = [shape.numel() for shape in self._shapes]
        for shape, piece in zip(self._shapes, torch.split(flat[: sum(sizes)], sizes), strict=True):
            yield piece.view(shape)

    @property
    def names(self) -> list[str]:
        """Names of the weights in the whole model."""
        return [name for name, _ in self._named]

    def rename(self, names: Mapping[nn.Parameter, str]) -> None:
        """Change the names of the weights in the whole model."""
        self._named = [(names[parameter], parameter) for _, parameter in self._named]

    def own_parts(self) -> Iterator[OwnPart]:
        """Yield the part of each weight that this process owns."""
        start = 0
        for (name, parameter), shape in zip(self._named, self._shapes, strict=True):
            first, last = max(start, self._first), min(start + shape.numel(), self._first + len(self.part))
            if first < last:
                elements = Elements(tuple(shape), range(first - start, last - start))
                yield OwnPart(name, parameter, elements, range(first - self._first, last - self._first))
            start += shape.numel()

    # ---- weights ----

    @property
    def resident_tensors(self) -> list[Tensor]:
        """Tensors that stay allocated between steps."""
        has_own = self._is_owner and self.part.untyped_storage().data_ptr() != self._whole.untyped_storage().data_ptr()
        return [*([self._whole] if self._is_whole else []), *([self.part] if has_own else [])]

    def use_part_of(self, other: FlatWeights) -> None:
        """Use the part of a copy of the same weights, which updates both."""
        assert len(self.part) == len(other.part) and self._first == other._first, "parts of equal weights"
        self.part, self._is_owner = other.part, False

    def add_gradient_of(self, other: FlatWeights) -> None:
        """Add the gradient of a copy of the same weights, and clear it."""
        assert self.gradient is not None and other.gradient is not None, "the gradients are collected"
        self.gradient, other.gradient = self.gradient + other.gradient, None

    def start_sum(self, members: Members) -> PendingTensor:
        """Start to sum the gradient of this process's part over the processes that own it too."""
        assert self.gradient is not None, "the gradients are collected"
        return self._communicator.start_all_reduce(0, members, self.gradient)

    def free(self) -> None:
        """Free the parts of other processes; this process keeps its own part. An all-gather in flight ends before."""
        if self._gathering is not None:
            self.finish_gather()
        self._whole.untyped_storage().resize_(0)
        self._is_whole = False

    def start_gather(self) -> None:
        """Start the all-gather of the weights, unless it is in flight or done."""
        if not self._is_whole and self._gathering is None:
            self._whole.untyped_storage().resize_(self._whole.numel() * self._whole.element_size())
            self.refresh()

    def refresh(self) -> None:
        """Start to gather the weights again, because their owners have updated them."""
        part = self.part.to(self._whole.dtype)
        self._gathering = self._communicator.start_all_gather(self._stage, self._members, part, self._whole)

    @property
    def gathering(self) -> PendingTensor | None:
        """All-gather of the weights that is in flight."""
        return self._gathering

    def finish_gather(self) -> Tensor:
        """Wait until the all-gather of the weights is complete, and return the flat weights."""
        self.start_gather()
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering, self._is_whole = None, True
        return self._whole

    # ---- gradients ----

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients that have not been reduce-scattered; None for a weight without one."""
        return [parameter.grad for _, parameter in self._named]

    def accumulate_gradients(self) -> None:
        """Add the gradients of a microbatch to the accumulated gradients of the step, which are in the reduction dtype."""
        flat = (
            torch.zeros_like(self._whole, dtype=self._gradient_dtype)
            if self._accumulated is None
            else self._accumulated
        )
        self._accumulated = flat
        for (_, parameter), view in zip(self._named, self._views(flat), strict=True):
            if parameter.grad is not None:
                view += parameter.grad
                parameter.grad = None

    def start_reduce_scatter(self) -> PendingTensor:
        """Start to reduce-scatter the gradients, and clear the gradients of the weights."""
        while len(self._scattering) > 1:
            self._add_gradient(self._scattering.pop(0).wait())
        self.accumulate_gradients()
        assert self._accumulated is not None, "just made"
        self._scattering.append(self._communicator.start_reduce_scatter(self._stage, self._members, self._accumulated))
        self._accumulated = None
        return self._scattering[-1]

    def collect_gradients(self) -> None:
        """Wait for all reductions; if there are none, set the gradients to 0."""
        for pending in self._scattering:
            self._add_gradient(pending.wait())
        self._scattering.clear()
        if self.gradient is None:
            self.gradient = torch.zeros_like(self.part)
        self.gradient = self.gradient.to(self.part.dtype)

    def _add_gradient(self, gradient: Tensor) -> None:
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def whole_gradients(self) -> dict[str, Tensor]:
        """Return the whole gradients of all weights by name; all members call this method together."""
        assert self.gradient is not None, "the gradients are collected"
        return self.gather_named(self.gradient)

    def whole_weights(self) -> dict[str, Tensor]:
        """Return the whole weights by name, in the dtype of the optimizer; all members call this method together."""
        return self.gather_named(self.part)

    def gather_named(self, part: Tensor) -> dict[str, Tensor]:
        """Return whole tensors by name, of which ``part`` is this process's part; all members call it together."""
        whole = torch.empty(len(part) * len(self._members), dtype=part.dtype, device=part.device)
        self._communicator.start_all_gather(self._stage, self._members, part, whole).wait()
        return {name: view for (name, _), view in zip(self._named, self._views(whole), strict=True)}
