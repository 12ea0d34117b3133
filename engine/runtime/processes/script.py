"""Main function of exported scripts, which trains a design in each process that torchrun starts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.exports.script import unpack_program
from meshwave.engine.files import write_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.program.program_file import from_json
from meshwave.engine.runs.training_data import check_training_data, document_end_id, has_documents, is_tokens
from meshwave.engine.runs.training_windows import DEFAULT_TEXT
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.runtime.processes import worker


def main(design: str, program: str) -> NoReturn:
    """Train, then end the process with status 0 (success), 1 (failure) or 2 (invalid command line).

    Args:
        design: the design document.
        program: its program, packed by :mod:`meshwave.engine.exports.script`.
    """
    options = _parse_options()
    try:
        job = _make_job(design, program, options)
        options.out.mkdir(parents=True, exist_ok=True)
    except (InputError, OSError) as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
    process = _process_number(job.design, int(os.environ["RANK"]))
    os.environ["RANK"] = str(process)
    _remove_old_results(options.out, process)
    if process == 0:
        write_whole(options.out / "design.json", job.design.to_json().encode())
        write_whole(options.out / "program.json", unpack_program(program).encode())
    else:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  one process writes what all would
    worker.main(options.out, job)


def _process_number(design: Design, rank: int) -> int:
    """Return the number of the run's process for a torchrun process rank.

    torchrun numbers processes node by node, like devices; a run numbers them mesh by mesh.
    """
    devices = design.process_devices
    return devices.index(sorted(devices)[rank])


def _remove_old_results(folder: Path, process: int) -> None:
    """Remove the result files of an earlier run of this process, because a run appends to existing files."""
    own = list(folder.glob(f"*-{process}.*"))
    for path in [*own, folder / "metrics.jsonl", folder / "clocks.json"] if process == 0 else own:
        path.unlink(missing_ok=True)


def _parse_options() -> argparse.Namespace:
    name = Path(sys.argv[0])
    parser = argparse.ArgumentParser(description="Train a Meshwave design. Start it with torchrun.")
    parser.add_argument("--out", type=Path, default=Path(f"{name.stem}.run"), help="folder for the results")
    parser.add_argument("--data", type=Path, default=None, metavar="FILE", help="text to train on")
    parser.add_argument("--steps", type=int, default=None, help="number of optimizer steps (default: the design's)")
    return parser.parse_args()


def _make_job(design: str, program: str, options: argparse.Namespace) -> Job:
    document = json.loads(design)
    if options.steps is not None:
        document["training"]["steps"] = options.steps
    parsed, written = parse_design(document), json.loads(unpack_program(program))
    devices = sum(len(mesh.devices) for mesh in parsed.meshes)
    if os.environ.get("WORLD_SIZE") != str(devices):
        raise Refusal("torchrun_process_count", {"devices": devices, "program": sys.argv[0]})
    if parsed.training.data is not None and options.data is None:
        raise Refusal("text_not_given", {"text": parsed.training.data})
    if options.data is not None:
        _check_data(parsed, options.data)
    end = document_end_id(parsed, options.data)
    training = parsed.training.model_copy(update={"document_end": end})
    parsed = parsed.model_copy(update={"training": training})
    return Job(parsed, from_json(written), tuple(written["layers"]), options.data or DEFAULT_TEXT)


def _check_data(design: Design, data: Path) -> None:
    """Check that a script can train on a file as it is, without the conversions of a launch.

    Raises:
        Refusal: the file does not exist, or is not of a type that the design can train on.
    """
    if not data.is_file():
        raise Refusal("text_file_missing", {"path": str(data)})
    if not is_tokens(data) and (design.training.tokenizer is not None or has_documents(data)):
        raise Refusal("unconverted_data", {"file": data.name})
    check_training_data(design, data)
