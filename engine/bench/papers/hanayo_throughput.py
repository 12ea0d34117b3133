"""Hanayo (arXiv:2308.15762): meaning of the paper's sequences/s, the precision, and the remaining difference.

The paper's throughput grows with the number D of data-parallel pipelines and hardly depends on the number P of devices
per pipeline, even if D P is constant. Sequences/s cannot do so: on the same devices, a step of the same model has the
same FLOPs. Two counts are compared here: D B M sequences per step, with M = P microbatches of B sequences each, and D B
per step.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwave.engine.bench.papers.hanayo_bars import EIGHT, MEASURED, SEARCH, Layout, known_bar, paper_throughputs
from meshwave.engine.bench.papers.hanayo_designs import PEAKS, SEQUENCE, Number, Setting, predict_experiment
from meshwave.engine.bench.papers.table import Grid, GridRow, Row, Table

CLUSTERS = ("pc", "fc", "tacc", "tc")
COUNTED = "D B per step"
TRUE = "sequences/s"
MANY, FEW = Layout(4, 8, 2), Layout(2, 16, 4)
EFFICIENCY = 0.5
"""Fraction of the peak FLOP/s that large matrix products reach, as in the presets."""


def tables() -> Iterator[Table | Grid]:
    """Yield the tables in the order of the report."""
    yield ratios_by_sequence_count()
    yield precision_ratios()
    yield roofline_to_paper()
    yield required_efficiencies()


LIKELY = "B is halved together with P, and a small B costs more time per sequence in the paper; the model has no kernel launches"
ODD = "only this bar agrees with a count in sequences/s"


def ratios_by_sequence_count() -> Table:
    """Return the throughput ratios of two layouts of the same devices, for both counts of sequences."""
    rows: list[Row] = []
    for cluster in CLUSTERS:
        two, one = paper_throughputs((cluster, 4)), paper_throughputs((cluster, 8))
        settings = (Setting(cluster, "1F1B", EIGHT[4]), Setting(cluster, "1F1B", EIGHT[8]))
        what = f"{cluster.upper()}, 8 GPUs, 1F1B: D=2 P=4 over D=1 P=8"
        rows += _count_rows(what, two["1F1B"] / one["1F1B"], settings, LIKELY)
    for model, scheme in (("bert", "1F1B"), ("bert", "Chimera-wave"), ("bert", "H-2"), ("gpt", "1F1B"), ("gpt", "H-2")):
        paper = known_bar(SEARCH[model, FEW], scheme) / known_bar(SEARCH[model, MANY], scheme)
        settings = (Setting("tacc", scheme, FEW, model), Setting("tacc", scheme, MANY, model))
        what = f"TACC, 32 GPUs, {model.upper()}, {scheme}: D=2 P=16 over D=4 P=8"
        rows += _count_rows(what, paper, settings, ODD if (model, scheme) == ("gpt", "H-2") else LIKELY)
    odd = {
        model: known_bar(SEARCH[model, FEW], "H-2") / known_bar(SEARCH[model, FEW], "Chimera-wave")
        for model in ("gpt", "bert")
    }
    return Table(
        "Hanayo: meaning of the printed sequences/s",
        rows,
        tolerance=0.1,
        note="Nothing is fitted. On the same GPUs, the printed throughput is proportional to D, but the work of a step is "
        "not: in sequences/s both layouts are nearly as fast. The figures agree if a step counts D B sequences, although "
        "each of its P microbatches has B sequences; then sequences/s are P times the printed figures. This is an "
        "interpretation; the paper does not state how it counts. A model that grows with P would agree as well, but the "
        "paper states 64 and 128 layers. One bar contradicts it, two waves of GPT at P=16: it is "
        f"{odd['gpt']:.1f} times the adjacent bar of Chimera-wave; for BERT it is {odd['bert']:.2f} times.",
    )


def _count_rows(what: str, paper: float, settings: tuple[Setting, Setting], why: str) -> Iterator[Row]:
    above, below = map(predict_experiment, settings)
    plain = "in sequences/s, no layout of the same GPUs can be so much faster, because a sequence has the same FLOPs"
    yield Row(what, paper, above.sequences_per_s / below.sequences_per_s, plain, TRUE)
    yield Row(what, paper, above.counted_per_s / below.counted_per_s, why, COUNTED)


def precision_ratios() -> Table:
    """Return throughput ratios of two clusters with devices 2.5 or 1.24 times as fast, depending on precision."""
    rows = []
    for ranks, scheme in ((8, "1F1B"), (8, "H-2"), (4, "1F1B"), (4, "H-2")):
        paper = paper_throughputs(("tc", ranks))[scheme] / paper_throughputs(("fc", ranks))[scheme]
        for number in ("fp32", "16 bit"):
            ours = _throughput_rate("tc", scheme, ranks, number) / _throughput_rate("fc", scheme, ranks, number)
            why = f"the peak of V100 is {_peak_ratio(number):.2f} times that of A100 in {number}"
            rows.append(Row(f"TC over FC, D={EIGHT[ranks].pipelines} P={ranks}, {scheme}", paper, ours, why, number))
    return Table(
        "Hanayo: precision of the computation",
        rows,
        tolerance=0.06,
        note="The paper does not state it. The bars have the ratio of V100 to A100 in fp32 on CUDA cores, PyTorch's "
        "default for fp32, and not the ratio in 16 bit on tensor cores. The tables of scaling and memory therefore "
        f"assume fp32: a choice between two precisions, by {len(rows)} bars.",  # two in each ratio, and each ratio in two rows
    )


def _throughput_rate(cluster: str, scheme: str, ranks: int, number: Number) -> float:
    return predict_experiment(Setting(cluster, scheme, EIGHT[ranks], number=number)).sequences_per_s


def _peak_ratio(number: Number) -> float:
    return PEAKS["V100", number] / PEAKS["A100", number]


def roofline_to_paper() -> Grid:
    """Return the throughputs from a tensor-core roofline to the paper's 1.453, adding one assumption at a time."""
    layout = EIGHT[8]
    tensor = Setting("tacc", "H-2", Layout(1, 8, 1), number="16 bit", sequence=512)
    steps = [
        ("16 bit on tensor cores, 512 tokens, one sequence per microbatch", predict_experiment(tensor).sequences_per_s),
        ("B=2 sequences per microbatch", predict_experiment(tensor._replace(layout=layout)).sequences_per_s),
        ("fp32 on CUDA cores", predict_experiment(tensor._replace(layout=layout, number="fp32")).sequences_per_s),
    ]
    last = predict_experiment(Setting("tacc", "H-2", layout))
    steps += [
        (f"{SEQUENCE} tokens", last.sequences_per_s),
        ("D B sequences per step instead of D B M", last.counted_per_s),
        ("paper", MEASURED["tacc", 8][0]),
    ]
    before = [steps[0][1], *(rate for _, rate in steps)]
    rows = [GridRow(what, (rate, rate / other)) for (what, rate), other in zip(steps, before, strict=False)]
    return Grid(
        "Hanayo: sequences/s of two waves on 8 GPUs of TACC, BERT, D=1 P=8: from a roofline to the printed figure",
        ("sequences/s", "factor"),
        rows,
        note=f"Nothing is fitted. Assumed: half of the peak, and {SEQUENCE} tokens (the table below). The precision and the "
        "count follow from the tables above. The last factor is the remaining difference: the share of the peak that "
        "the paper reached, divided by one half.",
    )


