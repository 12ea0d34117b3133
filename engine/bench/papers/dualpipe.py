"""DualPipe (DeepSeek-V3, arXiv:2412.19437): a forward and a backward in one slot."""

from __future__ import annotations

from collections.abc import Iterator

from meshwave.engine.bench.papers.playback import held, played_at, program_of
from meshwave.engine.bench.papers.table import Row, Table
from meshwave.engine.schedules import schedules


def tables() -> Iterator[Table]:
    """The formulas of its authors."""
    yield fused_slots()


def fused_slots() -> Table:
    """DualPipe's formulas: (PP/2-1)(OV + B - 3W) of bubble, PP + 1 activations."""
    rows = []
    why = "devices run different numbers of fused slots: the busiest of them idles less than is printed"
    for name, ranks, m, both in (
        ("dualpipe-v", 4, 10, 3.0),
        ("dualpipe", 8, 20, 3.0),
        ("dualpipe-v", 4, 10, 2.5),
        ("dualpipe", 8, 20, 2.5),
    ):
        half = ranks if name == "dualpipe-v" else ranks // 2
        timeline = played_at(program_of(name, ranks, m), 1, 2, weight=1, fused=both)
        idle = timeline.makespan - float(timeline.busy.max())
        title = f"{schedules[name].title}, {ranks} devices, M={m}, OV={both:g}"
        rows.append(Row(f"{title}: bubble", (half - 1) * (both + 2 - 3), idle, why))
    for name, ranks, m in (("dualpipe-v", 4, 10), ("dualpipe", 8, 20)):
        program = program_of(name, ranks, m)
        chunks = max(held(name, ranks, m)) * program.stages / ranks
        stages = 2 * ranks if name == "dualpipe-v" else ranks
        rows.append(Row(f"{schedules[name].title}, {ranks} devices: activations, in stages", stages + 1, chunks))
    return Table(
        "DualPipe: the formulas of its authors, F=1, B=2, W=1",
        rows,
        tolerance=1e-6,
        note="OV is a slot that overlaps a forward with a backward; 3 is no gain. The idle time is that of the busiest device.",
    )
