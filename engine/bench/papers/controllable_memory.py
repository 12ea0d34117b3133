"""Controllable Memory (Qi et al., arXiv:2405.15362): bubble compared with activation memory."""

from __future__ import annotations

from collections.abc import Iterator

from meshwave.engine.bench.papers.schedule_simulation import (
    longest_idle,
    peak_activations,
    schedule_program,
    simulate_uniform,
)
from meshwave.engine.bench.papers.table import Row, Table
from meshwave.engine.schedules import schedules


def tables() -> Iterator[Table]:
    """Yield the tables of the paper."""
    yield memory_and_bubble()


def memory_and_bubble() -> Table:
    """Return the bubble and the activations of the schedules, relative to 1F1B."""
    p, m = 12, 36
    one = (p - 1) * 3.0  # the bubble of 1F1B
    rows = []
    squeezed = "blocks occupy whole slots: one or two slots remain at the ends"
    claims = (
        ("zb-h1", 1 / 3, 1.0, ""),
        ("zb-h2", 0.0, 2.0, "a rank holds 2P-1 activations instead of 2P"),
        ("zb-v", 0.0, 1.0, ""),
        ("v-half", 1 / 2, 1 / 2, "a rank holds floor(P/2)+1 activations: both lifetimes are rounded up"),
        ("v-min", 2 / 3, 1 / 3, "a rank holds all overlapping blocks, whose number is rounded up"),
    )
    for name, bubble, most, why in claims:
        program = schedule_program(name, p, m)
        idle = longest_idle(simulate_uniform(program)) * p / program.stages
        rows.append(Row(f"{schedules[name].title}: bubble", bubble, idle / one, squeezed))
        rows.append(Row(f"{schedules[name].title}: activations", most, max(peak_activations(name, p, m)) / p, why))
    return Table(
        f"Controllable Memory: bubble and activations relative to 1F1B, F=I=W, P={p}, M={m}", rows, tolerance=0.005
    )