LENGTHS = (128, SEQUENCE, 384, 512)


def required_efficiencies() -> Grid:
    """Return the fraction of fp32 peak FLOP/s for which the roofline equals the paper's bars, by sequence length."""
    rows = [
        GridRow(
            f"{cluster.upper()}, {scheme}", [100 * required_efficiency(cluster, scheme, length) for length in LENGTHS]
        )
        for cluster in CLUSTERS
        for scheme in ("1F1B", "H-2")
    ]
    possible = [length for place, length in enumerate(LENGTHS) if all((row.figures[place] or 0) < 100 for row in rows)]
    return Grid(
        "Hanayo: share of the fp32 peak that the bars of D=1 P=8 require, %",
        [f"{length} tokens" for length in LENGTHS],
        rows,
        note="Nothing is fitted; transfers by data sheets, D B sequences per step. A value above 100 excludes a length; the "
        f"longest possible one of these is {max(possible, default=0)} tokens. Large matrix products in fp32 on CUDA cores "
        "reach a larger share of their peak than products on tensor cores.",
    )


def required_efficiency(cluster: str, scheme: str, tokens: int) -> float:
    """Return the fraction of peak FLOP/s at which the prediction equals the paper's bar for 8 GPUs."""
    found = predict_experiment(Setting(cluster, scheme, EIGHT[8], sequence=tokens))
    return EFFICIENCY * paper_throughputs((cluster, 8))[scheme] / found.counted_per_s
