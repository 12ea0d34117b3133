"""Import of a model from a Hugging Face ``transformers`` configuration: the file ``config.json`` of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from meshwave.engine.costs.presets import preset
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.meshes import equal_meshes
from meshwave.engine.document.reading import read_json
from meshwave.engine.hugging_face.config import Json, read_model
from meshwave.engine.imports._base import Import, Imported, imports

DEVICES = 8


@imports.register("hugging-face")
class HuggingFace(Import):
    """Model of Hugging Face transformers, from the file config.json of its checkpoint."""

    title: ClassVar = "Hugging Face model (config.json)"
    note: ClassVar = "transformers: save_pretrained"
    suffixes: ClassVar = (".json",)

    @staticmethod
    def recognizes(text: str) -> bool:
        return '"model_type"' in text

    @staticmethod
    def read(text: str, name: str, into: Design | None = None, *, draft: bool = False) -> Imported:
        config = read_json(text, "configuration")
        model, notes = read_model(config)
        title = _model_title(config, name)
        document = _new_document(title, model) if into is None else replace_model(into, model)
        return Imported(parse_design(document, draft=draft), tuple(notes))


# ---- designs ----


def _model_title(config: Json, name: str) -> str:
    """Return the name of a new design: the name of the checkpoint, of its file, or of the model type."""
    path = config.get("_name_or_path")
    checkpoint = path.rstrip("/").rpartition("/")[2] if isinstance(path, str) else ""
    return checkpoint or (str(config["model_type"]) if name == "config" else name)


def _new_document(name: str, model: Mapping[str, Any]) -> Json:
    """Return the document of a design on one node, with one rank per device: as many as stages, but at most eight."""
    devices = min(DEVICES, model["layers"])
    cluster = {**preset("dgx-h100").cluster.model_dump(mode="json"), "nodes": 1}
    return {
        "format": "meshwave/1",
        "name": name,
        "cluster": cluster,
        "model": dict(model),
        "meshes": equal_meshes(devices, {"dp": 1, "tp": 1}),
        "pipeline": {"schedule": "1f1b", "microbatches": 4 * devices},
        "training": {"precision": "bf16"},
    }


def replace_model(design: Design, model: Mapping[str, Any]) -> Json:
    """Return the document of a design with another model, without the layers and costs of its present stages."""
    document = design.model_dump(mode="json")
    pipeline, cost = {**document["pipeline"], "stages": None}, {**document["cost"], "stage_costs": None}
    return {**document, "model": dict(model), "pipeline": pipeline, "cost": cost}
