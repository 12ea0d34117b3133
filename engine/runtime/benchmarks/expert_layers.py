"""Timing of expert layers in all processes of a cluster; used by :mod:`meshwave.engine.bench.expert_schedules`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.document.architecture import PLAIN
from meshwave.engine.experts import Layer, StepOp, backward_steps
from meshwave.engine.findings import RunRefusal
from meshwave.engine.machine import usable_cores
from meshwave.engine.runtime.calibration.collective_timing import (
    CollectiveTimer,
    GroupCache,
    TimeStamps,
    gather_stamps,
    process_device,
    run_rounds,
    slowest_seconds,
    synchronized_time_s,
)
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster
from meshwave.engine.runtime.communication.groups import ALONE
from meshwave.engine.runtime.device.accelerator import is_accelerator
from meshwave.engine.runtime.device.memory import keep_freed_memory
from meshwave.engine.runtime.experts import ExpertLayer
from meshwave.engine.runtime.experts.feed_forward import Expert, FeedForward
from meshwave.engine.runtime.experts.layer import GROUP_KINDS
from meshwave.engine.runtime.modules.activations import make_activation

MOVES = (StepOp.ORDER, StepOp.RESTORE)
SEED = 0
TOKENS, HIDDEN, WIDTH, EXPERTS = 1024, 512, 32, 8
"""Sizes of the layer whose matrix products and token moves are timed."""
TOLERANCE = 1e-4
"""Maximum relative difference between outputs of one layer under two schedules: the order of float32 sums differs."""


def measure_expert_layers(cluster: ProcessCluster, plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Measure expert layers and the speeds that predict them. Return the medians on rank 0, None on the other ranks.

    ``plan`` is a plan of collectives (:attr:`.CollectivePlan.arguments`) with three more keys: ``layers``, the fields
    of each layer; ``schedules``, the schedules to run for each layer; and ``rounds``, the number of rounds.

    Returns:
        ``collectives``, seconds ``[cases][sizes]``; ``products`` in FLOP/s; ``moves`` in bytes/s; and ``runs``, seconds
        ``[forward, backward, both]`` for each schedule of each layer in order.

    Raises:
        RunError: the outputs of two schedules of a layer differ.
    """
    keep_freed_memory()
    groups = GroupCache(process_device(cluster))
    timer = CollectiveTimer(cluster, plan["cases"], plan["sizes"], groups)
    speed = ComputeSpeed(cluster, groups.device)
    layers = [
        ComparedSchedules(layer_from_json(fields), schedules, groups)
        for fields, schedules in zip(plan["layers"], plan["schedules"], strict=True)
    ]

    def run_layers() -> TimeStamps:
        return np.concatenate([layer.run_round() for layer in layers])

    own = run_rounds([timer.run_round, speed.run_round, run_layers], plan["rounds"])
    collective_stamps, speed_seconds, layer_stamps = map(gather_stamps, own)
    if collective_stamps is None or speed_seconds is None or layer_stamps is None:
        return None
    all_ranks = [list(range(cluster.ranks))]
    product_s, move_s = np.median(speed_seconds, axis=(0, 1)).tolist()
    return {
        "collectives": timer.median_seconds(collective_stamps),
        "products": speed.flops / product_s,
        "moves": speed.bytes / move_s,
        "runs": np.median(slowest_seconds(layer_stamps, all_ranks), axis=0).tolist(),
    }


def layer_from_json(fields: Mapping[str, Any]) -> Layer:
    """Return the layer whose fields are given as plain JSON."""
    whole: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Layer(**whole)


