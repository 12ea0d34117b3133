"""Hanayo (Liu et al., SC'23, arXiv:2308.15762): waves, and what it compares itself with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwave.engine.bench.papers import hanayo_clusters, hanayo_memory, hanayo_scaling, hanayo_throughput
from meshwave.engine.bench.papers.hanayo_fit import best_wave
from meshwave.engine.bench.papers.hanayo_transfers import exposed_transfers
from meshwave.engine.bench.papers.playback import devices, held, in_waves, ordered, program_of, stages
from meshwave.engine.bench.papers.table import Grid, Row, Table, ranked
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import format_program
from meshwave.engine.schedules import schedules


def tables() -> Iterator[Table | Grid]:
    """In the order in which they are told."""
    yield figure_1()
    yield makespans()
    yield exposed_transfers()
    yield waves_and_bubbles()
    yield orders()
    yield activations()
    yield weights()
    yield speed_ups()
    yield rankings()
    yield beside_interleaving()
    yield law_of_waves()
    yield from hanayo_clusters.tables()
    yield from hanayo_throughput.tables()
    yield from hanayo_scaling.tables()
    yield from hanayo_memory.tables()


TYPO = "the printed denominator counts half of the bubble that the numerator counts; the paper's own drawings agree with us"


def figure_1() -> Table:
    """Bars of figure 1, by the printed formula and by playing the drawn schedules."""
    bars: dict[int, dict[str | int, float]] = {
        8: {"gpipe": 46.67, "1f1b": 46.67, "gems": 83.2, "chimera": 33.33, 2: 25.45, 4: 13.6},
        32: {"gpipe": 49.2, "1f1b": 49.2, "gems": 95.45, "chimera": 38.46, 2: 27.8, 4: 14.94},
    }
    rows = []
    for ranks, of in bars.items():
        for who, bar in of.items():
            if isinstance(who, str):
                rows.append(
                    Row(f"{schedules[who].title}, {ranks} devices", bar, 100 * devices(who, ranks).bubble_ratio)
                )
                continue
            printed, ours = 100 * printed_bubble(ranks, who), 100 * in_waves(ranks, who).bubble_ratio
            rows.append(Row(f"Hanayo, {ranks} devices, W={who}: the printed formula", bar, printed))
            rows.append(Row(f"Hanayo, {ranks} devices, W={who}: played", bar, ours, TYPO))
    return Table(
        "Hanayo, figure 1: bubble ratio for T_B = 2 T_F, free transfers, as many microbatches as devices",
        rows,
        form="%",
        tolerance=0.06,
        note="The printed formula is (2P-2)/(3PW+P-1).",
    )


def printed_bubble(ranks: int, waves: int) -> float:
    """The Hanayo paper's ratio for T_B = 2 T_F and T_C = 0, as it is printed."""
    return 2 * (ranks - 1) / (3 * ranks * waves + ranks - 1)


def closed_bubble(ranks: int, waves: int) -> float:
    """The same with a denominator that counts the whole bubble: what the drawings show."""
    return 2 * (ranks - 1) / (3 * ranks * waves + 2 * (ranks - 1))


def makespans() -> Table:
    """Lengths of the paper's drawings."""
    rows = [
        Row(f"Hanayo, P={ranks}, W={waves}, F=1 and B=2 a stage", length, stages("hanayo", ranks, ranks, 1, 2, waves=waves).makespan)
        for ranks, waves, length in ((2, 1, 16), (4, 1, 36), (4, 2, 60), (4, 4, 108), (8, 2, 124), (8, 4, 220))
    ]  # fmt: skip
    for name, length in (("gpipe", 21.375), ("1f1b", 21.625)):
        played = devices(name, 4, transfer=1 / 16).makespan
        rows.append(Row(f"{schedules[name].title}, 4 x 4, T_C = T_F/16 (figure 3)", length, played))
    for waves, length in ((1, 38), (2, 67)):  # a stage is drawn with F = 1: T_C in stage units is W/8
        played = stages("hanayo", 4, 4, 1, 2, waves / 8, waves=waves).makespan
        rows.append(Row(f"Hanayo, P=4, W={waves}, F=1 a stage, T_C = T_F/16 (figure 3)", length, played))
    for half in (2, 4):
        chimera = devices("chimera", 2 * half, forward=2, backward=4).makespan
        rows.append(
            Row(
                f"Chimera on {2 * half} devices is Hanayo W=1 on {half} (figure 5)",
                chimera,
                stages("hanayo", half, half, 1, 2).makespan * 2,
            )
        )
    return Table("Hanayo, figures 3, 5 and 6: makespans", rows)


