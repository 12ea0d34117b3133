"""The models that can be trained, built stage by stage: the torch half of each family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from meshwave.engine.document.model import Model
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.models.stages import MakeExperts, Stage, StageBuilder


def build_stage(
    model: Model,
    layers_per_stage: Sequence[int],
    stage: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: Any = "cpu",
    group: Group = ALONE,
    experts: MakeExperts | None = None,
) -> Stage:
    """Build ``stage`` alone: its layers, the embedding if it is the first, the head if the last.

    Each part draws its weights from its own generator, keyed by ``seed`` and its place in the
    model. Every split and every copy of a stage therefore holds, bit for bit, the weights that
    the whole model would (``layers_per_stage=[layers]`` builds it).
    """
    builder = cast(type[StageBuilder], model.stage_builder())
    return builder(model, group, experts).stage(layers_per_stage, stage, seed, dtype, device)


__all__ = ["MakeExperts", "Stage", "StageBuilder", "build_stage"]
