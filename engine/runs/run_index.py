"""SQLite file of the run database, which several processes may share."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

VERSION = 5
PATIENCE_S = 10.0
"""Maximum time, in seconds, that a writer waits for another writer; a transaction takes less than a millisecond."""

SCHEMA = """
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
    manner     TEXT NOT NULL DEFAULT '',
    is_rehearsal INTEGER NOT NULL DEFAULT 0,
    person     TEXT NOT NULL DEFAULT ''
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

UPGRADES = {
    1: "ALTER TABLE runs ADD COLUMN manner TEXT NOT NULL DEFAULT '';",
    2: """
    ALTER TABLE runs ADD COLUMN is_rehearsal INTEGER NOT NULL DEFAULT 0;
    UPDATE runs SET is_rehearsal = 1 WHERE manner LIKE 'rehearsal%';
    """,
    3: "ALTER TABLE runs ADD COLUMN person TEXT NOT NULL DEFAULT '';",
    4: "UPDATE runs SET manner = 'dry run' || substr(manner, length('rehearsal') + 1) WHERE manner LIKE 'rehearsal%';",
}
"""SQL statements that upgrade the tables, by the version from which they upgrade."""


def open_index(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Open the SQLite file; return the connection, and True if the file is new."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    db = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    db.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        _set_wal(db)
    except UnicodeDecodeError:  # the error message of SQLite quotes a damaged schema
        damaged = sqlite3.DatabaseError("its schema is not text")
        damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damaged from None
    db.execute("PRAGMA synchronous = FULL")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise sqlite3.DatabaseError(f"{path.name} was written by a newer Meshwave")
    if version < VERSION:
        _upgrade_tables(db)
    return db, version == 0


def _upgrade_tables(db: sqlite3.Connection) -> None:
    """Upgrade the tables to the current version; safe if several processes do so at once."""
    db.execute("BEGIN IMMEDIATE")
    version = db.execute("PRAGMA user_version").fetchone()[0]  # another process may have upgraded it
    scripts = [UPGRADES[each] for each in range(version, VERSION)] if version else [SCHEMA]
    for statement in filter(str.strip, ";".join(scripts).split(";")):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def _set_wal(db: sqlite3.Connection) -> None:
    """Set the journal mode; retry while another process holds the lock."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def reports_damage(error: Exception) -> bool:
    """Return True if an error reports a damaged file, rather than a file that cannot be read or written."""
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # the last code: a table is missing
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in damage  # the upper bits are an extended code
