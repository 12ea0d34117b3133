"""Reference training in one process and without a pipeline, which runs are compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshwave.engine.runtime.execution.data import TrainingBatches
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.runtime.execution.stages import DTYPES
from meshwave.engine.runtime.experts.build import single_process_factory
from meshwave.engine.runtime.models import build_stage


@dataclass(frozen=True)
class Reference:
    """Result of reference training; the gradients are those of the last step before clipping."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def train(job: Job, steps: int | None = None) -> Reference:
    """Train the whole model of ``job`` on the CPU, microbatch after microbatch.

    It shares the model and the data with the runtime, but no code that executes a step.
    """
    design = job.design
    training = design.training
    dtype, microbatches = DTYPES[training.precision], design.meshes[0].dp * job.program.microbatches
    experts = single_process_factory(design, 1 / microbatches, dtype) if design.model.moe else None
    model = build_stage(design.model, [sum(job.layers)], 0, training.seed, dtype, experts=experts)
    batches = TrainingBatches(
        job.text,
        design.model,
        seed=training.seed,
        microbatches=microbatches,  # the global batch, as that of one replica
        micro_batch_size=training.micro_batch_size,
    )
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[training.optimizer]
    optimizer = kind(model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    losses, norms = [], []
    gradients: dict[str, Tensor] = {}
    for step in range(training.steps if steps is None else steps):
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate(step)
        losses.append(_accumulate(model, batches.step(step), bf16=training.precision == "bf16"))
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        most = float("inf") if training.clip_norm is None else training.clip_norm
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), most)))
        optimizer.step()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return Reference(tuple(losses), tuple(norms), gradients, parameters)


def _accumulate(model: torch.nn.Module, batch: list[tuple[Tensor, Tensor]], *, bf16: bool) -> float:
    """Add the gradients of the mean loss over ``batch``, and return that loss."""
    total = 0.0
    for inputs, targets in batch:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(inputs, targets) / len(batch)
        loss.backward()
        total += float(loss.detach())
    return total
