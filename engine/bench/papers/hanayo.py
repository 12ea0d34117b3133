"""Hanayo (Liu et al., SC'23, arXiv:2308.15762): wave schedules, and the schedules that the paper compares them with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwave.engine.bench.papers import hanayo_clusters, hanayo_memory, hanayo_scaling, hanayo_throughput
from meshwave.engine.bench.papers.hanayo_fit import best_wave_count
from meshwave.engine.bench.papers.hanayo_transfers import exposed_transfers
from meshwave.engine.bench.papers.schedule_simulation import (
    compute_program,
    device_timeline,
    hanayo_timeline,
    peak_activations,
    schedule_program,
    stage_timeline,
)
from meshwave.engine.bench.papers.table import Grid, Row, Table, ranking_text
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import format_program
from meshwave.engine.schedules import schedules


def tables() -> Iterator[Table | Grid]:
    """Yield the tables in the order of the report."""
    yield bubble_ratios_of_figure_1()
    yield makespans()
    yield exposed_transfers()
    yield waves_and_bubbles()
    yield orders()
    yield activations()
    yield weights()
    yield gpipe_speed_ups()
    yield rankings()
    yield interleaving_comparison()
    yield makespan_by_waves()
    yield from hanayo_clusters.tables()
    yield from hanayo_throughput.tables()
    yield from hanayo_scaling.tables()
    yield from hanayo_memory.tables()


TYPO = "the printed denominator counts half of the bubble that the numerator counts; the paper's own figures agree with the simulation"


def bubble_ratios_of_figure_1() -> Table:
    """Return the bars of figure 1, compared with the printed formula and the simulated schedules."""
    bars: dict[int, dict[str | int, float]] = {
        8: {"gpipe": 46.67, "1f1b": 46.67, "gems": 83.2, "chimera": 33.33, 2: 25.45, 4: 13.6},
        32: {"gpipe": 49.2, "1f1b": 49.2, "gems": 95.45, "chimera": 38.46, 2: 27.8, 4: 14.94},
    }
    rows = []
    for ranks, group in bars.items():
        for who, bar in group.items():
            if isinstance(who, str):
                rows.append(
                    Row(f"{schedules[who].title}, {ranks} devices", bar, 100 * device_timeline(who, ranks).bubble_ratio)
                )
                continue
            printed, ours = 100 * printed_bubble_ratio(ranks, who), 100 * hanayo_timeline(ranks, who).bubble_ratio
            rows.append(Row(f"Hanayo, {ranks} devices, W={who}: the printed formula", bar, printed))
            rows.append(Row(f"Hanayo, {ranks} devices, W={who}: simulated", bar, ours, TYPO))
    return Table(
        "Hanayo, figure 1: bubble ratio for T_B = 2 T_F, free transfers, as many microbatches as devices",
        rows,
        form="%",
        tolerance=0.06,
        note="The printed formula is (2P-2)/(3PW+P-1).",
    )


def printed_bubble_ratio(ranks: int, waves: int) -> float:
    """Return the bubble ratio by the paper's printed formula for T_B = 2 T_F and T_C = 0."""
    return 2 * (ranks - 1) / (3 * ranks * waves + ranks - 1)


def closed_form_bubble_ratio(ranks: int, waves: int) -> float:
    """Return the bubble ratio by a formula whose denominator counts the whole bubble, as in the paper's figures."""
    return 2 * (ranks - 1) / (3 * ranks * waves + 2 * (ranks - 1))


def makespans() -> Table:
    """Return the makespans of the paper's figures."""
    rows = [
        Row(f"Hanayo, P={ranks}, W={waves}, F=1 and B=2 per stage", length, stage_timeline("hanayo", ranks, ranks, 1, 2, waves=waves).makespan)
        for ranks, waves, length in ((2, 1, 16), (4, 1, 36), (4, 2, 60), (4, 4, 108), (8, 2, 124), (8, 4, 220))
    ]  # fmt: skip
    for name, length in (("gpipe", 21.375), ("1f1b", 21.625)):
        simulated = device_timeline(name, 4, transfer=1 / 16).makespan
        rows.append(Row(f"{schedules[name].title}, 4 x 4, T_C = T_F/16 (figure 3)", length, simulated))
    for waves, length in ((1, 38), (2, 67)):  # figure 3 has F = 1 per stage, so T_C is W/8 in units of a stage
        simulated = stage_timeline("hanayo", 4, 4, 1, 2, waves / 8, waves=waves).makespan
        rows.append(Row(f"Hanayo, P=4, W={waves}, F=1 per stage, T_C = T_F/16 (figure 3)", length, simulated))
    for half in (2, 4):
        chimera = device_timeline("chimera", 2 * half, forward=2, backward=4).makespan
        rows.append(
            Row(
                f"Chimera on {2 * half} devices is Hanayo W=1 on {half} (figure 5)",
                chimera,
                stage_timeline("hanayo", half, half, 1, 2).makespan * 2,
            )
        )
    return Table("Hanayo, figures 3, 5 and 6: makespans", rows)


