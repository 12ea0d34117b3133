"""Script export: a Python file for torchrun that trains a design wherever Meshwave is installed."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from typing import TYPE_CHECKING

from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.exports._base import Export, exports
from meshwave.engine.findings import DesignError
from meshwave.engine.program.program import to_json
from meshwave.engine.units import percent, quantity, units

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

COLUMNS = 100


@exports.register("script")
class Script(Export):
    """Script with the design and its exact program."""

    title = "Script for torchrun"
    note = "trains the design on any cluster where Meshwave is installed"
    suffix = ".py"
    mime = "text/x-python"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        """Return the script.

        Raises:
            DesignError: the design can be planned but not run.
        """
        drawn, program = prediction.design, prediction.program
        design = drawn.model_copy(update={"cost": drawn.cost.portable_model()})
        if found := run_problems(design):
            raise DesignError(found)
        whole = json.dumps({**to_json(program), "layers": list(prediction.costs.layers)}, separators=(",", ":"))
        packed = base64.b85encode(zlib.compress(whole.encode(), 9)).decode()
        lines = [
            "#!/usr/bin/env python3",
            *_docstring_lines(prediction),
            "",
            "from meshwave.engine.runtime.processes.script import main",
            "",
            "DESIGN = " + _literal(design.to_json()),
            "",
            f"# The ordered actions of every rank, packed; digest {program.digest}.",
            "PROGRAM = (",
            *(f'    "{packed[start : start + COLUMNS]}"' for start in range(0, len(packed), COLUMNS)),
            ")",
            "",
            'if __name__ == "__main__":',
            "    main(DESIGN, PROGRAM)",
        ]
        return ("\n".join(lines) + "\n").encode()


def unpack_program(program: str) -> str:
    """Return the ``program.json`` that an exported script contains in compressed form."""
    return zlib.decompress(base64.b85decode(program)).decode()


def _docstring_lines(prediction: Prediction) -> list[str]:
    design, costs = prediction.design, prediction.costs
    file = (re.sub(r"[^a-z0-9]+", "-", design.name.lower().replace("'", "")).strip("-") or "design") + ".py"
    makespan = prediction.timeline.makespan
    predicted = quantity(makespan, "s") if costs.unit == "s" else units(makespan)
    devices = [device for mesh in design.meshes for device in mesh.devices]
    nodes = Counter(design.cluster.node_of(device) for device in devices)
    lines = [
        f'"""Trains the design {_strip_quotes(design.name)!r}: {len(devices)} processes, one a device. Made by Meshwave.',
        "",
        f"    torchrun --standalone --nproc-per-node {len(devices)} {file}",
    ]
    if len(set(nodes.values())) > 1:
        lines += ["", f"on one machine: the {len(nodes)} nodes of the design have unlike numbers of devices."]
    elif len(nodes) > 1:
        each = f"--nnodes {len(nodes)} --nproc-per-node {next(iter(nodes.values()))}"
        lines += [
            "",
            f"or, on each of {len(nodes)} machines,",
            "",
            f"    torchrun {each} --rdzv-backend c10d --rdzv-endpoint FIRST_MACHINE:29500 {file}",
        ]
    lines += [
        "",
        f"Predicted of an iteration: {predicted}, {percent(prediction.timeline.bubble_ratio)} of it bubbles.",
        "`--out FOLDER` says where losses, times and spans go, `--data FILE` which text to train on, `--steps N` how long.",
        '"""',
    ]
    return lines


def _strip_quotes(name: str) -> str:
    """Return a name without characters that could end a Python string."""
    return "".join(each for each in name if each.isprintable() and each not in "\"'\\")


def _literal(document: str) -> str:
    """Return a document as a readable raw string; JSON contains three apostrophes only inside names."""
    return "r'''\n" + document.rstrip("\n").replace("'''", "''\\u0027") + "\n'''"
