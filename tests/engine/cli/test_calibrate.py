"""``meshwave calibrate`` checks that it can write before it measures, and never discards measurements."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.costs import profile_store as profiles
from meshwave.engine.costs.profile import MeasuredCollective, Profile, load_profile, parse_profile
from meshwave.engine.errors import InputError
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster
from meshwave.engine.runtime.calibration.machine_profile import describe_machine, gpu_cluster
from tests.engine.costs.profiles import example_profile

command = importlib.import_module("meshwave.engine.cli.calibrate")  # the package has a function of that name


@pytest.fixture
def measured_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The measurements of a calibration that takes no time."""
    found: list[str] = []

    def measure(*asked: Any) -> Profile:
        found.append("all")
        return example_profile()

    monkeypatch.setattr(command, "calibrate_machine", measure)
    return found


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("nowhere/x.json", "cannot write {}/nowhere/x.json: No such file or directory\n"),
        ("", "cannot write {}: Is a directory\n"),
    ],
)
def test_an_unwritable_file_is_reported_before_anything_is_measured(
    tmp_path: Path, measured_calls: list[str], capsys: pytest.CaptureFixture[str], out: str, said: str
) -> None:
    assert cli.main(["calibrate", "--out", str(tmp_path / out)]) == 2

    assert capsys.readouterr().err == said.format(tmp_path)
    assert measured_calls == []


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_time_that_is_too_short_is_refused(
    measured_calls: list[str], capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    assert cli.main(["calibrate", f"--seconds={seconds}"]) == 2

    assert "is too short; use more than 0 seconds" in capsys.readouterr().err
    assert measured_calls == []


def test_an_empty_name_of_a_profile_is_not_measured(
    measured_calls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Result of a variable of the shell that is not set."""
    assert cli.main(["calibrate", "--profile", ""]) == 2

    assert capsys.readouterr().err.startswith("cannot read ")
    assert measured_calls == []


def test_an_unwritable_home_folder_is_reported_before_anything_is_measured(
    tmp_path: Path, measured_calls: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").touch()
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))

    assert cli.main(["calibrate"]) == 2
    assert capsys.readouterr().err == f"cannot store profiles in {tmp_path}/home/profiles: Not a directory\n"
    assert measured_calls == []


def test_the_write_check_leaves_no_file_and_the_profile_is_saved(
    tmp_path: Path, measured_calls: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))

    assert cli.main(["calibrate", "--name", "mine"]) == 0
    assert [path.name for path in (tmp_path / "profiles").iterdir()] == ["mine.json"]
    assert "saved as mine.json" in capsys.readouterr().err


def raise_error(*given: Any) -> None:
    raise InputError("cannot write it: No space left on device")


@pytest.mark.parametrize("is_room", [True, False])
def test_a_profile_that_cannot_be_written_in_the_end_is_saved_elsewhere(
    tmp_path: Path,
    measured_calls: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_room: bool,
) -> None:
    monkeypatch.setattr(command, "save_profile", raise_error)
    monkeypatch.setattr(profiles.tempfile, "mkstemp", made_in(tmp_path) if is_room else raise_disk_full)

    assert cli.main(["calibrate", "--out", str(tmp_path / "x.json")]) == 2

    out, err = capsys.readouterr()
    assert err.startswith("cannot write it: No space left on device; the measurements were ")
    if is_room:
        (path,) = re.findall(r"saved to (\S+)\n", err)
        assert load_profile(path) == example_profile()
        assert "products" in out  # as a text, as ever
    else:
        assert parse_profile(out) == example_profile()


def made_in(folder: Path) -> Callable[..., tuple[int, str]]:
    make = profiles.tempfile.mkstemp
    return lambda **how: make(**how, dir=folder)


def raise_disk_full(**how: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_profile_with_a_line_of_zero_time_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"collective": "all_gather", "group": "mp", "size": 2, "alpha_s": 0.0, "beta_s_per_byte": 0.0, "r2": 1.0}
    free = MeasuredCollective(**line, samples=((1024.0, 1e-3),))
    path = tmp_path / "profile.json"
    path.write_text(example_profile().model_copy(update={"collectives": (free,)}).to_json())

    assert cli.main(["calibrate", "--profile", str(path)]) == 0
    assert "% at " in capsys.readouterr().out


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A profile of this machine that is stored as this-machine.json."""
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    machine = describe_machine(gpu_cluster(ProcessCluster(1, 8)))
    profile = example_profile(machine=machine.model_copy(update={"device": "CPU"}))
    profiles.store_profile(profile, "this-machine")
    return profile


def test_measured_parts_are_added_to_the_stored_profile(stored: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    link = stored.links[0].model_copy(update={"alpha_s": 5e-4})
    partial = Profile(machine=stored.machine.model_copy(update={"device": "", "made_s": 1.0}), links=(link,))
    monkeypatch.setattr(command, "calibrate_machine", lambda *asked: partial)

    assert cli.main(["calibrate", "--parts", "links"]) == 0

    found = profiles.load_stored_profile("this-machine")
    assert found.links == (link, stored.links[1])
    assert (found.blocks, found.optimizer) == (stored.blocks, stored.optimizer)
    assert (found.machine.device, found.machine.made_s) == ("CPU", 1.0)


@pytest.mark.parametrize("options", [[], ["--parts", "blocks,links,collectives,contention"]])
def test_a_measured_precision_is_added_to_the_stored_profile(
    stored: Profile, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    block = stored.blocks[0].model_copy(update={"precision": "bf16"})
    measured = Profile(machine=stored.machine, blocks=(block,))
    monkeypatch.setattr(command, "calibrate_machine", lambda *asked: measured)

    assert cli.main(["calibrate", "--precision", "bf16", *options]) == 0

    assert profiles.load_stored_profile("this-machine").blocks == (*stored.blocks, block)


@pytest.mark.parametrize("options", [["--ranks", "4"], ["--ranks", "8", "--shaped", "1e8,1e7"]])
def test_parts_of_another_setup_are_refused_before_they_are_measured(
    stored: Profile, measured_calls: list[str], capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert cli.main(["calibrate", "--parts", "links", *options]) == 2

    assert "cannot be added to the profile this-machine.json" in capsys.readouterr().err
    assert measured_calls == []
    assert profiles.load_stored_profile("this-machine") == stored
    assert cli.main(["calibrate", "--parts", "links", "--name", "other", *options]) == 0


def test_parts_that_turn_out_to_be_of_another_device_are_saved_elsewhere(
    stored: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles.tempfile, "mkstemp", made_in(tmp_path))
    other = stored.machine.model_copy(update={"device": "another CPU"})
    monkeypatch.setattr(command, "calibrate_machine", lambda *asked: example_profile(machine=other))

    assert cli.main(["calibrate", "--parts", "blocks"]) == 2

    err = capsys.readouterr().err
    (path,) = re.findall(r"other values of device; .*the measurements were saved to (\S+)\n", err)
    assert load_profile(path).machine == other
    assert profiles.load_stored_profile("this-machine") == stored
