"""Files of Meshwave, folders of the user, and atomic reading and writing of files."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import BinaryIO

from meshwave.engine.findings import Refusal, unknown_member_params

_ROOT = Path(__file__).absolute().parents[1]
"""Folder that contains ``engine``, ``static`` and ``examples``: the checkout, or ``meshwave`` in an installation."""


def documentation_folder() -> Path:
    """Return the folder of the documentation site; it exists once the site has been built."""
    is_checkout = (_ROOT / "Makefile").exists()
    return _ROOT / ("build/docs" if is_checkout else "docs")


def glossary_file() -> Path:
    """Return the source file of the glossary, which the page and lessons quote."""
    is_checkout = (_ROOT / "Makefile").exists()
    return _ROOT / ("docs/glossary.md" if is_checkout else "glossary.md")


def examples() -> dict[str, Path]:
    """Return the files of the example designs that can run on one machine, by name."""
    return {path.stem: path for path in sorted((_ROOT / "examples").glob("*.json"))}


def published_examples() -> dict[str, Path]:
    """Return the files of the examples that are published training runs, by name."""
    return {path.stem: path for path in sorted((_ROOT / "examples/published").glob("*.json"))}


def all_examples() -> dict[str, Path]:
    """Return the files of all examples by name, those of published training runs last."""
    return examples() | published_examples()


def example(name: str) -> Path:
    """Return the file of an example.

    Raises:
        InputError: the example does not exist.
    """
    known = all_examples()
    if name not in known:
        raise Refusal("unknown_member", unknown_member_params("example", name, known))
    return known[name]


def find_design(name: str) -> Path:
    """Return the path ``name`` if it is a file, otherwise the file of the example design of that name.

    Raises:
        InputError: neither exists; the error suggests a similar name.
    """
    known, path = all_examples(), Path(name)
    try:
        if path.exists():
            return path
    except (OSError, ValueError) as error:  # the name is too long, or contains a null byte
        reason = getattr(error, "strerror", None) or str(error)
        raise Refusal("unreadable_file", {"path": repr(name[:80]), "reason": reason}) from None
    if name in known:
        return known[name]
    if path.is_symlink():
        raise Refusal("unreadable_file", {"path": name, "reason": "it is a link to itself or to a missing file"})
    siblings = [str(path.with_name(each.name)) for each in sorted(path.parent.glob("*.json"))]
    wanted = path.stem if path.parent == Path() else name
    close = get_close_matches(name, siblings, n=1) or get_close_matches(wanted, known, n=1)
    hint = f"Did you mean {close[0]}?" if close else "The examples are listed by: meshwave examples"
    raise Refusal("unknown_design", {"name": name, "hint": hint})


def data_folder() -> Path:
    """Return the data folder of Meshwave: ``$MESHWAVE_HOME``, or the data folder of the system.

    Raises:
        InputError: the home folder of the user is unknown.
    """
    if stated := os.environ.get("MESHWAVE_HOME"):
        return expand_user(stated)
    if sys.platform == "darwin":
        return expand_user("~/Library/Application Support/meshwave")
    if sys.platform == "win32":
        return expand_user(os.environ.get("LOCALAPPDATA", "~")) / "meshwave"
    return expand_user(os.environ.get("XDG_DATA_HOME", "~/.local/share")) / "meshwave"


def configuration_folder() -> Path:
    """Return the folder of the user's configuration of Meshwave.

    Raises:
        InputError: the home folder of the user is unknown.
    """
    if sys.platform == "darwin":
        return expand_user("~/Library/Application Support/meshwave")
    if sys.platform == "win32":
        return expand_user(os.environ.get("APPDATA", "~")) / "meshwave"
    return expand_user(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "meshwave"


def expand_user(path: Path | str) -> Path:
    """Return a path whose ``~`` or ``~NAME`` is replaced by the home folder of the user.

    Raises:
        InputError: the home folder is unknown, as that of a user of a container who has no name and no ``HOME``.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise Refusal("unknown_home", {"path": str(path)}) from None


