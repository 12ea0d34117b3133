"""The record of runs: which there are, how each stands and why, kept in SQLite."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from meshwave.engine.errors import InputError, RunError, nearest
from meshwave.engine.files import home

VERSION = 2
PATIENCE_S = 10.0
"""How long a writer waits for another one; a transaction takes a fraction of a millisecond."""


class State(StrEnum):
    """How a run stands. The last four are final."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"  # what launched it is gone, so nobody saw how it ended

    @property
    def is_over(self) -> bool:
        return self not in _NEXT


_NEXT: Mapping[State, frozenset[State]] = {
    State.STARTING: frozenset({State.RUNNING, State.FAILED, State.CANCELLED, State.LOST}),
    State.RUNNING: frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST}),
}

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id         TEXT PRIMARY KEY,
    key        TEXT UNIQUE,
    name       TEXT NOT NULL,
    state      TEXT NOT NULL,
    reason     TEXT NOT NULL,
    launcher   TEXT NOT NULL,
    handle     TEXT NOT NULL,
    digest     TEXT NOT NULL,
    processes  INTEGER NOT NULL,
    steps      INTEGER NOT NULL,
    created_s  REAL NOT NULL,
    started_s  REAL,
    finished_s REAL,
    manner     TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS runs_by_state ON runs (state);