def waves_and_bubbles() -> Table:
    """Return the bubble ratio by number of waves: it halves each time the number of waves doubles."""
    sizes = [(ranks, waves) for ranks in (4, 8, 32) for waves in (1, 2, 4, 8)]
    simulated = [hanayo_timeline(*size).bubble_ratio for size in sizes]
    rows = [
        Row(f"P={ranks}, W={waves}", 100 * printed_bubble_ratio(ranks, waves), 100 * ours, TYPO)
        for (ranks, waves), ours in zip(sizes, simulated, strict=True)
    ]
    closed = all(
        abs(ours - closed_form_bubble_ratio(*size)) < 1e-9 for size, ours in zip(sizes, simulated, strict=True)
    )
    return Table(
        "Hanayo: bubble ratio by number of waves, T_B = 2 T_F, free transfers",
        rows,
        form="%",
        tolerance=0.05,
        note=f"The simulated ratio {'equals' if closed else 'differs from'} 2(P-1)/(3PW+2(P-1)). The bubble time is (P-1) T_B / W "
        "in both formulas: each doubling of the waves halves it.",
    )


FIGURE_3D = (
    "0F0 0F1 0F2 0F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 0B0 0B1 0B2 0B3",
    "1F0 1F1 1F2 6F0 1F3 6F1 6B0 6F2 6B1 6F3 6B2 1B0 6B3 1B1 1B2 1B3",
    "2F0 2F1 5F0 2F2 5F1 2F3 5F2 5B0 5F3 5B1 2B0 5B2 2B1 5B3 2B2 2B3",
    "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4B0 3B0 4B1 3B1 4B2 3B2 4B3 3B3",
)


def orders() -> Table:
    """Return the action orders that papers show in a figure or state in the text."""
    ours = format_program(compute_program("hanayo", 4, 4, waves=1), compute_only=True)
    rows = [
        Row(f"Hanayo, figure 3(d), device {rank}", drawn, " ".join(ours[rank])) for rank, drawn in enumerate(FIGURE_3D)
    ]
    order = compute_program("interleaved-1f1b", 2, 5, chunks=2, group=3).actions(0)
    forwards = " ".join(str(action.microbatch) for action in order if action.op == Op.F)
    rows.append(Row("Megatron-LM, groups of 3, 5 microbatches, 2 chunks: forwards", "0 1 2 0 1 2 3 4 3 4", forwards))
    first = compute_program("zb-h1", 4, 8).actions(0)[:10]
    rows.append(
        Row(
            "ZB-H1, P=4: first actions of device 0",
            "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5",
            " ".join(f"{a.op.name}{a.microbatch}" for a in first),
        )
    )
    return Table("Orders of actions in figures and texts", rows)


def activations() -> Table:
    """Return the ranges of live activations of figure 2."""
    p = 8
    ranges: list[tuple[str, str, dict[str, Any], float, float]] = [
        ("GPipe", "gpipe", {}, p, p),
        ("DAPPLE (1F1B)", "1f1b", {}, 1, p),
        ("GEMS", "gems", {}, 1, 1),
        ("Chimera", "chimera", {}, p / 2 + 1, p),
        *((f"Hanayo, W={w}", "hanayo", {"waves": w}, ((2 * w - 1) * p + 1) / (2 * w), p) for w in (1, 2, 4)),
    ]
    rows = []
    for title, name, options, least, most in ranges:
        alive = peak_activations(name, p, p, **options)
        rows.append(Row(f"{title}: lowest of all devices", least, min(alive)))
        rows.append(Row(f"{title}: highest of all devices", most, max(alive)))
    return Table("Hanayo, figure 2: peak of live activations on 8 devices, in M_a", rows)


def weights() -> Table:
    """Return the number of weight copies of figure 2."""
    rows = []
    for name, copies in (("gpipe", 1), ("1f1b", 1), ("gems", 2), ("chimera", 2), ("hanayo", 1)):
        program = schedule_program(name, 8, 8)
        held = np.bincount(program.placement.ravel()).max() * program.ranks / program.stages
        rows.append(Row(schedules[name].title, copies, float(held)))
    return Table("Hanayo, figure 2: copies of a device's share of the weights", rows)


