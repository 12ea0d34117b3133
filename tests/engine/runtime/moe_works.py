"""What the processes of the tests of expert layers do: play many cases, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwave.engine.experts import ExpertSchedule, Layer, StepOp, expert_schedules
from meshwave.engine.experts._steps import ADJOINT
from meshwave.engine.runtime.communication.groups import Group, make_groups
from meshwave.engine.runtime.experts import ExpertLayer, Message, all_groups, groups_of
from meshwave.engine.runtime.experts import layer as layer_module
from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule, GradientQueue, compute_deferred
from meshwave.engine.runtime.modules.tensor_parallel import weight_shard
from tests.engine.runtime.moe_reference import Case, inputs, model

TIMEOUT = timedelta(seconds=60)
Groups = dict[tuple[int, ...], Group]


@dataclass
class Found:
    """What one process came to."""

    y: list[Tensor] = field(default_factory=list)
    dx: list[Tensor] = field(default_factory=list)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)  # shared ones summed
    weights: dict[str, Tensor] = field(default_factory=dict)
    cuts: dict[str, Any] = field(default_factory=dict)
    load: list[Tensor] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # that its experts computed in each forward
    messages: dict[str, list[Message]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


def play(cases: list[Case]) -> list[Found]:
    """Play all cases; groups are made once."""
    made: Groups = {}
    return [_play(case, made) for case in cases]


def blocks_of(case: Case) -> list[list[int]]:
    size = case.layer.devices
    return [list(range(first, first + size)) for first in range(0, case.processes, size)]


def own_groups(layer: Layer, blocks: list[list[int]], made: Groups) -> dict[str, Group]:
    """The groups of this process; those that are new are made."""
    process = dist.get_rank()
    lacking = [members for members in all_groups(layer, blocks) if members not in _known(made)]
    found = make_groups(lacking, process, "gloo", TIMEOUT, torch.device("cpu"))
    for members in lacking:
        made[members] = found.get(members, Group(members, -1))
    block = next(block for block in blocks if process in block)
    return {kind: made[members] for kind, members in groups_of(layer, block, process).items()}


def _known(made: Groups) -> Groups:
    return made


def _play(case: Case, made: Groups) -> Found:
    with _spoilt(case.spoilt):
        found = Found()
        process, blocks = dist.get_rank(), blocks_of(case)
        messages: list[Message] = []
        groups = own_groups(case.layer, blocks, made)
        options = {"aux_loss": case.aux, "z_loss": case.z, "dtype": case.dtype}
        layers = [
            ExpertLayer(case.layer, case.schedule, groups, watch=messages.append, **options) for _ in range(case.depth)
        ]
        for layer in layers:
            _count_rows(layer, found.rows)
        stack = nn.ModuleList(layers)
        whole = model(case)
        for name, parameter in stack.named_parameters():
            cut = weight_shard(parameter)
            parameter.data.copy_(cut.select(whole[name]) if cut else whole[name])
            if cut:
                found.cuts[name] = cut
        scale = 1 / case.shards / case.microbatches
        for layer in layers:
            layer.gate.loss_scale = scale
        for step in range(max(case.steps, 1)):
            found.y, found.dx, total = [], [], 0.0
            for microbatch in range(case.microbatches):
                x, r = inputs(case, process // case.layer.mp, microbatch + case.microbatches * step)
                y, dx = _pass(case, layers, x.requires_grad_(), r * scale, messages, found)
                total += float((y * r).sum()) * scale
                found.y.append(y)
                found.dx.append(dx)
            found.losses.append(total)
            found.load = [layer.load for layer in layers if layer.load is not None]
            _share(case, stack, layers, blocks, made)
            found.gradients = {name: p.grad for name, p in stack.named_parameters()}
            if case.steps:
                with torch.no_grad():
                    for parameter in stack.parameters():
                        assert parameter.grad is not None
                        parameter -= 0.05 * parameter.grad
                        parameter.grad = None
        found.weights = {name: p.detach() for name, p in stack.named_parameters()}
        return found


def _pass(
    case: Case, layers: list[ExpertLayer], x: Tensor, gradient: Tensor, messages: list[Message], found: Found
) -> tuple[Tensor, Tensor]:
    later = GradientQueue() if case.split else None
    for layer in layers:
        for part in layer.modules():
            if isinstance(part, DeferrableModule):
                part.gradient_queue = later
    messages.clear()
    if case.recomputed:
        with torch.no_grad():
            before = _forward(layers, x)
        y = _forward(layers, x)
        assert torch.equal(before, y), "the same input is routed the same"
    else:
        y = _forward(layers, x)
    found.messages["forward"] = list(messages)
    messages.clear()
    y.backward(gradient)
    found.messages["backward"] = list(messages)
    if later is not None:
        assert all(parameter.grad is None for layer in layers for parameter in layer.parameters())
        compute_deferred(later.take())
    assert x.grad is not None
    return y.detach(), x.grad


def _count_rows(layer: ExpertLayer, rows: list[int]) -> None:
    """Note how many rows the experts of a layer compute."""
    forward = layer._experts.forward

    def counted(x: Tensor, counts: Any) -> Any:
        rows.append(sum(counts))
        return forward(x, counts)

    layer._experts.forward = counted  # type: ignore[method-assign]


def _forward(layers: list[ExpertLayer], x: Tensor) -> Tensor:
    if len(layers) == 1:
        return layers[0](x)  # type: ignore[no-any-return]
    for layer in layers:
        x = x + layer(x)
    return x


def _share(case: Case, stack: nn.Module, layers: list[ExpertLayer], blocks: list[list[int]], made: Groups) -> None:
    """Sum what processes share, with groups of all processes: who lacks a weight adds nothing."""
    layer = layers[0]
    mp, process = case.layer.mp, dist.get_rank()
    partial = layer.gate_is_partial and case.spoilt != "no sum of the gate"
    partial |= case.spoilt == "a sum of the gate"
    counted = partial or process % mp == 0
    for name, parameter in sorted(dict(stack.named_parameters()).items()):
        if "gate" in name:
            assert parameter.grad is not None
            total = parameter.grad.clone() if counted else torch.zeros_like(parameter.grad)
            dist.all_reduce(total)
            if not partial:
                assert torch.allclose(parameter.grad, parameter.grad)
            parameter.grad = total
    own = {name: p for name, p in stack.named_parameters() if "gate" not in name}
    shared: dict[tuple[int, ...], list[str]] = {}
    for name, members in sorted(_sharers(case, layers, blocks).items()):
        if process in members and len(members) > 1:
            shared.setdefault(members, []).append(name)
    for members, names in sorted(shared.items()):
        flat = torch.cat([_of(own[name]).flatten() for name in names])
        found: list[Any] = [torch.empty_like(flat) for _ in members]
        messages = [dist.irecv(each, m) for each, m in zip(found, members, strict=True) if m != process]
        messages += [dist.isend(flat, m) for m in members if m != process]
        for message in messages:
            message.wait()
        found[members.index(process)] = flat
        totals = torch.stack(found).sum(0).split([own[name].numel() for name in names])
        for name, total in zip(names, totals, strict=True):
            own[name].grad = total.view_as(own[name])


def _of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _sharers(case: Case, layers: list[ExpertLayer], blocks: list[list[int]]) -> dict[str, tuple[int, ...]]:
    """The processes that share each weight of this one's experts."""
    found = {}
    for number, layer in enumerate(layers):
        for expert, part in layer.experts.items():
            devices = layer.holders(expert)
            members = tuple(sorted(block[device] for block in blocks for device in devices))
            for name, _ in part.named_parameters():
                found[f"{number}.{expert}.{name}"] = members
    return found


