"""Measured collectives: every one of every group, in bytes that the cost model means, as a profile."""

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
from meshwave.engine.runtime.calibration import calibrate
from meshwave.engine.runtime.calibration.collective_timing import took
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster, run
from meshwave.engine.runtime.communication.all_to_all import SMALL_BYTES

FOUR = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
SIZES = (1000, 64_000)


@pytest.fixture(scope="module")
def profile() -> Profile:
    """Four processes; ``mp`` of two and ``esp`` of two are the same ranks, ``ep`` others."""
    return calibrate(Cluster(1, 4), [(2, 2), (1, 2)], SIZES, rounds=1)


def test_every_collective_of_every_group_is_measured(profile: Profile) -> None:
    found = [(each.collective, each.group, each.size) for each in profile.collectives]

    groups = {"mp": 2, "esp": 2, "ep": 2, "ep_esp": 4}
    assert sorted(found) == sorted(
        [(name, group, size) for name in FOUR for group, size in groups.items()] + [("overlap", "ep_esp", 4)]
    )
    assert [(each.mp, each.esp) for each in profile.collectives if each.collective == "overlap"] == [(2, 2)]
    assert all(seconds > 0 for each in profile.collectives for _, seconds in each.samples)
    assert profile.machine.network == "4 processes over this machine's loopback, not shaped"
    assert profile.rates is None


def test_bytes_are_those_of_the_cost_model(profile: Profile) -> None:
    """The whole buffer, cut among all ranks without a rest; of an all-gather what one rank brings."""
    for each in profile.collectives:
        part = each.size if each.collective == "all_gather" else 1
        assert [size * part for size, _ in each.samples] == [1008, 64_000]


def test_groups_of_the_same_ranks_are_measured_once(profile: Profile) -> None:
    by_group = {(each.collective, each.group): each.samples for each in profile.collectives}

    assert all(by_group[name, "mp"] == by_group[name, "esp"] for name in FOUR)


def test_the_text_tells_every_line(profile: Profile) -> None:
    lines = to_text(profile).splitlines()

    assert lines[0].startswith("4 processes over this machine's loopback, not shaped, torch")
    assert len(lines) == 2 + len(profile.collectives)
    assert lines[-1].startswith("overlap") and lines[-1].endswith("(mp 2, esp 2)")


def test_time_runs_from_the_last_that_comes_to_the_last_that_leaves() -> None:
    begin, end = [0.0, 1.0, 0.0, 0.5], [3.0, 4.0, 2.0, 2.5]
    stamps = np.array([begin, end]).T[:, None, None, :]  # 4 ranks, a round, a size

    assert took(stamps, [[0, 1, 2, 3]]).tolist() == [[3.0]]
    assert took(stamps, [[0, 1], [2, 3]]).tolist() == [[3.0]]
    assert took(stamps, [[2, 3]]).tolist() == [[2.0]]


def test_the_overlap_gathers_the_sums_of_what_was_exchanged() -> None:
    """Data, not only time: rank r sends 100 r + q to rank q; see ``overlapped`` for what must come of it."""
    for cluster, mp, esp in ((Cluster(1, 4), 4, 2), (Cluster(2, 2), 2, 1), (Cluster(2, 2), 4, 1)):
        assert run("tests.engine.runtime.works:overlapped", cluster, {"mp": mp, "esp": esp}) == [True] * 4


def test_an_exchange_brings_the_same_whatever_it_is_made_of() -> None:
    """Rows that are exchanged by gloo, and rows that are posted one by one."""
    widths = [3, SMALL_BYTES // 4]
    assert run("tests.engine.runtime.works:exchanged", Cluster(1, 3), widths) == [[True] * 2] * 3


def test_links_that_are_shaped_show_in_the_profile() -> None:
    if reason := network.missing():
        with pytest.raises(InputError, match="links cannot be shaped here"):
            calibrate(Cluster(2, 2, 4e7, 1e7), [(2, 2)], SIZES)
        assert reason
        return

    found = calibrate(Cluster(2, 2, 4e7, 1e7), [(1, 2)], [1_000_000], rounds=1)

    ep = next(each for each in found.collectives if (each.collective, each.group) == ("all_to_all", "ep"))
    bursts = 3 * network.BURST_BYTES
    assert ep.samples[0][1] > (1_000_000 - bursts) / 1e7  # half of each of two buffers leaves a node
    assert found.rates is not None
    assert (found.rates.intra, found.rates.inter) == (4e7, 1e7)


# ---- the command ----


def calibrate_command(*options: str) -> int:
    some = ["--parts", "collectives", "--ranks", "2", "--sizes", "4096,65536", "--rounds", "1"]
    return cli.main(["calibrate", *some, *options])


def test_the_command_writes_a_profile_and_prints_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "profile.json")

    assert calibrate_command("--out", path, "--json") == 0

    out, err = capsys.readouterr()
    assert parse_profile(out) == load_profile(path)
    assert "round 1 of 1" in err and f"wrote {path}" in err
    assert cli.main(["calibrate", "--profile", path, "--fit"]) == 0
    fit: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(FOUR) | {"overlap"} <= set(fit)
    assert all(set(line) == {"alpha_s", "beta_s_per_byte"} for line in fit.values())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shaped", "fast"], "--shaped takes two rates in bytes/s, such as 250e6,50e6, not 'fast'"),
        (["--mp", "3"], "groups of mp=3 do not divide 2 ranks"),
        (["--esp", "one"], "--esp takes whole numbers above 0"),
        (["--sizes", "0"], "--sizes takes whole numbers above 0"),
        (["--rounds", "0"], "--rounds 0 cannot be"),
        (["--ranks", "1"], "nobody to talk to"),
        (["--ranks-per-node", "3"], "2 ranks cannot be 3 on each node"),
        (["--profile", "nowhere.json"], "cannot read nowhere.json"),
        (["--parts", "block"], "--parts cannot be 'block'. Did you mean 'blocks'?"),
        (["--precision", "fp8"], "--precision cannot be 'fp8'"),
        (["--name", "../elsewhere"], "'../elsewhere' cannot be the name of a profile"),
    ],
)
def test_options_that_cannot_be_are_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate_command(*options) == 2

    assert said in capsys.readouterr().err


def test_a_cluster_of_two_rates_has_two_nodes() -> None:
    assert cluster_to_measure(8, None, "250e6,50e6") == Cluster(2, 4, 250e6, 50e6)
    assert cluster_to_measure(8, 2, "250e6,50e6") == Cluster(4, 2, 250e6, 50e6)
    assert cluster_to_measure(8, None, None) == Cluster(1, 8)