def gpipe_speed_ups() -> Table:
    """Return the speed-ups over GPipe with free transfers."""
    claims: dict[int, dict[str | int, tuple[float, float | None]]] = {
        8: {"chimera": (1.25, 1.28), 1: (1.18, None), 2: (1.45, 1.45), 4: (1.64, 1.55), 8: (1.75, 1.57)},
        4: {"chimera": (1.31, 1.18), 1: (1.17, None), 2: (1.40, 1.38), 4: (1.56, 1.48), 8: (1.65, 1.54)},
    }
    rows = []
    for ranks, group in claims.items():
        gpipe = device_timeline("gpipe", ranks).makespan
        for who, (ideal, measured) in group.items():
            if isinstance(who, str):
                simulated, title = device_timeline(who, ranks), f"Chimera, P={ranks}"
            else:
                simulated, title = hanayo_timeline(ranks, who), f"Hanayo, P={ranks}, W={who}"
            rows.append(Row(f"{title}, ideal", ideal, gpipe / simulated.makespan))
            if measured is not None:
                why = (
                    "measured on real links; the ideal value excludes their latency"
                    if isinstance(who, int)
                    else (
                        "the paper does not state which Chimera was measured: two pipelines of half the devices, or one wave over all devices"
                    )
                )
                rows.append(Row(f"{title}, measured on FC", measured, gpipe / simulated.makespan, why))
    return Table("Hanayo: times faster than GPipe, T_B = 2 T_F, free transfers", rows, tolerance=0.0051)


def rankings() -> Table:
    """Return the order of schedules by throughput, and by the variance of memory over devices."""
    rows = []
    rivals = {"GPipe": "gpipe", "1F1B": "1f1b", "Chimera": "chimera"}
    slow = "the number of waves has an optimum: on slow links, more waves wait for more transfers"
    for transfer, said in (
        (0.0, "GPipe = 1F1B < Chimera < H-2 < H-4 < H-8"),
        (0.01, "GPipe = 1F1B < Chimera < H-2 < H-4 < H-8"),
        (0.125, "a finite best W"),
    ):
        times = {title: device_timeline(name, 8, transfer=transfer).makespan for title, name in rivals.items()}
        times |= {f"H-{w}": hanayo_timeline(8, w, transfer=transfer).makespan for w in (2, 4, 8)}
        found = ranking_text({title: 1 / time for title, time in times.items()})
        if said.startswith("a finite"):
            best = min((2, 4, 8), key=lambda w: times[f"H-{w}"])
            rows.append(Row(f"throughput, P=8, T_C = {transfer:g}", said, said if best < 8 else found, slow))
        else:
            rows.append(Row(f"throughput, P=8, T_C = {transfer:g}", said, found))
    spread = {title: float(np.var(peak_activations(name, 8, 8))) for title, name in rivals.items()}
    spread["Hanayo"] = float(np.var(peak_activations("hanayo", 8, 8, waves=2)))
    rows.append(Row("spread of memory over devices, P=8", "GPipe < Hanayo < Chimera < 1F1B", ranking_text(spread)))
    return Table("Hanayo: order of the schedules", rows)


def interleaving_comparison() -> Table:
    """Return the comparison with interleaved 1F1B at the same number of chunks, which the paper does not show."""
    rows = []
    for p, waves, c in ((4, 1, 0.0), (8, 2, 0.0), (4, 2, 1.0), (4, 4, 0.5), (8, 4, 0.5)):
        ours, loop = (
            stage_timeline(name, p, p, 1, 2, c, **options).makespan
            for name, options in (("hanayo", {"waves": waves}), ("interleaved-1f1b", {"chunks": 2 * waves}))
        )
        wins = "interleaved 1F1B" if loop < ours else "Hanayo" if ours < loop else "neither"
        what = f"P={p}, W={waves} or {2 * waves} chunks, c={c:g}: {ours:g} against {loop:g}, faster: {wins}"
        rows.append(Row(what, (p - 1) * 1.0 + (2 * (p - 1) - 4 * waves) * c, ours - loop))
    return Table(
        "Hanayo minus interleaved 1F1B with equally many chunks: makespan, F=1 and B=2 per stage, M=P",
        rows,
        printed="closed form",
        note="The paper does not compare them. Closed form: (P-1)|B-F| + (2(P-1)-4W)c. If a backward takes longer "
        "than a forward, interleaved 1F1B is faster by (P-1)(B-F) with free transfers. With slow transfers and more than "
        "(P-1)/2 waves, Hanayo is faster, because its turns cross no link.",
    )


def makespan_by_waves() -> Table:
    """Return the makespans by number of waves, and the best number of waves."""
    rows = []
    for transfer, times in ((0.125, (43, 39.5, 43, 55.25)), (0.01, (38.4, 31.68, 28.74, 28.11))):
        for waves, time in zip((1, 2, 4, 8), times, strict=True):
            rows.append(
                Row(f"T_C = {transfer:g}, W={waves}", time, hanayo_timeline(8, waves, transfer=transfer).makespan)
            )
    best = ", ".join(f"{best_wave_count(2, c):.2g} for T_C = {c:g}" for c in (0.125, 0.01))
    return Table(
        "Step time by number of waves, P=8, T_F=1, T_B=2",
        rows,
        printed="closed form",
        tolerance=0.006,
        note=f"More waves reduce the bubble and add transfers; the best number W* = sqrt(T_B / 4 T_C) is {best}.",
    )
