"""Import of a design from the arguments of Megatron-LM: a launch script, or a list with one argument per line."""

from __future__ import annotations

from typing import ClassVar

from meshwave.engine.document import Design
from meshwave.engine.imports._base import Import, Imported, check_device_count, imports
from meshwave.engine.trainers.jobs import job_design
from meshwave.engine.trainers.megatron import read_job


@imports.register("megatron")
class Megatron(Import):
    """Arguments of Megatron-LM's pretrain_gpt.py; the script is read and not run."""

    title: ClassVar = "Megatron-LM arguments"
    note: ClassVar = "launch script of pretrain_gpt.py"
    suffixes: ClassVar = (".sh", ".args", ".txt")

    @staticmethod
    def recognizes(text: str) -> bool:
        return "--num-layers" in text

    @staticmethod
    def read(text: str, name: str, into: Design | None = None, *, draft: bool = False) -> Imported:
        vocab = getattr(into.model, "vocab", None) if into is not None else None
        job = read_job(text, vocab, into.cluster.devices if into is not None else None)
        if into is not None:
            check_device_count(into, job.degrees.devices)
        return Imported(job_design(job, name.removesuffix(".megatron"), into, draft=draft), tuple(job.notes))
