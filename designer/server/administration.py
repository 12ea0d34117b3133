"""Data and actions of the administration page: sessions, runs, computations and saved designs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from meshwave.designer.kit.canvas import last_activity_s
from meshwave.designer.server.sessions import end_session, open_sessions, request_user
from meshwave.designer.server.usage import Meter, machine_load
from meshwave.designer.state.jobs import Job, running_jobs
from meshwave.designer.state.saved_designs import Saved
from meshwave.designer.state.studio import Studio
from meshwave.engine.findings import Refusal
from meshwave.engine.people.limits import MEGABYTE, Limits, TotalLimits
from meshwave.engine.runs import Entry
from meshwave.engine.runs.process_identity import recorded_processes
from meshwave.engine.units import quantity

PAGE_TITLES = {
    "/": "Designer",
    "/start": "Start page",
    "/transfer": "Transfer lab",
    "/board": "Board",
    "/admin": "Administration",
}


class Administration:
    """Tables of the sessions, runs, computations and saved designs of a server, and functions that stop them.

    CPU and memory are measured for processes of this machine only.
    """

    def __init__(self, studio: Studio) -> None:
        self._studio, self._meter = studio, Meter()
        self.application: Any = None
        """The application of the server, once it has started."""

    def read(self) -> Mapping[str, Any]:
        """Return the state of the server as plain data for the page."""
        self._meter.forget_ended()
        server = self._meter.measure([os.getpid()])
        used = [("This server", ", ".join(filter(None, server.cells())))] if server.memory_bytes else []
        return {
            "machine": [*machine_load(self._studio.record.place), *used],
            "tables": [self._session_table(), self._run_table(), self._job_table(), *self._design_tables()],
        }

    def stop(self, kind: str, id: str) -> None:
        """End a session, cancel a run, or stop a computation.

        Raises:
            Refusal: the session, run or computation has ended already.
        """
        {"session": self._end_session, "run": self._cancel_run, "job": self._stop_job}[kind](id)

    # ---- sessions ----

    def _session_table(self) -> dict[str, Any]:
        shown = [session for session in open_sessions(self.application) if session.connection_count]
        return {
            "kind": "session",
            "title": "People",
            "columns": ["Person", "Role", "Page", "Since", "Idle"],
            "rows": [self._session_row(session) for session in shown],
            "empty": "No pages are open.",
            "action": "End session",
        }

    def _session_row(self, session: Any) -> dict[str, Any]:
        document, now = session.document, time.time()
        user, request = request_user(document), document.session_context.request
        page = PAGE_TITLES.get(request.path.removesuffix("/ws") or "/", request.path)
        name = user.name or "you"
        idle_s = now - last_activity_s.get(document, request.arrived_s)
        return {
            "id": session.id,
            "cells": [name, user.role, page, _since(now - request.arrived_s), _since(idle_s)],
            "name": f"{name}, {page}",
            "question": f"End the session of {name} on the page {page}? The design is saved; a reload opens it again.",
        }

    def _end_session(self, id: str) -> None:
        session = next((each for each in open_sessions(self.application) if each.id == id), None)
        if session is None:
            raise Refusal("session_is_over")
        end_session(self.application, session)

    # ---- runs ----

    def _run_table(self) -> dict[str, Any]:
        record = self._studio.record
        return {
            "kind": "run",
            "title": "Runs",
            "columns": ["Run", "Person", "State", "Target", "Processes", "CPU", "Memory", "Since"],
            "rows": [self._run_row(entry) for entry in (*record.active_runs(), *record.queued_runs())],
            "empty": "No run is active or queued.",
            "action": "Cancel",
        }

    def _run_row(self, entry: Entry) -> dict[str, Any]:
        found = recorded_processes(entry)
        used = self._meter.measure([handle.pid for handle in found.processes] if found else [])
        person = self._studio.launches.names().get(entry.person, entry.person)
        since = _since(time.time() - (entry.started_s or entry.created_s))
        state, target = entry.state.lower(), entry.place.target or entry.place.launcher
        if failure := self._studio.launches.failures.get(entry.id):
            state = f"{state}; not cancelled: {failure}"
        return {
            "id": entry.id,
            "cells": [entry.name, person, state, target, str(entry.processes), *used.cells(), since],
            "name": entry.name,
            "question": f"Cancel the run {entry.name}{f' of {person}' if person else ''}?",
        }

    def _cancel_run(self, id: str) -> None:
        entry = self._studio.record.get(id)
        if entry.state.is_over:
            raise Refusal("run_is_over")
        self._studio.launches.start_cancelling(entry, "by an administrator")

    # ---- computations ----

    def _job_table(self) -> dict[str, Any]:
        return {
            "kind": "job",
            "title": "Computations",
            "columns": ["Computation", "People", "CPU", "Memory", "Since"],
            "rows": [self._job_row(job) for job in running_jobs()],
            "empty": "No long computation is active.",
            "action": "Stop",
        }

    def _job_row(self, job: Job) -> dict[str, Any]:
        used = self._meter.measure([job.pid] if job.pid is not None else [])
        people = ", ".join(dict.fromkeys(self._job_people(job)))
        return {
            "id": str(job.number),
            "cells": [job.title, people, *used.cells(), _since(time.time() - job.started_s)],
            "name": job.title,
            "question": f"Stop the computation {job.title}?",
        }

    def _job_people(self, job: Job) -> Iterator[str]:
        for document in job.documents:
            if document.session_context is not None:
                yield request_user(document).name

    def _stop_job(self, id: str) -> None:
        job = next((each for each in running_jobs() if str(each.number) == id), None)
        if job is None:
            raise Refusal("job_is_over")
        job.stop("an administrator stopped it")

    # ---- saved designs ----

    def _design_tables(self) -> Iterator[dict[str, Any]]:
        saved_designs = self._studio.saved_designs
        if saved_designs is None:
            return
        limits, names = saved_designs.limits(), self._studio.launches.names()
        saved = {person: saved_designs.saved(person) for person in saved_designs.people()}
        rows = [_saved_row(names.get(person, person), each, limits) for person, each in saved.items()]
        yield {
            "kind": "designs",
            "title": "Saved designs",
            "columns": ["Person", "Designs", "Disk space"],
            "rows": [*rows, _saved_row("All people", Saved.sum(saved.values()), limits.total)] if rows else [],
            "empty": "Nobody has saved a design.",
            "action": "",
        }


def _saved_row(person: str, saved: Saved, limits: Limits | TotalLimits) -> dict[str, Any]:
    designs, size = str(saved.designs), quantity(saved.bytes, "B")
    if limits.designs is not None:
        designs += f" of {limits.designs}"
    if limits.designs_megabytes is not None:
        size += f" of {quantity(limits.designs_megabytes * MEGABYTE, 'B')}"
    return {"id": "", "cells": [person, designs, size], "name": person, "question": ""}


def _since(seconds: float) -> str:
    """Format a time span: ``12 s``, ``3 min``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{max(0, int(seconds))} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
