"""Run database (SQLite): the state of each run and the reason for the state."""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwave.engine.errors import RunError, closest_word, escape_unprintable
from meshwave.engine.files import data_folder
from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.run_files import first_problem
from meshwave.engine.runs.run_entry import NEXT_STATES, Entry, Place, State, Transition
from meshwave.engine.runs.run_index import open_index, reports_damage

_ACTIVE = (State.STARTING, State.RUNNING)

_log = logging.getLogger(__name__)


class Record:
    """Database of all runs of a user: ``runs.sqlite``, and the run folders ``runs/<id>``.

    Every change is one durable transaction. Any number of threads and processes may share the database.
    """

    def __init__(self, place: Path | None = None) -> None:
        """Open the run database in the folder ``place``, by default the user's own.

        Raises:
            RunRefusal: the folder cannot be used, or the database is damaged.
        """
        self.place = (place or data_folder()).absolute()
        self._path = self.place / "runs.sqlite"
        self._lock = threading.RLock()
        self._damaged: set[str] = set()  # messages that were logged already
        try:
            self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.place / "runs").mkdir(mode=0o700, exist_ok=True)
            self._db, self.is_new = open_index(self._path)
        except (OSError, sqlite3.Error) as error:
            raise self._error("run_record_unwritable", error) from None

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()

    def folder(self, run: str) -> Path:
        """Return the folder of a run."""
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
        is_rehearsal: bool = False,
        person: str = "",
        key: str | None = None,
        limit: int = 1,
    ) -> tuple[Entry, bool]:
        """Add a new run in state STARTING, or in state QUEUED if ``limit`` runs of its place are active.

        Returns:
            The entry, and False if a run with this ``key`` already exists: a request that is submitted twice creates
            one run.

        Raises:
            RunRefusal: the database cannot be written, as on a full disk. Every method may raise it.
        """
        now = time.time()
        with self._transaction() as db:
            known = db.execute("SELECT * FROM runs WHERE key = ?", (key,)).fetchone() if key else None
            if known:
                return self._entry(known), False
            place = Place(launcher, handle.get("target"))
            is_full = bool(self._select(db, [State.QUEUED], place)) or len(self._select(db, _ACTIVE, place)) >= limit
            state = State.QUEUED if is_full else State.STARTING
            run = self._new_id(db, now)
            db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, '', ?, ?, ?, ?, ?, ?, NULL, NULL, ?, ?, ?)",
                (
                    *(run, key, name, state, launcher, json.dumps(handle), digest, processes, steps, now),
                    *(manner, is_rehearsal, person),
                ),
            )
            db.execute("INSERT INTO transitions VALUES (?, ?, ?, '')", (run, state, now))
            return self._get(db, run), True

    def claim_next(
        self, place: Place, limit: int, may_claim: Callable[[Entry], bool], handle: Mapping[str, Any]
    ) -> Entry | None:
        """Move the first queued run of a place to STARTING and return it; only one process succeeds.

        Return None if no run is queued, ``limit`` runs of the place are active, or ``may_claim`` returns False for the run.
        """
        with self._transaction() as db:
            queue = self._queue(db, place)
            if not queue or len(self._select(db, _ACTIVE, place)) >= limit or not may_claim(queue[0]):
                return None
            self._change_state(db, queue[0].id, State.STARTING, "")
            self._set_handle(db, queue[0].id, handle)
            return self._get(db, queue[0].id)

    def requeue(self, run: str, reason: str, handle: Mapping[str, Any]) -> bool:
        """Queue an active run again, before runs that were submitted later; return False if the run is not active."""
        with self._transaction() as db:
            if self._get(db, run).state not in _ACTIVE:
                return False
            self._change_state(db, run, State.QUEUED, reason)
            self._set_handle(db, run, handle)
            return True

    def cancel_queued(self, run: str, reason: str) -> bool:
        """Cancel a queued run; return False if it is not queued."""
        with self._transaction() as db:
            is_queued = self._get(db, run).state is State.QUEUED
            return is_queued and self._change_state(db, run, State.CANCELLED, reason)

    def queued_runs(self, place: Place | None = None) -> list[Entry]:
        """Return the queued runs of a place, or of all places, in the order in which they start.

        Persons take turns: the second run of a person starts after the first run of every other person.
        """
        with self._lock, self._convert_errors():
            return self._queue(self._db, place)

    def _queue(self, db: sqlite3.Connection, place: Place | None) -> list[Entry]:
        runs = Counter(entry.person for entry in self._select(db, _ACTIVE, place))
        turns = []
        for entry in self._select(db, [State.QUEUED], place):
            turns.append((runs[entry.person], entry))
            runs[entry.person] += 1
        return [entry for _, entry in sorted(turns, key=itemgetter(0))]  # the sort is stable

    def add_finished(self, entry: Entry) -> None:
        """Add an entry for a finished run whose folder exists, unless the run has one."""
        with self._transaction() as db:
            values = {**entry.model_dump(), "handle": json.dumps(entry.handle)}
            places = ", ".join("?" * len(values))
            statement = f"INSERT OR IGNORE INTO runs ({', '.join(values)}) VALUES ({places})"
            db.execute(statement, [*values.values()])

    def delete(self, run: str) -> None:
        """Remove a run from the database; its folder stays."""
        with self._transaction() as db:
            db.execute("DELETE FROM transitions WHERE run = ?", (run,))
            db.execute("DELETE FROM runs WHERE id = ?", (run,))

    def change_state(self, run: str, state: State, reason: str = "") -> bool:
        """Change the state of a run; return False if the transition is not allowed, for example from a final state."""
        with self._transaction() as db:
            return self._change_state(db, run, state, reason)

    def _change_state(self, db: sqlite3.Connection, run: str, state: State, reason: str) -> bool:
        if state not in NEXT_STATES.get(self._get(db, run).state, ()):
            return False
        now, column = time.time(), "finished_s" if state.is_over else "started_s"
        time_s = None if state in (State.QUEUED, State.STARTING) else now
        db.execute(f"UPDATE runs SET state = ?, reason = ?, {column} = ? WHERE id = ?", (state, reason, time_s, run))
        db.execute("INSERT INTO transitions VALUES (?, ?, ?, ?)", (run, state, now, reason))
        return True

    def set_handle(self, run: str, handle: Mapping[str, Any]) -> None:
        """Store the data by which the launcher finds the run again."""
        with self._transaction() as db:
            self._set_handle(db, run, handle)

    def _set_handle(self, db: sqlite3.Connection, run: str, handle: Mapping[str, Any]) -> None:
        db.execute("UPDATE runs SET handle = ? WHERE id = ?", (json.dumps(handle), run))

    def get(self, run: str) -> Entry:
        """Return the entry of a run.

        Raises:
            Refusal: there is no run with that id.
        """
        with self._lock, self._convert_errors():
            return self._get(self._db, run)

    def find(self, text: str) -> Entry:
        """Return the run with the given id, or the only run whose id begins or ends with the given text.

        Raises:
            Refusal: no run matches, or more than one.
        """
        with self._lock, self._convert_errors():
            rows = self._db.execute("SELECT id FROM runs WHERE typeof(id) = 'text' ORDER BY created_s DESC")
            ids = [row["id"] for row in rows]
        matches = [run for run in ids if text == run] or [r for r in ids if r.startswith(text) or r.endswith(text)]
        if len(matches) == 1:
            return self.get(matches[0])
        if matches:
            raise Refusal("ambiguous_run", {"run": text, "matches": matches[:5]})
        known = ids[:20]
        raise Refusal("unknown_run", {"run": text, "known": known, "suggestion": closest_word(text, known)})

    def entries(self, limit: int | None = 1000) -> list[Entry]:
        """Return the entries of the latest ``limit`` runs, or of all runs if it is None; latest first."""
        with self._lock, self._convert_errors():
            rows = self._db.execute(
                "SELECT * FROM runs ORDER BY created_s DESC, id DESC LIMIT ?", (-1 if limit is None else limit,)
            )
            return self._read_rows(rows)

    def count_by_state(self) -> dict[State, int]:
        """Return the number of runs in each state; states without runs are left out."""
        with self._lock, self._convert_errors():
            rows = self._db.execute("SELECT state, COUNT(*) FROM runs GROUP BY state")
            return {State(state): count for state, count in rows}

    def person_entries(self, person: str) -> list[Entry]:
        """Return the runs that a person launched, earliest first."""
        with self._lock, self._convert_errors():
            rows = self._db.execute("SELECT * FROM runs WHERE person = ? ORDER BY created_s, rowid", (person,))
            return self._read_rows(rows)

    def active_runs(self) -> list[Entry]:
        """Return the runs that are starting or running, earliest first."""
        with self._lock, self._convert_errors():
            return self._select(self._db, _ACTIVE)

    def history(self, run: str) -> list[Transition]:
        """Return the transitions of a run, earliest first."""
        with self._lock, self._convert_errors():
            rows = self._db.execute("SELECT * FROM transitions WHERE run = ? ORDER BY rowid", (run,))
            return [
                Transition(State(row["state"]), row["time_s"], row["reason"])
                for row in rows
                if row["state"] in [*State]
            ]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._convert_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:  # a statement or the commit failed
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert errors of SQLite, such as a full disk, to :class:`RunRefusal`."""
        try:
            yield
        except sqlite3.ProgrammingError:  # a mistake in the code, such as a query after close()
            raise
        except sqlite3.DatabaseError as error:
            raise self._error("run_record_unavailable", error) from error

    def _error(self, code: str, error: Exception) -> RunRefusal:
        """Return the error for a failure of SQLite: ``code``, or ``damaged_run_index`` if the database is damaged."""
        params = {"place": str(self.place), "reason": escape_unprintable(str(error))}
        if reports_damage(error):
            where = {"path": str(self._path), "name": self._path.name, "folder": str(self.place / "runs")}
            return RunRefusal("damaged_run_index", {**params, **where})
        return RunRefusal(code, params)

    def _get(self, db: sqlite3.Connection, run: str) -> Entry:
        row = db.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            raise Refusal("no_such_run", {"run": run})
        return self._entry(row)

    def _select(self, db: sqlite3.Connection, states: Sequence[State], place: Place | None = None) -> list[Entry]:
        """Return the runs in the given states, earliest first; only those of ``place`` if it is given."""
        marks = ", ".join("?" * len(states))
        rows = db.execute(f"SELECT * FROM runs WHERE state IN ({marks}) ORDER BY created_s, rowid", states)
        return [entry for entry in self._read_rows(rows) if place in (None, entry.place)]

    def _read_rows(self, rows: Iterable[sqlite3.Row]) -> list[Entry]:
        """Return the entries of rows; a damaged row is skipped, with one warning."""
        found = []
        for row in rows:
            try:
                found.append(self._entry(row))
            except RunError as error:
                if str(error) not in self._damaged:
                    _log.warning("%s", error)
                self._damaged.add(str(error))
        return found

    def _entry(self, row: sqlite3.Row) -> Entry:
        """Convert a row to an entry.

        Raises:
            RunRefusal: the row is damaged.
        """
        try:
            return Entry.model_validate(dict(row))
        except ValidationError as error:
            run = row["id"] if isinstance(row["id"], str) else "without a name"
            where = {"path": str(self._path), "name": self._path.name}
            raise RunRefusal("damaged_run_entry", {"run": run, **where, "reason": first_problem(error)}) from None

    def _new_id(self, db: sqlite3.Connection, now: float) -> str:
        """Return a new run id with the time in UTC, so that ids sort by time even when clocks change by an hour."""
        while True:
            run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(2)}"
            if db.execute("SELECT 1 FROM runs WHERE id = ?", (run,)).fetchone() is None:
                return run
