"""DualPipe (DeepSeek-V3, arXiv:2412.19437): a forward and a backward in one slot."""

from __future__ import annotations

from collections.abc import Iterator

from meshwave.engine.bench.papers.schedule_simulation import peak_activations, schedule_program, simulate_uniform
from meshwave.engine.bench.papers.table import Row, Table
from meshwave.engine.schedules import schedules


def tables() -> Iterator[Table]:
    """Yield the tables of the paper."""
    yield fused_slots()


def fused_slots() -> Table:
    """Return the comparison with the authors' formulas: a bubble of (PP/2-1)(OV + B - 3W), and PP + 1 activations."""
    rows = []
    why = "devices run different numbers of fused slots; the busiest one is idle for less time than the formula gives"
    for name, ranks, m, both in (
        ("dualpipe-v", 4, 10, 3.0),
        ("dualpipe", 8, 20, 3.0),
        ("dualpipe-v", 4, 10, 2.5),
        ("dualpipe", 8, 20, 2.5),
    ):
        half = ranks if name == "dualpipe-v" else ranks // 2
        timeline = simulate_uniform(schedule_program(name, ranks, m), 1, 2, weight=1, fused=both)
        idle = timeline.makespan - float(timeline.busy.max())
        title = f"{schedules[name].title}, {ranks} devices, M={m}, OV={both:g}"
        rows.append(Row(f"{title}: bubble", (half - 1) * (both + 2 - 3), idle, why))
    for name, ranks, m in (("dualpipe-v", 4, 10), ("dualpipe", 8, 20)):
        program = schedule_program(name, ranks, m)
        chunks = max(peak_activations(name, ranks, m)) * program.stages / ranks
        stages = 2 * ranks if name == "dualpipe-v" else ranks
        rows.append(Row(f"{schedules[name].title}, {ranks} devices: activations, in stages", stages + 1, chunks))
    return Table(
        "DualPipe: formulas of the authors, F=1, B=2, W=1",
        rows,
        tolerance=1e-6,
        note="OV is the time of a slot with both actions; 3 means no gain. The idle time is that of the busiest device.",
    )
