"""Expert layers in the processes of a test: many cases, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwave.engine.experts import Layer, StepOp, expert_schedules
from meshwave.engine.experts._steps import ADJOINT
from meshwave.engine.runtime.communication.groups import Group, make_groups
from meshwave.engine.runtime.experts import CollectiveRecord, ExpertLayer, device_groups, required_groups, token_order
from meshwave.engine.runtime.modules.deferred_gradients import (
    DeferrableModule,
    GradientQueue,
    compute_deferred_gradients,
)
from meshwave.engine.runtime.modules.tensor_parallel import weight_shard
from tests.engine.runtime.experts.reference_layer import Case, draw_inputs, draw_weights

TIMEOUT = timedelta(seconds=60)
LEARNING_RATE = 0.05
Groups = dict[tuple[int, ...], Group]


@dataclass
class ProcessOutcome:
    """The results of one process."""

    y: list[Tensor] = field(default_factory=list)
    dx: list[Tensor] = field(default_factory=list)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)  # shared ones are summed
    weights: dict[str, Tensor] = field(default_factory=dict)
    shards: dict[str, Any] = field(default_factory=dict)
    load: list[Tensor] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # that its experts computed in each forward
    records: dict[str, list[CollectiveRecord]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


def run_cases(cases: list[Case]) -> list[ProcessOutcome]:
    """Run all cases; each group is made once."""
    known: Groups = {}
    return [_run_case(case, known) for case in cases]


def own_groups(layer: Layer, blocks: list[list[int]], known: Groups) -> dict[str, Group]:
    """Return the groups of this process, after making those that are not known yet."""
    process = dist.get_rank()
    missing = [members for members in required_groups(layer, blocks) if members not in known]
    made = make_groups(missing, process, "gloo", TIMEOUT, torch.device("cpu"))
    for members in missing:
        known[members] = made.get(members, Group(members, -1))
    block = next(block for block in blocks if process in block)
    return {kind: known[members] for kind, members in device_groups(layer, block, process).items()}


def _run_case(case: Case, known: Groups) -> ProcessOutcome:
    with _broken_rule(case.broken_rule):
        outcome = ProcessOutcome()
        process, size = dist.get_rank(), case.layer.devices
        blocks = [list(range(first, first + size)) for first in range(0, case.processes, size)]
        records: list[CollectiveRecord] = []
        groups = own_groups(case.layer, blocks, known)
        options: dict[str, Any] = {"aux_loss": case.aux_loss, "z_loss": case.z_loss, "dtype": case.dtype}
        options |= {"mlp": case.mlp, "router": case.router}
        layers = [
            ExpertLayer(case.layer, case.schedule, groups, on_collective=records.append, **options)
            for _ in range(case.depth)
        ]
        for layer in layers:
            _count_rows(layer, outcome.rows)
            if case.float8_shards:
                chosen, every = layer.use_float8()
                assert chosen == every > 0
        stack = nn.ModuleList(layers)
        whole = draw_weights(case)
        for name, parameter in stack.named_parameters():
            shard = weight_shard(parameter)
            parameter.data.copy_(shard.select_part(whole[name]) if shard else whole[name])
            if shard:
                outcome.shards[name] = shard
        scale = 1 / case.inputs / case.microbatches
        for layer in layers:
            layer.gate.loss_scale = scale
        for step in range(max(case.steps, 1)):
            outcome.y, outcome.dx, total = [], [], 0.0
            for microbatch in range(case.microbatches):
                x, r = draw_inputs(case, process // case.layer.mp, microbatch + case.microbatches * step)
                y, dx = _run_microbatch(case, layers, x.requires_grad_(), r * scale, records, outcome)
                total += float((y * r).sum()) * scale
                outcome.y.append(y)
                outcome.dx.append(dx)
            outcome.losses.append(total)
            outcome.load = [layer.load for layer in layers if layer.load is not None]
            _sum_gradients(case, stack, layers, blocks)
            outcome.gradients = {name: p.grad for name, p in stack.named_parameters()}
            if case.steps:
                with torch.no_grad():
                    for parameter in stack.parameters():
                        assert parameter.grad is not None
                        parameter -= LEARNING_RATE * parameter.grad
                        parameter.grad = None
        outcome.weights = {name: p.detach() for name, p in stack.named_parameters()}
        return outcome


def _run_microbatch(
    case: Case,
    layers: list[ExpertLayer],
    x: Tensor,
    gradient: Tensor,
    records: list[CollectiveRecord],
    outcome: ProcessOutcome,
) -> tuple[Tensor, Tensor]:
    queue = GradientQueue() if case.splits_backward else None
    for layer in layers:
        for module in layer.modules():
            if isinstance(module, DeferrableModule):
                module.gradient_queue = queue
    records.clear()
    if case.recomputes:
        with torch.no_grad():
            before = _forward(layers, x)
        y = _forward(layers, x)
        assert torch.equal(before, y), "the same input is routed the same"
    else:
        y = _forward(layers, x)
    outcome.records["forward"] = list(records)
    records.clear()
    y.backward(gradient)
    outcome.records["backward"] = list(records)
    if queue is not None:
        named = [pair for layer in layers for pair in layer.named_parameters()]
        assert all(parameter.grad is None for name, parameter in named if not name.endswith("balance"))
        compute_deferred_gradients(queue.take())
    assert x.grad is not None
    return y.detach(), x.grad


def _count_rows(layer: ExpertLayer, rows: list[int]) -> None:
    """Append the number of rows that the experts of a layer compute to ``rows``."""
    forward = layer._experts.forward

    def count_copies(x: Tensor, counts: Any) -> Any:
        rows.append(sum(counts))
        return forward(x, counts)

    layer._experts.forward = count_copies  # type: ignore[method-assign]


def _forward(layers: list[ExpertLayer], x: Tensor) -> Tensor:
    if len(layers) == 1:
        return layers[0](x)  # type: ignore[no-any-return]
    for layer in layers:
        x = x + layer(x)
    return x


def _sum_gradients(case: Case, stack: nn.Module, layers: list[ExpertLayer], blocks: list[list[int]]) -> None:
    """Sum the gradients that processes share, gates over all processes, experts over their holders."""
    process = dist.get_rank()
    sums_gate = layers[0].gate_is_partial and case.broken_rule != "no sum of the gate"
    sums_gate |= case.broken_rule == "a sum of the gate"
    counts = sums_gate or process % case.layer.mp == 0
    for name, parameter in sorted(dict(stack.named_parameters()).items()):
        if "gate" in name:
            assert parameter.grad is not None
            total = parameter.grad.clone() if counts else torch.zeros_like(parameter.grad)
            dist.all_reduce(total)
            parameter.grad = total
    own = {name: p for name, p in stack.named_parameters() if "gate" not in name}
    shared: dict[tuple[int, ...], list[str]] = {}
    for name, members in sorted(_holders(layers, blocks).items()):
        if process in members and len(members) > 1:
            shared.setdefault(members, []).append(name)
    for members, names in sorted(shared.items()):
        flat = torch.cat([_gradient(own[name]).flatten() for name in names])
        gathered: list[Any] = [torch.empty_like(flat) for _ in members]
        messages = [dist.irecv(each, m) for each, m in zip(gathered, members, strict=True) if m != process]
        messages += [dist.isend(flat, m) for m in members if m != process]
        for message in messages:
            message.wait()
        gathered[members.index(process)] = flat
        totals = torch.stack(gathered).sum(0).split([own[name].numel() for name in names])
        for name, total in zip(names, totals, strict=True):
            own[name].grad = total.view_as(own[name])


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _holders(layers: list[ExpertLayer], blocks: list[list[int]]) -> dict[str, tuple[int, ...]]:
    """Return the processes that hold each expert weight of this process."""
    holders = {}
    for number, layer in enumerate(layers):
        for expert, module in layer.experts.items():
            devices = layer.shard_holders(expert)
            members = tuple(sorted(block[device] for block in blocks for device in devices))
            for name, _ in module.named_parameters():
                holders[f"{number}.{expert}.{name}"] = members
    return holders


# ---- rules that a test breaks ----


@contextmanager
def _broken_rule(rule: str) -> Iterator[None]:
    """Break one of the rules that the gradients depend on."""
    patches: list[tuple[Any, str, Any]] = []
    if rule == "every copy of a token counts":
        patches.append((expert_schedules["deepspeed"], "token_copies", lambda self, layer: 1))
    elif rule == "results assigned, not added":
        restore, select_rows = token_order._Restore.forward, token_order._select_rows

        def assign(ctx: Any, results: Tensor, weights: Tensor, routing: Any, begin_step: Any) -> Tensor:
            restore(ctx, results, weights, routing, begin_step)
            y = results.new_zeros(weights.shape[0], results.shape[1])
            for choice, slot in enumerate(routing.slot):
                is_here = slot < len(results)
                y[is_here] = (weights[:, choice, None] * select_rows(results, slot))[is_here]
            return y

        patches.append((token_order._Restore, "forward", staticmethod(assign)))
    adjoints = dict(ADJOINT)
    if rule == "identity for the sum of shards":
        ADJOINT[StepOp.REDUCE_SHARDS] = StepOp.COPY
    elif rule == "no sum of the input's gradient":
        ADJOINT[StepOp.COPY] = StepOp.COPY
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        ADJOINT.update(adjoints)
        for owner, name, value in before:
            setattr(owner, name, value)
