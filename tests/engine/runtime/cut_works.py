"""What processes that hold cuts of one stage do in tests, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from meshwave.engine.families.gpt import Gpt
from meshwave.engine.runtime.communication.groups import Group, make_groups
from meshwave.engine.runtime.communication.world import TIMEOUT
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage, Saved
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules.deferred_gradients import GradientQueue, compute_deferred
from meshwave.engine.runtime.modules.tensor_parallel import ColumnLinear, parallel_cross_entropy

LAYERS = (1, 2, 1)
BATCH = 3
SHAPE = Gpt(kind="gpt", layers=4, hidden=64, heads=4, sequence=32, vocab=300, ffn=192)


class Case(NamedTuple):
    """A stage of three, in a precision, with its backward whole or in two halves."""

    precision: str
    stage: int
    split: bool


class Counted(NamedTuple):
    """Bytes of one microbatch on one process, and what it made of the weights."""

    forward: list[int]  # of each reduction
    backward: list[int]
    kept: int
    deferred: int
    parameters: int
    gradients: dict[str, Any]


def everyone() -> Group:
    """All processes, as cuts of one copy."""
    members = tuple(range(dist.get_world_size()))
    return make_groups([members], dist.get_rank(), "gloo", TIMEOUT, torch.device("cpu"))[members]


@contextmanager
def reductions() -> Iterator[list[tuple[int, torch.dtype]]]:
    """Bytes and precision of every all-reduce."""
    seen: list[tuple[int, torch.dtype]] = []
    reduce = dist.all_reduce

    def noted(tensor: Tensor, *arguments: Any, **others: Any) -> Any:
        seen.append((tensor.nbytes, tensor.dtype))
        return reduce(tensor, *arguments, **others)

    dist.all_reduce = noted
    try:
        yield seen
    finally:
        dist.all_reduce = reduce


def count(cases: list[Case]) -> list[Counted]:
    group = everyone()
    return [_count(Case(*case), group) for case in cases]


def _count(case: Case, group: Group) -> Counted:
    first, last = case.stage == 0, case.stage == len(LAYERS) - 1
    module = build_stage(SHAPE, LAYERS, case.stage, 0, DTYPES[case.precision], "cpu", group)
    local = LocalStage(module, case.precision, torch.device("cpu"), 1.0, split=case.split)
    chance = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 256, (BATCH, SHAPE.sequence), generator=chance)
    x, gradient = (  # of a storage each, since storages are what is counted
        torch.randn((BATCH, SHAPE.sequence, SHAPE.hidden), generator=chance).to(MESSAGE_DTYPES[case.precision])
        for _ in range(2)
    )
    sizes: dict[int, tuple[Tensor, int]] = {}  # by storage, so that views count once; holding it keeps it apart

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

    forward()  # the weights and their one copy in the precision of the products
    before = set(sizes)
    with reductions() as ahead:
        saved = forward()
    kept = sum(size for place, (_, size) in sizes.items() if place not in before)
    backward = local.input_gradient if case.split else lambda *given: (local.backward(*given), [])
    with reductions() as back:
        _, due = backward(saved, None if last else gradient)
    tensors = [argument for left in due for argument in left.args if isinstance(argument, Tensor)]  # type: ignore[attr-defined]
    held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    compute_deferred(due)
    return Counted(
        [size for size, _ in ahead],
        [size for size, _ in back],
        kept,
        sum(held.values()),
        sum(parameter.numel() for parameter in module.parameters()),
        {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None},
    )


def loss(argument: Any) -> dict[str, Any]:
    """The loss of logits that are cut, and the gradient of the own ones; the same of whole ones."""
    group, (rows, vocab, ignored) = everyone(), argument
    chance = torch.Generator().manual_seed(1)
    whole = torch.randn((rows, vocab), generator=chance, dtype=torch.float64).mul_(30).requires_grad_()
    targets = torch.randint(0, vocab, (rows,), generator=chance)
    targets[: rows // 3] = ignored
    expected = torch.nn.functional.cross_entropy(whole, targets, ignore_index=ignored)
    expected.backward()  # type: ignore[no-untyped-call]
    own = group.part(vocab)
    logits = whole.detach()[:, own.start : own.stop].clone().requires_grad_()
    found = parallel_cross_entropy(logits, targets, own, group, ignored)
    (2 * found).backward()  # type: ignore[no-untyped-call]
    assert whole.grad is not None and logits.grad is not None
    return {
        "found": found.item(),
        "expected": expected.item(),
        "gradient": logits.grad.numpy() / 2,
        "of_whole": whole.grad[:, own.start : own.stop].numpy(),
    }


def reduced_by_columns(split: bool) -> list[tuple[int, str]]:
    """Reductions in the backward of columns that compute in bf16 and are given float32, as by norms of a GPU."""
    columns = ColumnLinear(8, 16, everyone())
    with torch.no_grad():
        for parameter in columns.parameters():
            parameter.fill_(0.01)
    columns.gradient_queue = GradientQueue() if split else None
    columns.cast = columns.weight.bfloat16(), columns.bias.bfloat16()
    x = torch.ones(4, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = columns(x)
    with reductions() as seen:
        y.sum().backward()
    assert x.grad is not None and x.grad.dtype is torch.float32
    return [(size, str(dtype)) for size, dtype in seen]


def groups(wanted: list[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, bool, float]]:
    """Of the groups that this process is in: its place, whether there is anything to wait for, and a sum."""
    made = make_groups(wanted, dist.get_rank(), "gloo", TIMEOUT, torch.device("cpu"))
    found = {}
    for members, group in made.items():
        total = torch.tensor(float(dist.get_rank()))
        if group.handle is not None:
            dist.all_reduce(total, group=group.handle)
        found[members] = group.index, group.handle is not None, total.item()
    return found
