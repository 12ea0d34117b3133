"""Perfetto export: a timeline as a Chrome trace."""

from __future__ import annotations

import json

import numpy as np
import pytest

from meshwave.engine.exports.perfetto import FIRST_LINK, trace_events
from meshwave.engine.program.action import Op
from tests.designer.timelines import one_f_one_b


def test_every_span_is_a_slice_on_its_mesh_in_microseconds() -> None:
    timeline = one_f_one_b(3, 4)

    slices = [event for event in trace_events(timeline)["traceEvents"] if event["ph"] == "X"]

    assert len(slices) == len(timeline)
    [found] = [event for event in slices if event["name"] == "1B2"]
    span = next(s for s in range(len(timeline)) if str(timeline.action(s)) == "1B2")
    assert (found["pid"], found["tid"]) == (1, 0)
    assert found["ts"] == pytest.approx(timeline.start[span] * 1e6)
    assert found["dur"] == pytest.approx(2000)
    assert found["args"] == {"stage": 1, "microbatch": 2}


def test_slices_of_one_thread_do_not_overlap() -> None:
    events = trace_events(one_f_one_b(4, 8))["traceEvents"]

    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for times in threads.values():
        times.sort()
        assert all(before[1] <= after[0] + 1e-6 for before, after in zip(times, times[1:], strict=False))


def test_each_message_has_an_arrow_from_its_producer_to_its_consumer() -> None:
    timeline = one_f_one_b(3, 4)

    events = trace_events(timeline)["traceEvents"]

    arrows = {phase: {event["id"]: event for event in events if event["ph"] == phase} for phase in "sf"}
    assert arrows["s"].keys() == arrows["f"].keys()
    assert len(arrows["s"]) == timeline.is_transfer.sum()
    slices = [event for event in events if event["ph"] == "X" and event["tid"] == 0]
    for number, start in arrows["s"].items():
        end = arrows["f"][number]
        maker, taker = (slice_at(slices, arrow) for arrow in (start, end))
        down = timeline.op[number] == Op.SEND_F
        stage, mb = int(timeline.stage[number]), int(timeline.microbatch[number])
        assert maker == f"{stage}{'F' if down else 'B'}{mb}"
        assert taker == f"{stage + (1 if down else -1)}{'F' if down else 'B'}{mb}"


def slice_at(slices: list[dict], arrow: dict) -> str:
    [name] = [e["name"] for e in slices if e["pid"] == arrow["pid"] and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"]]
    return str(name)


def test_a_trace_names_its_meshes_and_links_and_is_json() -> None:
    timeline = one_f_one_b(3, 4)
    carried = np.where(timeline.is_transfer, 4096.0, 0.0)

    written = json.loads(json.dumps(trace_events(timeline, bytes_of=carried), allow_nan=False))

    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in written["traceEvents"] if e["name"] == "thread_name"}
    assert names[1, 0] == "compute"
    assert names[1, FIRST_LINK] == "to mesh A"
    assert names[1, FIRST_LINK + 2] == "to mesh C"
    sends = [e for e in written["traceEvents"] if e["ph"] == "X" and "SEND" in e["name"]]
    assert {e["args"]["bytes"] for e in sends} == {4096.0}