class ComputeSpeed:
    """Measurement of the compute speed of one process while all processes compute.

    On CPUs it counts processor time. If there are more processes than cores, that time is multiplied by the number of
    processes per core.
    """

    def __init__(self, cluster: ProcessCluster, device: torch.device) -> None:
        self._device = device
        self._processes_per_core = 1.0 if cluster.uses_gpus else max(1.0, cluster.ranks / usable_cores())
        expert = Expert(HIDDEN, WIDTH, device=device)
        expert.draw_weights(torch.Generator().manual_seed(SEED), 0.02, 0.02)
        self._experts = FeedForward([expert], make_activation(PLAIN.mlp))
        self._rows = torch.randn(TOKENS, HIDDEN, device=device)
        self.flops = 4.0 * TOKENS * HIDDEN * WIDTH
        layer = Layer(mp=1, ep=1, esp=1, experts=EXPERTS, tokens=TOKENS, hidden=HIDDEN, ffn_hidden=1)
        self._layer = ExpertLayer(
            layer, "expert-parallel", dict.fromkeys(GROUP_KINDS, ALONE), device=device
        ).draw_weights((SEED,))
        steps = self._layer.schedule.steps(layer)
        self.bytes = sum(2 * step.bytes for step in (*steps, *backward_steps(steps)) if step.op in MOVES)

    def run_round(self) -> TimeStamps:
        """Return the seconds of one matrix product and of one token move, ``[2]``."""
        return np.array([self._elapsed_s(work) for work in (self._multiply, self._move_tokens)])

    def _elapsed_s(self, work: Callable[[], None]) -> float:
        start = self._now_s()
        work()
        return (self._now_s() - start) * self._processes_per_core

    def _now_s(self) -> float:
        return synchronized_time_s(self._device) if is_accelerator(self._device) else time.process_time()

    @torch.no_grad()
    def _multiply(self) -> None:
        self._experts.forward(self._rows, [TOKENS])

    def _move_tokens(self) -> None:
        """Move tokens to their slots and back, in a layer without messages and with small matrix products."""
        y: Tensor = self._layer(self._rows.detach().requires_grad_())
        y.backward(self._rows)  # type: ignore[no-untyped-call]
        self._layer.zero_grad(set_to_none=True)


class ComparedSchedules:
    """One expert layer under several schedules, with the same weights and the same input."""

    def __init__(self, layer: Layer, schedules: Sequence[str], groups: GroupCache) -> None:
        self._name, self._device = f"mp={layer.mp} esp={layer.esp} tokens={layer.tokens}", groups.device
        own = groups.layer_groups(layer)
        layers = (ExpertLayer(layer, name, own, device=groups.device) for name in schedules)
        self._layers = [each.draw_weights((SEED,)) for each in layers]
        generator = torch.Generator().manual_seed(dist.get_rank() // layer.mp)
        drawn = torch.randn(2, layer.tokens, layer.hidden, generator=generator).to(groups.device)
        self._x, self._gradient = drawn[0].requires_grad_(), drawn[1]
        self._is_checked = False

    def run_round(self) -> TimeStamps:
        """Return time stamps ``[schedules, 3, 2]`` of forward, backward and both. The first round compares the outputs."""
        results = [self._run_forward_and_backward(layer) for layer in self._layers]
        if not self._is_checked:
            self._check_outputs([y for y, _ in results])
        return np.array([stamps for _, stamps in results])

    def _run_forward_and_backward(self, layer: ExpertLayer) -> tuple[Tensor, list[tuple[float, float]]]:
        dist.barrier()
        start = synchronized_time_s(self._device)
        y: Tensor = layer(self._x)
        middle = synchronized_time_s(self._device)
        y.backward(self._gradient)  # type: ignore[no-untyped-call]
        end = synchronized_time_s(self._device)
        layer.zero_grad(set_to_none=True)
        self._x.grad = None
        return y.detach(), [(start, middle), (middle, end), (start, end)]

    def _check_outputs(self, outputs: Sequence[Tensor]) -> None:
        """Compare the outputs of schedules whose gates receive the same tokens.

        Raises:
            RunError: two outputs differ.
        """
        self._is_checked = True
        comparable = [
            (layer, y)
            for layer, y in zip(self._layers, outputs, strict=True)
            if not layer.schedule.gate_sees_part or layer.layer.capacity_factor is None
        ]
        for layer, y in comparable[1:]:
            expected = comparable[0][1]
            difference = float((y - expected).abs().max() / expected.abs().max())
            if difference > TOLERANCE:
                compared = {"schedule": layer.schedule.title, "other": comparable[0][0].schedule.title}
                params = {"case": self._name, "difference": difference, "tolerance": TOLERANCE, **compared}
                raise RunRefusal("different_outputs", params)
