"""The models that can be trained, one file a kind, built stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from meshwave.engine.registry import Registry
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.models._family import Family, MakeExperts, Shape, Stage

models: Registry[type[Family]] = Registry("model", __name__)


def build_stage(
    model: Shape,
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

    Raises:
        InputError: there is no model of that kind.
    """
    return models[model.kind](model, group, experts).stage(layers_per_stage, stage, seed, dtype, device)


__all__ = ["Family", "MakeExperts", "Shape", "Stage", "build_stage", "models"]
