"""The whole design, and how it is read and written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from meshwave.engine.document.cluster import MOST_DEVICES, Cluster
from meshwave.engine.document.cost import Cost, default_cost
from meshwave.engine.document.experts import Experts
from meshwave.engine.document.meshes import Mesh
from meshwave.engine.document.model import AnyModel
from meshwave.engine.document.pipeline import Pipeline
from meshwave.engine.document.training import Training
from meshwave.engine.document.transfer import Transfer
from meshwave.engine.document.upgrades import FORMAT
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.frozen import Part, Printable
from meshwave.engine.schedules import Pipe

_LIST_OF_SCALARS = re.compile(r"\[\n[^\[\]{}\"]*\]|\[\n\s*(?:\"\w*\",?\s*)+\]")  # kept on one line


class Design(Part, defer_build=True):
    """One design: what is trained, where, in which order."""

    format: Literal["meshwave/1"] = FORMAT
    """The version of this document."""
    name: Annotated[str, Field(max_length=200), Printable] = "untitled"
    """What people call the design."""
    cluster: Cluster
    model: AnyModel
    meshes: Annotated[tuple[Mesh, ...], Field(min_length=1, max_length=MOST_DEVICES)]
    """The pipeline's ranks, in order."""
    pipeline: Pipeline
    experts: Experts = Experts()
    transfer: Transfer = Transfer()
    training: Training = Training()
    cost: Cost = Field(default_factory=default_cost)

    @property
    def ranks(self) -> int:
        """Pipeline ranks: one a mesh."""
        return len(self.meshes)

    @property
    def pipe(self) -> Pipe:
        """The size of the pipeline that the schedule has to order."""
        return Pipe(ranks=self.ranks, microbatches=self.pipeline.microbatches)

    @property
    def stages(self) -> int:
        """Into how many stages the model is cut."""
        return self.pipeline.stage_count(self.ranks)

    @property
    def sequences_per_step(self) -> int:
        """Sequences that one step trains on, over all data-parallel copies of the first mesh."""
        return self.meshes[0].dp * self.pipeline.microbatches * self.training.micro_batch_size

    def to_json(self) -> str:
        """The document as a person would keep it in git: ends with a newline."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False)
        return (
            _LIST_OF_SCALARS.sub(lambda match: " ".join(match[0].split()).replace("[ ", "[").replace(" ]", "]"), text)
            + "\n"
        )


def _refuse_many_meshes(document: Mapping[str, Any]) -> None:
    """Refuse a list that is too long before each of its meshes is looked at."""
    meshes = document.get("meshes")
    if isinstance(meshes, list) and len(meshes) > MOST_DEVICES:
        message = f"there are {len(meshes):,} meshes, and a design has at most {MOST_DEVICES:,}; remove some"
        raise DesignError([Problem("meshes", "too_long", message)])
