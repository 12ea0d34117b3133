"""Settings of Megatron-LM, torchtitan and Hugging Face, read by ``meshwave import``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

from meshwave.engine.document import load_design
from meshwave.engine.exports import exports
from meshwave.engine.files import example
from meshwave.engine.hugging_face.published_models import published_models
from meshwave.engine.predict.prediction import predict
from tests.fuzz.mutate import mutate_text
from tests.fuzz.oracle import ROOT, Act, Ended, about_command
from tests.fuzz.target import Target, UnfitError
from tests.fuzz.targets.schedules import check_import

EXPORTED = ("16-gpt2-moe", "22-sharded-parameters", "24-context-parallel")
INTO = "16-gpt2-moe"


class Settings(Target):
    """Settings are refused with the place of the mistake, or become a valid design; the first line is their format."""

    suffix = ".txt"
    is_guided = True
    entrance = 2

    def seeds(self) -> Iterator[bytes]:
        configurations = json.loads((ROOT / "tests/engine/imports/model_configs.json").read_text())
        configurations += [dict(each.config) for each in published_models().values()]
        for configuration in {each["model_type"]: each for each in configurations}.values():
            yield f"hugging-face\n{json.dumps(configuration, indent=1)}".encode()
        for name in EXPORTED:
            prediction = predict(load_design(example(name)))
            yield from (
                f"{form}\n".encode() + exports[form].to_bytes(prediction) for form in ("megatron", "torchtitan")
            )

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        return mutate_text(chance, seeds)

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        form, _, content = path.read_bytes().partition(b"\n")
        name = form.decode("latin-1")
        if name not in ("hugging-face", "megatron", "torchtitan"):
            raise UnfitError
        path.write_bytes(content)
        ended: list[Ended] = []
        for into in ((), ("--into", INTO)):
            arguments = ("import", "--from", name, str(path), *into)
            yield f"import --from {name}{' --into' if into else ''}", partial(about_command, *arguments, ended=ended)
        for made in ended:
            if made.status == 0:
                yield "check what was imported", partial(check_import, path.with_suffix(".json"), made)


TARGET = Settings()
