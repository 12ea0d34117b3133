"""Reference training in one process without a pipeline, with which runs are compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwave.engine.costs.padded_documents import length_multiple, shares_lengths
from meshwave.engine.document.model import IGNORED, MoE
from meshwave.engine.families.transformer import RoutedExperts
from meshwave.engine.runs.training_windows import DataPart
from meshwave.engine.runtime.execution.data import Microbatch, Padding, TrainingBatches
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.runtime.execution.stages import DTYPES
from meshwave.engine.runtime.experts.build import expert_layers, single_process_factory
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules.documents import pack_documents
from meshwave.engine.runtime.modules.products import use_float8

BALANCE = "gate.balance"
"""End of the names of biases that balance the load of experts, whose gradients are loads."""


@dataclass(frozen=True)
class Reference:
    """Result of reference training; the gradients are those of the last step before clipping."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    evaluations: tuple[float, ...]


def train(job: Job, steps: int | None = None) -> Reference:
    """Train the whole model of ``job`` on the CPU, microbatch after microbatch.

    It shares the model and the data with the runtime, but no code that executes a step.
    """
    design = job.design
    training = design.training
    dtype, microbatches = DTYPES[training.precision], design.meshes[0].data_parallel * job.program.microbatches
    experts = single_process_factory(design, 1 / microbatches, dtype) if design.model.moe else None
    model = build_stage(design.model, [sum(job.layers)], 0, training.seed, dtype, experts=experts)
    if training.linear_precision == "fp8":
        use_float8(model.layers.modules())
        for layer in expert_layers(model):
            layer.use_float8()
    held_share = 0.0 if training.eval_every is None else training.eval_share
    batches = _batches(job, microbatches, DataPart(held_share))
    alike = job.program.microbatches if shares_lengths(design) else microbatches
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[training.optimizer]
    trained = [weight for name, weight in model.named_parameters() if not name.endswith(BALANCE)]
    optimizer = kind(trained, lr=training.lr, weight_decay=training.weight_decay)
    losses, norms, evaluations = [], [], []
    gradients: dict[str, Tensor] = {}
    for step in range(training.steps if steps is None else steps):
        model.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate(step)
        drawn = _pad_alike(batches.step(step), alike)
        losses.append(_accumulate(model, drawn, bf16=training.precision == "bf16"))
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        most = float("inf") if training.clip_norm is None else training.clip_norm
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, most)))
        optimizer.step()
        _balance_load(model, design.model.moe)
        if training.is_evaluated_after(step):
            held_out = _batches(job, microbatches, DataPart(held_share, is_held_out=True))
            model.eval()  # the loss of the next token alone
            with torch.no_grad():
                drawn = [
                    each for batch in range(training.eval_batches) for each in _pad_alike(held_out.step(batch), alike)
                ]
                found = [_loss(model, each) for each in drawn]
            evaluations.append(float(torch.stack(found).mean()))
            model.train()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return Reference(tuple(losses), tuple(norms), gradients, parameters, tuple(evaluations))


def _batches(job: Job, microbatches: int, part: DataPart) -> TrainingBatches:
    """Return the global batches, each as that of one replica."""
    training = job.design.training
    return TrainingBatches(
        job.text,
        job.design.model,
        seed=training.seed,
        microbatches=microbatches,
        micro_batch_size=training.micro_batch_size,
        part=part,
        document_end=training.document_end_id,
        padding=Padding(length_multiple(job.design)) if training.pad_documents else None,
    )


def _pad_alike(batch: list[Microbatch], count: int) -> list[Microbatch]:
    """Return the microbatches of all replicas, of which each has ``count``, with one length for every microbatch."""
    padded = []
    for number, (inputs, targets, documents, _) in enumerate(batch):
        length = max(each.inputs.shape[1] for each in batch[number % count :: count])
        added = 0, length - inputs.shape[1]
        if documents is not None and added[1]:
            own = [row[0] for row in documents]
            documents = [[size, *filter(None, [length - size])] for size in own]
        padded.append(Microbatch(F.pad(inputs, added), F.pad(targets, added, value=IGNORED), documents))
    return padded


def _loss(model: torch.nn.Module, microbatch: Microbatch) -> Tensor:
    with pack_documents(microbatch.documents):
        loss: Tensor = model(microbatch.inputs, microbatch.targets)
    return loss


@torch.no_grad()
def _balance_load(model: torch.nn.Module, moe: MoE | None) -> None:
    """Change the biases of routers by a fixed amount, towards the mean load."""
    for name, bias in model.named_parameters():
        if name.endswith(BALANCE):
            assert isinstance(moe, RoutedExperts) and bias.grad is not None
            bias += moe.bias_update_rate * torch.sign(bias.grad.mean() - bias.grad)


def _accumulate(model: torch.nn.Module, batch: list[Microbatch], *, bf16: bool) -> float:
    """Add the gradients of the mean loss over ``batch``, and return that loss."""
    total = 0.0
    for microbatch in batch:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = _loss(model, microbatch) / len(batch)
        loss.backward()
        total += float(loss.detach())
    return total
