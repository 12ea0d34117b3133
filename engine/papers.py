"""What the papers print beside what is simulated here, table by table: ``meshwave bench papers``.

Every table is played anew: orders by the schedules, costs as the paper has them. Where the two
differ, the row says why. The papers: Hanayo (Liu et al., SC'23, arXiv:2308.15762), Zero Bubble
(Qi et al., arXiv:2401.10241), Controllable Memory (Qi et al., arXiv:2405.15362), DualPipe
(DeepSeek-V3, arXiv:2412.19437), Parm (arXiv:2407.00599), PPMoE (arXiv:2304.11414).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any, Literal, NamedTuple

import numpy as np

from engine.cost import peak_inflight
from engine.cost.presets import preset
from engine.design import Design, parse_design
from engine.lowering.layers import inside
from engine.lowering.transfers import add_transfers
from engine.moe import Layer, Line, Links, Rates, StepOp, price
from engine.moe_comparison import RANKS, SPREAD, grid
from engine.predict import predict
from engine.program.action import Op
from engine.program.program import Program, format_program
from engine.schedules import Pipe, schedules
from engine.simulate import simulate
from engine.timeline import Timeline

WIDTH = 118
Form = Literal["%", "number"]


class Row(NamedTuple):
    """One claim: what it is about, what is printed, what comes out here, and why where they differ."""

    what: str
    paper: float | str
    ours: float | str
    why: str = ""


@dataclass(frozen=True)
class Table:
    """Claims that belong together."""

    title: str
    rows: Sequence[Row]
    form: Form = "number"
    printed: str = "paper"
    """What the second column holds: figures of the paper, or of a closed form."""
    tolerance: float = 1e-9
    """Half of the last digit that is printed: what differs by less does not differ."""
    note: str = ""


def papers() -> dict[str, Any]:
    """what the papers print beside what is simulated here, with the reason where the two differ"""
    return {"tables": [to_json(table) for table in tables()]}


def tables() -> Iterator[Table]:
    """Every table, in the order in which they are told."""
    yield figure_1()
    yield makespans()
    yield waves_and_bubbles()
    yield orders()
    yield activations()
    yield weights()
    yield speed_ups()
    yield rankings()
    yield beside_interleaving()
    yield law_of_waves()
    yield best_waves()
    yield split_backwards()
    yield less_memory()
    yield fused_slots()
    yield expert_layers()
    yield printed_ratios()
    yield experts_in_pipelines()


def differs(row: Row, table: Table) -> bool:
    if isinstance(row.paper, str) or isinstance(row.ours, str):
        return row.paper != row.ours
    return abs(row.ours - row.paper) > table.tolerance


def to_json(table: Table) -> dict[str, Any]:
    rows = [{**row._asdict(), "difference": _difference(row, table)} for row in table.rows]
    return {"title": table.title, "printed": table.printed, "unit": table.form, "rows": rows, "note": table.note}


def to_text(figures: Mapping[str, Any]) -> list[str]:
    """The lines in which a terminal shows what :func:`papers` found."""
    lines: list[str] = []
    for table in figures["tables"]:
        lines += ["", table["title"], *_drawn(table)]
    return lines


# ---- to play a schedule at a paper's costs ----


@lru_cache(maxsize=64)
def _program(name: str, ranks: int, microbatches: int, **options: Any) -> Program:
    return add_transfers(_ordered(name, ranks, microbatches, **options))


def _ordered(name: str, ranks: int, microbatches: int, **options: Any) -> Program:
    """The computations alone."""
    schedule: Any = schedules[name]
    program: Program = schedule(**options).program(Pipe(ranks, microbatches))
    return program


def _played(
    program: Program,
    forward: float = 1.0,
    backward: float = 2.0,
    transfer: float = 0.0,
    weight: float | None = None,
    fused: float | None = None,
) -> Timeline:
    """A program at uniform costs of one stage; ``weight`` is a part of ``backward``, half of it unless it
    is given, and a slot of two takes ``fused``, else their sum."""
    weight = backward / 2 if weight is None else weight
    cost = np.zeros(len(Op))
    cost[[Op.F, Op.B, Op.I, Op.W]] = forward, backward, backward - weight, weight
    cost[[Op.SEND_F, Op.SEND_B]] = transfer
    seconds = cost[program.op]
    if fused is not None:
        seconds[program.fused] = fused - seconds[np.flatnonzero(program.fused) - 1]
    return simulate(program, seconds)


def _stages(name: str, ranks: int, microbatches: int, *costs: float, **options: Any) -> Timeline:
    """Costs of one stage: its forward, backward and a transfer."""
    return _played(_program(name, ranks, microbatches, **options), *costs)


def _devices(
    name: str, ranks: int, forward: float = 1.0, backward: float = 2.0, transfer: float = 0.0, **options: Any
) -> Timeline:
    """The Hanayo paper's units: T_F and T_B of a device's share of the model, and as many microbatches as devices."""
    program = _program(name, ranks, ranks, **options)
    share = ranks / program.stages
    return _played(program, forward * share, backward * share, transfer)


def _hanayo(ranks: int, waves: int, **costs: float) -> Timeline:
    return _devices("hanayo", ranks, waves=waves, **costs)


def _held(name: str, ranks: int, microbatches: int, **options: Any) -> list[float]:
    """``[ranks]`` the most activations alive at once, in shares of the model of one device."""
    return [float(peak) for peak in peak_inflight(_program(name, ranks, microbatches, **options))]


# ---- Hanayo ----

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
                    Row(f"{schedules[who].title}, {ranks} devices", bar, 100 * _devices(who, ranks).bubble_ratio)
                )
                continue
            printed, ours = 100 * printed_bubble(ranks, who), 100 * _hanayo(ranks, who).bubble_ratio
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
        Row(f"Hanayo, P={ranks}, W={waves}, F=1 and B=2 a stage", length, _stages("hanayo", ranks, ranks, 1, 2, waves=waves).makespan)
        for ranks, waves, length in ((2, 1, 16), (4, 1, 36), (4, 2, 60), (4, 4, 108), (8, 2, 124), (8, 4, 220))
    ]  # fmt: skip
    for name, length in (("gpipe", 21.375), ("1f1b", 21.625)):
        played = _devices(name, 4, transfer=1 / 16).makespan
        rows.append(Row(f"{schedules[name].title}, 4 x 4, T_C = T_F/16 (figure 3)", length, played))
    for waves, length in ((1, 38), (2, 67)):  # a stage is drawn with F = 1: T_C in stage units is W/8
        played = _stages("hanayo", 4, 4, 1, 2, waves / 8, waves=waves).makespan
        rows.append(Row(f"Hanayo, P=4, W={waves}, F=1 a stage, T_C = T_F/16 (figure 3)", length, played))
    for half in (2, 4):
        chimera = _devices("chimera", 2 * half, forward=2, backward=4).makespan
        rows.append(
            Row(
                f"Chimera on {2 * half} devices is Hanayo W=1 on {half} (figure 5)",
                chimera,
                _stages("hanayo", half, half, 1, 2).makespan * 2,
            )
        )
    batched = (
        "opposite transfers of one pair are batched in the drawing and cost two; here a transfer disturbs nothing else"
    )
    exposed = (_devices("chimera", 8, transfer=1 / 16).makespan - _devices("chimera", 8).makespan) * 16
    rows.append(Row("Chimera, 8 x 8: transfers that are waited for (figure 3c)", 22, exposed, batched))
    return Table("Hanayo, figures 3, 5 and 6: makespans", rows)


def waves_and_bubbles() -> Table:
    """That the bubble halves with each doubling of the waves."""
    sizes = [(ranks, waves) for ranks in (4, 8, 32) for waves in (1, 2, 4, 8)]
    played = [_hanayo(*size).bubble_ratio for size in sizes]
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
    ours = format_program(_ordered("hanayo", 4, 4, waves=1), compute_only=True)
    rows = [
        Row(f"Hanayo, figure 3(d), device {rank}", drawn, " ".join(ours[rank])) for rank, drawn in enumerate(FIGURE_3D)
    ]
    order = _ordered("interleaved-1f1b", 2, 5, chunks=2, group=3).actions(0)
    forwards = " ".join(str(action.microbatch) for action in order if action.op == Op.F)
    rows.append(Row("Megatron-LM, groups of 3, 5 microbatches, 2 chunks: forwards", "0 1 2 0 1 2 3 4 3 4", forwards))
    first = _ordered("zb-h1", 4, 8).actions(0)[:10]
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
        held = _held(name, p, p, **options)
        rows.append(Row(f"{title}: the least of a device", least, min(held)))
        rows.append(Row(f"{title}: the most of a device", most, max(held)))
    return Table("Hanayo, figure 2: activations alive at once, in M_a, on 8 devices", rows)


def weights() -> Table:
    """Figure 2's copies of the weights."""
    rows = []
    for name, copies in (("gpipe", 1), ("1f1b", 1), ("gems", 2), ("chimera", 2), ("hanayo", 1)):
        program = _program(name, 8, 8)
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
        gpipe = _devices("gpipe", ranks).makespan
        for who, (ideal, measured) in of.items():
            if isinstance(who, str):
                played, title = _devices(who, ranks), f"Chimera, P={ranks}"
            else:
                played, title = _hanayo(ranks, who), f"Hanayo, P={ranks}, W={who}"
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
        times = {title: _devices(name, 8, transfer=transfer).makespan for title, name in rivals.items()}
        times |= {f"H-{w}": _hanayo(8, w, transfer=transfer).makespan for w in (2, 4, 8)}
        found = ranked({title: 1 / time for title, time in times.items()})
        if said.startswith("a finite"):
            best = min((2, 4, 8), key=lambda w: times[f"H-{w}"])
            rows.append(Row(f"throughput, P=8, T_C = {transfer:g}", said, said if best < 8 else found, slow))
        else:
            rows.append(Row(f"throughput, P=8, T_C = {transfer:g}", said, found))
    spread = {title: float(np.var(_held(name, 8, 8))) for title, name in rivals.items()}
    spread["Hanayo"] = float(np.var(_held("hanayo", 8, 8, waves=2)))
    rows.append(Row("spread of memory over devices, P=8", "GPipe < Hanayo < Chimera < 1F1B", ranked(spread)))
    return Table("Hanayo: who is ahead", rows)