def read_whole(path: Path | str, what: str, most: int) -> bytes:
    """Read a file of limited size, such as a design or a profile.

    Args:
        path: path of the file.
        what: kind of content, for error messages.
        most: maximum size in bytes.

    Raises:
        InputError: the file cannot be read, or is too large.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise Refusal("unreadable_file", {"path": str(path), "reason": error.strerror}) from None
    except ValueError as error:  # the path contains a null byte
        raise Refusal("unreadable_file", {"path": repr(str(path)), "reason": str(error)}) from None
    if len(content) > most:
        raise Refusal("file_too_large", {"path": str(path), "kind": what, "most_mb": most // 10**6})
    return content


def folder_bytes(folder: Path) -> int:
    """Return the size in bytes of all files in a folder and its subfolders."""
    return sum(_file_bytes(Path(parent, name)) for parent, _, names in os.walk(folder) for name in names)


def _file_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:  # a run may delete its files at any time
        return 0


def check_writable(name: Path | str) -> None:
    """Check that :func:`write_whole` can write a file, by writing a temporary file next to it.

    Raises:
        InputError: the file cannot be written.
    """
    with _convert_write_errors(name):
        if Path(name).exists() and not Path(name).is_file() and not Path(name).is_dir():
            return  # a pipe or a terminal, whose reader would receive the trial
        path = Path(name).resolve()
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with _temporary_file(path, b"", 0o600):
            pass


def write_whole(name: Path | str, content: bytes) -> None:
    """Write a file atomically.

    Links are followed. Pipes and terminals are written to, and not replaced.

    Raises:
        InputError: the file cannot be written.
    """
    with _convert_write_errors(name):
        if Path(name).exists() and not Path(name).is_file():
            Path(name).write_bytes(content)
            return
        path = Path(name).resolve()
        replace_file(path, content, stat.S_IMODE(path.stat().st_mode) if path.exists() else None)


def write_private(path: Path, text: str) -> None:
    """Atomically write a file that only its owner can read.

    Raises:
        OSError: the file cannot be written.
    """
    replace_file(path, text.encode(), 0o600)


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Replace a file atomically; its permissions are ``mode``, by default 0666 minus the umask.

    Raises:
        OSError: the file cannot be written.
    """
    with _temporary_file(path, content, 0o666 if mode is None else 0o600) as temporary:
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)


def file_state(path: Path) -> tuple[int, int, int] | None:
    """Return values that differ once a file has been replaced; None if there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def lock_file(path: Path, longest_wait_s: float = 10.0) -> Iterator[None]:
    """Hold the lock of a file, for a change that other processes and threads must not overlap.

    The lock is of SQLite, on an empty file next to ``path``; that of a process that is killed ends with it.

    Raises:
        OSError: the lock cannot be created, or another process holds it for too long.
    """
    try:
        lock = sqlite3.connect(path.with_name(f"{path.name}.lock"), timeout=longest_wait_s, isolation_level=None)
        with closing(lock):
            lock.execute("BEGIN EXCLUSIVE")
            yield
    except sqlite3.Error as error:
        raise OSError(errno.ENOLCK, str(error)) from None


def link_or_copy(source: Path, target: Path) -> None:
    """Make a hard link to a file; copy the file if it is on another disk, or the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        copy_private(source, target)


def copy_private(source: Path, target: Path) -> None:
    """Copy a file to a new one that only its owner can read.

    Raises:
        OSError: the source cannot be read, or the target exists or cannot be written.
    """
    with source.open("rb") as content, open_private(target) as copy:
        shutil.copyfileobj(content, copy, 1 << 20)


def open_private(path: Path) -> BinaryIO:
    """Open a new file for writing that only its owner can read.

    Raises:
        OSError: the file exists or cannot be written.
    """
    return open(path, "xb", opener=partial(os.open, mode=0o600))


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of ``content``, with as many system calls as necessary.

    Raises:
        OSError: the disk is full.
    """
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


@contextmanager
def _temporary_file(path: Path, content: bytes, mode: int) -> Iterator[Path]:
    """Yield a temporary file next to ``path``, which is removed at the end unless it was renamed.

    Its name is random, and an existing link of that name is refused, so that no other file is overwritten.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, mode)
    try:
        try:
            write_all(descriptor, content)
        finally:
            os.close(descriptor)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _convert_write_errors(name: Path | str) -> Iterator[None]:
    """Convert errors of writing a file to :class:`InputError`."""
    try:
        yield
    except OSError as error:
        raise Refusal("unwritable_file", {"path": str(name), "reason": error.strerror}) from None
    except ValueError as error:  # the path contains a null byte
        raise Refusal("unwritable_file", {"path": repr(str(name)), "reason": str(error)}) from None
    except RuntimeError:  # of resolve()
        raise Refusal("unwritable_file", {"path": str(name), "reason": os.strerror(errno.ELOOP)}) from None


def import_path(*folders: Path, given: Mapping[str, str] = os.environ) -> str:
    """Return the ``PYTHONPATH`` of a process: Meshwave's folder, ``folders``, and the paths in ``given``."""
    others = [Path(each).absolute() for each in given.get("PYTHONPATH", "").split(os.pathsep) if each]
    return os.pathsep.join(map(str, [import_folder(), *folders, *others]))


def import_folder() -> Path:
    """Return the folder from which ``meshwave`` is imported."""
    return _ROOT if (_ROOT / "meshwave").is_dir() else _ROOT.parent
