"""FLOPs and parameters of a whole model of any family."""

from __future__ import annotations

from meshwave.engine.costs import flops
from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.document.model import LanguageModel, Model


def model_flops(model: Model, samples: float, attended_share: float | None = None) -> float:
    """Return the FLOPs of forward and backward of ``samples`` samples through the whole model.

    ``attended_share`` is the fraction of the sequence to which a token attends; None if each sequence is one document.
    """
    if isinstance(model, BlockModel):
        return model.flops(samples)
    assert isinstance(model, LanguageModel), "a model is one or the other"
    return flops.model_flops(model, samples, attended_share)


def parameter_counts(model: Model) -> tuple[int, int]:
    """Return the number of parameters of the whole model, and the number that one token uses."""
    if isinstance(model, BlockModel):
        return round(model.parameters), round(model.parameters)
    assert isinstance(model, LanguageModel), "a model is one or the other"
    return round(flops.model_parameters(model)), round(flops.active_parameters(model))
