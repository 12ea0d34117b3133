"""Plans of workshops: refused with the place of the mistake, or served."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from meshwave.engine.lessons.classroom import Classroom, workshop_folder
from meshwave.engine.lessons.workshop import read_workshop
from tests.fuzz.mutate import mutate_text
from tests.fuzz.oracle import ROOT, Act, Complaint, about_command, about_json
from tests.fuzz.target import Target


class Workshops(Target):
    """The TOML file of a workshop is refused with the place of the mistake, or a class can be made from it."""

    is_guided = True
    suffix = ".toml"
    entrance = 1

    def seeds(self) -> Iterator[bytes]:
        yield (ROOT / "docs/examples/workshop.toml").read_bytes()

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        return mutate_text(chance, seeds)

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        yield "workshop", lambda: _make_class(path)
        if workshop_folder(path.stem).is_dir():
            yield "workshop --results", lambda: about_command("workshop", str(path), "--results", "--json")
            yield "workshop --reset", lambda: about_command("workshop", str(path), "--reset")


def _make_class(path: Path) -> Iterator[Complaint]:
    workshop = read_workshop(path)
    classroom = Classroom(workshop_folder(workshop.name), workshop)
    classroom.join(classroom.code, "Ada")
    yield from about_json(json.dumps(classroom.results()))
    classroom.close()


TARGET = Workshops()
