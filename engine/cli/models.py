"""``meshwave models``: published models, with the sources of their configurations."""

from __future__ import annotations

import argparse

from meshwave.engine.cli.output import print_json, print_note, print_result
from meshwave.engine.hugging_face.published_models import PublishedModel, published_model, published_models
from meshwave.engine.units import quantity


def list_models(options: argparse.Namespace) -> int:
    """List published models, or print the ``model`` section of one model."""
    if options.name:
        chosen = published_model(options.name)
        print_json(chosen.section())
        print_note(chosen.source)
        return 0
    table = [each.model_dump(mode="json") for each in published_models().values()]
    return print_result(options, {"models": table}, lambda _: _to_lines())


def _to_lines() -> list[str]:
    models, width = published_models(), max(map(len, published_models()))
    head = f"{'model':<{width}}{'parameters':>12}{'active':>12}  source"
    return [head, *(_model_line(model, width) for model in models.values())]


def _model_line(model: PublishedModel, width: int) -> str:
    counts = (quantity(count, "") for count in (model.parameters, model.active_parameters))
    return f"{model.name:<{width}}" + "".join(f"{count:>12}" for count in counts) + f"  {model.source}"
