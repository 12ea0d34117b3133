"""Models built with torch, stage by stage: the torch part of each model family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from meshwave.engine.document.model import Model
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.models.stages import ExpertFactory, Stage, StageBuilder
from meshwave.engine.runtime.modules.context_share import ContextShare


def build_stage(
    model: Model,
    layers_per_stage: Sequence[int],
    stage: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: Any = "cpu",
    group: Group = ALONE,
    experts: ExpertFactory | None = None,
    share: ContextShare | None = None,
) -> Stage:
    """Build one stage: its layers, the embedding if it is the first, the head if it is the last.

    Each part draws its weights from its own generator, keyed by ``seed`` and its place in the model. Every split and
    every copy of a stage therefore has weights that are bitwise equal to those of the whole model
    (``layers_per_stage=[layers]``).

    Args:
        model: the model section of a design.
        layers_per_stage: ``[stages]`` number of layers of each stage.
        stage: number of the stage to build.
        seed: seed of the weights.
        dtype: dtype of the weights.
        device: device of the weights.
        group: the tensor-parallel processes that hold the stage together.
        experts: builds the experts of a layer; None for a model without experts.
        share: the tokens of each sequence that this process computes; None: all of them.
    """
    builder = cast(type[StageBuilder], model.stage_builder())
    return builder(model, group, experts, share).build(layers_per_stage, stage, seed, dtype, device)