# ---- rules that are broken on purpose ----


@contextmanager
def _spoilt(rule: str) -> Iterator[None]:
    """Break one of the rules that the gradients rest on."""
    undo: list[tuple[Any, Any, Any]] = []
    if rule == "every copy of a token counts":
        undo.append((ExpertSchedule, "seen", None))
        deepspeed = expert_schedules["deepspeed"]
        before = deepspeed.seen
        deepspeed.seen = lambda self, layer: 1  # type: ignore[method-assign]
        try:
            yield
        finally:
            deepspeed.seen = before  # type: ignore[method-assign]
    elif rule in ("identity for the sum of shards", "no sum of the input's gradient"):
        op = StepOp.REDUCE_SHARDS if rule.startswith("identity") else StepOp.COPY
        before = ADJOINT[op]
        ADJOINT[op] = StepOp.COPY
        try:
            yield
        finally:
            ADJOINT[op] = before
    elif rule == "results assigned, not added":
        picked = layer_module._picked
        restore = layer_module._Restore.forward

        def assign(ctx: Any, found: Tensor, weights: Tensor, routing: Any, begins: Any) -> Tensor:
            restore(ctx, found, weights, routing, begins)
            y = found.new_zeros(weights.shape[0], found.shape[1])
            for choice, slot in enumerate(routing.slot):
                here = slot < len(found)
                y[here] = (weights[:, choice, None] * picked(found, slot))[here]
            return y

        layer_module._Restore.forward = staticmethod(assign)  # type: ignore[method-assign]
        try:
            yield
        finally:
            layer_module._Restore.forward = staticmethod(restore)  # type: ignore[method-assign]
    else:
        yield
