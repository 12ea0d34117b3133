"""The whole design, and how it is read and written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from engine.design.cluster import MOST_DEVICES, Cluster
from engine.design.cost import Cost, RooflineCost
from engine.design.experts import Experts
from engine.design.meshes import Mesh
from engine.design.model import Model
from engine.design.pipeline import Pipeline
from engine.design.problems import problems, problems_beside, told
from engine.design.reading import read_json
from engine.design.refusals import from_validation
from engine.design.training import Training
from engine.design.transfer import Transfer
from engine.design.u_net import UNet
from engine.design.upgrades import FORMAT, upgrade
from engine.errors import DesignError, Problem
from engine.part import Part
from engine.resources import read_whole, write_whole
from engine.schedules import Pipe

LARGEST_FILE_BYTES = 64_000_000
_LIST_OF_SCALARS = re.compile(r"\[\n[^\[\]{}\"]*\]|\[\n\s*(?:\"\w*\",?\s*)+\]")  # kept on one line


class Design(Part):
    """One design: what is trained, where, in which order."""

    format: Literal["meshwave/1"] = FORMAT
    """The version of this document."""
    name: Annotated[str, Field(max_length=200)] = "untitled"
    """What people call the design."""
    cluster: Cluster
    model: Annotated[Model | UNet, Field(discriminator="kind")]
    meshes: Annotated[tuple[Mesh, ...], Field(min_length=1, max_length=MOST_DEVICES)]
    """The pipeline's ranks, in order."""
    pipeline: Pipeline
    experts: Experts = Experts()
    transfer: Transfer = Transfer()
    training: Training = Training()
    cost: Cost = RooflineCost()

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


def parse_design(document: Mapping[str, Any] | str | bytes, *, draft: bool = False) -> Design:
    """Make a design of a document that was read from JSON, or of its text.

    A draft has only to be sound part by part: its parts need not fit each other yet, as while
    somebody is drawing; ask :func:`engine.design.problems.problems` what is still wrong with it.

    Raises:
        DesignError: with every problem that was found, each with its place.
    """
    if isinstance(document, (str, bytes)):
        document = read_json(document, "design")
    if not isinstance(document, Mapping):
        raise DesignError([Problem("", "type", "a design is a JSON object with cluster, model, meshes and pipeline")])
    try:
        current = upgrade(document)
        text = json.dumps(current)  # strict numbers, but lists where the design has tuples
    except (TypeError, ValueError, RecursionError) as error:
        raise DesignError([Problem("", "json", f"the document is not plain JSON: {error}")]) from None
    try:
        design = Design.model_validate_json(text)
    except ValidationError as error:
        refused = from_validation(error, document, Design)
        beside = [] if draft else problems_beside(current, refused)
        raise DesignError(told([*refused, *_errors(beside)])) from None
    if not draft and (errors := _errors(problems(design))):
        raise DesignError(errors)
    return design


def _errors(found: Iterable[Problem]) -> list[Problem]:
    return [problem for problem in found if problem.severity == "error"]


def load_design(path: Path | str, *, draft: bool = False) -> Design:
    """Read a design from a file; a draft as :func:`parse_design` does.

    Raises:
        InputError: the file cannot be read.
        DesignError: what is in it is no design.
    """
    return parse_design(read_whole(path, "design", LARGEST_FILE_BYTES), draft=draft)


def save_design(design: Design, path: Path | str) -> None:
    """Write a design; a crash leaves the old file or the new one, never half of one."""
    write_whole(path, design.to_json().encode())
