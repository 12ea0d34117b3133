"""State of an active workshop: people, their steps and scores, and the teacher's announcement.

It is stored in a database, so that a restart of the server continues the workshop.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
import time
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import escape_unprintable
from meshwave.engine.files import data_folder
from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.frozen import Part
from meshwave.engine.lessons.progress import load_progress
from meshwave.engine.lessons.workshop import Score, Workshop

LONGEST_NAME = 40
_INVISIBLE = re.compile("[\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that would make two names look the same, or turn the letters of a name around."""
CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Letters and digits that are not easily confused."""
CODE_LENGTH = 8
"""Length of a code: 10^12 codes cannot be guessed in the hours of a workshop, so wrong codes need no limit."""
_TABLES = """
CREATE TABLE IF NOT EXISTS people (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE COLLATE NOCASE, key TEXT NOT NULL, joined_s REAL NOT NULL,
    lesson TEXT NOT NULL DEFAULT '', step INTEGER NOT NULL DEFAULT 0, since_s REAL NOT NULL, draft TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS scores (
    person TEXT NOT NULL, challenge TEXT NOT NULL, value REAL NOT NULL, text TEXT NOT NULL, design TEXT NOT NULL,
    given_s REAL NOT NULL, PRIMARY KEY (person, challenge)
);
CREATE TABLE IF NOT EXISTS dry_runs (
    person TEXT NOT NULL, challenge TEXT NOT NULL, run TEXT NOT NULL, result TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (person, challenge)
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def workshop_folder(name: str) -> Path:
    """Return the folder with the people, designs and results of a workshop."""
    return data_folder() / "workshops" / name


class Learner(NamedTuple):
    """Learner with the open step, and the Unix time at which the step was opened."""

    id: str
    name: str
    joined_s: float
    lesson: str
    step: int
    since_s: float
    draft: str


class Announcement(Part):
    """Message, step and pause that the teacher shows to all learners."""

    message: str = ""
    """Message above every learner's page; empty if there is none."""
    lesson: str = ""
    """Lesson of the step that the teacher chose; empty if none is chosen."""
    step: int = 0
    """Index of the step in that lesson."""
    is_paused: bool = False
    """True while learners' pages are covered."""


class Classroom:
    """People of one workshop, to be used from one thread.

    ``changes`` counts the changes, so that a page can check cheaply whether it is up to date.
    """

    def __init__(self, folder: Path, workshop: Workshop, clock: Callable[[], float] = time.time) -> None:
        """Open the workshop in a folder, which is created if it does not exist.

        Raises:
            RunError: the folder cannot be used.
        """
        self.folder, self.workshop, self._clock, self.changes = folder, workshop, clock, 0
        self._reservation: sqlite3.Connection | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._db = sqlite3.connect(folder / "workshop.sqlite", isolation_level=None, check_same_thread=False)
            self._db.executescript(f"PRAGMA journal_mode = WAL; {_TABLES}")
            code = self._read_fact("code")
            self.code = code if len(code) == CODE_LENGTH else self._new_code()  # older versions used shorter codes
        except (OSError, sqlite3.Error) as error:
            raise RunRefusal("unwritable_workshop", {"folder": str(folder), "reason": str(error)}) from None

    def reserve(self) -> None:
        """Reserve the workshop for this process until :meth:`close`; the lock of a process that is killed ends with it.

        Raises:
            Refusal: another process serves the workshop.
        """
        self._reservation = sqlite3.connect(self.folder / "server.sqlite", timeout=0, isolation_level=None)
        try:
            self._reservation.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            raise Refusal("workshop_is_served", {"name": self.workshop.name}) from None

    def close(self) -> None:
        """Close the database, and end the reservation if there is one."""
        self._db.close()
        if self._reservation is not None:
            self._reservation.close()

    def _read_fact(self, name: str) -> str:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else ""

    def _execute(self, statement: str, *values: object) -> int:
        """Execute a statement that changes the workshop, and return the number of changed rows."""
        changed = self._db.execute(statement, values).rowcount
        self.changes += 1
        return changed

    def _new_code(self) -> str:
        code = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
        self._execute("INSERT OR REPLACE INTO facts VALUES ('code', ?)", code)
        return code

    # ---- people ----

    def join(self, code: str, name: str) -> str:
        """Admit a person, and return the key that only the person's browser stores.

        The name of somebody who has signed out continues with that person's designs and progress.

        Raises:
            Refusal: the code is wrong, the name is empty or taken, or the workshop is full.
        """
        name = " ".join(_INVISIBLE.sub("", unicodedata.normalize("NFC", name)).split())
        if not secrets.compare_digest(code.strip().upper().encode(), self.code.encode()):
            raise Refusal("workshop_wrong_code", {})
        if not 0 < len(name) <= LONGEST_NAME or escape_unprintable(name) != name:
            raise Refusal("workshop_name", {"longest": LONGEST_NAME})
        key, now, people = secrets.token_urlsafe(32), self._clock(), self.people()
        known = next((each for each in people if each.name.casefold() == name.casefold()), None)
        if known is not None:
            if not self._execute("UPDATE people SET key = ? WHERE id = ? AND key = ''", _hash_token(key), known.id):
                raise Refusal("workshop_name_taken", {"name": name})
            return key
        if len(people) >= self.workshop.plan.people:
            raise Refusal("workshop_full", {"people": len(people)})
        self._execute(
            "INSERT INTO people (id, name, key, joined_s, since_s) VALUES (?, ?, ?, ?, ?)",
            secrets.token_hex(6), name, _hash_token(key), now, now,
        )  # fmt: skip
        return key

    def people(self) -> list[Learner]:
        """Return all people who have joined, in the order of joining."""
        columns = ", ".join(Learner._fields)
        return [Learner(*row) for row in self._db.execute(f"SELECT {columns} FROM people ORDER BY joined_s, id")]

    def person(self, id: str) -> Learner:
        """Return the person with the given ID.

        Raises:
            Refusal: there is no such person, for example because the teacher has removed the name.
        """
        found = next((each for each in self.people() if each.id == id), None)
        if found is None:
            raise Refusal("workshop_unknown_person", {})
        return found

    def find_by_key(self, key: str) -> str | None:
        """Return the ID of the person whose browser has this key; None if there is none."""
        row = self._db.execute("SELECT id FROM people WHERE key = ?", (_hash_token(key),)).fetchone()
        return str(row[0]) if row else None

    def forget_key(self, key: str) -> None:
        """Sign out the person whose browser has this key."""
        self._execute("UPDATE people SET key = '' WHERE key = ?", _hash_token(key))

    def remove(self, id: str) -> None:
        """Remove a person, whose name can be used again; the designs stay in the folder."""
        self._execute("DELETE FROM people WHERE id = ?", id)
        self._execute("DELETE FROM scores WHERE person = ?", id)
        self._execute("DELETE FROM dry_runs WHERE person = ?", id)

    def person_folder(self, id: str) -> Path:
        """Return the folder with a person's designs and progress."""
        return self.folder / "people" / id

    def record_open_step(self, id: str, lesson: str, step: int, draft: str) -> None:
        """Record the step and the design that a person has open; the time restarts when the step changes."""
        known = next((each for each in self.people() if each.id == id), None)
        if known is None or (known.lesson, known.step, known.draft) == (lesson, step, draft):
            return
        is_same_step = (known.lesson, known.step) == (lesson, step)
        since_s = known.since_s if is_same_step else self._clock()
        self._execute(
            "UPDATE people SET lesson = ?, step = ?, since_s = ?, draft = ? WHERE id = ?",
            lesson, step, since_s, draft, id,
        )  # fmt: skip

    # ---- the teacher ----

    @property
    def announcement(self) -> Announcement:
        """Current announcement of the teacher."""
        with suppress(ValidationError):
            return Announcement.model_validate_json(self._read_fact("announcement") or "{}")
        return Announcement()

    def announce(self, **changes: object) -> None:
        """Change fields of the announcement."""
        changed = Announcement.model_validate({**self.announcement.model_dump(), **changes})
        self._execute("INSERT OR REPLACE INTO facts VALUES ('announcement', ?)", changed.model_dump_json())

    # ---- challenges ----

    def submit(self, id: str, challenge: str, score: Score, design: Design) -> bool:
        """Record a score, and return True if it is the person's best so far; a lower score is not stored."""
        sign = 1 if self.workshop.challenge(challenge).best == "smallest" else -1
        row = self._db.execute(
            "SELECT value FROM scores WHERE person = ? AND challenge = ?", (id, challenge)
        ).fetchone()
        if row and sign * row[0] <= sign * score.value:
            return False
        self._execute(
            "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?)",
            id, challenge, score.value, score.text, design.model_dump_json(), self._clock(),
        )  # fmt: skip
        self._execute("DELETE FROM dry_runs WHERE person = ? AND challenge = ?", id, challenge)  # of a worse design
        return True

    def add_dry_run(self, id: str, challenge: str, run: str) -> None:
        """Record the dry run that is to confirm a person's best score in a challenge."""
        self._execute("INSERT OR REPLACE INTO dry_runs VALUES (?, ?, ?, '')", id, challenge, run)

    def record_results(self, result_of: Callable[[str], str]) -> None:
        """Record the results of finished dry runs.

        ``result_of`` returns the result of a run, or an empty text if the run has not ended.
        """
        for (run,) in self._db.execute("SELECT run FROM dry_runs WHERE result = ''").fetchall():
            if result := result_of(run):
                self._execute("UPDATE dry_runs SET result = ? WHERE run = ?", result, run)

    def leaderboard(self, challenge: str) -> list[dict[str, Any]]:
        """Return the scores of a challenge, best first; ties are ordered by time.

        Each entry has ``rank``, ``person``, ``name``, ``value``, ``text``, and the ``run`` and ``result`` of a dry run
        of the design. These are empty if there is no dry run or it has not ended.
        """
        order = "ASC" if self.workshop.challenge(challenge).best == "smallest" else "DESC"
        rows = self._db.execute(
            "SELECT people.id, people.name, scores.value, scores.text, coalesce(run, ''), coalesce(result, '')"
            " FROM scores JOIN people ON people.id = scores.person LEFT JOIN dry_runs USING (person, challenge)"
            f" WHERE challenge = ? ORDER BY scores.value {order}, given_s",
            (challenge,),
        )
        columns = ("person", "name", "value", "text", "run", "result")
        return [{"rank": rank, **dict(zip(columns, row, strict=True))} for rank, row in enumerate(rows, 1)]

    def read_submission(self, id: str, challenge: str) -> Design:
        """Return a person's best design in a challenge.

        Raises:
            Refusal: the person has no score in this challenge.
        """
        row = self._db.execute(
            "SELECT design FROM scores WHERE person = ? AND challenge = ?", (id, challenge)
        ).fetchone()
        if row is None:
            raise Refusal("workshop_unknown_person", {})
        return parse_design(row[0])

    # ---- results ----

    def results(self) -> dict[str, Any]:
        """Return the results of the workshop as JSON data: people with their passed steps, and the leaderboards."""
        people = []
        for each in self.people():
            lessons = load_progress(self.person_folder(each.id)).lessons
            passed = {name: {"done": len(one.done), "shown": len(one.shown)} for name, one in lessons.items()}
            people.append({"name": each.name, "joined_s": each.joined_s, "lessons": passed})
        boards = {each.name: self.leaderboard(each.name) for each in self.workshop.plan.challenges}
        return {
            "workshop": self.workshop.name,
            "title": self.workshop.plan.title,
            "people": people,
            "challenges": boards,
        }


def _hash_token(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
