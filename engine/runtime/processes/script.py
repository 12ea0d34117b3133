"""What an exported script runs: its design and its program, in each of the processes that torchrun starts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.exports.script import unpacked
from meshwave.engine.files import write_whole
from meshwave.engine.program.program import from_json
from meshwave.engine.runtime.execution.data import DEFAULT_TEXT
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.runtime.processes import worker


def main(design: str, program: str) -> NoReturn:
    """Train, then end the process: 0 done, 1 failed, 2 the command is wrong.

    Args:
        design: a document.
        program: what it means, packed as :mod:`meshwave.engine.exports.script` does.
    """
    options = _options()
    try:
        job = _job(design, program, options)
        options.out.mkdir(parents=True, exist_ok=True)
    except (InputError, OSError) as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
    process = _process(job.design, int(os.environ["RANK"]))
    os.environ["RANK"] = str(process)
    _clear(options.out, process)
    if process == 0:
        write_whole(options.out / "design.json", job.design.to_json().encode())
        write_whole(options.out / "program.json", unpacked(program).encode())
    else:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  what every process says is said once
    worker.main(options.out, job)


def _process(design: Design, rank: int) -> int:
    """Which process of the run the ``rank``-th of torchrun's is.

    torchrun counts its processes node by node, as devices are counted; a run counts them mesh by mesh. A mesh over
    two nodes must have its processes on both.
    """
    devices = [device for mesh in design.meshes for device in mesh.devices]
    return devices.index(sorted(devices)[rank])


def _clear(folder: Path, process: int) -> None:
    """Take away what this process left of an earlier run in the same folder, which a run would go on writing to."""
    own = list(folder.glob(f"*-{process}.*"))
    for path in [*own, folder / "metrics.jsonl", folder / "clocks.json"] if process == 0 else own:
        path.unlink(missing_ok=True)


def _options() -> argparse.Namespace:
    name = Path(sys.argv[0])
    parser = argparse.ArgumentParser(description="Train a design of Meshwave's; torchrun starts it.")
    parser.add_argument("--out", type=Path, default=Path(f"{name.stem}.run"), help="folder for what comes of it")
    parser.add_argument("--data", type=Path, default=None, metavar="FILE", help="a text to train on")
    parser.add_argument("--steps", type=int, default=None, help="optimizer steps, instead of the design's")
    return parser.parse_args()


def _job(design: str, program: str, options: argparse.Namespace) -> Job:
    document = json.loads(design)
    if options.steps is not None:
        document["training"]["steps"] = options.steps
    parsed, written = parse_design(document), json.loads(unpacked(program))
    devices = sum(len(mesh.devices) for mesh in parsed.meshes)
    if os.environ.get("WORLD_SIZE") != str(devices):
        raise InputError(
            f"this design has {devices} devices; start as many processes: "
            f"torchrun --standalone --nproc-per-node {devices} {sys.argv[0]}"
        )
    if parsed.training.data is not None and options.data is None:
        raise InputError(f"the design trains on {parsed.training.data}; say where that text is with --data")
    if options.data is not None and not options.data.is_file():
        raise InputError(f"there is no text {options.data}")
    return Job(parsed, from_json(written), tuple(written["layers"]), options.data or DEFAULT_TEXT)
