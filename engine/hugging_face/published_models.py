"""Published models with the sources of their configurations, which set the model of a design."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from pydantic import TypeAdapter

from meshwave.engine.document.model import model_families
from meshwave.engine.findings import Refusal, unknown_member_params
from meshwave.engine.frozen import Part
from meshwave.engine.hugging_face.config import read_model


class PublishedModel(Part):
    """A model that users can select by name."""

    name: str
    """Name of its checkpoint."""
    source: str
    """Source of the configuration."""
    parameters: int
    """Number of parameters; tied embeddings count once."""
    active_parameters: int
    """Number of parameters that compute each token."""
    config: Mapping[str, Any]
    """Configuration in the keys of Hugging Face."""

    def section(self) -> dict[str, Any]:
        """Return the ``model`` section of a design."""
        model, _ = read_model(dict(self.config))
        return model_families["transformer"].model_validate({"kind": "transformer", **model}).model_dump(mode="json")


@cache
def published_models() -> Mapping[str, PublishedModel]:
    """Return all published models by name, sorted."""
    content = resources.files(__package__).joinpath("published_models.json").read_bytes()
    return {each.name: each for each in TypeAdapter(tuple[PublishedModel, ...]).validate_json(content)}


def published_model(name: str) -> PublishedModel:
    """Return the published model with the given name.

    Raises:
        Refusal: no model has this name; the error suggests the closest name.
    """
    known = published_models()
    if name not in known:
        raise Refusal("unknown_member", unknown_member_params("published model", name, known))
    return known[name]
