"""The designs of the accuracy benchmark: there are enough of every kind, and each can run."""

from __future__ import annotations

import pytest

from meshwave.engine.bench.accuracy import cases, hanayo, host_cases
from meshwave.engine.bench.accuracy.cases import Case
from meshwave.engine.bench.accuracy.command import all_cases
from meshwave.engine.bench.papers.hanayo_bars import BASELINES, MEASURED
from meshwave.engine.bench.papers.hanayo_fit import TRANSFERS, fit
from meshwave.engine.document import Design
from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.simulation import simulate
from meshwave.engine.schedules import schedules


@pytest.fixture(scope="module")
def cases_and_designs() -> list[tuple[Case, Design]]:
    """The cases and designs of both benchmarks."""
    return [(case, case.design(2)) for case in (*all_cases(), *hanayo.paper_cases())]


@pytest.fixture(scope="module")
def dry_run_designs(cases_and_designs: list[tuple[Case, Design]]) -> list[Design]:
    """The designs of dry runs."""
    return [design for _, design in cases_and_designs][: len(list(cases.dry_run_cases()))]


def test_every_case_has_a_unique_name_and_can_run(cases_and_designs: list[tuple[Case, Design]]) -> None:
    assert len({case.name for case, _ in cases_and_designs}) == len(cases_and_designs)
    assert [(case.name, problem) for case, design in cases_and_designs for problem in run_problems(design)] == []


def test_more_than_forty_cases_cover_every_schedule(dry_run_designs: list[Design]) -> None:
    assert len(dry_run_designs) >= 40
    assert {design.pipeline.schedule for design in dry_run_designs} == set(schedules) - {"custom"}


def test_cases_have_two_to_eight_meshes_and_at_most_eight_devices(dry_run_designs: list[Design]) -> None:
    assert {1, 2, 3, 4, 8} == {design.ranks for design in dry_run_designs}
    assert max(sum(len(mesh.devices) for mesh in design.meshes) for design in dry_run_designs) == 8


def test_cases_cover_replicas_split_backwards_experts_and_unequal_meshes(dry_run_designs: list[Design]) -> None:
    assert any(mesh.dp > 1 for design in dry_run_designs for mesh in design.meshes)
    assert any(mesh.tp > 1 for design in dry_run_designs for mesh in design.meshes)
    assert any(design.model.moe for design in dry_run_designs)
    assert any(len({(mesh.dp, mesh.tp) for mesh in design.meshes}) > 1 for design in dry_run_designs)
    assert {design.cost.kind for design in dry_run_designs} == {"unit", "roofline"}


def test_message_sizes_match_the_names_of_the_cases() -> None:
    handed_on = {
        case.name: design.training.micro_batch_size * design.model.sequence * design.model.hidden * 4
        for case in cases.dry_run_cases()
        if case.group == "messages"
        for design in [case.design(1)]
    }

    assert handed_on == {
        "messages of 32 KiB": 2**15,
        "messages of 256 KiB": 2**18,
        "messages of 1 MiB": 2**20,
        "messages of 4 MiB": 2**22,
    }


@pytest.mark.slow
def test_more_than_twenty_cases_share_links_that_the_kernel_limits() -> None:
    """The cases use two nodes; in half of them, sharing makes the step longer by a measurable amount."""
    found = list(host_cases.host_cases())
    predictions = [predict(case.design(1)) for case in found]

    assert len(found) >= 20
    assert all(case.uses_hosts and case.way == "rehearsed" for case in found)
    assert {prediction.design.cluster.nodes for prediction in predictions} == {2}
    assert {case.group for case in found} == {
        "hosts, alternating",
        "hosts, one link",
        "hosts, data parallel",
        "hosts, gradient buckets",
        "hosts, tensor parallel",
        "hosts, context parallel",
        "hosts, experts",
        "hosts, resharding",
        "hosts, overlapped slots",
        "hosts, sharded parameters",
        "hosts, sharded states",
        "hosts, sequence parallel",
        "hosts, documents",
    }
    alone = [simulate(each.program, each.costs.seconds, lead=each.costs.lead).makespan for each in predictions]
    longer = [each.timeline.makespan > 1.05 * least for each, least in zip(predictions, alone, strict=True)]
    assert sum(longer) >= len(found) / 2


def test_training_cases_have_a_core_for_each_process() -> None:
    devices = [sum(len(mesh.devices) for mesh in case.design(1).meshes) for case in cases.training_cases()]

    assert set(devices) == {1, 2}
    assert {case.way for case in cases.training_cases()} == {"measured"}


def test_cases_of_one_training_differ_only_in_schedule_slot_overlap_or_buckets(
    cases_and_designs: list[tuple[Case, Design]],
) -> None:
    trainings: dict[str, Design] = {}
    for case, design in cases_and_designs:
        if case.rivals:
            first = trainings.setdefault(f"{case.way} {case.rivals}", design)
            same = {"pipeline": first.pipeline, "name": first.name}
            same |= {"cost": first.cost} if case.group == "hosts, overlapped slots" else {}
            if case.group == "hosts, gradient buckets":
                same["training"] = design.training.model_copy(
                    update={"gradient_buckets": first.training.gradient_buckets}
                )
            assert design.model_copy(update=same) == first, case.name


# ---- the Hanayo paper ----


def test_gains_computed_from_the_bars_are_those_of_the_paper() -> None:
    """Gains of the best number of waves over Chimera in percent: the eight numbers in the paper's text."""
    gains = {place: 100 * (max(MEASURED[place]) / chimera - 1) for place, (_, _, chimera) in BASELINES.items()}

    printed = {("pc", 8): 15.7, ("fc", 8): 23.2, ("tacc", 8): 8.2, ("tc", 8): 24.6}
    printed |= {("pc", 4): 30.4, ("fc", 4): 29.9, ("tacc", 4): 17.1, ("tc", 4): 28.0}
    assert gains == pytest.approx(printed, abs=0.11)


def test_transfer_times_of_a_cluster_are_fitted_to_its_bars() -> None:
    assert fit("tacc", 4) == pytest.approx(TRANSFERS["tacc", 4], rel=0.02)


def test_two_pipelines_are_replicas_and_chimera_wave_has_twice_as_many() -> None:
    """All cases use the same eight devices and the same number of sequences per step."""
    designs = {case.tags["who"]: case.design(1) for case in hanayo.paper_cases() if case.rivals in ("pc D=2 P=4", "")}
    axes = {who: [(mesh.dp, mesh.tp) for mesh in design.meshes] for who, design in designs.items()}

    assert axes.pop("Chimera-wave") == [(4, 1)] * 2
    assert set(map(tuple, axes.values())) == {((2, 1),) * 4}
    assert len({design.sequences_per_step for design in designs.values()}) == 1


def test_the_page_begins_with_the_fitted_values() -> None:
    said = hanayo.introduction_text()

    assert said.startswith(f"{len(TRANSFERS)} transfer times")
    assert f"fitted to {3 * len(MEASURED)} bars" in said
    assert f"in {hanayo.count_correct_waves(TRANSFERS)} of {len(MEASURED)} cases" in said
    assert hanayo.count_correct_waves(dict.fromkeys(TRANSFERS, 1.0)) < hanayo.count_correct_waves(TRANSFERS)
