"""CSV file with the measured seconds of each stage."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from meshwave.engine.findings import Refusal
from meshwave.engine.imports._traces import Trace, TraceFormat, traces
from meshwave.engine.program.action import Op

COLUMNS: Mapping[str, Op] = {"forward": Op.F, "backward": Op.B, "input": Op.I, "weight": Op.W}
UNITS_S: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
HEADER = re.compile(r"\W*stage\W.*(forward|backward)_(s|ms|us)\b", re.IGNORECASE)
MOST_SECONDS = 1e6


@traces.register("stage-times")
class StageTimes(TraceFormat):
    """One row per stage, with columns `stage`, `forward_s` and `backward_s`, or `input_s` and `weight_s`.

    The times are per microbatch, in seconds; the suffixes `_ms` and `_us` denote milliseconds and microseconds.
    """

    title: ClassVar = "times of stages (CSV)"
    note: ClassVar = "a spreadsheet or a script"
    suffixes: ClassVar = (".csv",)

    @staticmethod
    def recognizes(text: str) -> bool:
        return HEADER.match(text) is not None

    @staticmethod
    def read(texts: Sequence[str]) -> Trace:
        return Trace(stage_seconds={key: seconds for text in texts for key, seconds in _read_rows(text).items()})


def _read_rows(text: str) -> dict[tuple[Op, int], float]:
    rows = csv.DictReader(text.splitlines())
    columns = {}
    for name in rows.fieldnames or ():
        kind, _, unit = name.strip().lower().rpartition("_")
        if kind in COLUMNS and unit in UNITS_S:
            columns[name] = COLUMNS[kind], UNITS_S[unit]
    found = {}
    for row in rows:
        by_name = {str(name).strip().lower(): value for name, value in row.items()}
        try:
            stage = int(by_name["stage"])
            for name, (op, unit_s) in columns.items():
                found[op, stage] = _check_seconds(float(row[name]) * unit_s)
        except (KeyError, ValueError, TypeError):
            raise Refusal("unreadable_stage_times", {"line": rows.line_num}) from None
    return found


def _check_seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and 0 <= seconds <= MOST_SECONDS):
        raise ValueError
    return seconds