def waves_and_bubbles() -> Table:
    """That the bubble halves with each doubling of the waves."""
    sizes = [(ranks, waves) for ranks in (4, 8, 32) for waves in (1, 2, 4, 8)]
    played = [in_waves(*size).bubble_ratio for size in sizes]
    rows = [
        Row(f"P={ranks}, W={waves}", 100 * printed_bubble(ranks, waves), 100 * ours, TYPO)
        for (ranks, waves), ours in zip(sizes, played, strict=True)
    ]
    closed = all(abs(ours - closed_bubble(*size)) < 1e-9 for size, ours in zip(sizes, played, strict=True))
    return Table(
        "Hanayo: bubble ratio by waves, T_B = 2 T_F, free transfers",
        rows,
        form="%",
        tolerance=0.05,
        note=f"Ours {'is' if closed else 'is not'} 2(P-1)/(3PW+2(P-1)) throughout. The bubble time is (P-1) T_B / W in both: "
        "each doubling of the waves halves it.",
    )


FIGURE_3D = (
    "0F0 0F1 0F2 0F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 0B0 0B1 0B2 0B3",
    "1F0 1F1 1F2 6F0 1F3 6F1 6B0 6F2 6B1 6F3 6B2 1B0 6B3 1B1 1B2 1B3",
    "2F0 2F1 5F0 2F2 5F1 2F3 5F2 5B0 5F3 5B1 2B0 5B2 2B1 5B3 2B2 2B3",
    "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4B0 3B0 4B1 3B1 4B2 3B2 4B3 3B3",
)


def orders() -> Table:
    """Orders that can be read off a drawing or a text."""
    ours = format_program(ordered("hanayo", 4, 4, waves=1), compute_only=True)
    rows = [
        Row(f"Hanayo, figure 3(d), device {rank}", drawn, " ".join(ours[rank])) for rank, drawn in enumerate(FIGURE_3D)
    ]
    order = ordered("interleaved-1f1b", 2, 5, chunks=2, group=3).actions(0)
    forwards = " ".join(str(action.microbatch) for action in order if action.op == Op.F)
    rows.append(Row("Megatron-LM, groups of 3, 5 microbatches, 2 chunks: forwards", "0 1 2 0 1 2 3 4 3 4", forwards))
    first = ordered("zb-h1", 4, 8).actions(0)[:10]
    rows.append(
        Row(
            "ZB-H1, P=4: how device 0 starts",
            "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5",
            " ".join(f"{a.op.name}{a.microbatch}" for a in first),
        )
    )
    return Table("Orders, as they are drawn", rows)


def activations() -> Table:
    """Figure 2's ranges of activations, first and last device or smallest and largest."""
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
        alive = held(name, p, p, **options)
        rows.append(Row(f"{title}: the least of a device", least, min(alive)))
        rows.append(Row(f"{title}: the most of a device", most, max(alive)))
    return Table("Hanayo, figure 2: activations alive at once, in M_a, on 8 devices", rows)


def weights() -> Table:
    """Figure 2's copies of the weights."""
    rows = []
    for name, copies in (("gpipe", 1), ("1f1b", 1), ("gems", 2), ("chimera", 2), ("hanayo", 1)):
        program = program_of(name, 8, 8)
        held = np.bincount(program.placement.ravel()).max() * program.ranks / program.stages
        rows.append(Row(schedules[name].title, copies, float(held)))
    return Table("Hanayo, figure 2: copies of a device's share of the weights", rows)


def speed_ups() -> Table:
    """How much faster than GPipe, with free transfers."""
    claims: dict[int, dict[str | int, tuple[float, float | None]]] = {
        8: {"chimera": (1.25, 1.28), 1: (1.18, None), 2: (1.45, 1.45), 4: (1.64, 1.55), 8: (1.75, 1.57)},
        4: {"chimera": (1.31, 1.18), 1: (1.17, None), 2: (1.40, 1.38), 4: (1.56, 1.48), 8: (1.65, 1.54)},
    }
    rows = []
    for ranks, of in claims.items():
        gpipe = devices("gpipe", ranks).makespan
        for who, (ideal, measured) in of.items():
            if isinstance(who, str):
                played, title = devices(who, ranks), f"Chimera, P={ranks}"
            else:
                played, title = in_waves(ranks, who), f"Hanayo, P={ranks}, W={who}"
            rows.append(Row(f"{title}, ideal", ideal, gpipe / played.makespan))
            if measured is not None:
                why = (
                    "measured on real links, whose latency the ideal leaves out"
                    if isinstance(who, int)
                    else (
                        "which Chimera was measured is not told: two pipelines of half the devices or one wave over all"
                    )
                )
                rows.append(Row(f"{title}, measured on FC", measured, gpipe / played.makespan, why))
    return Table("Hanayo: times faster than GPipe, T_B = 2 T_F, free transfers", rows, tolerance=0.0051)


