"""How long expert layers take, in every process of a cluster; see :mod:`meshwave.engine.bench.expert_schedules`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.errors import RunError
from meshwave.engine.experts import Layer, StepOp, backward
from meshwave.engine.runtime.calibration.collective_timing import (
    Collectives,
    Groups,
    Stamps,
    device_of,
    in_rounds,
    now,
    of_all,
    took,
)
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster, cores
from meshwave.engine.runtime.communication.groups import ALONE
from meshwave.engine.runtime.device.accelerator import is_accelerator
from meshwave.engine.runtime.device.memory import keep_freed_memory
from meshwave.engine.runtime.experts import ExpertLayer
from meshwave.engine.runtime.experts.feed_forward import Expert, FeedForward
from meshwave.engine.runtime.experts.layer import GROUP_KINDS

MOVES = (StepOp.ORDER, StepOp.RESTORE)
SEED = 0
TOKENS, HIDDEN, WIDTH, EXPERTS = 1024, 512, 32, 8  # of what stands for the speed of computing
NEAR = 1e-4
"""How far outputs of the same layer may lie from each other: sums in another order, in single precision."""


def measure(cluster: Cluster, plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Play ``plan["rounds"]`` rounds; rank 0 knows the median seconds of each.

    ``cases`` and ``sizes`` are collectives, ``layers`` the fields of layers with the ``schedules`` of each.
    Of them come ``collectives [cases][sizes]``, of the speed of computing ``products`` in FLOP/s and
    ``moves`` in bytes/s, and ``runs``, a row ``[forward, backward, both]`` for each schedule of each layer.

    Raises:
        RunError: schedules of a layer disagree about its output.
    """
    keep_freed_memory()
    groups = Groups(device_of(cluster))
    collectives = Collectives(cluster, plan["cases"], plan["sizes"], groups)
    speed = Speed(cluster, groups.device)
    layers = [Played(as_layer(each), plan["schedules"][at], groups) for at, each in enumerate(plan["layers"])]
    mine = in_rounds(
        [collectives.play, speed.play, lambda: np.concatenate([layer.play() for layer in layers])], plan["rounds"]
    )
    of_collectives, of_speed, of_layers = map(of_all, mine)
    if of_collectives is None or of_speed is None or of_layers is None:
        return None
    all_ranks = [list(range(cluster.ranks))]
    product_s, move_s = np.median(of_speed, axis=(0, 1)).tolist()
    return {
        "collectives": collectives.seconds(of_collectives),
        "products": speed.flops / product_s,
        "moves": speed.bytes / move_s,
        "runs": np.median(took(of_layers, all_ranks), axis=0).tolist(),
    }


def as_layer(fields: Mapping[str, Any]) -> Layer:
    """A layer of its fields, as JSON has them."""
    whole: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Layer(**whole)


class Speed:
    """How fast a process computes while all of them do, in processor time: where they are more than
    cores, that of one takes as many times as long as share a core."""

    def __init__(self, cluster: Cluster, device: torch.device) -> None:
        self._device = device
        self._sharing = 1.0 if cluster.gpus else max(1.0, cluster.ranks / cores())
        expert = Expert(HIDDEN, WIDTH, device=device)
        expert.draw_weights(torch.Generator().manual_seed(SEED), 0.02, 0.02)
        self._experts = FeedForward([expert])
        self._rows = torch.randn(TOKENS, HIDDEN, device=device)
        self.flops = 4.0 * TOKENS * HIDDEN * WIDTH
        alone = Layer(mp=1, ep=1, esp=1, experts=EXPERTS, tokens=TOKENS, hidden=HIDDEN, ffn_hidden=1)
        self._layer = ExpertLayer(
            alone, "expert-parallel", dict.fromkeys(GROUP_KINDS, ALONE), device=device
        ).draw_weights((SEED,))
        steps = self._layer.schedule.steps(alone)
        self.bytes = sum(2 * step.bytes for step in (*steps, *backward(steps)) if step.op in MOVES)

    def play(self) -> Stamps:
        """[products and moves] seconds"""
        return np.array([self._seconds(work) for work in (self._product, self._move)])

    def _seconds(self, work: Callable[[], None]) -> float:
        began = self._now()
        work()
        return (self._now() - began) * self._sharing

    def _now(self) -> float:
        return now(self._device) if is_accelerator(self._device) else time.process_time()

    @torch.no_grad()
    def _product(self) -> None:
        self._experts.forward(self._rows, [TOKENS])

    def _move(self) -> None:
        """Tokens to their slots and back, in a layer without anybody to talk to or much to compute."""
        y: Tensor = self._layer(self._rows.detach().requires_grad_())
        y.backward(self._rows)  # type: ignore[no-untyped-call]
        self._layer.zero_grad(set_to_none=True)


class Played:
    """One layer under several schedules, with the same weights and the same input."""

    def __init__(self, layer: Layer, schedules: Sequence[str], groups: Groups) -> None:
        self._name, self._device = f"mp={layer.mp} esp={layer.esp} tokens={layer.tokens}", groups.device
        own = groups.of(layer)
        made = (ExpertLayer(layer, name, own, device=groups.device) for name in schedules)
        self._layers = [each.draw_weights((SEED,)) for each in made]
        shard = torch.Generator().manual_seed(dist.get_rank() // layer.mp)
        drawn = torch.randn(2, layer.tokens, layer.hidden, generator=shard).to(groups.device)
        self._x, self._gradient = drawn[0].requires_grad_(), drawn[1]
        self._checked = False

    def play(self) -> Stamps:
        """[schedules, forward and backward and both, 2]; the first time outputs are compared."""
        results = [self._play(layer) for layer in self._layers]
        if not self._checked:
            self._check([y for y, _ in results])
        return np.array([stamps for _, stamps in results])

    def _play(self, layer: ExpertLayer) -> tuple[Tensor, list[tuple[float, float]]]:
        dist.barrier()
        began = now(self._device)
        y: Tensor = layer(self._x)
        turned = now(self._device)
        y.backward(self._gradient)  # type: ignore[no-untyped-call]
        ended = now(self._device)
        layer.zero_grad(set_to_none=True)
        self._x.grad = None
        return y.detach(), [(began, turned), (turned, ended), (began, ended)]

    def _check(self, outputs: Sequence[Tensor]) -> None:
        """Those whose gates see the same tokens compute the same."""
        self._checked = True
        alike = [
            (layer, y)
            for layer, y in zip(self._layers, outputs, strict=True)
            if not layer.schedule.gate_sees_part or layer.layer.capacity_factor is None
        ]
        for layer, y in alike[1:]:
            expected = alike[0][1]
            off = float((y - expected).abs().max() / expected.abs().max())
            if off > NEAR:
                raise RunError(
                    f"{self._name}: {layer.schedule.title} is {off:.1e} away from {alike[0][0].schedule.title}"
                )
