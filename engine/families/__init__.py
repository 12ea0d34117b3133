"""Model families, one file each: sizes, training data and costs of a model. This package does not import torch."""

from meshwave.engine.document.model import LanguageModel, Model, model_families
