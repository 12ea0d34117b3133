"""Profiles of measured collectives: the line through samples, the fit of a layout, and files."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs.line_fits import fit_line
from meshwave.engine.costs.profile import (
    Machine,
    MeasuredCollective,
    Profile,
    collective_group_members,
    collective_group_sizes,
    load_profile,
    parse_profile,
)
from meshwave.engine.costs.profile_store import save_profile, write_spare_profile
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError

SIZES = [4096.0 * 4**n for n in range(6)]
MEASURED = {
    "collective": "all_to_all",
    "group": "ep_esp",
    "size": 8,
    "alpha_s": 1e-4,
    "beta_s_per_byte": 1e-8,
    "r2": 1.0,
    "samples": [[4096, 1.4e-4]],
}


def document(*measured: dict[str, Any], **machine: Any) -> dict[str, Any]:
    return {
        "format": "meshwave-profile/1",
        "machine": {"ranks": 8, "ranks_per_node": 4, **machine},
        "collectives": [{**MEASURED, **each} for each in measured],
    }


def profile(*measured: dict[str, Any]) -> Profile:
    return parse_profile(json.dumps(document(*measured)))


# ---- the line ----


@given(alpha=st.floats(0, 1e-2), beta=st.floats(1e-11, 1e-6))
def test_the_fit_recovers_a_line(alpha: float, beta: float) -> None:
    line = fit_line([(size, alpha + beta * size) for size in SIZES])

    assert line.alpha_s == pytest.approx(alpha, rel=1e-6, abs=1e-9 * beta * SIZES[-1])
    assert line.beta_s_per_byte == pytest.approx(beta, rel=1e-6)
    assert line.r2 == pytest.approx(1)


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.floats(1e-6, 10)), min_size=1, max_size=12))
def test_no_fitted_value_is_negative(samples: list[tuple[float, float]]) -> None:
    line = fit_line(samples)

    assert line.alpha_s >= 0
    assert line.beta_s_per_byte >= 0
    assert line.alpha_s + line.beta_s_per_byte > 0


def test_small_messages_count_as_much_as_large_ones() -> None:
    """With absolute errors, the largest size would determine the fit, and alpha would be lost in its noise."""
    noise = np.resize([1.05, 0.95], len(SIZES))
    samples = [(size, float((1e-3 + 1e-7 * size) * off)) for size, off in zip(SIZES, noise, strict=True)]

    line = fit_line(samples)

    assert line.alpha_s == pytest.approx(1e-3, rel=0.1)
    assert line.beta_s_per_byte == pytest.approx(1e-7, rel=0.1)


def test_errors_by_a_factor_of_two_and_of_one_half_count_equally() -> None:
    line = fit_line([(1000.0, 1.0), (1000.0, 4.0)])

    assert line.alpha_s + 1000 * line.beta_s_per_byte == pytest.approx(2)


def test_a_negative_constant_is_fitted_as_zero() -> None:
    line = fit_line([(size, 1e-9 * size**1.1) for size in SIZES])

    assert line.alpha_s == 0
    assert line.beta_s_per_byte > 0


# ---- the fit of a layout ----


def test_groups_have_the_ranks_of_the_layout() -> None:
    assert collective_group_members("mp", 8, 2, 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert collective_group_members("esp", 8, 2, 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert collective_group_members("ep", 8, 2, 4) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert collective_group_members("ep_esp", 8, 2, 4) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert collective_group_sizes(8, 2, 4) == {"mp": 2, "esp": 4, "ep": 2, "ep_esp": 8}
    with pytest.raises(InputError, match="groups of esp=3 do not divide 8 ranks"):
        collective_group_members("ep", 8, 2, 3)


def test_the_fit_is_accepted_by_an_expert_layer_document() -> None:
    fit = profile(
        {"beta_s_per_byte": 4e-8},
        {"group": "ep", "size": 2, "beta_s_per_byte": 2e-8},
        {"group": "ep", "size": 4, "beta_s_per_byte": 3e-8},
        {"collective": "all_gather", "group": "mp", "size": 4},
        {"collective": "overlap", "mp": 4, "esp": 4, "alpha_s": 0.5},
        {"collective": "overlap", "mp": 4, "esp": 2, "alpha_s": 0.25},
    ).fit(4, 4)

    assert list(fit) == [
        "all_to_all",
        "all_to_all@ep_esp",
        "all_to_all@ep",
        "all_gather",
        "all_gather@mp",
        "overlap",
    ]
    assert fit["all_to_all"] == fit["all_to_all@ep_esp"] == {"alpha_s": 1e-4, "beta_s_per_byte": 4e-8}
    assert fit["all_to_all@ep"]["beta_s_per_byte"] == 2e-8
    assert fit["overlap"]["alpha_s"] == 0.5


def test_an_all_gather_is_priced_by_all_gathered_bytes() -> None:
    """A profile counts the bytes of one rank's contribution; the model of a layer counts all gathered bytes (Parm's
    AG).
    """
    measured = profile({"collective": "all_gather", "group": "esp", "size": 4}).collectives[0]
    line = profile({"collective": "all_gather", "group": "esp", "size": 4}).fit(1, 4)["all_gather"]

    own = 1000.0
    assert line["alpha_s"] + 4 * own * line["beta_s_per_byte"] == pytest.approx(measured.seconds(own))


def test_groups_of_one_rank_have_no_line() -> None:
    found = profile({"group": "mp", "size": 4}, {})

    assert list(found.fit(1, 1)) == ["all_to_all", "all_to_all@ep_esp"]


def test_a_layout_that_was_not_measured_is_refused() -> None:
    with pytest.raises(InputError, match="no measurements for mp=2 and esp=2; it has ep of 2"):
        profile({"group": "ep", "size": 2}).fit(2, 2)


# ---- files ----


def test_a_saved_profile_is_read_back_unchanged(tmp_path: Path) -> None:
    made = profile({}, {"group": "ep", "size": 2, "samples": [[4096, 1e-3], [8192, 2e-3]]})

    save_profile(made, tmp_path / "profile.json")

    assert load_profile(tmp_path / "profile.json") == made
    assert len((tmp_path / "profile.json").read_text().splitlines()) == 17  # a line a collective


def test_an_empty_profile_is_read_back(tmp_path: Path) -> None:
    made = Profile(machine=Machine(ranks=2, ranks_per_node=2), collectives=())

    save_profile(made, tmp_path / "profile.json")

    assert load_profile(tmp_path / "profile.json") == made


def test_a_profile_that_does_not_fit_the_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Profile) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Profile, "to_json", full)

    assert write_spare_profile(profile()) == ""
    assert os.listdir(tmp_path) == []


def test_residuals_are_shares_of_the_line() -> None:
    measured = MeasuredCollective(
        collective="all_reduce",
        group="mp",
        size=2,
        alpha_s=1.0,
        beta_s_per_byte=0.5,
        r2=1.0,
        samples=((2.0, 3.0), (4.0, 3.0)),
    )

    assert measured.residuals == [0.5, 0.0]
    free = measured.model_copy(update={"alpha_s": 0.0, "beta_s_per_byte": 0.0})
    assert all(1e3 < residual < math.inf for residual in free.residuals), "the line says that it takes no time"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "meshwave-profile/2"}, "format"),
        ({"machines": {}}, "unknown key 'machines'. Did you mean 'machine'"),
        ({"collectives": [{**MEASURED, "alpha": 0.0}]}, r"collectives\[0\].alpha: .* Did you mean 'alpha_s'"),
        ({"machine": {"ranks": "8", "ranks_per_node": 4}}, "machine.ranks"),
        ({"collectives": [{**MEASURED, "collective": "all_to_one"}]}, r"collectives\[0\].collective"),
        ({"collectives": [{**MEASURED, "alpha_s": -1.0}]}, r"collectives\[0\].alpha_s"),
        ({"collectives": [{**MEASURED, "samples": [[4096, 0]]}]}, r"collectives\[0\].samples\[0\]"),
    ],
)
def test_an_invalid_profile_is_refused_at_its_key(change: dict[str, Any], said: str) -> None:
    with pytest.raises(DesignError, match=said):
        parse_profile(json.dumps({**document({}), **change}))


def test_an_unreadable_file_is_reported_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("alpha, beta")

    with pytest.raises(InputError, match="cannot read .*nowhere.*No such file"):
        load_profile(tmp_path / "nowhere")
    with pytest.raises(InputError, match="line 1, column 1 is not JSON"):
        load_profile(tmp_path / "text")
    with pytest.raises(DesignError):
        parse_profile("[1]")
