"""Hanayo (arXiv:2308.15762) on 8 to 32 GPUs of TACC: the search over (D, P, W), weak and strong scaling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshwave.engine.bench.papers.hanayo_bars import SEARCH, STRONG, WEAK, Layout, known_bar
from meshwave.engine.bench.papers.hanayo_designs import SEQUENCE, Number, Placement, Setting, predict_experiment
from meshwave.engine.bench.papers.hanayo_memory import fits_memory
from meshwave.engine.bench.papers.table import Grid, GridRow, Row, Table

SCHEMES = ("GPipe", "1F1B", "Chimera-wave", "H-2", "H-4")
FAMILIES: Mapping[str, Sequence[str]] = {
    "GPipe": ("GPipe",),
    "1F1B": ("1F1B",),
    "Chimera-wave": ("Chimera-wave",),
    "Hanayo": ("H-2", "H-4"),
}
ASSUMED = (
    f"Assumed: fp32 on CUDA cores, {SEQUENCE} tokens, half of the peak, M = P microbatches of B sequences, AdamW, and "
    "pipelines on consecutive GPUs of nodes with 3 GPUs each; the paper does not state its placement"
)


def tables() -> Iterator[Table | Grid]:
    """Yield the tables in the order of the report."""
    yield winners()
    yield search()
    yield weak_scaling()
    yield two_wave_gains()
    yield placement_efficiencies()
    yield strong_scaling()


# ---- the search on 32 GPUs ----


class Measure(NamedTuple):
    """Throughput measure by which candidates of the search are compared."""

    title: str
    fitted: bool
    counted: bool

    def throughput(self, model: str, layout: Layout, scheme: str) -> float:
        """Return the throughput of a candidate by this measure."""
        found = predict_experiment(Setting("tacc", scheme, layout, model, fitted=self.fitted))
        return found.counted_per_s if self.counted else found.sequences_per_s


MEASURES = (
    Measure("data sheets, sequences/s", fitted=False, counted=False),
    Measure("data sheets, D B per step", fitted=False, counted=True),
    Measure("T_C fitted on 8 GPUs, sequences/s", fitted=True, counted=False),
    Measure("T_C fitted on 8 GPUs, D B per step", fitted=True, counted=True),
)
"""Measures of throughput in sequences/s; see :mod:`meshwave.engine.bench.papers.hanayo_throughput`."""


def winners() -> Table:
    """Return the best configuration of each schedule."""
    rows = []
    for model in ("gpt", "bert"):
        for family, members in FAMILIES.items():
            paper = _printed_winner(model, members)
            for measure in MEASURES:
                ours = _predicted_winner(model, members, measure)
                rows.append(
                    Row(f"{model.upper()}, {family}", paper, ours, _explain_difference(paper, ours), measure.title)
                )
    return Table(
        "Hanayo, search on 32 GPUs of TACC: best (D, P, W)",
        rows,
        note=f"{ASSUMED}. Candidates are those that the paper shows, except those that run out of memory here (see the "
        "table of memory). T_C is fitted to three bars of 8 GPUs, and to none of the search.",
    )


def _explain_difference(paper: str, ours: str) -> str:
    if paper.split(" W=")[0] == ours.split(" W=")[0]:
        return "with data sheets, transfers cost too little for fewer waves to be better"
    return "in sequences/s, layouts of the same GPUs differ by a few percent; the printed values grow with D, as D B per step does"


def _printed_winner(model: str, members: Sequence[str]) -> str:
    rates = {
        (layout, who): rate
        for (of, layout), bars in SEARCH.items()
        if of == model
        for who, rate in bars.items()
        if who in members and rate is not None
    }
    return _configuration(*max(rates, key=lambda place: rates[place]))


def _predicted_winner(model: str, members: Sequence[str], measure: Measure) -> str:
    rates = {
        (layout, who): measure.throughput(model, layout, who)
        for (of, layout), bars in SEARCH.items()
        if of == model
        for who in bars
        if who in members and fits_memory(model, layout, who)
    }
    return _configuration(*max(rates, key=lambda place: rates[place])) if rates else "none fits"


def _configuration(layout: Layout, scheme: str) -> str:
    waves = f" W={scheme[2:]}" if scheme.startswith("H-") else ""
    return f"D={layout.pipelines} P={layout.ranks}{waves}"


def search() -> Grid:
    """Return the throughput of every candidate of the search."""
    lines = []
    for (model, layout), paper in SEARCH.items():
        title = f"{model.upper()}, {layout}"
        lines.append(GridRow(f"{title}: paper", [paper.get(who) for who in SCHEMES]))
        lines += [
            GridRow(
                f"{title}: {measure.title}",
                [measure.throughput(model, layout, who) if who in paper else None for who in SCHEMES],
            )
            for measure in MEASURES[:2]
        ]
    return Grid(
        "Hanayo, search on 32 GPUs of TACC: throughput",
        SCHEMES,
        lines,
        note=f"Nothing is fitted. {ASSUMED}. A dash: the paper does not show it, or it ran out of memory there.",
    )


# ---- weak and strong scaling ----


ALONE = Layout(1, 8, 2)
"""Layout of eight GPUs to which efficiencies are relative."""


def _rate(setting: Setting, *, reduced: bool = True) -> float:
    found = predict_experiment(setting)
    return found.sequences_per_s if reduced else found.compute_only_per_s


def efficiency(setting: Setting, *, reduced: bool = True) -> float:
    """Return the throughput as a percentage of D times that of one pipeline.

    If ``reduced`` is False, a step ends with its last backward, before gradients are reduced.
    """
    alone = setting._replace(layout=ALONE)
    return 100 * _rate(setting, reduced=reduced) / (setting.layout.pipelines * _rate(alone, reduced=reduced))


def _printed_efficiency(scheme: str, layout: Layout) -> float:
    return 100 * WEAK[layout][scheme] / (layout.pipelines * WEAK[ALONE][scheme])


def _tacc_setting(scheme: str, layout: Layout) -> Setting:
    return Setting("tacc", scheme, layout)


REDUCED = (
    "a predicted step waits at its end for the reduction of the gradients, through one NIC for three GPUs; the printed "
    "steps lose no time to it, as if it were hidden or not counted"
)


def weak_scaling() -> Table:
    """Return the parallel efficiency at a constant batch per pipeline."""
    rows = []
    for layout in list(WEAK)[1:]:
        gpus = layout.pipelines * layout.ranks
        for scheme in ("GPipe", "1F1B", "Chimera-wave", "H-2"):
            paper = _printed_efficiency(scheme, layout)
            what = f"{gpus} GPUs, {scheme}"
            rows.append(Row(what, paper, efficiency(_tacc_setting(scheme, layout)), REDUCED, "gradients reduced"))
            rows.append(
                Row(
                    what,
                    paper,
                    efficiency(_tacc_setting(scheme, layout), reduced=False),
                    REDUCED,
                    "until the last backward",
                )
            )
    return Table(
        "Hanayo, weak scaling of BERT on TACC: parallel efficiency relative to 8 GPUs",
        rows,
        form="%",
        tolerance=1.0,
        note=f"Nothing is fitted. {ASSUMED}.",
    )


def two_wave_gains() -> Table:
    """Return the gain of Hanayo with two waves at each number of GPUs."""
    why = "data sheets do not include the overhead per message; with it, two waves wait longer for transfers and gain less"
    rows = [
        Row(
            f"{layout.pipelines * layout.ranks} GPUs: H-2 over {other}",
            100 * (bars["H-2"] / bars[other] - 1),
            100 * (_rate(_tacc_setting("H-2", layout)) / _rate(_tacc_setting(other, layout)) - 1),
            why,
            "nothing fitted",
        )
        for layout, bars in WEAK.items()
        for other in ("Chimera-wave", "1F1B", "GPipe")
    ]
    return Table(
        "Hanayo, weak scaling of BERT on TACC: gain of two waves",
        rows,
        form="%",
        tolerance=1.0,
        note=f"{ASSUMED}.",
    )


NUMBERS: tuple[Number, ...] = ("fp32", "16 bit")
PLACEMENTS: tuple[Placement, ...] = ("pipelines", "copies")


def placement_efficiencies() -> Grid:
    """Return the parallel efficiency by precision and placement, neither of which the paper states."""
    ways = [(number, placement) for number in NUMBERS for placement in PLACEMENTS]
    lines = [
        GridRow(
            f"{layout.pipelines * layout.ranks} GPUs, {scheme}",
            [
                _printed_efficiency(scheme, layout),
                *(
                    efficiency(_tacc_setting(scheme, layout)._replace(number=number, placement=placement))
                    for number, placement in ways
                ),
            ],
        )
        for layout in list(WEAK)[1:]
        for scheme in ("1F1B", "Chimera-wave", "H-2")
    ]
    return Grid(
        "Hanayo, weak scaling of BERT on TACC by precision and placement: parallel efficiency, %",
        ("paper", *(f"{number}, {placement}" for number, placement in ways)),
        lines,
        note="Nothing is fitted; efficiency is relative to 8 GPUs of the same column. pipelines: each pipeline has consecutive "
        "GPUs; copies: the copies of a stage have consecutive GPUs. The faster the GPUs, the larger the share of reductions.",
    )


def strong_scaling() -> Table:
    """Return the speed-up at a constant total batch."""
    alone, *more = STRONG
    rows = []
    for scheme in ("Chimera-wave", "H-2"):
        base, why = known_bar(STRONG[alone], scheme), _fixed_time_note(scheme)
        for layout in more:
            paper = 100 * known_bar(STRONG[layout], scheme) / base
            ours = 100 * _rate(_tacc_setting(scheme, layout)) / _rate(_tacc_setting(scheme, alone))
            rows.append(Row(f"{layout.pipelines * layout.ranks} GPUs, {scheme}", paper, ours, why, "nothing fitted"))
    return Table(
        "Hanayo, strong scaling of BERT on TACC: speed-up over 8 GPUs",
        rows,
        form="%",
        tolerance=1.0,
        note=f"{ASSUMED}. GPipe and 1F1B have no bar on 8 GPUs: they run out of memory there (see the table of memory).",
    )


def _fixed_time_note(scheme: str) -> str:
    """Return a text on the part of the step time that is independent of B, estimated from three bars of the paper."""
    batch = np.array([layout.batch for layout in STRONG])
    step = np.array([layout.pipelines * layout.batch / known_bar(bars, scheme) for layout, bars in STRONG.items()])
    each, fixed = np.polyfit(batch, step, 1)
    return (
        f"the bars correspond to steps of {fixed:.2f} s + {each:.2f} s per B (D B per step); the fixed part, kernel launches "
        "and the optimizer, does not shrink with B, and the roofline model contains only the optimizer and alpha of it"
    )
