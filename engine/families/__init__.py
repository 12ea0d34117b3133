"""The families of models, one file each: sizes, data and costs of a model. Nothing here imports torch."""

from meshwave.engine.document.model import LanguageModel, Model, model_families

__all__ = ["LanguageModel", "Model", "model_families"]
