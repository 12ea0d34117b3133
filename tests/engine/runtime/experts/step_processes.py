"""Single steps of expert layers in the processes of a test: steps against their adjoints, and Parm's SAA
against the exchange and the gather one after the other.

The convention of gradients says of every tensor whether the devices of a group hold the *same* tensor or
*different* ones. That decides how often it counts in an inner product over all devices: a tensor that ``n``
devices hold is one tensor and not ``n``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.document.architecture import PLAIN
from meshwave.engine.experts import Layer, Step, StepOp, expert_schedules
from meshwave.engine.experts.parm_s2 import ParmS2
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.experts import ExpertLayer
from meshwave.engine.runtime.experts.feed_forward import Expert, FeedForward
from meshwave.engine.runtime.experts.gate import Gate, Routing
from meshwave.engine.runtime.experts.overlap import OverlappedCombine
from meshwave.engine.runtime.experts.step_times import ignore_step
from meshwave.engine.runtime.experts.steps import SLOTS, StepRunner
from meshwave.engine.runtime.experts.token_order import order_tokens, restore_tokens
from meshwave.engine.runtime.modules.activations import make_activation
from meshwave.engine.runtime.modules.deferred_gradients import GradientQueue
from tests.engine.runtime.experts.layer_processes import own_groups

SLOTS_EACH = 4
Groups = dict[tuple[int, ...], Group]


class LinearStep(NamedTuple):
    """A step as a linear map: its input shape, and which of its ends is the same tensor on its whole group."""

    step: Step
    shape: tuple[int, ...]
    has_same_input: bool = False
    has_same_output: bool = False


class InnerProducts(NamedTuple):
    """``<A x, y>`` and ``<x, A^T y>`` over all devices."""

    name: str
    forward: float
    adjoint: float


# ---- linear steps ----


def inner_products(layers: list[Layer]) -> list[list[InnerProducts]]:
    """Return the inner products of every linear step, on the groups of every layer."""
    known: Groups = {}
    return [[*_linear_products(layer, known), *_ordering_products(layer, known)] for layer in layers]


def _linear_products(layer: Layer, known: Groups) -> list[InnerProducts]:
    blocks = [list(range(dist.get_world_size()))]
    runner = StepRunner(layer, own_groups(layer, blocks, known))
    return [_step_products(runner, each) for each in linear_steps(runner)]


def linear_steps(runner: StepRunner) -> list[LinearStep]:
    """Return every linear step, over each kind of group that a schedule uses it on."""
    layer = runner.layer
    mp, esp, experts, m = layer.mp, layer.esp, layer.experts, layer.hidden
    part = SLOTS_EACH * mp
    tokens, slots = (layer.tokens, m), (1, experts, part, m)
    side_by_side = (esp, experts, part, m)

    def received(group: str, copies: int) -> tuple[int, ...]:
        return (1, sum(runner.exchange_plan(group, copies).received), part, m)

    steps: list[LinearStep] = []
    for group, copies in (("ep", 1), ("ep", esp), ("ep_esp", esp)):
        steps += [
            LinearStep(Step(StepOp.DISPATCH, group, copies=copies), (copies, experts, part, m)),
            LinearStep(Step(StepOp.COMBINE, group, copies=copies), received(group, copies)),
        ]
    for group in ("mp", "esp"):
        steps += [
            LinearStep(Step(StepOp.COPY, group), tokens, has_same_input=True),
            LinearStep(Step(StepOp.REDUCE, group), tokens, has_same_output=True),
        ]
    return [
        *steps,
        LinearStep(Step(StepOp.SPLIT_TOKENS, "mp"), tokens, has_same_input=True),
        LinearStep(Step(StepOp.GATHER_TOKENS, "mp"), (layer.tokens // mp, m), has_same_output=True),
        LinearStep(Step(StepOp.SPLIT_SLOTS, "mp"), slots, has_same_input=True),
        LinearStep(Step(StepOp.GATHER_SLOTS, "mp"), (1, experts, SLOTS_EACH, m), has_same_output=True),
        LinearStep(Step(StepOp.GATHER_SHARDS, "esp"), slots),
        LinearStep(Step(StepOp.SCATTER_SHARDS, "esp"), side_by_side),
        LinearStep(Step(StepOp.REDUCE_SHARDS, "esp"), slots),
        LinearStep(Step(StepOp.KEEP_SHARD, "esp"), side_by_side),
        LinearStep(Step(StepOp.PAD_SHARD, "esp"), slots),
        LinearStep(Step(StepOp.GATHER_INPUTS, "esp"), tokens),
        LinearStep(Step(StepOp.SCATTER_INPUTS, "esp"), (esp * layer.tokens, m)),
        LinearStep(Step(StepOp.KEEP_INPUT, "esp"), (esp * layer.tokens, m)),
        LinearStep(Step(StepOp.PAD_INPUT, "esp"), tokens),
        LinearStep(Step(StepOp.DUMP, "esp"), slots),
        LinearStep(Step(StepOp.SUM, "esp"), side_by_side),
    ]


def _step_products(runner: StepRunner, linear: LinearStep) -> InnerProducts:
    step, group = linear.step, runner.groups[linear.step.group]
    x = _draw(linear.shape, group, 1, is_same=linear.has_same_input).requires_grad_()
    ax = runner.apply(step, x)
    y = _draw(ax.shape, group, 2, is_same=linear.has_same_output)
    ax.backward(y)
    assert x.grad is not None
    forward = _inner_product(ax.detach(), y, group.size if linear.has_same_output else 1)
    adjoint = _inner_product(x.detach(), x.grad, group.size if linear.has_same_input else 1)
    return InnerProducts(f"{step.op} over {step.group}, {step.copies} copies", forward, adjoint)


def _draw(shape: Any, group: Group, seed: int, *, is_same: bool = False) -> Tensor:
    """Return random numbers, different on each device or the same on its group."""
    owner = group.members[0] if is_same else dist.get_rank()
    generator = torch.Generator().manual_seed(100 * owner + seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _inner_product(one: Tensor, other: Tensor, holders: int = 1) -> float:
    total = (one * other).sum() / holders
    dist.all_reduce(total)
    return float(total)


# ---- tokens to slots and back ----


def _ordering_products(layer: Layer, known: Groups) -> list[InnerProducts]:
    """Return the products of ORDER, and of RESTORE, which is linear in the results and in the weights."""
    group = own_groups(layer, [list(range(dist.get_world_size()))], known)["ep_esp"]
    routing = _route(layer, group)
    tokens = _draw((layer.tokens, layer.hidden), group, 3).requires_grad_()
    results = _draw((len(routing.route), layer.hidden), group, 4).requires_grad_()
    weights = _draw(routing.weights.shape, group, 5).requires_grad_()

    ordered = order_tokens(tokens, routing, ignore_step)
    y = _draw(ordered.shape, group, 6)
    ordered.backward(y)
    restored = restore_tokens(results, routing._replace(weights=weights), ignore_step)
    z = _draw(restored.shape, group, 7)
    restored.backward(z)

    assert tokens.grad is not None and results.grad is not None and weights.grad is not None
    forward = _inner_product(restored.detach(), z)
    return [
        InnerProducts("order", _inner_product(ordered.detach(), y), _inner_product(tokens.detach(), tokens.grad)),
        InnerProducts("restore, of the results", forward, _inner_product(results.detach(), results.grad)),
        InnerProducts("restore, of the weights", forward, _inner_product(weights.detach(), weights.grad)),
    ]


def _route(layer: Layer, group: Group) -> Routing:
    """Route tokens that differ from device to device, with fewer slots than the gate needs."""
    gate = _make_gate(layer, group)
    x = _draw((layer.tokens, layer.hidden), group, 8)
    return gate(x, lambda load: max(1, int(load.max()) // 2), lambda load: load)  # type: ignore[no-any-return]


def _make_gate(layer: Layer, group: Group, **losses: float) -> Gate:
    gate = Gate(layer.hidden, layer.experts, layer.top_k, dtype=torch.float64, **losses)
    gate.weight.data = _draw(gate.weight.shape, group, 9)
    return gate


# ---- the two steps that compute: their backward is the adjoint of their differential ----


def differentials(layer: Layer) -> list[InnerProducts]:
    """Return ``<J u, y>`` by central differences and ``<u, J^T y>`` of GATE and EXPERTS, of inputs and of weights."""
    group = own_groups(layer, [list(range(dist.get_world_size()))], {})["ep_esp"]
    return [*_gate_differentials(layer, group), *_expert_differentials(layer, group)]


def _gate_differentials(layer: Layer, group: Group) -> list[InnerProducts]:
    """Return those of the gate. Its two losses are added to the scalar that is differentiated."""
    gate = _make_gate(layer, group, aux_loss=0.3, z_loss=0.2)
    x = _draw((layer.tokens, layer.hidden), group, 10).requires_grad_()
    y = _draw((layer.tokens, layer.top_k), group, 11)

    def value() -> Tensor:
        weights = gate(x, lambda load: int(load.max()), lambda load: load).weights
        return (weights * y).sum().detach() + gate.extra_loss

    gate(x, lambda load: int(load.max()), lambda load: load).weights.backward(y)
    return [
        _differential("gate, of its tokens", x, value, group),
        _differential("gate, of its weight", gate.weight, value, group),
    ]


def _expert_differentials(layer: Layer, group: Group) -> list[InnerProducts]:
    experts = [
        Expert(layer.hidden, layer.ffn_hidden, shard=group.index % 2, shards=2, dtype=torch.float64) for _ in range(3)
    ]
    for number, parameter in enumerate(p for expert in experts for p in expert.parameters()):
        parameter.data = _draw(parameter.shape, group, 20 + number)
    feed_forward = FeedForward(experts, make_activation(PLAIN.mlp))
    counts = [4, 0, 3]
    x = _draw((sum(counts), layer.hidden), group, 12)
    y = _draw(x.shape, group, 13)

    def value() -> Tensor:
        feed_forward.stack_weights()
        return (feed_forward.forward(x, counts)[0] * y).sum().detach()

    _, saved = feed_forward.forward(x, counts)
    queue = GradientQueue()
    dx = feed_forward.backward(y, saved, queue)
    for compute in queue.take():
        compute()
    differentials = [_differential("experts, of their rows", x, value, group, dx)]
    for name in ("w_in", "b_in", "w_out", *(["b_out"] if group.index % 2 == 0 else [])):
        weight = getattr(experts[2], name)
        differentials.append(_differential(f"experts, of {name}", weight, value, group, is_everywhere=False))
    return differentials


def _differential(
    name: str,
    at: Tensor,
    value: Callable[[], Tensor],
    group: Group,
    gradient: Tensor | None = None,
    is_everywhere: bool = True,
) -> InnerProducts:
    """Differentiate along a random direction, over all devices, or over this one if others lack the weight."""
    direction, size = _draw(at.shape, group, 14), 1e-6
    gradient = at.grad if gradient is None else gradient
    assert gradient is not None, name
    ends = []
    for sign in (1, -2):
        at.data.add_(direction, alpha=sign * size)
        ends.append(value())
    at.data.add_(direction, alpha=size)
    forward, adjoint = (ends[0] - ends[1]) / (2 * size), (direction * gradient).sum()
    if is_everywhere:
        dist.all_reduce(forward)
        dist.all_reduce(adjoint)
    return InnerProducts(name, float(forward), float(adjoint))


# ---- Parm's SAA ----


class SequentialGather(ParmS2):
    """Parm S2 that gathers the slots after the exchange."""

    def steps(self, layer: Layer) -> list[Step]:
        return [step._replace(hidden=False) for step in super().steps(layer)]


class OverlapOutcome(NamedTuple):
    """Comparison of the gather under the exchange and after it, and the plan of the first."""

    names: list[str]
    is_same: list[bool]  # bitwise
    gathered: list[list[list[int]]]  # [steps, peers] the experts whose results each peer receives


def compare_overlaps(layers: list[Layer]) -> list[OverlapOutcome]:
    """Compare the SAA alone, then whole layers forward and backward, in as many chunks as each layer says."""
    known: Groups = {}
    return [_compare_overlap(layer, known) for layer in layers]


def _compare_overlap(layer: Layer, known: Groups) -> OverlapOutcome:
    groups = own_groups(layer, [list(range(dist.get_world_size()))], known)
    runner = StepRunner(layer, groups)
    combine, between, gather = (
        step for step in ParmS2().steps(layer) if step.op in (StepOp.COMBINE, StepOp.SUM, StepOp.GATHER_SLOTS)
    )
    blocks = sum(runner.exchange_plan("ep_esp", layer.esp).received)
    x = _draw((1, blocks, layer.capacity // layer.mp, layer.hidden), groups["ep_esp"], 1)
    overlap = OverlappedCombine(combine, [between], gather, runner)
    found = [overlap.start(chunk, in_thread=False)() for chunk in x.chunk(layer.degree, SLOTS)]
    expected = []
    for chunk in x.chunk(layer.degree, SLOTS):
        for step in (combine, between, gather):
            chunk = runner.start(step, chunk)()
        expected.append(chunk)
    pairs = [("exchange, sum and gather", found, expected)]
    pairs += zip(
        ("output", "gradient of the input", "gradients of the weights"),
        *(_run_layer(layer, schedule, groups) for schedule in (expert_schedules["parm-s2"](), SequentialGather())),
        strict=True,
    )
    is_same = [
        len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        for _, one, other in pairs
    ]
    return OverlapOutcome([name for name, _, _ in pairs], is_same, [step.gathered for step in overlap.steps])


def _run_layer(
    layer: Layer, schedule: Any, groups: dict[str, Group]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    module = ExpertLayer(layer, schedule, groups, aux_loss=0.1, dtype=torch.float64).draw_weights((0, 0))
    x = _draw((layer.tokens, layer.hidden), groups["mp"], 2, is_same=True).requires_grad_()
    y = module(x)
    y.backward(_draw(y.shape, groups["mp"], 3, is_same=True))
    assert x.grad is not None
    gradients = [parameter.grad for parameter in module.parameters()]
    return [y.detach()], [x.grad], [gradient for gradient in gradients if gradient is not None]