def rankings() -> Table:
    """Who is faster than whom, and whose memory is the more even."""
    rows = []
    rivals = {"GPipe": "gpipe", "1F1B": "1f1b", "Chimera": "chimera"}
    slow = "the end is reached: with slow links more waves wait more often"
    for transfer, said in (
        (0.0, "GPipe = 1F1B < Chimera < H-2 < H-4 < H-8"),
        (0.01, "GPipe = 1F1B < Chimera < H-2 < H-4 < H-8"),
        (0.125, "a finite best W"),
    ):
        times = {title: devices(name, 8, transfer=transfer).makespan for title, name in rivals.items()}
        times |= {f"H-{w}": in_waves(8, w, transfer=transfer).makespan for w in (2, 4, 8)}
        found = ranked({title: 1 / time for title, time in times.items()})
        if said.startswith("a finite"):
            best = min((2, 4, 8), key=lambda w: times[f"H-{w}"])
            rows.append(Row(f"throughput, P=8, T_C = {transfer:g}", said, said if best < 8 else found, slow))
        else:
            rows.append(Row(f"throughput, P=8, T_C = {transfer:g}", said, found))
    spread = {title: float(np.var(held(name, 8, 8))) for title, name in rivals.items()}
    spread["Hanayo"] = float(np.var(held("hanayo", 8, 8, waves=2)))
    rows.append(Row("spread of memory over devices, P=8", "GPipe < Hanayo < Chimera < 1F1B", ranked(spread)))
    return Table("Hanayo: who is ahead", rows)


def beside_interleaving() -> Table:
    """What the paper does not compare: the same number of chunks a device on a loop instead of a fold."""
    rows = []
    for p, waves, c in ((4, 1, 0.0), (8, 2, 0.0), (4, 2, 1.0), (4, 4, 0.5), (8, 4, 0.5)):
        ours, loop = (
            stages(name, p, p, 1, 2, c, **options).makespan
            for name, options in (("hanayo", {"waves": waves}), ("interleaved-1f1b", {"chunks": 2 * waves}))
        )
        wins = "interleaved 1F1B" if loop < ours else "Hanayo" if ours < loop else "neither"
        what = f"P={p}, W={waves} or {2 * waves} chunks, c={c:g}: {ours:g} against {loop:g}, {wins} is ahead"
        rows.append(Row(what, (p - 1) * 1.0 + (2 * (p - 1) - 4 * waves) * c, ours - loop))
    return Table(
        "Hanayo less interleaved 1F1B at equal chunks, F=1 and B=2 a stage, M=P",
        rows,
        printed="closed form",
        note="The paper does not compare them. Closed form: (P-1)|B-F| + (2(P-1)-4W)c. Where a backward takes longer "
        "than a forward the loop is ahead by (P-1)(B-F); Hanayo wins it back by its turns, which cross no link, "
        "once there are more than (P-1)/2 waves and transfers are slow.",
    )


def law_of_waves() -> Table:
    """The example of the law, played."""
    rows = []
    for transfer, times in ((0.125, (43, 39.5, 43, 55.25)), (0.01, (38.4, 31.68, 28.74, 28.11))):
        for waves, time in zip((1, 2, 4, 8), times, strict=True):
            rows.append(Row(f"T_C = {transfer:g}, W={waves}", time, in_waves(8, waves, transfer=transfer).makespan))
    best = ", ".join(f"{best_wave(2, c):.2g} for T_C = {c:g}" for c in (0.125, 0.01))
    return Table(
        "How long a step takes by waves, P=8, T_F=1, T_B=2",
        rows,
        printed="closed form",
        tolerance=0.006,
        note=f"More waves make less bubble and more transfers: W* = sqrt(T_B / 4 T_C) is {best}.",
    )
