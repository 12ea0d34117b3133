"""Zero Bubble (Qi et al., arXiv:2401.10241): the handcrafted schedules."""

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
    yield split_backwards()


def split_backwards() -> Table:
    """Return the longest bubble of a device, and the activations, of the handcrafted schedules."""
    p, m = 4, 8
    rows = []
    for f, b, w in ((1.0, 2.0, 1.0), (1.0, 2.2, 1.0)):
        for name, bubble in (
            ("1f1b", (p - 1) * (f + b)),
            ("zb-h1", (p - 1) * (f + b - 2 * w)),
            ("zb-h2", (p - 1) * (f + b - 3 * w)),
        ):
            idle = longest_idle(simulate_uniform(schedule_program(name, p, m), f, b, weight=w))
            rows.append(Row(f"{schedules[name].title}: bubble, F={f:g} I={b - w:g} W={w:g}", bubble, idle))
    rows.append(Row("ZB-V: bubble, F=1 I=1 W=1", 0, longest_idle(simulate_uniform(schedule_program("zb-v", p, m)))))
    for name, most in (("1f1b", p), ("zb-h1", p), ("zb-h2", 2 * p - 1), ("zb-v", p)):
        rows.append(Row(f"{schedules[name].title}: activations, in M_a", most, max(peak_activations(name, p, m))))
    for name in ("zb-h1", "zb-h2"):
        rows.append(
            Row(
                f"{schedules[name].title}: from the first start to the last end",
                3 * m + p - 1,
                simulate_uniform(schedule_program(name, p, m)).makespan,
            )
        )
    return Table(
        f"Zero Bubble: the handcrafted schedules, P={p}, M={m}",
        rows,
        tolerance=1e-6,
        note="The bubble is the idle time between a device's own first start and last end. With free transfers, a step "
        "with ZB-H2 is as long as with ZB-H1; ZB-H2 is faster if no device waits for the optimizer steps of others.",
    )
