"""A reference layer of experts: one process, every expert for every token, no slots and no groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwave.engine.document.architecture import PLAIN, Mlp
from meshwave.engine.document.model import PLAIN_ROUTER, Router
from meshwave.engine.experts import Layer, expert_schedules


@dataclass(frozen=True)
class Case:
    """One layer under one schedule, on equal blocks of the processes."""

    schedule: str
    layer: Layer
    processes: int = 8
    depth: int = 1
    steps: int = 0  # of an optimizer; 0: the gradients of one backward
    dtype: torch.dtype = torch.float64
    aux_loss: float = 0.0
    z_loss: float = 0.0
    seed: int = 0
    recomputes: bool = False
    splits_backward: bool = False  # defers the gradients of the weights
    broken_rule: str = ""
    preferred: tuple[int, ...] | None = None  # the expert that all tokens prefer, then the next ones
    microbatches: int = 1
    mlp: Mlp = PLAIN.mlp
    router: Router = PLAIN_ROUTER
    float8_shards: int = 0  # experts multiply in fp8, each cut into this number of shards; 0: in their own precision
    joined: int = 1  # inputs whose rows an expert computes together

    @property
    def inputs(self) -> int:
        """Inputs that differ between processes."""
        return self.processes // self.layer.mp

    @property
    def gates_per_input(self) -> int:
        """Gates that share the tokens of one input."""
        has_parts = self.schedule in expert_schedules and expert_schedules[self.schedule].gate_sees_part
        return self.layer.mp if has_parts else 1

    def with_changes(self, **changes: Any) -> Case:
        return replace(self, **changes)


@dataclass
class Outcome:
    """Results of one layer, or several; gradients are those of the mean over the inputs."""

    y: list[Tensor] = field(default_factory=list)  # of each input
    dx: list[Tensor] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    load: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def draw_weights(case: Case) -> dict[str, Tensor]:
    """Return all weights and biases by their names in the whole model."""
    layer = case.layer
    generator = torch.Generator().manual_seed(case.seed)
    inner = layer.ffn_hidden * (2 if case.mlp.gated else 1)
    shapes: dict[str, tuple[int, ...]] = {"w_in": (layer.hidden, inner), "w_out": (layer.ffn_hidden, layer.hidden)}
    if case.mlp.bias:
        shapes |= {"b_in": (inner,), "b_out": (layer.hidden,)}
    weights = {}
    for number in range(case.depth):
        gate = torch.randn(layer.experts, layer.hidden, generator=generator, dtype=torch.float64)
        if case.preferred is not None:
            gate = torch.zeros_like(gate)
            for rank, expert in enumerate(case.preferred):
                gate[expert, 0] = 4.0 - rank
        weights[f"{number}.gate.weight"] = gate
        for name, is_there in (("bias", case.router.has_bias), ("balance", case.router.has_balance)):
            if is_there:
                weights[f"{number}.gate.{name}"] = 0.3 * torch.randn(layer.experts, generator=generator).double()
        for expert in range(layer.experts):
            for name, shape in shapes.items():
                drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
                weights[f"{number}.{expert}.{name}"] = drawn * (0.3 if name.startswith("w") else 0.1)
    return {name: weight.to(case.dtype) for name, weight in weights.items()}


def draw_inputs(case: Case, number: int, microbatch: int = 0) -> tuple[Tensor, Tensor]:
    """Return the tokens of an input, and the factors of its results in the loss."""
    generator = torch.Generator().manual_seed(1000 * case.seed + 10 * number + microbatch + 1)
    size = case.layer.tokens, case.layer.hidden
    x, r = (torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
    if case.preferred is not None:
        x[:, 0] = 1.0
    return x.to(case.dtype), r.to(case.dtype)


def run_reference(case: Case) -> Outcome:
    """Run a case in one process; its gate sees what the gates of the schedule see."""
    outcome = Outcome(weights={name: weight.requires_grad_() for name, weight in draw_weights(case).items()})
    weights = outcome.weights
    optimizer = torch.optim.SGD(weights.values(), lr=0.05) if case.steps else None
    for step in range(max(case.steps, 1)):
        outcome.y, outcome.dx, outcome.load = [], [], []
        total = 0.0
        for microbatch in range(case.microbatches):
            for first in range(0, case.inputs, case.joined):
                drawn = [
                    draw_inputs(case, first + at, microbatch + case.microbatches * step) for at in range(case.joined)
                ]
                x, r = map(torch.cat, zip(*drawn, strict=True))
                y, extra, load = _stack(case, weights, x.requires_grad_())
                loss = ((y * r).sum() + extra) / case.inputs / case.microbatches
                loss.backward()
                total += float(loss.detach())
                outcome.y += y.detach().split(case.layer.tokens)
                assert x.grad is not None
                outcome.dx += x.grad.split(case.layer.tokens)
                outcome.load.append(load)
                if case.router.has_balance:  # its gradient is the load, of the last layer here
                    balance = weights[f"{case.depth - 1}.gate.balance"]
                    balance.grad = load.detach().to(balance) + (0 if balance.grad is None else balance.grad)
        outcome.losses.append(total)
        outcome.gradients = {
            name: weight.grad.clone() if weight.grad is not None else torch.zeros_like(weight)
            for name, weight in weights.items()
        }
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    outcome.weights = {name: weight.detach() for name, weight in weights.items()}
    return outcome


def _stack(case: Case, weights: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    extra = x.new_zeros(())
    load = torch.zeros(case.layer.experts)
    for number in range(case.depth):
        own = {name.split(".", 1)[1]: weight for name, weight in weights.items() if name.startswith(f"{number}.")}
        y, layer_extra, load = _layer(case, own, x)
        x = x + y if case.depth > 1 else y
        extra = extra + layer_extra
    return x, extra, load


def _layer(case: Case, weights: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    layer = case.layer
    wide = torch.promote_types(x.dtype, torch.float32)
    scores = x.to(wide) @ weights["gate.weight"].to(wide).t() + weights.get("gate.bias", 0.0)
    probabilities = scores.sigmoid() if case.router.score == "sigmoid" else scores.softmax(-1)
    ranked = _rank_experts(case, probabilities.detach() + weights.get("gate.balance", x.new_zeros(())).detach())
    choices = [_choices(case, each) for each in ranked.split(layer.tokens)]
    chosen, kept = map(torch.cat, zip(*choices, strict=True))
    is_divided = layer.top_k > 1 and case.router.normalize
    norm = (probabilities * chosen).sum(-1, keepdim=True) if is_divided else 1.0
    shares = probabilities / norm * kept * case.router.scale
    if case.router.score == "sigmoid":
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    results = [_expert(case, weights, str(expert), x, kept[:, expert] > 0) for expert in range(layer.experts)]
    y = torch.einsum("se,esm->sm", shares, torch.stack(results).to(wide)).to(x.dtype)
    fraction = chosen.sum(0) / chosen.sum()
    balance = layer.experts * (probabilities.mean(0) * fraction).sum()
    extra = case.aux_loss * balance + case.z_loss * scores.logsumexp(-1).square().mean()
    return y, extra, chosen.sum(0)


def _expert(case: Case, weights: dict[str, Tensor], number: str, x: Tensor, is_kept: Tensor) -> Tensor:
    """Return the results of an expert; in fp8, those of the rows that it computes, whose largest values are the scales."""
    w_in, w_out = weights[f"{number}.w_in"], weights[f"{number}.w_out"]
    b_in, b_out = (weights.get(f"{number}.{name}", 0.0) for name in ("b_in", "b_out"))
    if not case.float8_shards:
        return _activate(case, x @ w_in + b_in) @ w_out + b_out
    width, rows, total = case.layer.ffn_hidden, x[is_kept], b_out
    for part in torch.arange(width).chunk(case.float8_shards):
        columns = torch.cat([part, part + width]) if case.mlp.gated else part
        bias = b_in if isinstance(b_in, float) else b_in[columns]
        inner = _activate(case, _Float8Product.apply(rows, w_in[:, columns]) + bias)
        total = total + _Float8Product.apply(inner, w_out[part])
    return x.new_zeros(x.shape).masked_scatter(is_kept.unsqueeze(1), total)


def _activate(case: Case, inner: Tensor) -> Tensor:
    if case.mlp.activation == "clamped_swish":
        gate, linear = inner.chunk(2, -1)
        gate = gate.clamp(max=7)
        return gate / (1 + torch.exp(-1.702 * gate)) * (linear.clamp(-7, 7) + 1)
    activate = {"gelu": F.gelu, "silu": F.silu, "relu": F.relu}[case.mlp.activation]
    gate, linear = (inner.chunk(2, -1)) if case.mlp.gated else (inner, 1.0)
    return activate(gate) * linear


class _Float8Product(torch.autograd.Function):
    """Product whose factors, here and in the backward, are rounded to fp8 with one scale per tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(_round(x, torch.float8_e4m3fn), _round(weight, torch.float8_e4m3fn))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = (_round(each, torch.float8_e4m3fn) for each in ctx.saved_tensors)
        rounded = _round(gradient, torch.float8_e5m2)
        return _multiply(rounded, (weight[0].t(), weight[1])), _multiply((x[0].t(), x[1]), rounded)


