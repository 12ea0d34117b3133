"""Megatron-LM export: a launch script with the arguments of ``pretrain_gpt.py``."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwave.engine import messages
from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.exports._base import Export, exports
from meshwave.engine.exports.torch_csv import check_equal_meshes
from meshwave.engine.findings import Refusal
from meshwave.engine.trainers.jobs import find_omissions
from meshwave.engine.trainers.megatron import read_job, write_arguments

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction


@exports.register("megatron")
class Megatron(Export):
    """Launch script for Megatron-LM with one argument per line."""

    title = "Megatron-LM"
    note = "launch script with arguments"
    suffix = ".megatron.sh"
    mime = "text/x-shellscript"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        """Return the script.

        Raises:
            Refusal: Megatron-LM does not support the model or the placement of the stages, or the meshes are not equal.
        """
        lines = _launch_lines(prediction)
        comments = [f"# - {_replace_unprintable(part)}" for part in Megatron.omissions(prediction)]
        if comments:
            comments.insert(0, "# Properties of the design that these arguments leave out or change:")
        name = json.dumps(prediction.design.name)
        head = ["#!/bin/sh", f"# Arguments of Megatron-LM for the design {name}, written by Meshwave.", *comments, ""]
        return ("\n".join([*head, *lines]) + "\n").encode()

    @staticmethod
    def omissions(prediction: Prediction) -> list[str]:
        job = read_job("\n".join(_launch_lines(prediction)))
        found = find_omissions(prediction.design, prediction.costs.layers, job, "Megatron-LM")
        return [problem.message for problem in found]


def _replace_unprintable(text: str) -> str:
    """Return a text that stays on one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _launch_lines(prediction: Prediction) -> list[str]:
    """Return the launch command, with one argument per line."""
    design, layers = prediction.design, prediction.costs.layers
    _check_exportable(prediction)
    words = [*_launcher_words(design), *(_argument_words(design, layers))]
    return [" \\\n    ".join([*words, '"$@"'])]


def _check_exportable(prediction: Prediction) -> None:
    design, program = prediction.design, prediction.program
    model = design.model
    if not isinstance(model, LanguageModel) or not model.causal or model.skips:
        raise Refusal("megatron_model", {"kind": model.kind})
    check_equal_meshes(design, "Megatron-LM")
    places = program.placement[0].tolist()
    if program.replicas > 1 or places != [stage % program.ranks for stage in range(len(places))]:
        raise Refusal("megatron_placement", {"schedule": design.pipeline.schedule})


def _launcher_words(design: Design) -> Iterator[str]:
    """Yield the words of torchrun; a design with different numbers of devices on its nodes is launched as one node."""
    per_node = Counter(map(design.cluster.node_of, design.process_devices))
    devices = len(design.process_devices)
    nodes = len(per_node) if len(set(per_node.values())) == 1 else 1
    yield "torchrun"
    yield f"--nnodes {nodes}"
    yield f"--nproc-per-node {devices // nodes}"
    yield "pretrain_gpt.py"


def _argument_words(design: Design, layers: tuple[int, ...]) -> Iterator[str]:
    for name, values in write_arguments(design, layers).items():
        yield " ".join([name, *map(shlex.quote, values)])


messages.add_messages(
    megatron_model=(
        "Megatron-LM export supports causal language models without skip connections, and this model is a {kind}; "
        "set model.kind to gpt, or model.objective of a transformer to next-token"
    ),
    megatron_placement=(
        "Megatron-LM places stages in a loop over the ranks, and the schedule {schedule} or pipeline.placement does not; use "
        "1f1b or interleaved-1f1b without a placement"
    ),
)
