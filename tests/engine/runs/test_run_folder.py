"""A run folder contains what was launched, is readable only by its owner, and detects changes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.predict.prediction import predict
from meshwave.engine.run_files import RunFolderError
from meshwave.engine.runs import Bundle, Hosts, Options, read_bundle, read_options, training_data, write_bundle
from meshwave.engine.runs.dry_run import Rehearsal
from meshwave.engine.runs.run_folder import RunSpec, rank_and_mesh
from tests.engine.runs.play import draw


def write(folder: Path, design: Design | None = None, data: Path | None = None) -> Bundle:
    design = design or draw()
    return write_bundle(RunSpec(predict(design), design), folder, data)


@pytest.mark.parametrize(
    "pipeline",
    [
        {"schedule": "1f1b", "microbatches": 4},
        {"schedule": "hanayo", "waves": 2, "microbatches": 4},
        {"schedule": "chimera", "microbatches": 4},
    ],
    ids=lambda pipeline: pipeline["schedule"],
)
def test_a_written_run_folder_is_read_back_unchanged(tmp_path: Path, pipeline: dict[str, object]) -> None:
    layers = {"kind": "gpt", "layers": 16, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 256}
    written = write(tmp_path / "run", draw(pipeline=pipeline, model=layers))

    assert read_bundle(tmp_path / "run") == written


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("to be read by all")
    text.chmod(0o644)

    folder = write(tmp_path / "run", data=text).folder

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]}
    assert modes == {"run": 0o700, "design.json": 0o600, "program.json": 0o600, "data.txt": 0o600}


def test_a_changed_program_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "run").folder / "program.json"
    document = json.loads(path.read_text())
    document["actions"][0][0:2] = reversed(document["actions"][0][0:2])
    path.write_text(json.dumps(document))

    with pytest.raises(RunFolderError, match="launch the design again"):
        read_bundle(path.parent)


@pytest.mark.parametrize("damage", ["", "{}", '{"actions": [["0X0"]]}', "[1]"])
def test_a_damaged_program_is_refused(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "run").folder / "program.json"
    path.write_text(damage)

    with pytest.raises(RunFolderError, match=r"program\.json is damaged"):
        read_bundle(path.parent)


def test_a_damaged_design_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "run").folder / "design.json"
    path.write_text("")

    with pytest.raises(RunFolderError, match=f"{path} is damaged: line 1, column 1 is not JSON"):
        read_bundle(path.parent)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder: it has no design.json; name another run"):
        read_bundle(tmp_path)


@pytest.mark.parametrize("largest_copy", [0, 1000], ids=["linked", "copied"])
def test_the_training_text_is_copied_to_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest_copy: int
) -> None:
    monkeypatch.setattr(training_data, "LARGEST_COPY_BYTES", largest_copy)
    text = tmp_path / "text"
    text.write_text("Once upon a time")
    (tmp_path / "link").symlink_to(text)

    brought = write(tmp_path / "run", data=tmp_path / "link").folder / "data.txt"

    assert brought.read_text() == "Once upon a time"
    assert not brought.is_symlink()
    assert brought.samefile(text) == (largest_copy == 0)


def test_a_link_to_tokens_is_read_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"tokens")
    (tmp_path / "data.uint16").symlink_to(tmp_path / "blob")

    assert (write(tmp_path / "run", data=tmp_path / "data.uint16").folder / "data.uint16").read_bytes() == b"tokens"


def test_a_missing_text_is_refused(tmp_path: Path) -> None:
    design = draw(training={"data": "mine.txt"})

    with pytest.raises(InputError, match=r"needs the text mine\.txt of training\.data"):
        write(tmp_path / "run", design)
    with pytest.raises(InputError, match="cannot read the training text"):
        write(tmp_path / "run", design, tmp_path / "mine.txt")
    with pytest.raises(InputError, match="contains no files with texts"):
        write(tmp_path / "run", design, tmp_path)


def test_processes_are_counted_mesh_by_mesh() -> None:
    design = draw(pp=2, dp=2)

    assert [rank_and_mesh(design, process) for process in range(4)] == [(0, "M0"), (0, "M0"), (1, "M1"), (1, "M1")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(rehearse=Rehearsal(scale=40.0)), "dry run, time x 40"),
        (Options(rehearse=Rehearsal()), "dry run"),
        (
            Options(hosts=Hosts(nodes=2, intra_bandwidth=3e11, inter_bandwidth=2.5e10)),
            "on 2 emulated hosts (25 GB/s between them)",
        ),
    ],
    ids=str,
)
def test_options_are_read_back_and_described_as_text(tmp_path: Path, options: Options, words: str) -> None:
    design = draw()
    written = write_bundle(RunSpec(predict(design), design, options), tmp_path / "run")

    assert read_bundle(tmp_path / "run") == written
    assert read_options(tmp_path / "run") == options
    assert options.description == words


def test_damaged_options_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "run").folder
    (folder / "options.json").write_text('{"rehearse": {"scale": -1}}')

    with pytest.raises(RunFolderError, match=r"options\.json is damaged: rehearse.scale: input should be greater"):
        read_bundle(folder)


def test_a_dry_run_needs_no_training_text(tmp_path: Path) -> None:
    design, how = draw(training={"data": "mine.txt"}), Options(rehearse=Rehearsal(scale=1.0))

    assert write_bundle(RunSpec(predict(design), design, how), tmp_path / "run")
