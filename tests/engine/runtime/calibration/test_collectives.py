"""Measurement of all collectives of all groups, in the bytes of the cost model, as a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.cli.calibrate import cluster_to_measure, to_text
from meshwave.engine.costs.profile import Profile, load_profile, parse_profile
from meshwave.engine.errors import InputError
from meshwave.engine.runs.emulation import network
from meshwave.engine.runtime.calibration import CalibrationOptions, calibrate_machine
from meshwave.engine.runtime.calibration.collective_timing import slowest_seconds
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster, run_in_cluster
from meshwave.engine.runtime.communication.all_to_all import SMALL_BYTES

pytestmark = pytest.mark.usefixtures("forked_clusters")

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
SIZES = (1000, 64_000)
FUNCTIONS = "tests.engine.runtime.calibration.cluster_functions"


def measure(
    cluster: ProcessCluster, layouts: list[tuple[int, int]], sizes: tuple[int, ...] = SIZES, rounds: int = 1
) -> Profile:
    return calibrate_machine(CalibrationOptions(cluster, layouts, ("collectives",), sizes, rounds=rounds))


@pytest.fixture(scope="module")
def profile() -> Profile:
    """Four processes; ``mp`` and ``esp`` groups are the same ranks, ``ep`` groups others."""
    return measure(ProcessCluster(1, 4), [(2, 2), (1, 2)])


def test_every_collective_of_every_group_is_measured(profile: Profile) -> None:
    found = [(each.collective, each.group, each.size) for each in profile.collectives]

    groups = {"mp": 2, "esp": 2, "ep": 2, "ep_esp": 4}
    assert sorted(found) == sorted(
        [(name, group, size) for name in COLLECTIVES for group, size in groups.items()] + [("overlap", "ep_esp", 4)]
    )
    assert [(each.mp, each.esp) for each in profile.collectives if each.collective == "overlap"] == [(2, 2)]
    assert all(seconds > 0 for each in profile.collectives for _, seconds in each.samples)
    assert profile.machine.network == "4 processes over this machine's loopback, not emulated"
    assert profile.rates is None


def test_bytes_are_those_of_the_cost_model(profile: Profile) -> None:
    """The whole buffer, rounded up to a multiple of all ranks; for an all-gather the part of one rank."""
    for each in profile.collectives:
        part = each.size if each.collective == "all_gather" else 1
        assert [size * part for size, _ in each.samples] == [1008, 64_000]


def test_groups_of_the_same_ranks_are_measured_once(profile: Profile) -> None:
    by_group = {(each.collective, each.group): each.samples for each in profile.collectives}

    assert all(by_group[name, "mp"] == by_group[name, "esp"] for name in COLLECTIVES)


def test_the_text_has_a_line_for_each_collective(profile: Profile) -> None:
    lines = to_text(profile).splitlines()

    assert lines[0].startswith("4 processes over this machine's loopback, not emulated, torch")
    assert len(lines) == 2 + len(profile.collectives)
    assert lines[-1].startswith("overlap") and lines[-1].endswith("(mp 2, esp 2)")


def test_time_lasts_from_the_last_start_to_the_last_end() -> None:
    start, end = [0.0, 1.0, 0.0, 0.5], [3.0, 4.0, 2.0, 2.5]
    stamps = np.array([start, end]).T[:, None, None, :]  # 4 ranks, a round, a size

    assert slowest_seconds(stamps, [[0, 1, 2, 3]]).tolist() == [[3.0]]
    assert slowest_seconds(stamps, [[0, 1], [2, 3]]).tolist() == [[3.0]]
    assert slowest_seconds(stamps, [[2, 3]]).tolist() == [[2.0]]


def test_the_overlap_gathers_the_sums_of_exchanged_blocks() -> None:
    """Rank r sends 100 r + q to rank q."""
    for cluster, groups in ((ProcessCluster(1, 4), [(4, 2)]), (ProcessCluster(2, 2), [(2, 1), (4, 1)])):
        found = run_in_cluster(f"{FUNCTIONS}:are_overlaps_correct", cluster, groups)
        assert found == [[True] * len(groups)] * 4


def test_an_all_to_all_is_correct_for_small_and_large_rows() -> None:
    """Small rows are exchanged by gloo's all-to-all, large ones by single messages."""
    widths = [3, SMALL_BYTES // 4]
    assert run_in_cluster(f"{FUNCTIONS}:are_exchanges_correct", ProcessCluster(1, 3), widths) == [[True] * 2] * 3


def test_emulated_links_show_in_the_profile() -> None:
    if reason := network.missing_requirement():
        with pytest.raises(InputError, match="links cannot be emulated here"):
            measure(ProcessCluster(2, 2, 4e7, 1e7), [(2, 2)])
        assert reason
        return

    # a round is too short if a process starts so late that another one has already sent its half; the median is not
    found = measure(ProcessCluster(2, 2, 4e7, 1e7), [(1, 2)], (1_000_000,), rounds=3)

    ep = next(each for each in found.collectives if (each.collective, each.group) == ("all_to_all", "ep"))
    bursts = 3 * network.BURST_BYTES
    assert ep.samples[0][1] > (1_000_000 - bursts) / 1e7  # half of each of two buffers leaves a node
    assert found.rates is not None
    assert (found.rates.intra, found.rates.inter) == (4e7, 1e7)


# ---- the command ----


def run_command(*options: str) -> int:
    small = ["--parts", "collectives", "--ranks", "2", "--sizes", "4096,65536", "--rounds", "1"]
    return cli.main(["calibrate", *small, *options])


def test_the_command_writes_a_profile_and_prints_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "profile.json")

    assert run_command("--out", path, "--json") == 0

    out, err = capsys.readouterr()
    assert parse_profile(out) == load_profile(path)
    assert "round 1 of 1" in err and f"wrote {path}" in err
    assert cli.main(["calibrate", "--profile", path, "--fit"]) == 0
    fit: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(COLLECTIVES) | {"overlap"} <= set(fit)
    assert all(set(line) == {"alpha_s", "beta_s_per_byte"} for line in fit.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shaped", "fast"], "--shaped: 'fast' is not two rates in bytes/s, such as 250e6,50e6"),
        (["--mp", "3"], "groups of mp=3 do not divide 2 ranks"),
        (["--esp", "one"], "--esp: 'one' is not a list of positive integers"),
        (["--sizes", "0"], "--sizes: '0' is not a list of positive integers"),
        (["--rounds", "0"], "--rounds: 0 rounds are too few; use 1 or more"),
        (["--ranks", "1"], "use at least 2 ranks"),
        (["--ranks-per-node", "3"], "2 ranks cannot be divided into nodes of 3"),
        (["--profile", "nowhere.json"], "cannot read nowhere.json"),
        (["--parts", "block"], "--parts: unknown value 'block'. Did you mean 'blocks'?"),
        (["--precision", "fp8"], "--precision: unknown value 'fp8'"),
        (["--name", "../elsewhere"], "'../elsewhere' is not a valid profile name"),
    ],
)
def test_invalid_options_are_rejected(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(*options) == 2

    assert message in capsys.readouterr().err


def test_a_cluster_with_bandwidths_has_two_nodes_by_default() -> None:
    assert cluster_to_measure(8, None, "250e6,50e6") == ProcessCluster(2, 4, 250e6, 50e6)
    assert cluster_to_measure(8, 2, "250e6,50e6") == ProcessCluster(4, 2, 250e6, 50e6)
    assert cluster_to_measure(8, None, None) == ProcessCluster(1, 8)
