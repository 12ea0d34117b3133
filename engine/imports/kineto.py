"""Traces of torch.profiler (Kineto), and other Chrome traces, in which named ranges mark the actions of a pipeline."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from meshwave.engine.findings import Refusal
from meshwave.engine.imports._traces import Trace, TracedAction, TracedProcess, TraceFormat, traces
from meshwave.engine.program.action import Op, parse_cell

ACTION = re.compile(r"(?:PP:)?(\(?\d+[A-Z].*)")
"""Range name in torch's schedules of several stages (``PP:2F0``), or in Meshwave's own traces (``2F0``)."""
SINGLE_STAGE = re.compile(r"(Forward|Backward) (\d+)")
"""Range name in torch's schedules of one stage per process."""
ORDERED = {
    "forward-compute": Op.F,
    "backward-compute": Op.B,
    "forward_step": Op.F,
    "backward_step": Op.B,
}
"""Range names of Megatron, which occur in the order of the schedule."""
LARGEST_TIME_NS = 2**61
"""Largest time of a range since 1970, 73 years."""
GPU_RANGES = "gpu_user_annotation"
"""Category of ranges whose times are measured on a GPU instead of its host."""
LOOKED_AT = 4000
"""Number of initial characters that contain an event name or property of a trace."""


@traces.register("kineto")
class Kineto(TraceFormat):
    """Chrome trace with a range for each computation, in one file per process or one for all.

    Ranges are those of `torch.distributed.pipelining` (torchtitan), of Megatron's `forward-compute` and
    `backward-compute`, or actions such as `2F0`.
    """

    title: ClassVar = "trace of torch.profiler"
    note: ClassVar = "torchtitan, Megatron and other users of torch.profiler"
    suffixes: ClassVar = (".json",)

    @staticmethod
    def recognizes(text: str) -> bool:
        return any(
            f'"{name}"' in text[:LOOKED_AT] for name in ("traceEvents", "baseTimeNanoseconds", "deviceProperties")
        )

    @staticmethod
    def read(texts: Sequence[str]) -> Trace:
        found = [process for number, text in enumerate(texts) for process in _read_processes(text, number)]
        if not any(process.actions for process in found):
            raise Refusal("trace_without_actions")
        first = min(action.start_ns for process in found for action in process.actions)
        return Trace(tuple(_shift_times(process, first) for process in sorted(found, key=_process_number)))


def _read_processes(text: str, number: int) -> Iterator[TracedProcess]:
    """Yield the processes in a trace file.

    A file of one process without a process rank is assigned to process ``number``; several processes in a file are
    numbered in the order of their process IDs.
    """
    try:
        document: Any = json.loads(text)
        events = document["traceEvents"]
        base_ns = int(document.get("baseTimeNanoseconds", 0))
        rank = document.get("distributedInfo", {}).get("rank")
        number = number if rank is None else int(rank)
        ranges = [event for event in events if event.get("ph") == "X" and "dur" in event]
        on_gpu = {event["pid"] for event in ranges if event.get("cat") == GPU_RANGES}
        by_pid: dict[Any, list[TracedAction]] = defaultdict(list)
        for event in ranges:
            if not on_gpu or event.get("cat") == GPU_RANGES:
                by_pid[event["pid"]] += _computations_of_event(event, base_ns)
    except (json.JSONDecodeError, RecursionError) as error:
        raise Refusal("damaged_trace", {"reason": str(error)}) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise Refusal("damaged_trace_events") from None
    named = {pid: tuple(sorted(each, key=_start_time_ns)) for pid, each in by_pid.items() if each}
    if rank is not None or len(named) == 1:
        together = sorted((action for each in named.values() for action in each), key=_start_time_ns)
        yield TracedProcess(number, tuple(together), includes_waiting=not on_gpu)
        return
    for process, pid in enumerate(sorted(named, key=lambda pid: (str(type(pid)), pid))):
        yield TracedProcess(process, named[pid], includes_waiting=not on_gpu)


def _process_number(process: TracedProcess) -> int:
    return process.process


def _start_time_ns(action: TracedAction) -> int:
    return action.start_ns


def _computations_of_event(event: Any, base_ns: int) -> Iterator[TracedAction]:
    """Yield the computations that the name of a range denotes.

    Raises:
        OverflowError: differences of such times do not fit into 64 bits.
    """
    name, start_ns = str(event["name"]), base_ns + round(float(event["ts"]) * 1000)
    times = start_ns, start_ns + round(float(event["dur"]) * 1000)
    if max(map(abs, times)) > LARGEST_TIME_NS:
        raise OverflowError
    if single := SINGLE_STAGE.fullmatch(name):
        yield TracedAction(Op.F if single[1] == "Forward" else Op.B, None, int(single[2]), *times)
    elif name in ORDERED:
        yield TracedAction(ORDERED[name], None, None, *times)
    elif action := ACTION.fullmatch(name):
        try:
            parsed = parse_cell(action[1])
        except Refusal:  # another kind of range, or an action that is not a computation, such as 0UNSHARD
            return
        yield from (TracedAction(each.op, each.stage, each.microbatch, *times) for each in parsed if each.op.is_compute)


def _shift_times(process: TracedProcess, first_ns: int) -> TracedProcess:
    return process._replace(
        actions=tuple(
            each._replace(start_ns=each.start_ns - first_ns, end_ns=each.end_ns - first_ns) for each in process.actions
        )
    )