CREATE TABLE IF NOT EXISTS transitions (
    run    TEXT NOT NULL REFERENCES runs (id),
    state  TEXT NOT NULL,
    time_s REAL NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS transitions_by_run ON transitions (run);
"""

_UPGRADES = {1: "ALTER TABLE runs ADD COLUMN manner TEXT NOT NULL DEFAULT '';"}
"""From a version to the next."""


class Busy(RunError):
    """Another run is under way."""


class Transition(NamedTuple):
    """A run came to be in ``state``."""

    state: State
    time_s: float  # Unix seconds
    reason: str


@dataclass(frozen=True)
class Entry:
    """What the record holds of one run. Times are Unix seconds."""

    id: str
    key: str | None
    name: str
    state: State
    reason: str
    launcher: str
    handle: Mapping[str, Any]  # what the launcher needs to find the run again
    digest: str  # of its program
    processes: int
    steps: int
    created_s: float
    started_s: float | None
    finished_s: float | None
    manner: str = ""  # how it differs from plain training: "rehearsal, time x 40"

    @property
    def is_rehearsal(self) -> bool:
        """Whether it waits instead of computing."""
        return self.manner.startswith("rehearsal")


class Record:
    """All runs of a user: ``runs.sqlite`` and beside it a folder a run, ``runs/<id>``.

    Every change is one durable transaction; any number of threads and processes may share it.
    """

    def __init__(self, place: Path | None = None) -> None:
        """``place`` is the folder of both, by default the user's own.

        Raises:
            RunError: the folder cannot be used.
        """
        self.place = (place or home()).absolute()
        self._lock = threading.RLock()
        try:
            self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.place / "runs").mkdir(mode=0o700, exist_ok=True)
            self._db = _open(self.place / "runs.sqlite")
        except (OSError, sqlite3.Error) as error:
            message = f"cannot keep runs in {self.place}: {error}; set MESHWAVE_HOME to a folder that you may write"
            raise RunError(message) from None

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def folder(self, run: str) -> Path:
        return self.place / "runs" / run

    def submit(
        self,
        *,
        name: str,
        launcher: str,
        handle: Mapping[str, Any],
        digest: str,
        processes: int,
        steps: int,
        manner: str = "",
        key: str | None = None,
        limit: int = 1,
    ) -> tuple[Entry, bool]:
        """Enter a run before anything of it exists; the flag is False where ``key`` is known.

        A key names one click: submitted twice, it is the same run.

        Raises:
            Busy: ``limit`` runs of this launcher are under way.
            RunError: the record cannot be written, as on a full disk. So may every change.
        """
        now = time.time()
        with self._transaction() as db:
            known = db.execute("SELECT * FROM runs WHERE key = ?", (key,)).fetchone() if key else None
            if known:
                return _entry(known), False
            under_way = [entry for entry in self._active(db) if entry.launcher == launcher]
            if len(under_way) >= limit:
                raise Busy(_busy(under_way[0]))
            run = self._new_id(db, now)
            db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, '', ?, ?, ?, ?, ?, ?, NULL, NULL, ?)",
                (run, key, name, State.STARTING, launcher, json.dumps(handle), digest, processes, steps, now, manner),
            )
            db.execute("INSERT INTO transitions VALUES (?, ?, ?, '')", (run, State.STARTING, now))
            return self._get(db, run), True

    def move(self, run: str, state: State, reason: str = "") -> bool:
        """Bring a run into ``state``; False where the run may not go there, such as one that is over."""
        now = time.time()
        with self._transaction() as db:
            entry = self._get(db, run)
            if state not in _NEXT.get(entry.state, ()):
                return False
            column = "started_s" if state is State.RUNNING else "finished_s"
            db.execute(f"UPDATE runs SET state = ?, reason = ?, {column} = ? WHERE id = ?", (state, reason, now, run))
            db.execute("INSERT INTO transitions VALUES (?, ?, ?, ?)", (run, state, now, reason))
            return True

    def hold(self, run: str, handle: Mapping[str, Any]) -> None:
        """Keep what its launcher needs to find the run again."""
        with self._transaction() as db:
            db.execute("UPDATE runs SET handle = ? WHERE id = ?", (json.dumps(handle), run))

    def get(self, run: str) -> Entry:
        """One run.

        Raises:
            InputError: there is none of that id.
        """
        with self._lock, self._told():
            return self._get(self._db, run)

    def find(self, text: str) -> Entry:
        """The run that a person means: its id, or a beginning or an end of it that no other has.

        Raises:
            InputError: none or several are meant.
        """
        with self._lock, self._told():
            ids = [row["id"] for row in self._db.execute("SELECT id FROM runs ORDER BY created_s DESC")]
        meant = [run for run in ids if text == run] or [r for r in ids if r.startswith(text) or r.endswith(text)]
        if len(meant) == 1:
            return self.get(meant[0])
        if meant:
            raise InputError(f"{text!r} may be {', '.join(meant[:5])}; write more of it")
        hint = nearest(text, ids[:20]) if ids else "There are no runs yet."
        raise InputError(f"there is no run {text!r}. {hint}")

    def all(self, limit: int = 1000) -> list[Entry]:
        """The runs, latest first."""
        with self._lock, self._told():
            rows = self._db.execute("SELECT * FROM runs ORDER BY created_s DESC, id DESC LIMIT ?", (limit,))
            return [_entry(row) for row in rows]

    def count_by_state(self) -> dict[State, int]:
        """Return how many runs are in each state that any is in."""
        with self._lock, self._told():
            rows = self._db.execute("SELECT state, COUNT(*) FROM runs GROUP BY state")
            return {State(state): count for state, count in rows}

    def active(self) -> list[Entry]:
        """The runs that are not over, earliest first."""
        with self._lock, self._told():
            return self._active(self._db)

    def history(self, run: str) -> list[Transition]:
        """How a run came to stand as it does."""
        with self._lock, self._told():
            rows = self._db.execute("SELECT * FROM transitions WHERE run = ? ORDER BY rowid", (run,))
            return [Transition(State(row["state"]), row["time_s"], row["reason"]) for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:  # it failed, and so may have the commit
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say in words what keeps the record from being read or written, such as a full disk."""
        try:
            yield
        except sqlite3.ProgrammingError:  # a mistake of ours, such as asking after it was closed
            raise
        except sqlite3.DatabaseError as error:
            message = f"the record of runs in {self.place} cannot be used: {error}; make room there, or set MESHWAVE_HOME to another folder"
            raise RunError(message) from error

    def _get(self, db: sqlite3.Connection, run: str) -> Entry:
        row = db.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            raise InputError(f"there is no run {run!r}; `meshwave runs list` shows those there are")
        return _entry(row)

    def _active(self, db: sqlite3.Connection) -> list[Entry]:
        states = (State.STARTING, State.RUNNING)
        rows = db.execute("SELECT * FROM runs WHERE state IN (?, ?) ORDER BY created_s", states)
        return [_entry(row) for row in rows]

    def _new_id(self, db: sqlite3.Connection, now: float) -> str:
        """In UTC, so that ids sort as they were made also when clocks are put back an hour."""
        while True:
            run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(2)}"
            if db.execute("SELECT 1 FROM runs WHERE id = ?", (run,)).fetchone() is None:
                return run


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    db = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    _set_wal(db)
    db.execute("PRAGMA synchronous = FULL")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise sqlite3.DatabaseError(f"{path.name} was written by a newer Meshwave")
    if version < VERSION:
        _upgrade(db)
    return db


def _upgrade(db: sqlite3.Connection) -> None:
    """Bring the tables to this version; another process may be doing the same."""
    db.execute("BEGIN IMMEDIATE")
    version = db.execute("PRAGMA user_version").fetchone()[0]  # asked again, now that nobody else can change it
    scripts = [_UPGRADES[each] for each in range(version, VERSION)] if version else [_SCHEMA]
    for statement in filter(str.strip, ";".join(scripts).split(";")):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def _set_wal(db: sqlite3.Connection) -> None:
    """Changing the journal does not wait for others, and two processes may be the first at once."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _entry(row: sqlite3.Row) -> Entry:
    values = {**dict(row), "state": State(row["state"]), "handle": json.loads(row["handle"])}
    return Entry(**values)


def _busy(entry: Entry) -> str:
    return (
        f"run {entry.id} ({entry.name}) is {entry.state.lower()}, and one run has this machine at a time; "
        f"wait for it, or cancel it: meshwave runs cancel {entry.id}"
    )
