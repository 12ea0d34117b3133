"""Traces of training runs of other tools: the times of annotated actions, and the supported file formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from meshwave.engine.files import read_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.program.action import Op
from meshwave.engine.registry import Registry

LARGEST_TRACE_BYTES = 2_000_000_000
StageSeconds = Mapping[tuple[Op, int], float]
"""Time of one microbatch of each computation of each stage."""


class TracedAction(NamedTuple):
    """Measured computation; times are nanoseconds of one clock."""

    op: Op
    stage: int | None  # None if it is the only stage of its process
    microbatch: int | None  # None if it is the next one of its kind in the order of its process
    start_ns: int
    end_ns: int


class TracedProcess(NamedTuple):
    """Measured computations of a process, over all traced steps."""

    process: int
    actions: tuple[TracedAction, ...]
    includes_waiting: bool = False
    """True if the time of a computation includes waiting for its input, as measured by a host."""


class Trace(NamedTuple):
    """Run of another tool: measured computations, or the seconds of each computation of a stage."""

    processes: tuple[TracedProcess, ...] = ()
    stage_seconds: StageSeconds = {}


class TraceFormat(ABC):
    """File format of traces. A member is one file in this folder."""

    title: ClassVar[str]
    note: ClassVar[str]  # tool that writes the format
    suffixes: ClassVar[tuple[str, ...]]  # suffixes of its files, in lower case

    @staticmethod
    @abstractmethod
    def recognizes(text: str) -> bool:
        """Return True if the content of a file looks like this format."""

    @staticmethod
    @abstractmethod
    def read(texts: Sequence[str]) -> Trace:
        """Return the trace in one or more files, such as one file per process.

        Raises:
            Refusal: a file does not have this format.
        """


traces: Registry[type[TraceFormat]] = Registry("trace format", "meshwave.engine.imports")


def load_trace(paths: Sequence[Path | str], form: str = "") -> Trace | None:
    """Read a trace from files of one format; None if they are not a trace.

    ``form`` is the name of the format, "" to detect it.

    Raises:
        Refusal: a file cannot be read, or is damaged.
    """
    if form and form not in traces:
        return None
    contents = [read_whole(path, "trace", LARGEST_TRACE_BYTES) for path in paths]
    try:
        texts = [content.decode("utf-8-sig") for content in contents]
    except UnicodeDecodeError:
        raise Refusal("import_not_text", {"file": str(paths[0])}) from None
    return parse_trace([(str(path), text) for path, text in zip(paths, texts, strict=True)], form)


def parse_trace(files: Sequence[tuple[str, str]], form: str = "") -> Trace | None:
    """Return the trace of files of one format, given by name and text; None if they are not a trace.

    Raises:
        Refusal: a file is damaged.
    """
    name = form or _find_trace_format(*files[0])
    return traces[name].read([text for _, text in files]) if name else None


def _find_trace_format(file: str, text: str) -> str:
    return next(
        (name for name, each in traces.items() if file.lower().endswith(each.suffixes) and each.recognizes(text)), ""
    )
