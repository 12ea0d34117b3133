"""What the processes of the tests of single steps do: operators against their adjoints, and Parm's SAA
against the exchange and the gather one after the other.

The convention of gradients says of every tensor whether the devices of a group hold it *alike* or each
has one *of its own*. That decides how often it counts in an inner product over all devices: what ``n``
devices hold alike is one tensor and not ``n``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.experts import Layer, Step, StepOp, expert_schedules
from meshwave.engine.experts.parm_s2 import ParmS2
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.experts import ExpertLayer
from meshwave.engine.runtime.experts.feed_forward import Expert, FeedForward
from meshwave.engine.runtime.experts.gate import Gate, Routing
from meshwave.engine.runtime.experts.layer import _Order, _Restore
from meshwave.engine.runtime.experts.overlap import Overlap
from meshwave.engine.runtime.experts.step_times import unseen
from meshwave.engine.runtime.experts.steps import SLOTS, Steps
from meshwave.engine.runtime.modules.deferred_gradients import GradientQueue
from tests.engine.runtime.moe_works import own_groups

SLOTS_EACH = 4
Groups = dict[tuple[int, ...], Group]


class Map(NamedTuple):
    """A step as a linear map: the shape that it takes, and what of its two ends is alike in its group."""

    step: Step
    shape: tuple[int, ...]
    takes_alike: bool = False
    gives_alike: bool = False


class Products(NamedTuple):
    """``<A x, y>`` and ``<x, A^T y>`` over all devices."""

    name: str
    forward: float
    adjoint: float


# ---- linear steps ----


def products(layers: list[Layer]) -> list[list[Products]]:
    """The two inner products of every linear step, on the groups of every layer."""
    made: Groups = {}
    return [[*_linear(layer, made), *_ordered(layer, made)] for layer in layers]


def _linear(layer: Layer, made: Groups) -> list[Products]:
    blocks = [list(range(dist.get_world_size()))]
    steps = Steps(layer, own_groups(layer, blocks, made))
    return [_products(steps, each) for each in maps(steps)]


def maps(steps: Steps) -> list[Map]:
    """Every step that is a linear map, over each kind of group that a schedule has it on."""
    layer = steps.layer
    mp, esp, experts, m = layer.mp, layer.esp, layer.experts, layer.hidden
    part = SLOTS_EACH * mp
    tokens, slots = (layer.tokens, m), (1, experts, part, m)
    side_by_side = (esp, experts, part, m)

    def arrived(group: str, copies: int) -> tuple[int, ...]:
        return (1, sum(steps.exchange(group, copies).received), part, m)

    both: list[Map] = []
    for group, copies in (("ep", 1), ("ep", esp), ("ep_esp", esp)):
        both += [
            Map(Step(StepOp.DISPATCH, group, copies=copies), (copies, experts, part, m)),
            Map(Step(StepOp.COMBINE, group, copies=copies), arrived(group, copies)),
        ]
    for group in ("mp", "esp"):
        both += [
            Map(Step(StepOp.COPY, group), tokens, takes_alike=True),
            Map(Step(StepOp.REDUCE, group), tokens, gives_alike=True),
        ]
    return [
        *both,
        Map(Step(StepOp.SPLIT_TOKENS, "mp"), tokens, takes_alike=True),
        Map(Step(StepOp.GATHER_TOKENS, "mp"), (layer.tokens // mp, m), gives_alike=True),
        Map(Step(StepOp.SPLIT_SLOTS, "mp"), slots, takes_alike=True),
        Map(Step(StepOp.GATHER_SLOTS, "mp"), (1, experts, SLOTS_EACH, m), gives_alike=True),
        Map(Step(StepOp.GATHER_SHARDS, "esp"), slots),
        Map(Step(StepOp.SCATTER_SHARDS, "esp"), side_by_side),
        Map(Step(StepOp.REDUCE_SHARDS, "esp"), slots),
        Map(Step(StepOp.KEEP_SHARD, "esp"), side_by_side),
        Map(Step(StepOp.PAD_SHARD, "esp"), slots),
        Map(Step(StepOp.GATHER_INPUTS, "esp"), tokens),
        Map(Step(StepOp.SCATTER_INPUTS, "esp"), (esp * layer.tokens, m)),
        Map(Step(StepOp.KEEP_INPUT, "esp"), (esp * layer.tokens, m)),
        Map(Step(StepOp.PAD_INPUT, "esp"), tokens),
        Map(Step(StepOp.DUMP, "esp"), slots),
        Map(Step(StepOp.SUM, "esp"), side_by_side),
    ]


def _products(steps: Steps, of: Map) -> Products:
    group = steps.groups[of.step.group]
    x = _drawn(of.shape, group, of.takes_alike, 1).requires_grad_()
    ax = steps.adds(of.step, x)
    y = _drawn(ax.shape, group, of.gives_alike, 2)
    ax.backward(y)
    assert x.grad is not None
    forward = _inner(ax.detach(), y, group.size if of.gives_alike else 1)
    adjoint = _inner(x.detach(), x.grad, group.size if of.takes_alike else 1)
    return Products(f"{of.step.op} over {of.step.group}, {of.step.copies} copies", forward, adjoint)


def _drawn(shape: Any, group: Group, alike: bool, which: int) -> Tensor:
    """Random numbers: of each device its own, or those of the first of its group."""
    owner = group.members[0] if alike else dist.get_rank()
    chance = torch.Generator().manual_seed(100 * owner + which)
    return torch.randn(*shape, generator=chance, dtype=torch.float64)


def _inner(one: Tensor, other: Tensor, held: int = 1) -> float:
    total = (one * other).sum() / held
    dist.all_reduce(total)
    return float(total)


# ---- tokens into slots, and back ----


def _ordered(layer: Layer, made: Groups) -> list[Products]:
    """ORDER, and RESTORE, which is linear in what was found and in the weights."""
    group = own_groups(layer, [list(range(dist.get_world_size()))], made)["ep_esp"]
    routing = _routed(layer, group)
    tokens = _drawn((layer.tokens, layer.hidden), group, False, 3).requires_grad_()
    found = _drawn((len(routing.route), layer.hidden), group, False, 4).requires_grad_()
    weights = _drawn(routing.weights.shape, group, False, 5).requires_grad_()

    ordered = _Order.apply(tokens, routing, unseen)
    y = _drawn(ordered.shape, group, False, 6)
    ordered.backward(y)
    restored = _Restore.apply(found, weights, routing, unseen)
    z = _drawn(restored.shape, group, False, 7)
    restored.backward(z)

    assert tokens.grad is not None and found.grad is not None and weights.grad is not None
    return [
        Products("order", _inner(ordered.detach(), y), _inner(tokens.detach(), tokens.grad)),
        Products("restore, of what was found", _inner(restored.detach(), z), _inner(found.detach(), found.grad)),
        Products("restore, of the weights", _inner(restored.detach(), z), _inner(weights.detach(), weights.grad)),
    ]


def _routed(layer: Layer, group: Group) -> Routing:
    """Where a gate sends tokens that differ from device to device, with fewer slots than it needs."""
    gate = _gate(layer, group)
    x = _drawn((layer.tokens, layer.hidden), group, False, 8)
    return gate(x, lambda load: max(1, int(load.max()) // 2), lambda load: load)  # type: ignore[no-any-return]


def _gate(layer: Layer, group: Group, **losses: float) -> Gate:
    gate = Gate(layer.hidden, layer.experts, layer.top_k, dtype=torch.float64, **losses)
    gate.weight.data = _drawn(gate.weight.shape, group, False, 9)
    return gate


# ---- the two that compute: their backward is the adjoint of their differential ----


def differentials(layer: Layer) -> list[Products]:
    """``<J u, y>`` by central differences and ``<u, J^T y>`` of GATE and EXPERTS, of inputs and of weights."""
    group = own_groups(layer, [list(range(dist.get_world_size()))], {})["ep_esp"]
    return [*_of_gate(layer, group), *_of_experts(layer, group)]


def _of_gate(layer: Layer, group: Group) -> list[Products]:
    """With its two losses, which are added to the scalar that is differentiated."""
    gate = _gate(layer, group, aux_loss=0.3, z_loss=0.2)
    x = _drawn((layer.tokens, layer.hidden), group, False, 10).requires_grad_()
    y = _drawn((layer.tokens, layer.top_k), group, False, 11)

    def value() -> Tensor:
        weights = gate(x, lambda load: int(load.max()), lambda load: load).weights
        extra = 0.3 * gate.load_balance + 0.2 * gate.squared_scores
        return (weights * y).sum().detach() + extra

    gate(x, lambda load: int(load.max()), lambda load: load).weights.backward(y)
    return [
        _differential("gate, of its tokens", x, value, group),
        _differential("gate, of its weight", gate.weight, value, group),
    ]


def _of_experts(layer: Layer, group: Group) -> list[Products]:
    experts = [
        Expert(layer.hidden, layer.ffn_hidden, shard=group.index % 2, shards=2, dtype=torch.float64) for _ in range(3)
    ]
    for number, parameter in enumerate(p for expert in experts for p in expert.parameters()):
        parameter.data = _drawn(parameter.shape, group, False, 20 + number)
    together = FeedForward(experts)
    counts = [4, 0, 3]
    x = _drawn((sum(counts), layer.hidden), group, False, 12)
    y = _drawn(x.shape, group, False, 13)

    def value() -> Tensor:
        together.lay()
        return (together.forward(x, counts)[0] * y).sum().detach()

    _, kept = together.forward(x, counts)
    later = GradientQueue()
    of_x = together.backward(y, kept, later)
    for due in later.take():
        due()
    found = [_differential("experts, of their rows", x, value, group, of_x)]
    for name in ("w_in", "b_in", "w_out", *(["b_out"] if group.index % 2 == 0 else [])):
        found.append(_differential(f"experts, of {name}", getattr(experts[2], name), value, group, summed=False))
    return found


def _differential(
    name: str,
    at: Tensor,
    value: Callable[[], Tensor],
    group: Group,
    gradient: Tensor | None = None,
    summed: bool = True,
) -> Products:
    """Along a random direction; over all devices, or of this one alone where others have not got such a weight."""
    u, by = _drawn(at.shape, group, False, 14), 1e-6
    gradient = at.grad if gradient is None else gradient
    assert gradient is not None, name
    ends = []
    for sign in (1, -2):
        at.data.add_(u, alpha=sign * by)
        ends.append(value())
    at.data.add_(u, alpha=by)
    forward, adjoint = (ends[0] - ends[1]) / (2 * by), (u * gradient).sum()
    if summed:
        dist.all_reduce(forward)
        dist.all_reduce(adjoint)
    return Products(name, float(forward), float(adjoint))


# ---- Parm's SAA ----


class InTurn(ParmS2):
    """Parm S2 that gathers the slots when the exchange is over."""

    def steps(self, layer: Layer) -> list[Step]:
        return [step._replace(hidden=False) for step in super().steps(layer)]


class Overlapped(NamedTuple):
    """What a process came to with the gather under the exchange and behind it, and the plan of the first."""

    names: list[str]
    same: list[bool]  # bit by bit
    pieces: list[list[list[int]]]  # [steps, peers] the experts whose results each gathers


def overlapped(layers: list[Layer]) -> list[Overlapped]:
    """The SAA alone, then whole layers forwards and backwards, in as many chunks as each layer says."""
    made: Groups = {}
    return [_overlapped(layer, made) for layer in layers]


def _overlapped(layer: Layer, made: Groups) -> Overlapped:
    groups = own_groups(layer, [list(range(dist.get_world_size()))], made)
    names, same, pieces = ["exchange, sum and gather"], [], []
    steps = Steps(layer, groups)
    combine, between, gather = (
        step for step in ParmS2().steps(layer) if step.op in (StepOp.COMBINE, StepOp.SUM, StepOp.GATHER_SLOTS)
    )
    blocks = sum(steps.exchange("ep_esp", layer.esp).received)
    part = layer.capacity // layer.mp
    x = _drawn((1, blocks, part, layer.hidden), groups["ep_esp"], False, 1)
    both = Overlap(combine, [between], gather, steps)
    found = [both.start(chunk, beside=False)() for chunk in x.chunk(layer.degree, SLOTS)]
    expected = []
    for chunk in x.chunk(layer.degree, SLOTS):
        for step in (combine, between, gather):
            chunk = steps.start(step, chunk)()
        expected.append(chunk)
    same.append(all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)))
    pieces = [piece.gathered for piece in both._pieces]
    for name, one, other in zip(
        ("output", "gradient of the input", "gradients of the weights"),
        *(_played(layer, schedule, groups) for schedule in (expert_schedules["parm-s2"](), InTurn())),
        strict=True,
    ):
        names.append(name)
        same.append(len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True)))
    return Overlapped(names, same, pieces)


def _played(
    layer: Layer, schedule: ParmS2, groups: dict[str, Group]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    made = ExpertLayer(layer, schedule, groups, aux_loss=0.1, dtype=torch.float64).draw((0, 0))
    x = _drawn((layer.tokens, layer.hidden), groups["mp"], True, 2).requires_grad_()
    y = made(x)
    y.backward(_drawn(y.shape, groups["mp"], True, 3))
    assert x.grad is not None
    gradients = [parameter.grad for parameter in made.parameters()]
    return [y.detach()], [x.grad], [gradient for gradient in gradients if gradient is not None]