def _round(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the numbers that a tensor has in fp8, and their scale."""
    scale = (x.abs().max().float() if len(x) else torch.ones(())) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype).to(x.dtype), scale


def _multiply(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    return one[0] @ other[0] * (one[1] * other[1])


def _rank_experts(case: Case, probabilities: Tensor) -> Tensor:
    """Return the numbers that a token's experts are chosen by: minus infinity outside its groups."""
    size = case.layer.experts // case.router.groups
    ranked = probabilities.clone()
    for row in ranked:
        groups = [sorted(row[first : first + size].tolist())[::-1] for first in range(0, len(row), size)]
        best = [sum(group[: 2 if case.router.has_balance else 1]) for group in groups]
        for number in sorted(range(len(best)), key=best.__getitem__)[: case.router.groups - case.router.top_groups]:
            row[number * size : (number + 1) * size] = -torch.inf
    return ranked


def _choices(case: Case, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[tokens, experts]`` 1 where a token chose an expert, and 1 where the expert had a slot for it."""
    layer = case.layer
    chosen, kept = torch.zeros_like(probabilities), torch.zeros_like(probabilities)
    part = layer.tokens // case.gates_per_input
    for first in range(0, layer.tokens, part):
        table = probabilities[first : first + part].tolist()
        orders = [sorted(range(layer.experts), key=lambda e: (-row[e], e))[: layer.top_k] for row in table]
        capacity = float("inf") if layer.capacity_factor is None else layer.capacity // case.gates_per_input
        free_slots = [capacity] * layer.experts
        for choice in range(layer.top_k):
            for token, order in enumerate(orders):
                expert = order[choice]
                chosen[first + token, expert] = 1
                if free_slots[expert] > 0:
                    free_slots[expert] -= 1
                    kept[first + token, expert] = 1
    return chosen, kept
