"""Hanayo (arXiv:2308.15762), peak memory on 32 GPUs of TACC: variance over devices, and out-of-memory cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import sqrt

from meshwave.engine.bench.papers.hanayo_bars import EIGHT, SEARCH, STRONG, VARIANCES, Layout
from meshwave.engine.bench.papers.hanayo_designs import (
    MODELS,
    PredictedExperiment,
    Setting,
    experiment_document,
    predict_experiment,
    setting_program,
)
from meshwave.engine.bench.papers.table import Grid, GridRow, Row, Table
from meshwave.engine.document import parse_design
from meshwave.engine.predict.prediction import predict

MANY = Layout(4, 8, 2)
"""Configuration that the search chooses."""
LENGTHS = range(128, 1025, 64)
READINGS: Mapping[str, Mapping[str, str]] = {
    "Chimera-wave on half of the devices": {},
    "Chimera-wave as one wave over P": {"Chimera-wave": "H-1"},
}
"""Schedules that replace others, by interpretation of Chimera-wave."""


def tables() -> Iterator[Table | Grid]:
    """Yield the tables in the order of the report."""
    yield variances()
    yield peaks()
    yield out_of_memory()


@lru_cache(maxsize=1)
def fitted_length() -> int:
    """Return the sequence length in tokens at which the variance of 1F1B is closest to the paper's."""
    return min(
        LENGTHS,
        key=lambda length: abs(_predict_at_length(length, "bert", MANY, "1F1B").memory_variance - VARIANCES["1F1B"]),
    )


def _predict_at_length(length: int, model: str, layout: Layout, scheme: str) -> PredictedExperiment:
    return predict_experiment(Setting("tacc", scheme, layout, model, sequence=length))


def fitted_prediction(model: str, layout: Layout, scheme: str) -> PredictedExperiment:
    """Predict an experiment with the fitted sequence length."""
    return _predict_at_length(fitted_length(), model, layout, scheme)


def fits_memory(model: str, layout: Layout, scheme: str) -> bool:
    """Return True if an experiment fits into the 40 GB of a device."""
    return fitted_prediction(model, layout, scheme).fits


@lru_cache(maxsize=1)
def unfused_sequence_length() -> int:
    """Return the sequence length with equal fp32 activations if attention is not fused and dropout is used.

    The additional activations are the attention probabilities before and after dropout and its mask (9 bytes for each
    head and pair of tokens), and the masks of two more dropouts (Korthikanti et al., arXiv:2205.05198, section 4).
    """
    setting, stage = Setting("tacc", "1F1B", MANY, sequence=fitted_length()), 3
    model = MODELS[setting.model]
    costs = predict(parse_design(experiment_document(setting)), setting_program(setting)).costs
    kept = float(costs.activation_bytes[stage]) / costs.layers[stage] / MANY.batch
    square, line = 9.0 * model["heads"], kept / fitted_length() + 2 * model["hidden"]
    length: int = round((sqrt(line * line + 4 * square * kept) - line) / (2 * square))
    return length


def fit_note() -> str:
    """Return a text on the fitted sequence length and the assumptions."""
    return (
        f"Fitted: the sequence length, {fitted_length()} tokens, to the variance of 1F1B. It represents the bytes that a layer "
        "keeps of a sequence: attention here is fused and keeps no scores, and dropout is off; with unfused attention "
        f"and dropout, {unfused_sequence_length()} tokens need as many bytes. Assumed: fp32, AdamW without sharding, "
        "no recomputation, M = P microbatches of B sequences, no memory for kernels, NCCL and fragmentation."
    )


def variances() -> Table:
    """Return the variance of the peak memory over devices."""
    rows = []
    why = (
        "one GB more or less on the first and last device, which hold embedding, head and loss, changes it as much; the "
        "printed value of Chimera-wave is close to that of one wave over P, not to that of pipelines on half of the devices"
    )
    for scheme, paper in VARIANCES.items():
        names = (
            {scheme: ""} if scheme != "Chimera-wave" else {scheme: ", half of the devices", "H-1": ", one wave over P"}
        )
        rows += [
            Row(
                f"{scheme}{reading}",
                paper,
                fitted_prediction("bert", MANY, name).memory_variance,
                why,
                "fitted to this value" if scheme == "1F1B" else "follows from the fit",
            )
            for name, reading in names.items()
        ]
    return Table(
        f"Hanayo, variance of the peak memory in GB over 32 GPUs: BERT, {MANY}",
        rows,
        tolerance=0.3,
        note=f"{fit_note()} The paper does not state which configuration was measured; the one that its search chooses is assumed.",
    )


def peaks() -> Grid:
    """Return the lowest, mean and highest peak memory of a device."""
    lines = []
    for layout in (MANY, Layout(2, 16, 4)):
        for scheme in ("GPipe", "1F1B", "Chimera-wave", "H-1", "H-2"):
            memory = fitted_prediction("bert", layout, scheme).memory_gb
            figures = (
                min(memory),
                sum(memory) / len(memory),
                max(memory),
                fitted_prediction("bert", layout, scheme).memory_variance,
            )
            lines.append(GridRow(f"{layout}, {scheme}", figures))
    return Grid(
        "Hanayo, peak memory of a device in GB, BERT on 32 GPUs of 40 GB",
        ("lowest", "mean", "highest", "variance"),
        lines,
        note=fit_note(),
    )


def published_fits() -> dict[tuple[str, Layout], dict[str, bool]]:
    """Return the schedules that fit into memory in the paper's experiments on TACC."""
    shown = {
        ("bert", layout): dict.fromkeys(("GPipe", "1F1B", "Chimera-wave", "H-2", "H-4"), True)
        for layout in EIGHT.values()
    }
    for layout, bars in STRONG.items():
        shown["bert", layout] = {who: bar is not None for who, bar in bars.items()}
    for place, bars in SEARCH.items():
        shown[place] = {who: bar is not None for who, bar in bars.items()}
    return shown


def out_of_memory() -> Table:
    """Return the schedules that run out of memory, by experiment."""
    rows = []
    for (model, layout), paper in published_fits().items():
        for reading, stands in READINGS.items():
            ours = {who: fits_memory(model, layout, stands.get(who, who)) for who in paper}
            most = "; ".join(
                f"{who} {max(fitted_prediction(model, layout, stands.get(who, who)).memory_gb):.1f} GB" for who in paper
            )
            why = f"highest peak of a device with 40 GB: {most}"
            rows.append(Row(f"{model.upper()}, {layout}", _names(paper), _names(ours), why, reading))
    return Table("Hanayo on TACC: schedules that run out of memory", rows, note=f"{correct_fits_text()}. {fit_note()}")


def correct_fits_text() -> str:
    """Return a sentence on the number of experiments whose fit into memory is predicted correctly."""
    cells = [
        (model, layout, who, fit) for (model, layout), bars in published_fits().items() for who, fit in bars.items()
    ]
    counts = [
        f"{sum(fits_memory(model, layout, stands.get(who, who)) == fit for model, layout, who, fit in cells)} of {len(cells)} "
        f"with {reading}"
        for reading, stands in READINGS.items()
    ]
    return f"Whether an experiment runs out of memory is predicted correctly for {', and for '.join(counts)}"


def _names(fitting: Mapping[str, bool]) -> str:
    return ", ".join(who for who, does in fitting.items() if not does) or "none"
