"""Statistics, a page and a picture of results, and the result file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree

import pytest

from meshwave.engine.bench.accuracy import cases, hanayo, host_cases
from meshwave.engine.bench.accuracy.cases import Case
from meshwave.engine.bench.accuracy.command import measure_all
from meshwave.engine.bench.accuracy.machine_load import busy_share, describe_machine, steal_share, steal_ticks
from meshwave.engine.bench.accuracy.picture import draw_svg
from meshwave.engine.bench.accuracy.results import Result, read_results, write_results
from meshwave.engine.bench.accuracy.summary import error_statistics, rank_pairs, summarize
from meshwave.engine.bench.accuracy.table import markdown_page
from meshwave.engine.bench.papers.hanayo_fit import TRANSFERS, data_sheet_ratio
from meshwave.engine.bench.speed import run_benchmarks
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.exports.pictures.palette import SURFACES
from tests._findings import refusal
from tests.engine.bench.accuracy.measured import result, results

SPACE = "{http://www.w3.org/2000/svg}"


# ---- statistics ----


def test_errors_of_both_signs_count() -> None:
    found = error_statistics([-0.04, 0.01, 0.02, 0.03, -0.10])

    assert found is not None
    assert found == pytest.approx((5, 0.03, 0.076, 0.10, 0.01))
    assert error_statistics([]) is None


def test_an_order_counts_if_predictions_differ_by_five_percent() -> None:
    fast, near, slow = (
        result("a", 1.00, 1.00, rivals="x"),
        result("b", 1.04, 0.90, rivals="x"),
        result("c", 1.20, 0.95, rivals="x"),
    )

    found = rank_pairs([slow, near, fast, result("d", 5.0, 0.1, rivals="another"), result("e", 9.0, 0.1)])

    assert (found.pairs, found.right, found.close) == (2, 1, 1)
    assert found.wrong == ("c was predicted to take 20.0% longer than a, and took -5.0%",)


def test_memory_errors_are_relative_to_the_allocated_bytes() -> None:
    found = summarize([result("a", predicted_bytes=(90.0, 110.0), measured_bytes=(100.0, 100.0)), result("b")])

    assert found.memory is not None
    assert (found.memory.designs, found.memory.worst) == (2, pytest.approx(0.1))


# ---- the file ----


def test_written_results_are_read_back_unchanged(tmp_path: Path) -> None:
    kept = results(
        result("a", tags={"limit": "processes"}), result("b", way="measured", scale=None, measured_bytes=(1.0,))
    )

    write_results(kept, tmp_path / "accuracy.json")

    assert read_results(tmp_path / "accuracy.json") == kept
    assert len((tmp_path / "accuracy.json").read_text().splitlines()) == 9  # a result a line
    assert read_results(tmp_path / "nothing.json") is None


def test_a_new_result_replaces_the_old_one() -> None:
    found = results(result("a"), result("b"), result("c")).replace_result(result("b", 2.0), "later")

    assert [(each.case, each.predicted) for each in found.results] == [("a", 1.0), ("b", 2.0), ("c", 1.0)]
    assert found.date == "later"


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"format": "meshwave/1"}')

    with pytest.raises(InputError, match="is not a results file of this benchmark"):
        read_results(tmp_path / "x.json")


# ---- a bench ----

THREE = tuple(Case(name, f"group {name[0]}", {}) for name in ("a1", "a2", "b1"))


class Stub:
    """Stand-in for a measurement that returns given results."""

    def __init__(self, find: Callable[[str], Result]) -> None:
        self._find = find

    def measure(self, case: Case) -> Result:
        return self._find(case.name)


def measure_only(
    path: Path, only: Sequence[str], find: Callable[[str], Result] = result
) -> tuple[list[str], dict[str, str]]:
    """Return the names of all results in the file afterwards, and the skipped cases."""
    failed = measure_all(THREE, only, path, lambda line: None, lambda: nullcontext(Stub(find)))
    kept = read_results(path)
    return [each.case for each in kept.results] if kept else [], failed


def test_results_measured_before_an_interruption_are_kept(tmp_path: Path) -> None:
    def find(name: str) -> Result:
        if name == "b1":
            raise KeyboardInterrupt
        return result(name)

    path = tmp_path / "new" / "accuracy.json"
    with pytest.raises(KeyboardInterrupt):
        measure_only(path, [], find)

    assert measure_only(path, ["a1"]) == (["a1", "a2"], {})
    assert path.with_suffix(".md").exists()
    assert measure_only(path, ["missing"], lambda name: result(name, 7.0)) == (["a1", "a2", "b1"], {})
    kept = read_results(path)
    assert kept is not None
    assert [each.predicted for each in kept.results] == [1.0, 1.0, 7.0]
    assert kept.machine == describe_machine()


def test_a_design_that_fails_is_omitted_with_the_reason(tmp_path: Path) -> None:
    def find(name: str) -> Result:
        if name == "a2":
            raise RunError("process 1 ended")
        return result(name)

    assert measure_only(tmp_path / "accuracy.json", [], find) == (["a1", "b1"], {"a2": "process 1 ended"})


def test_a_word_that_selects_no_design_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no design .* 'c' .* groups are group a and group b"):
        measure_only(tmp_path / "accuracy.json", ["a1", "c"])
    assert measure_only(tmp_path / "accuracy.json", ["group b"]) == (["b1"], {})


def test_options_of_long_benchmarks_are_refused_without_one() -> None:
    other = refusal(lambda: run_benchmarks(["papers"], say=pytest.fail, only=["1f1b"]))
    assert other.code == "option_of_other_parts"
    assert other.message.startswith("--only and --out apply only to accuracy and rehearsal")
    unknown = refusal(lambda: run_benchmarks(["acuracy"], say=pytest.fail))
    assert (unknown.code, unknown.params["suggestion"]) == ("unknown_member", "accuracy")


def test_the_machine_is_described_as_text() -> None:
    assert "core" in describe_machine()
    assert 0 <= busy_share(0.001) <= 1
    assert 0 <= steal_share(steal_ticks()) <= 1


# ---- the picture ----


def test_every_design_is_a_dot_with_a_tooltip_in_both_charts_and_themes() -> None:
    far = result("a <b>", 1.0, 1.5, way="measured", scale=None, group="real compute")
    picture = ElementTree.fromstring(draw_svg([result("1f1b", 0.5, 0.51), far]))

    for theme in ("light", "dark"):
        (part,) = [group for group in picture.iterfind(f"{SPACE}g") if group.get("class") == theme]
        says = [title.text for title in part.iterfind(f"{SPACE}rect/{SPACE}title")]
        assert says.count("1f1b: predicted 1 s, dry run 1.02 s, +2.0%") == 2  # by the clock: twice as slow
        assert says.count("a <b>: predicted 1 s, measured 1.5 s, +50.0%") == 2
        ground = part.find(f"{SPACE}rect")
        assert ground is not None
        assert ground.get("fill") == SURFACES[theme]["background"]  # type: ignore[index]
        assert "+50%" in [text.text for text in part.iterfind(f"{SPACE}text")]  # beyond the edge
    style = picture.findtext(f"{SPACE}style") or ""
    assert "prefers-color-scheme:dark" in style


def test_all_shapes_of_a_picture_are_inside_its_sheet() -> None:
    groups = list(dict.fromkeys(case.group for case in cases.dry_run_cases()))
    found = [result(group, 10**place, 10**place * 1.2**place, group=group) for place, group in enumerate(groups)]
    picture = ElementTree.fromstring(draw_svg(found))

    width, height = float(picture.get("width") or 0), float(picture.get("height") or 0)
    places = [(float(box.get("x") or 0), float(box.get("y") or 0)) for box in picture.iterfind(f"{SPACE}g/{SPACE}rect")]
    assert all(0 <= x < width and 0 <= y < height for x, y in places)


def test_a_picture_without_results_is_refused() -> None:
    with pytest.raises(InputError, match="no results to draw"):
        draw_svg([])


# ---- the page ----


def test_the_page_states_results_and_omits_missing_measurements() -> None:
    names = [case.name for case in cases.dry_run_cases()][:3]
    found = [result(name, 1.0, measured) for name, measured in zip(names, (1.01, 1.02, 1.10), strict=True)]

    page = markdown_page(results(*found))

    assert "| step time, median error of 3 dry runs without hosts | 3% | 2.0% |" in page
    assert "| step time, 90th percentile of the error | 8% | 8.4% |" in page
    assert "2 cores of a test" in page
    assert f"| {names[2]} | 4 | 1 s | 1.1 s | +10.0% |" in page
    for absent in ("## Measured runs", "## The Hanayo paper", "## What limits"):
        assert absent not in page


def test_results_of_an_earlier_machine_keep_its_name() -> None:
    early = results(result("a"), result("b", group="data parallel"), result("c", group="data parallel"))
    mixed = early.move_to_machine("a new machine")
    for new in (result("b", group="data parallel"), result("d", group="experts")):
        mixed = mixed.replace_result(new, "2026-11-28")

    assert [each.machine for each in mixed.results] == ["2 cores of a test", "", "2 cores of a test", ""]
    assert "Measured on 2 cores of a test; on a new machine: *b*, *experts*; last updated" in markdown_page(mixed)
    assert mixed.move_to_machine("2 cores of a test").results[0].machine == ""


def test_the_page_separates_emulated_links_from_modelled_links() -> None:
    shared, waited = next(iter(host_cases.host_cases())), next(iter(cases.dry_run_cases()))
    found = [result(shared.name, 1.0, 1.04, group=shared.group, ranges=(0.99, 1.05)), result(waited.name, 1.0, 1.01)]

    page = markdown_page(results(*found))

    assert "| step time, median error of 1 dry runs on emulated hosts | 3% | 4.0% |" in page
    assert "| step time, median error of 1 dry runs without hosts | 3% | 1.0% |" in page
    assert "| -1.0% to +5.0% |" in page
    assert page.index(f"| {shared.group} | 1 |") < page.index("circular for transfers, see above")
    assert page.index("## All dry runs on emulated hosts") < page.index("## All other dry runs")


def test_the_page_states_the_limits_of_dry_runs() -> None:
    (case,) = [case for case in cases.limit_cases() if case.name == "limit: 4 processes"]

    sizes = {"message_bytes": 98e3, "modelled_message_bytes": 1e6}
    of_units = result(case.name, 33.0, 33.66, scale=0.02, unit="units", tags=dict(case.tags), **sizes)

    page = markdown_page(results(of_units))

    # 0.66 units of 20 ms, over 22 computations that follow each other
    assert "| processes | 4 | +2.0% | 600 µs | 5% | at most 98 kB instead of 1 MB per process |" in page


def test_the_section_on_training_states_errors_and_memory() -> None:
    case = next(iter(cases.training_cases()))
    computed = result(
        case.name,
        way="measured",
        scale=None,
        learned=0.95,
        predicted_bytes=(95.0,),
        measured_bytes=(100.0,),
        said="forward took 2 times",
    )

    page = markdown_page(results(computed))

    assert (
        f"| {case.name.removeprefix('real, ')} | 1 s | 1.02 s | +2.0% | +7.4% | 1% | -5.0% | forward took 2 times |"
        in page
    )
    assert "| peak memory, largest error of a mesh | 10% | 5.0% |" in page
    assert "| step time, median error of 1 measured runs, predicted from one run of 1F1B |  | 7.4% |" in page


def test_the_page_compares_the_paper_with_dry_runs() -> None:
    of_tc = [case for case in hanayo.paper_cases() if case.group == "tc D=2 P=4"]
    times = {"GPipe": 21.0, "H-2": 15.0, "H-4": 14.0, "H-8": 13.9, "H-1": 18.0}
    found = [
        result(case.name, 21.0, times.get(case.tags["who"], 20.0), tags=dict(case.tags), rivals=case.rivals)
        for case in of_tc
    ]

    page = markdown_page(results(*found))

    transfers = f"{TRANSFERS['tc', 4]:.4f} | {data_sheet_ratio('tc', 4):.4f}"
    assert f"| TC, D=2 P=4 | {transfers} |" in page
    assert page.index(" transfer times T_C, one per cluster") < page.index("| TC, D=2 P=4 |")
    assert "1.51 / 1.00 / 1.51" in page  # eight waves
    assert "– / 1.00 / 1.17" in page  # one wave, which the paper does not show
    assert "that of the paper in 1 of 1" in page


def test_the_committed_page_is_generated_from_the_committed_results() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    kept = read_results(docs / "accuracy.json")
    if kept is None:
        assert not (docs / "accuracy.md").exists()
        return
    assert (docs / "accuracy.md").read_text("utf-8") == markdown_page(kept)
    assert json.loads((docs / "accuracy.json").read_bytes())["format"] == "meshwave-accuracy/1"


def test_an_unwritable_file_is_reported_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path, said in (("file/x.json", "the folder .*file cannot be created: File exists"), ("", "Is a directory")):
        with pytest.raises(InputError, match=said):
            measure_only(tmp_path / path, [], lambda name: pytest.fail("it was measured"))
