"""Calibration of this machine: stages, links and optimizer of the runtime, with progress."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from meshwave.engine.cli.calibrate import to_text
from meshwave.engine.costs.profile import Phase, Profile, parse_profile
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.runtime.calibration import (
    CalibrationOptions,
    CalibrationProgress,
    calibrate_machine,
    machine_profile,
)
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster

pytestmark = pytest.mark.usefixtures("forked_clusters")

STAGES = (
    ("layer", 1, 1, 32, 64),
    ("layer", 3, 2, 32, 64),
    ("joining", 1, 1, 32, 64),
    ("embedding", 1, 1, 32, 64, 300),
    ("head", 1, 2, 32, 64, 300),
    ("experts", 1, 1, 32, 64, 300, 2),
)
OPTIONS = CalibrationOptions(
    ProcessCluster(1, 2), [(2, 2)], ("blocks", "links"), rounds=1, stages=STAGES, blocks_s=1e-3
)
Measured = tuple[Profile, list[CalibrationProgress]]


@pytest.fixture(scope="module")
def measured() -> Measured:
    progress: list[CalibrationProgress] = []
    return calibrate_machine(OPTIONS, progress.append), progress


def test_every_kind_of_block_is_measured_in_every_phase(measured: Measured) -> None:
    profile, _ = measured

    assert [block.kind for block in profile.blocks] == ["layer", "joining", "embedding", "head", "experts"]
    for block in profile.blocks:
        for sample in block.samples:
            assert set(sample.phases) == set(get_args(Phase))
            assert all(phase.seconds > 0 for phase in sample.phases.values())
    layers = profile.blocks[0].samples
    assert [sample.blocks for sample in layers] == [1, 3]
    one, three = (sample.phases["forward"].products for sample in layers)
    assert three == 6 * one  # three times the blocks, twice the sequences
    assert 0 < layers[0].phases["weight_gradient"].products < layers[0].phases["backward"].products


def test_blocks_keep_the_bytes_of_the_cost_model(measured: Measured) -> None:
    """The allocator of a CPU does not round sizes up."""
    ratios = {kept.kind: kept.ratio for kept in measured[0].memory}

    assert ratios == pytest.approx(dict.fromkeys(ratios, 1.0), rel=0.03)
    assert {"layer", "joining", "embedding", "head", "experts"} == set(ratios)


def test_device_rates_optimizers_and_links_are_measured(measured: Measured) -> None:
    profile, _ = measured

    assert [(rate.precision, rate.flops > 1e8) for rate in profile.matrix] == [("fp32", True)]
    assert {(line.optimizer, line.clipped) for line in profile.optimizer} == {
        (name, clipped) for name in ("adamw", "sgd") for clipped in (False, True)
    }
    assert [line.pair for line in profile.links] == ["same_device", "same_node"]
    assert profile.machine.device == "CPU"


def test_a_calibration_in_bf16_measures_updates_with_and_without_master_weights() -> None:
    options = replace(OPTIONS, parts=("blocks",), precisions=["bf16"], stages=STAGES[:1])

    lines = calibrate_machine(options).optimizer

    assert [line.precision for line in lines] == ["bf16"] * 4 + ["pure_bf16"] * 4
    assert all(seconds > 0 for line in lines for _, seconds in line.samples)


@pytest.mark.parametrize(
    ("longest_s", "sides"), [(0.0, [192] * 2), (1e9, [192] * 10 + [384] * 10 + [768] * 10 + [1536] * 10)]
)
def test_a_matrix_product_is_neither_enlarged_nor_repeated_once_it_is_slow(
    longest_s: float, sides: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from meshwave.engine.runtime.calibration import device_timing

    multiplied: list[int] = []
    monkeypatch.setattr(device_timing, "LONGEST_S", longest_s)
    monkeypatch.setattr(torch, "matmul", lambda left, right, out: multiplied.append(len(left)))

    assert device_timing.matrix_flops_per_s("fp32", torch.device("cpu")) > 0
    assert multiplied == sides


def test_progress_is_reported_and_never_decreases(measured: Measured) -> None:
    shares = [progress.share for progress in measured[1]]

    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert any("round 2" in progress.message for progress in measured[1])


def test_a_profile_is_a_document_and_a_text(measured: Measured) -> None:
    profile, _ = measured

    assert parse_profile(profile.to_json()) == profile
    text = to_text(profile)
    assert "large matrix products in fp32" in text
    assert "a message inside the node" in text
    assert sum(line.startswith("layer") for line in text.splitlines()) == len(get_args(Phase))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            CalibrationOptions(ProcessCluster(1, 2), [(2, 2)], ()),
            "unknown parts: none .known: blocks, links, collectives, contention",
        ),
        (CalibrationOptions(ProcessCluster(1, 2), [(3, 1)]), "groups of mp=3 do not divide 2 ranks"),
    ],
)
def test_invalid_options_are_rejected_before_anything_is_measured(options: CalibrationOptions, message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibrate_machine(options)


def test_without_torch_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_profile, "find_spec", lambda name: None)
    progress: list[CalibrationProgress] = []

    with pytest.raises(RunError, match="calibration needs torch, which is not installed: pip install torch"):
        calibrate_machine(CalibrationOptions(ProcessCluster(1, 2), [(2, 2)], ("links",)), progress.append)

    assert not progress
