"""Files are written completely or not at all, and files that are part of Meshwave are found."""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwave.engine.errors import InputError
from meshwave.engine.files import (
    check_writable,
    configuration_folder,
    data_folder,
    example,
    examples,
    find_design,
    lock_file,
    write_private,
    write_whole,
)


def test_a_design_is_a_file_or_else_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = next(iter(examples()))

    assert find_design(name) == example(name)
    (tmp_path / name).touch()
    assert find_design(name) == Path(name)


@pytest.mark.parametrize("target", ["loop.json", "missing.json"])
def test_a_link_that_leads_to_no_file_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.json").symlink_to(target)

    with pytest.raises(InputError, match="loop.json: it is a link to itself or to a missing file"):
        find_design("loop.json")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("02-two-wave", "Did you mean 02-two-waves?"),
        ("02-two-wave.json", "Did you mean 02-two-waves?"),
        ("min.json", "Did you mean mine.json?"),
        ("drawn/min.json", "Did you mean drawn/mine.json?"),
        ("zzz", "The examples are listed by: meshwave examples"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drawn").mkdir()
    for path in ("mine.json", "drawn/mine.json"):
        (tmp_path / path).touch()

    with pytest.raises(InputError) as refused:
        find_design(name)

    assert str(refused.value) == f"cannot read {name}: no file and no example has this name. {hint}"


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot read"):
        find_design(name)


def test_the_write_check_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"one")

    for name in ("old", "new"):
        check_writable(tmp_path / name)

    assert (tmp_path / "old").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["old"]
    for name, said in (("", "Is a directory"), ("nowhere/x", "No such file"), ("old/x", "Not a directory")):
        with pytest.raises(InputError, match=f"cannot write .*: {said}"):
            check_writable(tmp_path / name)


def test_a_file_is_locked_by_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "list.json"

    for _ in range(2):
        with lock_file(path), pytest.raises(OSError, match="is locked"), lock_file(path, longest_wait_s=0.01):
            pytest.fail("both have the lock")
    with pytest.raises(OSError, match="unable to open"), lock_file(tmp_path / "nowhere" / "list.json"):
        pytest.fail("there is no such folder")


def test_a_pipe_that_has_no_path_can_be_written_to() -> None:
    """In a shell pipeline, ``/dev/stdout`` resolves to a path that does not exist."""
    out, into = os.pipe()
    try:
        check_writable(f"/proc/self/fd/{into}")
        write_whole(f"/proc/self/fd/{into}", b"through")
        assert os.read(out, 100) == b"through"
    finally:
        os.close(out)
        os.close(into)


def test_a_file_is_written_atomically(tmp_path: Path) -> None:
    write_whole(tmp_path / "new", b"one")
    write_whole(str(tmp_path / "new"), b"two")

    assert (tmp_path / "new").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["new"]


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(b"old")

    write, left = os.write, [1]

    def full(descriptor: int, content: bytes) -> int:
        """Raise like the kernel on a full disk: write what fits, then refuse."""
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[: left.pop()])

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        with pytest.raises(InputError, match="cannot write .*kept: No space left on device"):
            write_whole(tmp_path / "kept", b"new")

    assert (tmp_path / "kept").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(descriptor: int, content: bytes) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_whole(tmp_path / "new", b"new")

    assert os.listdir(tmp_path) == []


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "private").touch(0o600)

    write_whole(tmp_path / "private", b"new")

    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_a_private_file_is_private_even_if_it_replaces_a_public_one(tmp_path: Path) -> None:
    (tmp_path / "kept").touch(0o644)

    write_private(tmp_path / "kept", "new")
    write_whole(tmp_path / "open", b"new")

    umask = os.umask(0o077)
    os.umask(umask)
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_planted_link_does_not_redirect_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if an attacker guesses the name of the temporary file, which is random."""
    guessed = iter([f".{'0' * 16}.part", f".{'1' * 16}.part"])
    monkeypatch.setattr(secrets, "token_hex", lambda bytes: next(guessed)[1:17])
    (tmp_path / "victim").write_text("precious")
    (tmp_path / f".{'0' * 16}.part").symlink_to("victim")

    with pytest.raises(InputError, match="File exists"):
        write_whole(tmp_path / "out", b"new")
    write_whole(tmp_path / "out", b"new")

    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "out").read_bytes() == b"new"


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "far").write_bytes(b"old")
    (tmp_path / "link").symlink_to("far")

    write_whole(tmp_path / "link", b"new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """The same holds for a terminal, /dev/stdout and /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()

    write_whole(pipe, b"through")
    reader.join()

    assert pipe.is_fifo()
    assert got == [b"through"]


@pytest.mark.parametrize(
    ("name", "told"),
    [("no/such/file", "No such file or directory"), (".", "Is a directory"), ("a\0b", "embedded null")],
)
def test_a_write_error_is_reported(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        write_whole(f"{tmp_path}/{name}", b"")


def test_a_link_to_itself_is_reported(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(InputError, match="loop: Too many levels of symbolic links"):
        write_whole(tmp_path / "loop", b"")


def test_examples_are_found_by_name() -> None:
    name, path = next(iter(examples().items()))

    assert example(name) == path
    with pytest.raises(InputError, match="there is no example called '01-first-wav'. Did you mean '01-first-wave'?"):
        example("01-first-wav")


def test_the_data_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    assert data_folder() == tmp_path

    monkeypatch.delenv("MESHWAVE_HOME")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert data_folder() == Path("/data/meshwave")


@pytest.mark.parametrize("folder", [data_folder, configuration_folder])
def test_an_unknown_home_folder_is_refused(folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """State of a container whose user has no name."""
    for name in ("MESHWAVE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(os, "getuid", lambda: 2**31)

    with pytest.raises(InputError, match=r"^the home folder in ~/.* is unknown, .*; set HOME"):
        folder()

    monkeypatch.setenv("MESHWAVE_HOME", "~nobody-of-this-name/meshwave")
    with pytest.raises(InputError, match="~nobody-of-this-name"):
        data_folder()