def ranked(values: Mapping[str, float], near: float = 0.01) -> str:
    """``GPipe = 1F1B < Chimera``: names from the smallest value to the largest; what is near is equal, and
    stays in the order in which it is given."""
    groups: list[list[str]] = []
    for name in sorted(values, key=lambda name: values[name]):
        if groups and values[name] <= values[groups[-1][0]] * (1 + near):
            groups[-1].append(name)
        else:
            groups.append([name])
    given = list(values)
    return " < ".join(" = ".join(sorted(group, key=given.index)) for group in groups)


def beside_interleaving() -> Table:
    """What the paper does not compare: the same number of chunks a device on a loop instead of a fold."""
    rows = []
    for p, waves, c in ((4, 1, 0.0), (8, 2, 0.0), (4, 2, 1.0), (4, 4, 0.5), (8, 4, 0.5)):
        ours, loop = (
            _stages(name, p, p, 1, 2, c, **options).makespan
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


def best_wave(backward: float, transfer: float) -> float:
    """``W* = sqrt(T_B / 4 T_C)``: where ``(P-1) T_B / W`` of bubble and ``4 W (P-1) T_C`` of transfers add up to
    the least; infinite where transfers are free."""
    return sqrt(backward / (4 * transfer)) if transfer else float("inf")


def law_of_waves() -> Table:
    """The example of the law, played."""
    rows = []
    for transfer, times in ((0.125, (43, 39.5, 43, 55.25)), (0.01, (38.4, 31.68, 28.74, 28.11))):
        for waves, time in zip((1, 2, 4, 8), times, strict=True):
            rows.append(Row(f"T_C = {transfer:g}, W={waves}", time, _hanayo(8, waves, transfer=transfer).makespan))
    best = ", ".join(f"{best_wave(2, c):.2g} for T_C = {c:g}" for c in (0.125, 0.01))
    return Table(
        "How long a step takes by waves, P=8, T_F=1, T_B=2",
        rows,
        printed="closed form",
        tolerance=0.006,
        note=f"More waves make less bubble and more transfers: W* = sqrt(T_B / 4 T_C) is {best}.",
    )


MEASURED: Mapping[tuple[str, int], tuple[float, float, float]] = {
    ("pc", 8): (1.626, 1.665, 1.655),
    ("fc", 8): (1.645, 1.754, 1.779),
    ("tacc", 8): (1.453, 1.367, 1.147),
    ("tc", 8): (1.264, 1.350, 1.375),
    ("pc", 4): (3.048, 3.233, 3.317),
    ("fc", 4): (3.082, 3.302, 3.420),
    ("tacc", 4): (2.896, 2.944, 2.751),
    ("tc", 4): (2.327, 2.487, 2.547),
}
"""Sequences a second of Hanayo with 2, 4 and 8 waves: the paper's figure of BERT on 8 GPUs."""


def best_waves() -> Table:
    """The best number of waves on each of the paper's clusters: measured there, by our presets here."""
    rows = []
    for (cluster, ranks), measured in MEASURED.items():
        theirs = _theirs(measured)
        backward, forward, transfer = _shares(f"hanayo-{cluster}", ranks)
        costs = {"forward": forward, "backward": backward, "transfer": transfer}
        ours = min((1, 2, 4, 8), key=lambda waves: _hanayo(ranks, waves, **costs).makespan)
        best = (2, 4, 8)[int(np.argmax(measured))]
        slower = (best_wave(backward, transfer) / theirs) ** 2
        why = (
            f"its bars follow the law with W* = {theirs:.1f}; the data sheets give W* = {best_wave(backward, transfer):.1f}: "
            f"transfers took {slower:.2g} times as much of a backward there as here"
        )
        rows.append(Row(f"{cluster.upper()}, P={ranks}", best, ours, why))
    return Table(
        "Hanayo: best of 1, 2, 4 and 8 waves, BERT of 64 layers on the paper's clusters",
        rows,
        note="The paper tells neither sequence length nor precision nor microbatches; here 512, fp32 and one microbatch "
        "a device, links and devices by their data sheets. With P=8, 64 layers are no 128 stages: eight waves are "
        "played as if they were.",
    )


def _theirs(measured: tuple[float, float, float]) -> float:
    """The W* of three bars at 2, 4 and 8 waves: of ``a + b/W + cW``, which passes through them, sqrt(b/c)."""
    law = np.array([[1, 1 / waves, waves] for waves in (2, 4, 8)])
    _, b, c = np.linalg.solve(law, 1 / np.array(measured))
    return sqrt(b / c)


@lru_cache(maxsize=16)
def _shares(cluster: str, ranks: int) -> tuple[float, float, float]:
    """T_B, T_F and T_C in seconds of the paper's BERT on one of its clusters."""
    document = {
        "format": "meshwave/1",
        "cluster": preset(cluster).cluster.model_dump(mode="json"),
        "model": {"kind": "bert", "layers": 64, "hidden": 2560, "heads": 64, "sequence": 512, "vocab": 30522},
        "meshes": [{"name": str(rank), "devices": [rank], "axes": {"dp": 1, "tp": 1}} for rank in range(ranks)],
        "pipeline": {"schedule": "hanayo", "waves": 1, "microbatches": ranks},
        "training": {"micro_batch_size": 1, "precision": "fp32"},
    }
    prediction = predict(parse_design(document))
    op, seconds = prediction.program.op, prediction.costs.seconds
    backward, forward = (float(seconds[op == kind].sum()) / ranks**2 for kind in (Op.B, Op.F))
    return backward, forward, float(np.median(seconds[(op == Op.SEND_F) | (op == Op.SEND_B)]))


# ---- split backwards ----


def split_backwards() -> Table:
    """Zero Bubble's handcrafted schedules: the bubble of the longest device, and activations."""
    p, m = 4, 8
    rows = []
    for f, b, w in ((1.0, 2.0, 1.0), (1.0, 2.2, 1.0)):
        for name, bubble in (
            ("1f1b", (p - 1) * (f + b)),
            ("zb-h1", (p - 1) * (f + b - 2 * w)),
            ("zb-h2", (p - 1) * (f + b - 3 * w)),
        ):
            idle = _longest_idle(_played(_program(name, p, m), f, b, weight=w))
            rows.append(Row(f"{schedules[name].title}: bubble, F={f:g} I={b - w:g} W={w:g}", bubble, idle))
    rows.append(Row("ZB-V: bubble, F=1 I=1 W=1", 0, _longest_idle(_played(_program("zb-v", p, m)))))
    for name, most in (("1f1b", p), ("zb-h1", p), ("zb-h2", 2 * p - 1), ("zb-v", p)):
        rows.append(Row(f"{schedules[name].title}: activations, in M_a", most, max(_held(name, p, m))))
    for name in ("zb-h1", "zb-h2"):
        rows.append(
            Row(
                f"{schedules[name].title}: from the first start to the last end",
                3 * m + p - 1,
                _played(_program(name, p, m)).makespan,
            )
        )
    return Table(
        f"Zero Bubble: the handcrafted schedules, P={p}, M={m}",
        rows,
        tolerance=1e-6,
        note="The bubble is the idle time between a device's own first start and last end. Over all devices ZB-H2 is no "
        "shorter than ZB-H1 where transfers are free: it gains where no device waits for the others' optimizer step.",
    )


def _longest_idle(timeline: Timeline) -> float:
    """The most that a rank idles between its own first start and last end."""
    idle = []
    for rank in range(timeline.ranks):
        mine = timeline.is_compute & (timeline.rank == rank)
        start, end, once = timeline.start[mine], timeline.end[mine], ~timeline.fused[mine]
        idle.append(float(end.max() - start.min() - (end - start)[once].sum()))
    return max(idle)


def less_memory() -> Table:
    """Controllable memory's trade-off, as parts of what 1F1B has."""
    p, m = 12, 36
    one = (p - 1) * 3.0  # the bubble of 1F1B
    rows = []
    squeezed = "blocks are whole slots: drawn together, one or two of them stay at the ends"
    claims = (
        ("zb-h1", 1 / 3, 1.0, ""),
        ("zb-h2", 0.0, 2.0, "a rank holds 2P-1, not 2P: the last one needs no second"),
        ("zb-v", 0.0, 1.0, ""),
        ("v-half", 1 / 2, 1 / 2, "a rank holds floor(P/2)+1: the block's two lifetimes round up"),
        ("v-min", 2 / 3, 1 / 3, "a rank holds the blocks that overlap, which round up"),
    )
    for name, bubble, held, why in claims:
        program = _program(name, p, m)
        idle = _longest_idle(_played(program)) * p / program.stages
        rows.append(Row(f"{schedules[name].title}: bubble", bubble, idle / one, squeezed))
        rows.append(Row(f"{schedules[name].title}: activations", held, max(_held(name, p, m)) / p, why))
    return Table(
        f"Controllable Memory: parts of 1F1B's bubble and activations, F=I=W, P={p}, M={m}", rows, tolerance=0.005
    )


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
        timeline = _played(_program(name, ranks, m), 1, 2, weight=1, fused=both)
        idle = timeline.makespan - float(timeline.busy.max())
        title = f"{schedules[name].title}, {ranks} devices, M={m}, OV={both:g}"
        rows.append(Row(f"{title}: bubble", (half - 1) * (both + 2 - 3), idle, why))
    for name, ranks, m in (("dualpipe-v", 4, 10), ("dualpipe", 8, 20)):
        program = _program(name, ranks, m)
        chunks = max(_held(name, ranks, m)) * program.stages / ranks
        stages = 2 * ranks if name == "dualpipe-v" else ranks
        rows.append(Row(f"{schedules[name].title}, {ranks} devices: activations, in stages", stages + 1, chunks))
    return Table(
        "DualPipe: the formulas of its authors, F=1, B=2, W=1",
        rows,
        tolerance=1e-6,
        note="OV is a slot that overlaps a forward with a backward; 3 is no gain. The idle time is that of the busiest device.",
    )


# ---- Parm ----


def expert_layers() -> Table:
    """Parm's 1296 layers, as far as they can be made up for."""
    found = grid()
    gain, late = found.gain(), found.gain("a2a-allgather")
    wins = np.bincount(found.winner, minlength=len(SPREAD))
    named = ", ".join(f"{name} in {wins[number]}" for number, name in enumerate(SPREAD))
    inside = found.seconds["ppmoe"] / found.auto
    unknown = (
        "the paper's layers, links and constants are not known to us: this grid has as many, on 8 nodes of 4 GPUs with the "
        "links that FSMoE fitted; what kernels and launches cost both alike is not in it, and lowers what is measured"
    )
    return Table(
        "Parm: times as fast as DeepSpeed-MoE, forward and backward of 1296 layers, experts included",
        [
            Row("the least over the grid", 1.13, float(gain.min()), unknown),
            Row("the most over the grid", 5.77, float(gain.max()), unknown),
        ],
        tolerance=0.005,
        note=f"Ours: {np.median(gain):.2f} in the middle. DeepSpeed here is what Parm's paper describes, every token sent and "
        "computed once for each tensor-parallel device. Against what DeepSpeed and Megatron do today (exchange once, gather "
        f"late), which the paper leaves out, Parm is {late.min():.2f} to {late.max():.2f} times as fast. Of the schedules that "
        f"spread their experts over all GPUs the fastest is {named} layers. PPMoE, whose experts stay in a node and take "
        f"{RANKS // 4} or {RANKS // 2} times the memory, takes {inside.min():.2f} to {inside.max():.2f} of Parm's time.",
    )


# ---- PPMoE ----


def printed_ratios() -> Table:
    """The two ratios that PPMoE's argument rests on."""
    peak, network, nvlink = 125e12, 12.5e9, 300e9
    ring = "the formula charges every step of the ring with the whole tensor, of which a step carries an eighth"
    pairs = (
        "the formula charges every one of 63 steps with half of all tokens, of which a peer gets a 64th, and sets that against "
        "a 64th of the products, while a device computes as many rows for the others as it sends"
    )
    free = Links(Line(0.0, 1 / nvlink), Line(0.0, 1 / network))

    def ratio(name: str, devices: int, hidden: int, nodes: tuple[int, ...]) -> float:
        folded = name == "ppmoe"
        experts = devices if folded else 64
        layer = Layer(
            mp=devices if folded else 1,
            ep=devices,
            esp=1,
            experts=experts,
            tokens=64 * 1024,
            hidden=hidden,
            ffn_hidden=4 * hidden,
            item_bytes=2,
            nodes=nodes,
        )
        priced = price(name, layer, free, Rates(peak))
        collective = priced.collectives(priced.forward)[0]
        return collective.time_s / (priced.flops / peak)

    return Table(
        "PPMoE: seconds of a collective over those of the products, fp16, V100",
        [
            Row(
                "an all-to-all of 64 experts, h=10^4 (equation 3)",
                252,
                ratio("expert-parallel", 64, 10_000, tuple(range(64))),
                pairs,
            ),
            Row("an all-reduce of 8 devices, h=10^3 (equation 5)", 35 / 6, ratio("ppmoe", 8, 1000, (0,) * 8), ring),
        ],
        tolerance=0.05,
    )


MEDIUM, LARGE = (24, 1024, 16), (32, 4096, 32)
"""Layers, width and heads of PPMoE's backbones: 0.35 and 6.7 billion parameters."""


def experts_in_pipelines() -> Table:
    """PPMoE's two models on its cluster, under both ways of laying experts out."""
    medium, large = _expert_models(4, MEDIUM, 8), _expert_models(16, LARGE, 1)
    plain, folded = _forward_shares(large["plain"]), _forward_shares(large["folded"])
    batch = "micro-batches and global batch are not printed: here 256 sequences of 2048 a step, eight or one at a time"
    wait = f"{batch}; ours knows links and products, and not that selecting rows and experts one by one cost kernels of their own"
    nic = f"{batch}; ours has all eight GPUs of a node send the same tokens through one NIC, and counts no time of kernels"
    other = f"{batch}; ours cuts a narrow model over eight devices at what their all-reduces cost, which is most of it"

    def rate(found: Mapping[str, Design], over: str) -> float:
        return _tokens_per_s(found["folded"]) / _tokens_per_s(found[over])

    return Table(
        "PPMoE: experts folded into tensor parallelism with a pipeline, against plain expert parallelism (DPMoE)",
        [
            Row("DPMoE, 143B: both all-to-alls, % of a forward", 65.5, 100 * plain["exchange"], nic),
            Row("DPMoE, 143B: expert layers, % of a forward", 82.6, 100 * plain["experts"], nic),
            Row("PPMoE, 143B: expert layers, % of a forward (second-hand)", 38.2, 100 * folded["experts"], wait),
            Row("PPMoE, 143B: over DPMoE (more than)", 1.75, rate(large, "plain"), nic),
            Row("PPMoE, 6.7B: over DPMoE (second-hand)", 1.23, rate(medium, "plain"), nic),
            Row("PPMoE, 143B: % of the backbone's tokens/s (second-hand)", 90.7, 100 * rate(large, "backbone"), wait),
            Row("PPMoE, 6.7B: % of its backbone's, 32 copies (second-hand)", 81.4, 100 * rate(medium, "copies"), other),
        ],
        tolerance=0.05,
        note="Both agree that PPMoE is faster, that exchanges take most of DPMoE's forward, and that in a pipeline of the same "
        "shape its layers cost little more than dense ones. They disagree by how much, for the reasons given; figures that are "
        "second-hand were read in notes about the paper.",
    )


def _expert_models(nodes: int, backbone: tuple[int, int, int], micro_batch: int) -> dict[str, Design]:
    """Designs of 64 experts in every second layer, and their backbones, on nodes of eight V100."""
    moe = {"experts": 64, "top_k": 1, "capacity_factor": 1.0, "every": 2}
    ep = min(64, nodes * 8)

    def made(meshes: int, dp: int, tp: int, experts: Mapping[str, Any] | None = None) -> Design:
        size, layers = dp * tp, backbone[0]
        document = {
            "format": "meshwave/1",
            "name": "",
            "cluster": {**V100, "nodes": nodes},
            "model": {
                "kind": "gpt",
                "layers": layers,
                "hidden": backbone[1],
                "heads": backbone[2],
                "sequence": 2048,
                "vocab": 50304,
                "moe": moe if experts else None,
            },
            "meshes": [
                {"name": str(at), "devices": list(range(at * size, (at + 1) * size)), "axes": {"dp": dp, "tp": tp}}
                for at in range(meshes)
            ],
            "pipeline": {"schedule": "1f1b", "microbatches": 256 // dp // micro_batch},
            "experts": experts or {},
            "training": {"micro_batch_size": micro_batch, "precision": "bf16"},
        }
        return parse_design(document)

    return {
        "copies": made(1, nodes * 8, 1),
        "backbone": made(nodes, 1, 8),
        "plain": made(1, nodes, 8, {"schedule": "expert-parallel", "ep": ep}),
        "folded": made(nodes, 1, 8, {"schedule": "ppmoe"}),
    }


V100: Mapping[str, Any] = {
    "devices_per_node": 8,
    "device": {"peak_flops": 125e12, "memory_bytes": 32e9, "memory_bandwidth": 900e9, "efficiency": 0.5},
    "intra_node": {"latency_s": 5e-6, "bandwidth": 300e9},
    "inter_node": {"latency_s": 1e-5, "bandwidth": 12.5e9},
}
"""The paper's cluster; both bandwidths as it uses them."""


def _tokens_per_s(design: Design) -> float:
    return float(predict(design).numbers["tokens_per_s"])


def _forward_shares(design: Design) -> dict[str, float]:
    """Of the forward of a stage on one device: what its expert layers take, and their exchanges."""
    found = inside(design, 0, 0, Op.F)
    lanes = [lane for lane, device in enumerate(found.devices) if device == found.devices[0]]
    took = np.where(np.isin(found.timeline.rank, lanes), found.timeline.end - found.timeline.start, 0.0)
    steps = np.array([step or "" for step in found.steps])
    exchanges = np.isin(steps, [StepOp.DISPATCH, StepOp.COMBINE])
    whole = found.timeline.makespan
    return {"experts": float(took[steps != ""].sum()) / whole, "exchange": float(took[exchanges].sum()) / whole}


# ---- as text ----


def _difference(row: Row, table: Table) -> float | str:
    if isinstance(row.paper, str) or isinstance(row.ours, str):
        return "differs" if differs(row, table) else "same"
    return row.ours - row.paper if differs(row, table) else 0.0


def _drawn(table: Mapping[str, Any]) -> Iterator[str]:
    """A table as lines: claims in columns; long texts below each other."""
    rows = table["rows"]
    wide = max(len(row["what"]) for row in rows) + 2
    texts = [row for row in rows if isinstance(row["paper"], str)]
    if len(texts) < len(rows):
        yield f"  {'':<{wide}}{table['printed']:>12}{'ours':>10}{'difference':>13}"
    said = ""
    for row in rows:
        if isinstance(row["paper"], str):
            yield f"  {row['what']:<{wide}}{row['difference']}: {row['paper']}"
            if row["difference"] == "differs":
                yield f"  {'':<{wide}}{'ours':>7}: {row['ours']}"
        else:
            cells = (_number(row["paper"], table), _number(row["ours"], table), _change(row["difference"], table))
            yield f"  {row['what']:<{wide}}{cells[0]:>12}{cells[1]:>10}{cells[2]:>13}"
        if row["difference"] not in (0.0, "same") and row["why"] != said:
            said = row["why"]
            yield from textwrap.wrap(said, WIDTH, initial_indent="      why: ", subsequent_indent="           ")
    if table["note"]:
        yield from textwrap.wrap(table["note"], WIDTH, initial_indent="  ", subsequent_indent="  ")


def _number(value: float, table: Mapping[str, Any]) -> str:
    return f"{value:.2f} %" if table["unit"] == "%" else f"{round(value, 6):.5g}"


def _change(value: float, table: Mapping[str, Any]) -> str:
    if not value:
        return "none"
    return f"{value:+.2f} pts" if table["unit"] == "%" else f"{value:+.3g}"
