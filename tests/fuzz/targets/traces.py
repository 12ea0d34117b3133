"""Traces of other tools, read by ``meshwave import``, then stored as runs of a design, compared and used."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from meshwave.engine.files import data_folder
from meshwave.engine.program.action import Op
from tests.engine.imports.traced import design, trace_of
from tests.fuzz.oracle import Act, Ended, about_command
from tests.fuzz.target import Target, UnfitError, envelope

NAMES = (
    lambda action: f"PP:{action}",
    lambda action: f"{'Forward' if action.op is Op.F else 'Backward'} {action.microbatch}",
    lambda action: "forward-compute" if action.op is Op.F else "backward-compute",
)
"""Functions that name the range of an action like torchtitan, torch and Megatron do."""


class Traces(Target):
    """The files of a trace as an array of documents: refused with a reason, or a run with a timeline."""

    is_guided = True

    def seeds(self) -> Iterator[bytes]:
        for name in NAMES:
            with tempfile.TemporaryDirectory() as folder:
                files = trace_of(Path(folder), name, steps=1)
                yield json.dumps([json.loads(file.read_text()) for file in files]).encode()

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        with envelope():
            documents = json.loads(path.read_bytes())
            files = [path.with_name(f"rank{number}.json") for number in range(len(documents))]
            for file, document in zip(files, documents, strict=True):
                file.write_text(json.dumps(document))
        if not files:
            raise UnfitError
        into = path.with_name("design.json")
        into.write_text(design().to_json())
        shutil.rmtree(data_folder(), ignore_errors=True)
        ended: list[Ended] = []
        command = ("import", "--from", "kineto", "--into", str(into), *map(str, files))
        yield "import", partial(about_command, *command, ended=ended)
        if ended and ended[0].status == 0:
            yield "runs show", lambda: about_command("runs", "show", "--json")
            yield "runs profile", lambda: about_command("runs", "profile")


TARGET = Traces()
