"""A machine is measured: the runtime's own stages, its communicator, its optimizer; with progress."""

from __future__ import annotations

from typing import get_args

import pytest

from meshwave.engine.cli.calibrate import to_text
from meshwave.engine.costs.profile import Phase, Profile, parse_profile
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.runtime.calibration import Told, Wanted, calibrate_machine
from meshwave.engine.runtime.calibration import machine_profile as machine
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster

pytestmark = pytest.mark.torch

STAGES = (
    ("layer", 1, 1, 32, 64),
    ("layer", 3, 2, 32, 64),
    ("joining", 1, 1, 32, 64),
    ("embedding", 1, 1, 32, 64, 300),
    ("head", 1, 2, 32, 64, 300),
    ("experts", 1, 1, 32, 64, 300, 2),
)
WANTED = Wanted(Cluster(1, 2), [(2, 2)], ("blocks", "links"), rounds=1, stages=STAGES, seconds=1e-3)


@pytest.fixture(scope="module")
def measured() -> tuple[Profile, list[Told]]:
    heard: list[Told] = []
    return calibrate_machine(WANTED, heard.append), heard


def test_every_kind_of_block_is_measured_in_every_phase(measured: tuple[Profile, list[Told]]) -> None:
    profile, _ = measured

    assert [block.kind for block in profile.blocks] == ["layer", "joining", "embedding", "head", "experts"]
    for block in profile.blocks:
        for sample in block.samples:
            assert set(sample.phases) == set(get_args(Phase))
            assert all(timed.seconds > 0 for timed in sample.phases.values())
    layers = profile.blocks[0].samples
    assert [sample.blocks for sample in layers] == [1, 3]
    one, three = (sample.phases["forward"].products for sample in layers)
    assert three == 6 * one  # as many blocks, twice the sequences
    assert 0 < layers[0].phases["weight_gradient"].products < layers[0].phases["backward"].products


def test_what_blocks_keep_is_what_the_formulas_say(measured: tuple[Profile, list[Told]]) -> None:
    """On a CPU, whose allocator rounds nothing up."""
    ratios = {kept.kind: kept.ratio for kept in measured[0].memory}

    assert ratios == pytest.approx(dict.fromkeys(ratios, 1.0), rel=0.03)
    assert {"layer", "joining", "embedding", "head", "experts"} == set(ratios)


def test_the_device_its_updates_and_its_links_are_measured(measured: tuple[Profile, list[Told]]) -> None:
    profile, _ = measured

    assert [(rate.precision, rate.flops > 1e8) for rate in profile.matrix] == [("fp32", True)]
    assert {(line.optimizer, line.clipped) for line in profile.optimizer} == {
        (name, clipped) for name in ("adamw", "sgd") for clipped in (False, True)
    }
    assert [line.pair for line in profile.links] == ["same_device", "same_node"]
    assert profile.machine.device == "CPU"


def test_progress_is_told_and_never_goes_back(measured: tuple[Profile, list[Told]]) -> None:
    shares = [told.share for told in measured[1]]

    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert any("round 2" in told.words for told in measured[1])


def test_what_was_measured_is_a_document_and_a_text(measured: tuple[Profile, list[Told]]) -> None:
    profile, _ = measured

    assert parse_profile(profile.to_json()) == profile
    text = to_text(profile)
    assert "large products of fp32" in text
    assert "a message inside the node" in text
    assert sum(line.startswith("layer") for line in text.splitlines()) == len(get_args(Phase))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Wanted(Cluster(1, 2), [(2, 2)], ()), "there are the parts blocks, links, collectives, contention, not none"),
        (Wanted(Cluster(1, 2), [(3, 1)]), "groups of mp=3 do not divide 2 ranks"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(wanted: Wanted, said: str) -> None:
    with pytest.raises(InputError, match=said):
        calibrate_machine(wanted)


def test_without_torch_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    told: list[Told] = []

    with pytest.raises(RunError, match="measuring needs torch, which is not installed: pip install torch"):
        calibrate_machine(Wanted(Cluster(1, 2), [(2, 2)], ("links",)), told.append)

    assert not told
