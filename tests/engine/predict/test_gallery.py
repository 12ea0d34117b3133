"""The gallery of schedules: its variants, their predicted costs, and the reasons for refusals."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.files import example, examples
from meshwave.engine.predict import gallery as module
from meshwave.engine.predict.gallery import (
    Entry,
    RefusedVariant,
    apply_variant,
    list_variants,
    simulate_variant,
    simulate_variants,
)
from meshwave.engine.predict.gallery_notes import gallery_notes
from meshwave.engine.predict.prediction import predict
from meshwave.engine.schedules import schedules
from tests._strategies import document


def gallery_design(ranks: int = 4, microbatches: int = 8, layers: int = 16, **sections: Any) -> Design:
    made = document({"schedule": "1f1b", "microbatches": microbatches}, ranks, **sections)
    made["model"] = {**made["model"], "layers": layers}
    return parse_design(made)


def entries_by_name(design: Design, *names: str) -> list[Entry | RefusedVariant]:
    """Return the entries of the schedules under test, without the schedules that search, which take long."""
    return [simulate_variant(design, variant) for variant in list_variants(design) if variant.schedule in names]


def entries(design: Design, *names: str) -> list[Entry]:
    return [found for found in entries_by_name(design, *names) if isinstance(found, Entry)]


# ---- variants ----


@pytest.mark.slow
@pytest.mark.parametrize("name", examples())
def test_the_own_variant_of_a_design_is_its_prediction(name: str) -> None:
    design = load_design(example(name))
    present = [variant for variant in list_variants(design) if variant.is_present]

    assert len(present) == 1
    assert apply_variant(design, present[0]) == design
    judged = simulate_variant(design, present[0])
    assert isinstance(judged, Entry)
    assert judged.makespan_s == predict(design).timeline.makespan


def test_every_schedule_except_custom_has_a_variant() -> None:
    found = list_variants(gallery_design())

    assert {variant.schedule for variant in found} == set(schedules) - {"custom"}
    assert len({variant.key for variant in found}) == len(found)


def test_waves_and_chunks_are_limited_by_the_layers() -> None:
    found = list_variants(gallery_design(ranks=4, layers=16))
    hanayo = {each.options["waves"]: each for each in found if each.schedule == "hanayo" and each.refusal is None}
    loops = [each.options for each in found if each.schedule == "interleaved-1f1b" and each.refusal is None]

    assert list(hanayo) == [1, 2]
    assert [(each["chunks"], each["slots"]) for each in loops] == [
        (chunks, slots) for chunks in (2, 4) for slots in ("single", "fused")
    ]
    refused = [each for each in found if each.schedule == "hanayo" and each.refusal]
    assert [each.refusal.params for each in refused if each.refusal] == [{"stages": 32, "layers": 16}]


def test_groupings_and_split_backwards_are_variants() -> None:
    titles = [
        variant.title
        for variant in list_variants(gallery_design())
        if variant.schedule == "hanayo" and not variant.refusal
    ]

    assert titles[:4] == [
        "Hanayo, 1 wave",
        "Hanayo, 1 wave, split backward",
        "Hanayo, 1 wave, ungrouped",
        "Hanayo, 1 wave, ungrouped, split backward",
    ]


def test_the_smallest_step_comes_first_and_searches_come_last() -> None:
    found = list_variants(gallery_design())

    assert found[0].is_present
    rest = [(schedules[each.schedule].depends_on_costs, each.computations) for each in found[1:]]
    assert rest == sorted(rest)


def test_explicit_settings_are_kept_if_the_routes_are_equal() -> None:
    made = document({"schedule": "1f1b", "microbatches": 8, "stages": [3, 4, 4, 5], "recompute": [0]}, 4)
    made["model"] = {**made["model"], "layers": 16}
    found = {variant.title: variant.pipeline for variant in list_variants(parse_design(made))}

    assert found["GPipe"]["stages"] == [3, 4, 4, 5]
    assert found["GPipe"]["recompute"] == [0]
    assert found["Hanayo, 1 wave"]["stages"] is None
    assert found["Hanayo, 1 wave"]["recompute"] == "none"


def test_a_custom_order_is_listed_with_the_other_variants() -> None:
    found = list_variants(load_design(example("07-drawn-by-hand")))

    assert found[0].is_present
    assert found[0].schedule == "custom"
    assert all(variant.pipeline["actions"] is None for variant in found[1:])


# ---- what is found ----


def test_a_variant_that_the_schedule_refuses_is_shown_with_its_reason() -> None:
    refused = {
        each.variant.schedule: each.variant.refusal.code
        for each in entries_by_name(gallery_design(3, 5), "chimera", "dualpipe", "zb-h2")
        if isinstance(each, RefusedVariant) and each.variant.refusal
    }

    assert refused == {"chimera": "odd_mesh_count", "dualpipe": "odd_mesh_count"}


def test_equal_orders_are_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many microbatches as meshes, both groupings of Hanayo give the same order."""
    design = gallery_design(ranks=2, microbatches=2)
    chosen = [variant for variant in list_variants(design) if variant.schedule in ("1f1b", "hanayo")]
    monkeypatch.setattr(module, "list_variants", lambda design: chosen)

    titles = [found.variant.title for found in simulate_variants(design) if isinstance(found, Entry)]

    assert "Hanayo, 1 wave" in titles
    assert "Hanayo, 1 wave, ungrouped" not in titles


