"""Import of a design from the settings of torchtitan: the TOML of its releases up to 0.2.2."""

from __future__ import annotations

from typing import ClassVar

from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.document.reading import read_toml
from meshwave.engine.imports._base import Import, Imported, check_device_count, imports
from meshwave.engine.trainers.jobs import job_design
from meshwave.engine.trainers.models import Json
from meshwave.engine.trainers.torchtitan import read_settings


@imports.register("torchtitan")
class Torchtitan(Import):
    """Settings of torchtitan; a model that they name is read by its flavour, any other model is kept."""

    title: ClassVar = "torchtitan settings (TOML)"
    note: ClassVar = "job file of torchtitan up to 0.2.2"
    suffixes: ClassVar = (".toml",)

    @staticmethod
    def recognizes(text: str) -> bool:
        return "[parallelism]" in text or "[training]" in text

    @staticmethod
    def read(text: str, name: str, into: Design | None = None, *, draft: bool = False) -> Imported:
        return import_sections(read_toml(text), name, into, draft=draft)


def import_sections(sections: Json, name: str, into: Design | None, *, draft: bool) -> Imported:
    """Return the design that sections of settings describe; see :meth:`Import.read`."""
    model = into.model if into is not None and isinstance(into.model, LanguageModel) else None
    job = read_settings(sections, model, into.cluster.devices if into is not None else None)
    if into is not None:
        check_device_count(into, job.degrees.devices)
    return Imported(job_design(job, name, into, draft=draft), tuple(job.notes))
