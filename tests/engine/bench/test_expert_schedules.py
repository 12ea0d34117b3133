"""The benchmark of expert schedules: all schedules run and agree, and the claims follow from the figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwave.engine.bench import expert_schedules as moe_bench
from meshwave.engine.bench import speed as benches
from meshwave.engine.bench.expert_schedules import (
    LAYERS,
    NAMES,
    RANKS,
    SPREAD,
    ComparedLayer,
    ExpertMeasurements,
    Times,
    check_claims,
    collect_figures,
    measure_schedules,
)
from meshwave.engine.errors import InputError
from meshwave.engine.experts import Choice, Layer, expert_schedules
from meshwave.engine.runs.emulation import network
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked_clusters")]


def layer(mp: int, esp: int, **options: object) -> Layer:
    sizes = {"tokens": 16, "hidden": 8, "ffn_hidden": 8, "top_k": 2, "capacity_factor": 1.0, **options}
    return Layer(mp=mp, ep=4 // esp, esp=esp, experts=4, **sizes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def measurements() -> ExpertMeasurements:
    """Measurements of tiny layers on two nodes of two processes over loopback, which cover all code paths."""
    return measure_schedules(
        ProcessCluster(2, 2), [layer(2, 1), layer(4, 2), layer(2, 2)], sizes=(4096, 65536), rounds=1
    )


def test_every_schedule_is_measured_and_predicted(measurements: ExpertMeasurements) -> None:
    """Schedules whose gates see the same tokens have been checked to give the same results."""
    for each in measurements.layers:
        assert set(each.measured) == set(each.predicted) == set(NAMES)
        for times in (*each.measured.values(), *each.predicted.values()):
            assert min(times) > 0
            assert times.both <= times.forward + times.backward + 1e-9
        assert each.choice.name in ("parm-s1", "parm-s2")
        assert each.layer.nodes == (0, 0, 1, 1)


def test_every_collective_that_schedules_use_is_measured(measurements: ExpertMeasurements) -> None:
    """A collective without a line would cost nothing."""
    for each in measurements.layers:
        fit = measurements.profile.fit(each.layer.mp, each.layer.esp)
        for name in NAMES:
            for step in expert_schedules[name]().steps(each.layer):
                if step.collective and each.layer.size(step.group) > 1:
                    assert f"{step.collective}@{step.group}" in fit, (name, step)
        assert "overlap" in fit


def test_the_text_contains_every_figure(measurements: ExpertMeasurements) -> None:
    text = "\n".join(benches.to_text({"moe": collect_figures(measurements)}))

    assert "4 processes over this machine's loopback, not emulated" in text
    assert all(text.count(f"\n  {name} ") == len(measurements.layers) for name in NAMES)
    assert text.count("measured  predicted   ratio") == len(measurements.layers)
    assert all(f"  {verdict.claim}: in " in text for verdict in check_claims(measurements))


def compared_layer(choice: str, measured: dict[str, float], predicted: dict[str, float]) -> ComparedLayer:
    def times(seconds: dict[str, float]) -> dict[str, Times]:
        return {name: Times(both / 3, 2 * both / 3, both) for name, both in seconds.items()}

    return ComparedLayer(layer(2, 1), Choice(choice, "parm_schedules_equal", {}), times(measured), times(predicted))


def test_a_claim_holds_if_the_figures_confirm_it(measurements: ExpertMeasurements) -> None:
    seconds = [dict(zip(SPREAD, each, strict=True)) for each in ((4, 2.5, 2, 1), (4, 2.5, 1, 1.04), (0.9, 2, 1, 1.2))]
    predicted = dict(zip(SPREAD, (4.0, 3.0, 1.0, 1.5), strict=True))
    made = replace(measurements, layers=tuple(compared_layer("parm-s1", each, predicted) for each in seconds))

    gains, chosen, fastest = check_claims(made)

    assert (gains.cases, len(gains.failing)) == (6, 2)  # in the third the baseline was the fastest
    assert chosen.cases == 3
    assert [case.rpartition(": ")[2] for case in chosen.failing] == ["parm-s1, 100% slower"]
    assert len(fastest.failing) == 2
    near = [replace(made, layers=(compared_layer("parm-s2", seconds[1], predicted),))]
    assert [verdict.failing for verdict in check_claims(near[0])][1] == ()  # 4% slower is as good


def test_the_layers_differ_in_their_fastest_schedule() -> None:
    """All schedules can run every layer, and the requested number of layers is made."""
    assert len(LAYERS) >= 10
    for each in LAYERS:
        assert each.devices == RANKS
        assert not [problem for name in NAMES for problem in expert_schedules[name]().problems(each)]
    assert {each.mp for each in LAYERS} == {2, 4, 8}
    assert {each.esp for each in LAYERS} == {1, 2, 4}


def test_without_emulated_links_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LINUX", False)
    with pytest.raises(InputError, match="links cannot be emulated here: network namespaces need Linux"):
        moe_bench.benchmark_expert_schedules()


def test_gpus_form_one_node_whose_size_the_groups_divide() -> None:
    cluster, layers = moe_bench.gpu_layers(6)
    assert cluster == ProcessCluster(1, 4, uses_gpus=True)
    assert str(cluster) == "4 GPUs of this machine over NCCL"
    assert {each.devices for each in layers} == {4}
    assert not [problem for each in layers for problem in expert_schedules["parm-s2"]().problems(each)]