def test_a_step_that_is_too_large_can_be_chosen_without_being_simulated() -> None:
    design = gallery_design(ranks=4, microbatches=20_000, layers=64)
    large = next(each for each in list_variants(design) if each.title == "Hanayo, 2 waves, split backward")

    judged = simulate_variant(design, large)

    assert large.refusal is None
    assert isinstance(judged, RefusedVariant)
    assert "640,000 computations" in judged.reason


def test_traffic_counts_what_all_devices_send() -> None:
    """Each of 8 microbatches has 3 hops down and 3 up; twice as many devices send twice as much."""
    one, two = (entries(gallery_design(dp=dp), "1f1b")[0] for dp in (1, 2))

    assert one.traffic_bytes == 2 * 3 * 8 * 32 * 64 * 4
    assert two.traffic_bytes == 2 * one.traffic_bytes


def test_a_design_that_cannot_be_lowered_gives_the_reason_on_every_card() -> None:
    made = document({"schedule": "1f1b", "microbatches": 4}, 2)
    made["meshes"][1]["devices"] = [0]
    found = entries_by_name(parse_design(made, draft=True), "1f1b", "gpipe")

    assert all(isinstance(each, RefusedVariant) for each in found)
    assert all("device 0" in each.reason for each in found if isinstance(each, RefusedVariant))


# ---- what is told ----


def refusals_by_title(design: Design, *names: str) -> dict[str, str]:
    return {note.title: note.text for note in gallery_notes(entries(design, *names))}


def test_the_comparison_with_interleaving_states_speed_and_cause() -> None:
    """P=4, V=2 chunks: 33 and 36 stage units if a backward takes twice as long as a forward."""
    note = refusals_by_title(gallery_design(4, 4, layers=8), "hanayo", "interleaved-1f1b")["Hanayo or interleaved 1F1B"]

    assert "the step takes 18 units with Hanayo (1 wave" in note and "and 16.5 units with interleaved 1F1B" in note
    assert "it is 8.3% shorter with interleaved 1F1B" in note
    assert "the step is 1.5 units shorter with interleaved 1F1B, because a backward takes 2 times as long" in note


def test_hanayo_is_fastest_with_many_waves_and_slow_links() -> None:
    cost = {"kind": "unit", "forward": 1.0, "backward": 1.0, "transfer": 0.05}
    note = refusals_by_title(gallery_design(4, 4, layers=32, cost=cost), "hanayo", "interleaved-1f1b")[
        "Hanayo or interleaved 1F1B"
    ]

    assert "% shorter with Hanayo. " in note
    assert "less (" in note
    assert "the two stages at a reversal are on one mesh" in note


@pytest.mark.slow
@pytest.mark.parametrize(("transfer", "best", "law"), [(0.125, 2, "2"), (0.02, 4, "5")])
def test_the_best_number_of_waves_is_compared_with_the_formula(transfer: float, best: int, law: str) -> None:
    cost = {"kind": "unit", "forward": 1.0, "backward": 2.0, "transfer": transfer}
    note = refusals_by_title(gallery_design(8, 8, layers=128, cost=cost), "hanayo")["Number of waves"]

    assert note.startswith(f"The fastest number of waves in simulation is {best} (tried: 1, 2, 4 and 8)")
    assert f"gives {law}" in note


def test_with_free_transfers_the_layers_limit_the_waves() -> None:
    assert "as long as there are enough layers" in refusals_by_title(gallery_design(), "hanayo")["Number of waves"]


def test_the_fastest_fitting_variant_is_compared_with_the_current_one() -> None:
    found = refusals_by_title(gallery_design(), "1f1b", "gpipe", "zb-h1")

    assert found["Fastest that fits"].startswith("ZB-H1 takes ")
    assert "shorter than the current schedule" in found["Fastest that fits"]
    assert "with full backwards is 1F1B. The step is" in found["Split backward"]
    assert "shorter with ZB-H1, with" in found["Split backward"]
    assert gallery_notes([]) == []


def test_a_faster_search_on_another_path_is_recommended() -> None:
    """In a wave of 4 meshes with 4 microbatches, the first backward starts where the last forward ends."""
    made = document({"schedule": "auto", "microbatches": 4}, 4)
    made["model"] = {**made["model"], "layers": 16}
    found = {note.title: note for note in gallery_notes(entries(parse_design(made), "auto"))}
    note = found["Auto with other options"]

    assert note.as_data()["advised"].startswith("auto ")
    assert note.as_data()["advised_title"].startswith("Auto, ")
    assert "% shorter than Auto (1 chunk" in note.text
    assert not any(note.advised for note in gallery_notes(entries(gallery_design(), "zb-h1")))


def test_if_nothing_fits_the_variant_with_the_least_memory_is_named() -> None:
    design = gallery_design()
    small = design.model_dump(mode="json")
    small["cluster"]["device"]["memory_bytes"] = 1e6

    assert "No schedule fits in memory" in refusals_by_title(parse_design(small), "1f1b", "gpipe")["Fastest that fits"]
