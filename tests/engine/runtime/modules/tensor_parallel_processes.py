"""Tensor-parallel processes of one stage in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from meshwave.engine.families import model_families
from meshwave.engine.families.gpt import Gpt
from meshwave.engine.runtime.communication.groups import Group, make_groups
from meshwave.engine.runtime.communication.world import TIMEOUT
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage, Saved
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules import tensor_parallel
from meshwave.engine.runtime.modules.deferred_gradients import GradientQueue, compute_deferred_gradients
from meshwave.engine.runtime.modules.tensor_parallel import ColumnLinear, parallel_cross_entropy

LAYERS = (1, 2, 1)
BATCH = 3
SHAPE = Gpt(kind="gpt", layers=4, hidden=64, heads=4, sequence=32, vocab=300, ffn=192)


class Case(NamedTuple):
    """One of three stages, in a precision, with a whole or a split backward."""

    precision: str
    stage: int
    split: bool


class Counts(NamedTuple):
    """Bytes of one microbatch on one process, and the gradients of its weights."""

    forward: list[int]  # of each reduction
    backward: list[int]
    kept: int
    deferred: int
    parameters: int
    gradients: dict[str, Any]


def all_processes() -> Group:
    """Return the group of all processes."""
    members = tuple(range(dist.get_world_size()))
    return make_groups([members], dist.get_rank(), "gloo", TIMEOUT, torch.device("cpu"))[members]


@contextmanager
def recorded_exchanges() -> Iterator[list[int]]:
    """Yield a list to which the bytes of the tokens of every all-gather and reduce-scatter are appended."""
    sizes: list[int] = []
    gather, scatter = tensor_parallel.all_gather, tensor_parallel.reduce_scatter

    def gather_recorded(output: Tensor, own: Tensor, **options: Any) -> Any:
        sizes.append(output.nbytes)
        return gather(output, own, **options)

    def scatter_recorded(own: Tensor, parts: Tensor, **options: Any) -> Any:
        sizes.append(parts.nbytes)
        return scatter(own, parts, **options)

    with (
        patch.object(tensor_parallel, "all_gather", gather_recorded),
        patch.object(tensor_parallel, "reduce_scatter", scatter_recorded),
    ):
        yield sizes


def exchange_sizes(cases: list[tuple[dict[str, Any], bool]]) -> list[dict[str, list[int]]]:
    """Return the bytes of each collective of one layer of a model, with or without sequence parallelism."""
    return [_exchange_sizes(model, divides_tokens) for model, divides_tokens in cases]


def _exchange_sizes(model: dict[str, Any], divides_tokens: bool) -> dict[str, list[int]]:
    group = replace(all_processes(), divides_tokens=divides_tokens)
    shape = model_families[model["kind"]].model_validate(model)
    module = build_stage(shape, LAYERS, 1, 0, DTYPES["fp32"], "cpu", group)
    local = LocalStage(module, "fp32", torch.device("cpu"), 1.0)
    x = torch.ones((BATCH, shape.sequence // (group.size if divides_tokens else 1), shape.hidden))
    with recorded_reductions() as forward_reduced, recorded_exchanges() as forward_gathered:
        _, saved = local.forward(x, None)
    with recorded_reductions() as backward_reduced, recorded_exchanges() as backward_gathered:
        local.backward(saved, torch.ones_like(x))
    return {
        "forward_reduced": [size for size, _ in forward_reduced],
        "backward_reduced": [size for size, _ in backward_reduced],
        "forward_gathered": forward_gathered,
        "backward_gathered": backward_gathered,
    }


@contextmanager
def recorded_reductions() -> Iterator[list[tuple[int, torch.dtype]]]:
    """Yield a list to which the bytes and the precision of every all-reduce are appended."""
    reductions: list[tuple[int, torch.dtype]] = []
    reduce = dist.all_reduce

    def recorded_tensor(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        reductions.append((tensor.nbytes, tensor.dtype))
        return reduce(tensor, *arguments, **options)

    dist.all_reduce = recorded_tensor
    try:
        yield reductions
    finally:
        dist.all_reduce = reduce


def count_bytes(cases: list[Case]) -> list[Counts]:
    group = all_processes()
    return [_count_case(Case(*case), group) for case in cases]


def _count_case(case: Case, group: Group) -> Counts:
    first, last = case.stage == 0, case.stage == len(LAYERS) - 1
    module = build_stage(SHAPE, LAYERS, case.stage, 0, DTYPES[case.precision], "cpu", group)
    local = LocalStage(module, case.precision, torch.device("cpu"), 1.0, splits_backward=case.split)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 256, (BATCH, SHAPE.sequence), generator=generator)
    x, gradient = (  # each with its own storage, because storages are counted
        torch.randn((BATCH, SHAPE.sequence, SHAPE.hidden), generator=generator).to(MESSAGE_DTYPES[case.precision])
        for _ in range(2)
    )
    sizes: dict[
        int, tuple[Tensor, int]
    ] = {}  # by storage, so that views count once; the tensor keeps the storage allocated

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = tensor, storage.nbytes()
        return tensor

    def forward() -> Saved:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            _, saved = local.forward((tokens if first else x).clone(), tokens.clone() if last else None)
        assert saved.y is not None
        keep(saved.y)
        return saved

    forward()  # makes the copy of the weights in the precision of the products
    before = set(sizes)
    with recorded_reductions() as forward_reductions:
        saved = forward()
    kept = sum(size for storage, (_, size) in sizes.items() if storage not in before)
    backward = local.input_gradient if case.split else lambda *arguments: (local.backward(*arguments), [])
    with recorded_reductions() as backward_reductions:
        _, deferred = backward(saved, None if last else gradient)
    tensors = [argument for gradient in deferred for argument in gradient.args if isinstance(argument, Tensor)]  # type: ignore[attr-defined]
    deferred_bytes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    compute_deferred_gradients(deferred)
    return Counts(
        [size for size, _ in forward_reductions],
        [size for size, _ in backward_reductions],
        kept,
        sum(deferred_bytes.values()),
        sum(parameter.numel() for parameter in module.parameters()),
        {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None},
    )


def compare_losses(argument: Any) -> dict[str, Any]:
    """Return the loss of sharded logits and the gradient of this process's, and the same for whole logits."""
    group, (rows, vocab, ignored) = all_processes(), argument
    generator = torch.Generator().manual_seed(1)
    whole = torch.randn((rows, vocab), generator=generator, dtype=torch.float64).mul_(30).requires_grad_()
    targets = torch.randint(0, vocab, (rows,), generator=generator)
    targets[: rows // 3] = ignored
    expected = torch.nn.functional.cross_entropy(whole, targets, ignore_index=ignored)
    expected.backward()  # type: ignore[no-untyped-call]
    own = group.own_range(vocab)
    logits = whole.detach()[:, own.start : own.stop].clone().requires_grad_()
    found = parallel_cross_entropy(logits, targets, own, group, ignored)
    (2 * found).backward()  # type: ignore[no-untyped-call]
    assert whole.grad is not None and logits.grad is not None
    return {
        "found": found.item(),
        "expected": expected.item(),
        "gradient": logits.grad.numpy() / 2,
        "whole_gradient": whole.grad[:, own.start : own.stop].numpy(),
    }


def column_reductions(split: bool) -> list[tuple[int, str]]:
    """Return the reductions in the backward of columns in bf16 whose input is float32, as after norms on a GPU."""
    columns = ColumnLinear(8, 16, group=all_processes())
    with torch.no_grad():
        for parameter in columns.parameters():
            parameter.fill_(0.01)
    columns.gradient_queue = GradientQueue() if split else None
    columns.cast = columns.weight.bfloat16(), columns.bias.bfloat16()
    x = torch.ones(4, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = columns(x)
    with recorded_reductions() as reductions:
        y.sum().backward()
    assert x.grad is not None and x.grad.dtype is torch.float32
    return [(size, str(dtype)) for size, dtype in reductions]


def index_in_groups(wanted: list[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, bool, float]]:
    """Return, for each group of this process, its index, whether the group has a handle, and a sum over the group."""
    made = make_groups(wanted, dist.get_rank(), "gloo", TIMEOUT, torch.device("cpu"))
    found = {}
    for members, group in made.items():
        total = torch.tensor(float(dist.get_rank()))
        if group.handle is not None:
            dist.all_reduce(total, group=group.handle)
        found[members] = group.index, group.handle is not None, total.item()
    return found
