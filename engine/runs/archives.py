"""Archives of runs: the run folder as one compressed tar file."""

from __future__ import annotations

import errno
import gzip
import re
import shutil
import tarfile
import tempfile
import time
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath

from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.run_files import RunFolderError
from meshwave.engine.runs.launchers import read_entry
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import Entry, State

SUFFIX = ".meshwave-run.tar.gz"
LARGEST_RUN_BYTES = 200_000_000_000
"""Maximum total size, in bytes, of the files of an imported archive."""
MOST_FILES = 100_000
LARGEST_READ_BYTES = 16_000_000
IMPORTING, DELETED = ".import-", ".deleted-"
"""Prefixes of the names of temporary folders."""
LEFTOVER_S = 3600.0
"""Time, in seconds, after which an unchanged temporary folder is removed."""
_RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


def export_run(record: Record, entry: Entry, file: Path | None = None) -> Path:
    """Write the folder of a run to an archive, and return the path of the archive.

    Args:
        record: the run database.
        entry: the run, which must be finished.
        file: path of the archive; by default the id of the run in the current folder.

    Raises:
        Refusal: the run is not finished, or the file exists.
        RunRefusal: the file cannot be written.
    """
    _check_is_over(record, entry)
    target = file if file is not None else Path(entry.id + SUFFIX)
    unfinished = target.with_name(f".{target.name}.part")
    try:
        if target.exists():
            raise Refusal("archive_exists", {"file": str(target)})
        with tarfile.open(unfinished, "w:gz", compresslevel=3) as archive:
            archive.add(record.folder(entry.id).resolve(), entry.id)  # cluster runs have links to folders
        unfinished.replace(target)
    except OSError as error:
        raise RunRefusal("archive_unwritable", {"file": str(target), "error": error.strerror}) from None
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def import_run(record: Record, file: Path) -> Entry:
    """Extract the run folder of an archive, and add the run to the run database.

    Raises:
        Refusal: the file is not an archive of a run, its run folder is damaged, or the run already exists here.
    """
    runs = record.place / "runs"
    with tempfile.TemporaryDirectory(prefix=IMPORTING, dir=runs) as temporary:
        try:
            with BoundedGzipFile(file) as content, tarfile.open(fileobj=content, mode="r:") as archive:
                run = _check_members(archive, file, shutil.disk_usage(runs).free)
                if record.folder(run).exists():
                    raise Refusal("run_exists", {"run": run})
                archive.extractall(temporary, filter="data")
        except (OSError, EOFError, OverflowError, ValueError, zlib.error, tarfile.TarError) as error:
            raise _archive_error(file, str(error)) from None
        except KeyError as error:  # a link to a file that is not in the archive
            raise _archive_error(file, str(error.args[0])) from None
        except RecursionError:
            raise _archive_error(file, "its folders are nested too deeply") from None
        folder = Path(temporary) / run
        try:
            entry = read_entry(folder)
        except RunFolderError as error:
            raise _damaged_archive(file, error) from None
        folder.chmod(0o700)
        try:
            folder.rename(record.folder(run))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise Refusal("run_exists", {"run": run}) from None  # imported by another process in the meantime
    record.add_finished(entry)
    return record.get(run)


def remove_leftovers(record: Record) -> None:
    """Remove the folders of imports and deletions that were killed, which have not changed for an hour."""
    oldest_s = time.time() - LEFTOVER_S
    for folder in (record.place / "runs").iterdir():
        if folder.name.startswith((IMPORTING, DELETED)):
            with suppress(OSError):  # another process moves or deletes it now
                if all(path.lstat().st_ctime < oldest_s for path in (folder, *folder.rglob("*"))):
                    shutil.rmtree(folder, ignore_errors=True)


def delete_run(record: Record, entry: Entry) -> bool:
    """Delete a run and its folder; return False if the run never left the queue, so that no host has a copy of its folder.

    Raises:
        Refusal: the run is not finished.
        RunRefusal: the run folder cannot be deleted.
    """
    _check_is_over(record, entry)
    states = {each.state for each in record.history(entry.id)}
    link = record.folder(entry.id)
    folder = link.resolve()  # the folder of a cluster run is a link to a shared folder
    removed = folder.with_name(DELETED + entry.id)
    try:
        if folder.exists():
            folder.rename(removed)  # rename first: a partly deleted folder would be a damaged run
        if link.is_symlink():
            link.unlink()
        shutil.rmtree(removed, ignore_errors=True)
        record.delete(entry.id)  # last, because a full disk has space for it only now
    except OSError as error:
        raise RunRefusal("run_not_deleted", {"run": entry.id, "error": error.strerror}) from None
    return State.QUEUED not in states or State.STARTING in states


def _check_is_over(record: Record, entry: Entry) -> None:
    if not Run(record, entry.id).state.is_over:  # on a full disk, only the run folder contains the end
        raise Refusal("run_is_active", {"run": entry.id})


class BoundedGzipFile(gzip.GzipFile):
    """Compressed file that limits the size of a read, because a forged header can make tarfile read too much."""

    def read(self, size: int | None = -1) -> bytes:
        """Read at most :data:`LARGEST_READ_BYTES`.

        Raises:
            OSError: ``size`` is larger.
        """
        if size is None or not 0 <= size <= LARGEST_READ_BYTES:
            raise OSError("a header is too large")
        return super().read(size)


def _check_members(archive: tarfile.TarFile, file: Path, free_bytes: int) -> str:
    """Check an archive before extraction, and return the id of the run; its folder must be the only content."""
    names: set[str] = set()
    total_bytes = 0
    for count, member in enumerate(archive, 1):
        total_bytes += member.size
        if count > MOST_FILES or total_bytes > LARGEST_RUN_BYTES:
            raise _archive_error(file, "it contains more files or bytes than a run folder can have")
        if total_bytes > free_bytes:
            raise _archive_error(file, "its content is larger than the free space of the disk")
        if not (member.isfile() or member.isdir() or member.islnk()):
            raise _archive_error(file, f"{member.name} is not a file")
        names.update(PurePosixPath(member.name).parts[:1] or ("",))
    if len(names) != 1 or not _RUN_ID.fullmatch(run := names.pop()):
        raise _archive_error(file, "it does not contain exactly one run folder")
    return run


def _archive_error(file: Path, reason: str) -> Refusal:
    return Refusal("not_a_run_archive", {"file": str(file), "reason": reason})


def _damaged_archive(file: Path, error: RunFolderError) -> Refusal:
    """Return the error for a damaged run folder without the path of the temporary folder, which is removed."""
    params = error.problem.params
    if "path" not in params:
        return _archive_error(file, f"its run folder has no {params['file']}")
    return _archive_error(file, f"{Path(params['path']).name} is damaged: {params['problem']}")
