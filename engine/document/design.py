"""Design: one document with all of its sections."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

from pydantic import Field

from meshwave.engine.document.cluster import MAX_MESHES, Cluster
from meshwave.engine.document.cost import Cost, default_cost
from meshwave.engine.document.experts import Experts
from meshwave.engine.document.meshes import Mesh
from meshwave.engine.document.model import AnyModel
from meshwave.engine.document.pipeline import Pipeline
from meshwave.engine.document.training import Training
from meshwave.engine.document.transfer import Transfer
from meshwave.engine.document.upgrades import FORMAT
from meshwave.engine.frozen import Part, Printable
from meshwave.engine.schedules import Pipe

DEFAULT_UNSHARDED_STAGES = 3
"""Default number of unsharded stages of a mesh: one for a forward, one for a backward, and one that is being gathered."""

_LIST_OF_SCALARS = re.compile(r"\[\n[^\[\]{}\"]*\]|\[\n\s*(?:\"\w*\",?\s*)+\]")  # lists of scalars are on one line


class Design(Part, defer_build=True):
    """Training job: the model, the devices, and the order of computations."""

    format: Literal["meshwave/1"] = FORMAT
    """Version of the document format."""
    name: Annotated[str, Field(max_length=200), Printable] = "untitled"
    """Displayed name."""
    cluster: Cluster
    model: AnyModel
    meshes: Annotated[tuple[Mesh, ...], Field(min_length=1, max_length=MAX_MESHES)]
    """Pipeline ranks, in order."""
    pipeline: Pipeline
    experts: Experts = Experts()
    transfer: Transfer = Transfer()
    training: Training = Training()
    cost: Cost = Field(default_factory=default_cost)

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks, one per mesh."""
        return len(self.meshes)

    @property
    def pipe(self) -> Pipe:
        """Size of the pipeline for which the schedule orders computations."""
        return Pipe(ranks=self.ranks, microbatches=self.pipeline.microbatches)

    @property
    def stages(self) -> int:
        """Number of stages of the model."""
        return self.pipeline.stage_count(self.ranks)

    @property
    def unsharded_stages(self) -> int:
        """Number of stages whose weights a mesh holds unsharded at once; 0 if the program does not unshard stages."""
        training = self.training
        if training.sharding != "parameters":
            return 0
        default = DEFAULT_UNSHARDED_STAGES if self.stages > 1 else 0
        return default if training.unsharded_stages is None else training.unsharded_stages

    @property
    def gathers_blocks(self) -> bool:
        """True if computations gather the weights of each block before it and free them after it."""
        return self.training.sharding == "parameters" and not self.unsharded_stages

    def rebalances_after(self, step: int) -> bool:
        """Return True if experts may move after a step; steps are counted from 0."""
        every, is_last = self.experts.rebalance_steps, step + 1 >= self.training.steps
        return self.model.moe is not None and every is not None and (step + 1) % every == 0 and not is_last

    @property
    def process_devices(self) -> tuple[int, ...]:
        """Device of each process of a run, mesh by mesh."""
        return tuple(device for mesh in self.meshes for device in mesh.ordered_devices)

    @property
    def sequences_per_step(self) -> int:
        """Number of sequences of one training step, over all data-parallel replicas of the first mesh."""
        first = self.meshes[0]
        return first.data_parallel * self.pipeline.microbatches * self.training.micro_batch_size

    def to_json(self) -> str:
        """Return the document as indented JSON with lists of scalars on one line, and a final newline."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False)
        return (
            _LIST_OF_SCALARS.sub(lambda match: " ".join(match[0].split()).replace("[ ", "[").replace(" ]", "]"), text)
            + "\n"
        )
