"""Design documents, read by every command that reads one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from meshwave.engine.document import load_design, parse_design
from meshwave.engine.exports import exports
from meshwave.engine.files import examples
from tests._strategies import documents
from tests.fuzz.oracle import Act, Complaint, Ended, about_command, about_json, run_cli
from tests.fuzz.target import Target, draw_examples

MADE = 60
"""Documents from the strategies of the property tests."""


class Designs(Target):
    """Designs that ``check`` accepts are simulated, lowered, exported and compared; all commands refuse the others."""

    entrance = 3

    def seeds(self) -> Iterator[bytes]:
        yield from (path.read_bytes() for path in examples().values())
        yield from (json.dumps(document).encode() for document in draw_examples(documents(), MADE))

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        file = str(path)
        ended: list[Ended] = []
        yield "check", lambda: about_command("check", file)
        yield "check --json", lambda: about_command("check", file, "--json", ended=ended)
        yield (
            "simulate --json",
            lambda: [*about_command("simulate", file, "--json", ended=ended), *_disagreement(ended)],
        )
        if [each.status for each in ended] != [0, 0]:
            return
        yield "simulate", lambda: about_command("simulate", file)
        yield "program", lambda: about_command("program", file)
        yield "program --format json", lambda: _json_program(file)
        yield "compare", lambda: about_command("compare", file, "02-two-waves")
        yield "reshard", lambda: about_command("reshard", file, "--boundary", "0:1")
        yield "moe", lambda: about_command("moe", file)
        yield "save", lambda: save_and_read(path)
        for name in exports:
            yield f"export --to {name}", lambda name=name: export_all(file, name)  # type: ignore[misc]


def _disagreement(ended: list[Ended]) -> Iterator[Complaint]:
    statuses = [each.status for each in ended]
    if len(statuses) == 2 and statuses[0] != statuses[1]:
        yield Complaint(
            "check and simulate disagree", f"exit status {statuses}: {ended[1].err or ended[0].out.decode()}"
        )


def _json_program(file: str) -> Iterator[Complaint]:
    yield from about_json(run_cli("program", file, "--format", "json").out)


def save_and_read(path: Path) -> Iterator[Complaint]:
    design = load_design(path)
    again = parse_design(design.to_json())
    if again != design:
        yield Complaint("a saved design is another one", design.to_json())


def export_all(file: str, name: str) -> Iterator[Complaint]:
    ended: list[Ended] = []
    yield from about_command("export", file, "--to", name, ended=ended)
    content = ended[0].out
    if ended[0].status:
        return
    if name == "svg":
        try:
            ElementTree.fromstring(content)
        except ElementTree.ParseError as error:
            yield Complaint("output is not XML", str(error))
    elif name == "perfetto":
        yield from about_json(content)
    elif name == "script":
        try:
            compile(content, "script.py", "exec")
        except (SyntaxError, ValueError) as error:
            yield Complaint("output is not Python", str(error))


TARGET = Designs()
