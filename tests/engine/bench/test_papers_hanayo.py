"""Experiments of the Hanayo paper: printed values, fitted values, and the conclusions from both."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from meshwave.engine.bench.papers import hanayo_clusters, hanayo_memory, hanayo_scaling, hanayo_throughput
from meshwave.engine.bench.papers.hanayo_bars import EIGHT, MEASURED, SEARCH, STRONG, VARIANCES, WEAK, Layout
from meshwave.engine.bench.papers.hanayo_designs import (
    SCHEMES,
    Setting,
    experiment_document,
    predict_experiment,
    setting_program,
)
from meshwave.engine.bench.papers.hanayo_fit import TRANSFERS, fitted_transfer
from meshwave.engine.bench.papers.table import Row
from meshwave.engine.document import Design, parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op

pytestmark = pytest.mark.slow

MANY = Layout(4, 8, 2)


def figure_design(scheme: str, layout: Layout, **how: str) -> Design:
    return parse_design(experiment_document(Setting("tacc", scheme, layout, **how)))  # type: ignore[arg-type]


def rows_with_basis(rows: list[Row], basis: str) -> list[Row]:
    found = [row for row in rows if row.basis == basis]
    assert found
    return found


# ---- designs ----


@pytest.mark.parametrize("layout", [EIGHT[8], EIGHT[4], *WEAK, *STRONG, *(layout for _, layout in SEARCH)], ids=str)
def test_all_schemes_have_the_same_devices_and_sequences(layout: Layout) -> None:
    designs = [figure_design(scheme, layout) for scheme in ("GPipe", "1F1B", "Chimera-wave", "H-2")]

    devices = [sorted(device for mesh in design.meshes for device in mesh.devices) for design in designs]
    assert all(each == list(range(layout.pipelines * layout.ranks)) for each in devices)
    sequences = layout.pipelines * layout.batch * layout.ranks
    assert {design.sequences_per_step for design in designs} == {sequences}


@pytest.mark.parametrize(("scheme", "copies"), [("H-2", 2), ("Chimera-wave", 4)])
def test_pipelines_are_copies_whose_gradients_are_reduced(scheme: str, copies: int) -> None:
    design = figure_design(scheme, EIGHT[4])

    assert {mesh.dp for mesh in design.meshes} == {copies}
    reduced = lower(design).stage[lower(design).op == Op.REDUCE_GRAD]
    assert sorted(reduced.tolist()) == list(range(design.stages))


def test_a_pipeline_takes_consecutive_devices_or_the_copies_of_a_stage_do() -> None:
    pipelines, copies = figure_design("H-2", MANY), figure_design("H-2", MANY, placement="copies")

    assert [mesh.devices[0] for mesh in pipelines.meshes] == list(range(8))
    assert copies.meshes[0].devices == (0, 1, 2, 3)


def test_layers_of_half_the_products_have_nearly_the_flops_of_whole_ones() -> None:
    """Eight waves over eight devices have more stages than the model has layers."""
    whole, halves = (predict(figure_design(scheme, EIGHT[8])).costs for scheme in ("H-4", "H-8"))

    assert len(halves.layers) == 128
    assert halves.model_flops == pytest.approx(whole.model_flops, rel=0.03)


def test_a_fitted_transfer_is_more_forwards_of_a_longer_pipeline() -> None:
    assert fitted_transfer("tacc", 8) == TRANSFERS["tacc", 8]
    assert fitted_transfer("tacc", 16) == 2 * TRANSFERS["tacc", 8]


@pytest.mark.parametrize("scheme", list(SCHEMES))
@pytest.mark.parametrize("layout", [EIGHT[8], MANY], ids=str)
def test_a_cached_program_is_that_of_the_design(scheme: str, layout: Layout) -> None:
    setting = Setting("tacc", scheme, layout, "gpt", number="16 bit", placement="copies")

    assert setting_program(setting) == lower(parse_design(experiment_document(setting)))


# ---- clusters ----


def test_the_first_table_states_the_numbers_of_fitted_values_and_bars() -> None:
    grid = hanayo_clusters.fit_accuracy()
    found = {line.what: line.figures for line in grid.rows}

    assert [figures[:2] for figures in found.values()] == [(0, 0), (0, 0), (8, 24)]
    rows = hanayo_clusters.best_waves().rows
    for title, figures in found.items():
        assert figures[2] == sum(row.paper == row.ours for row in rows if row.basis == title)
        assert f"{figures[2]} of {len(MEASURED)}" in hanayo_clusters.fit_summary()
    assert hanayo_clusters.fit_summary() in grid.note


def test_fitted_bars_are_predicted_more_accurately_than_from_data_sheets() -> None:
    *sheets, fitted = (line.figures[3] or 0.0 for line in hanayo_clusters.fit_accuracy().rows)

    assert all(fitted < each for each in sheets)


def test_every_bar_of_the_paper_has_a_row_of_each_basis() -> None:
    grid = hanayo_clusters.speed_up_grid()

    assert len(grid.rows) == len(MEASURED) * (1 + len(hanayo_clusters.BASES))
    assert all(figure is not None for line in grid.rows if "paper" not in line.what for figure in line.figures)


# ---- what throughput counts ----


def test_one_count_of_sequences_explains_layouts_of_the_same_devices() -> None:
    rows = list(hanayo_throughput.ratios_by_sequence_count().rows)
    plain, counted = (rows_with_basis(rows, basis) for basis in (hanayo_throughput.TRUE, hanayo_throughput.COUNTED))

    for true, ours in zip(plain, counted, strict=True):
        nearer = abs(float(ours.ours) - float(ours.paper)) < abs(float(true.ours) - float(true.paper))
        assert nearer == ("GPT, H-2" not in ours.what), ours.what


def test_clusters_differ_by_the_ratio_of_their_fp32_peaks() -> None:
    rows = list(hanayo_throughput.precision_ratios().rows)

    for narrow, wide in zip(rows_with_basis(rows, "fp32"), rows_with_basis(rows, "16 bit"), strict=True):
        assert abs(float(narrow.ours) - float(narrow.paper)) < abs(float(wide.ours) - float(wide.paper))


def test_steps_from_the_roofline_to_print_multiply_up() -> None:
    rows = hanayo_throughput.roofline_to_paper().rows
    first, last = rows[0].figures[0], rows[-1].figures[0]
    product = 1.0
    for row in rows:
        product *= row.figures[1] or 0.0

    assert last == MEASURED["tacc", 8][0]
    assert product == pytest.approx((last or 0.0) / (first or 1.0))
    left = rows[-1].figures[1] or 0.0
    share = hanayo_throughput.required_efficiency("tacc", "H-2", hanayo_throughput.SEQUENCE)
    assert share == pytest.approx(hanayo_throughput.EFFICIENCY * left)


# ---- scaling ----


@pytest.mark.parametrize("scheme", ["GPipe", "1F1B", "Chimera-wave", "H-2"])
def test_reductions_cost_faster_devices_a_larger_share(scheme: str) -> None:
    setting = Setting("tacc", scheme, MANY)

    with_them, without = (hanayo_scaling.efficiency(setting, reduced=reduced) for reduced in (True, False))
    assert hanayo_scaling.efficiency(setting._replace(number="16 bit")) < with_them <= without
    assert without == pytest.approx(100, abs=5)


def test_the_winners_with_a_fitted_transfer_have_the_papers_waves() -> None:
    rows = [row for row in hanayo_scaling.winners().rows if "Hanayo" in row.what and "fitted" in row.basis]

    assert len(rows) == 4
    assert all(row.paper == "D=4 P=8 W=2" for row in rows)
    assert all(str(row.ours).endswith("W=2") for row in rows)


def test_the_time_independent_of_the_batch_is_estimated_from_the_bars() -> None:
    """0.16 s plus 0.61 s per B fits 1.302, 1.454 and 1.544 for B = 1, 2 and 4."""
    (why,) = {row.why for row in hanayo_scaling.strong_scaling().rows if "H-2" in row.what}

    assert "0.16 s + 0.61 s per B" in why


# ---- memory ----


def test_the_fitted_length_has_the_smallest_error() -> None:
    def relative_error_of(length: int) -> float:
        setting = Setting("tacc", "1F1B", MANY, sequence=length)
        return abs(predict_experiment(setting).memory_variance - VARIANCES["1F1B"])

    best = hanayo_memory.fitted_length()

    assert relative_error_of(best) <= min(relative_error_of(best - 64), relative_error_of(best + 64))


def test_unfused_attention_keeps_equal_bytes_with_fewer_tokens() -> None:
    assert 0.2 * hanayo_memory.fitted_length() < hanayo_memory.unfused_sequence_length() < hanayo_memory.fitted_length()


def test_variances_of_memory_have_the_printed_order() -> None:
    found = {row.what: float(row.ours) for row in hanayo_memory.variances().rows}

    assert max(found["GPipe"], found["H-2"]) < found["Chimera-wave, one wave over P"] < found["1F1B"]


def test_most_experiments_run_out_of_memory_as_in_the_paper() -> None:
    printed = hanayo_memory.published_fits()
    cells = [(model, layout, who, fit) for (model, layout), bars in printed.items() for who, fit in bars.items()]
    right = sum(hanayo_memory.fits_memory(model, layout, who) == fit for model, layout, who, fit in cells)

    assert f"{right} of {len(cells)} with" in hanayo_memory.correct_fits_text()
    assert right > 0.8 * len(cells)
    assert right > sum(fit for *_, fit in cells), "more than if everything fitted"


# ---- the page ----


def test_the_page_contains_the_computed_figures() -> None:
    script = runpy.run_path(str(Path(__file__).resolve().parents[3] / "scripts" / "papers_page.py"))
    page = script["PAGE"].read_text("utf-8")

    assert page == script["refresh"](page), "run scripts/papers_page.py"


def test_every_scheme_can_be_simulated() -> None:
    assert all(predict_experiment(Setting("fc", scheme, EIGHT[8])).sequences_per_s > 0 for scheme in SCHEMES)
