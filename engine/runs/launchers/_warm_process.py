"""Launcher's side of the warm process: sends commands to it, and receives its events in a thread."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshwave.engine.findings import RunRefusal
from meshwave.engine.messages import render

CLOSING_S = 1.0


class WarmProcess:
    """Warm process, from which runs are forked. It ends when the current process ends.

    It executes ``meshwave.engine.runtime.processes.warm_process``. ``on_event`` and ``on_end`` are called from a
    separate thread; ``on_end`` is called once, with the reason why the process ended.
    """

    def __init__(
        self,
        start: str,
        worker: str,
        environment: Mapping[str, str],
        on_event: Callable[[Mapping[str, Any]], None],
        on_end: Callable[[WarmProcess, str], None],
    ) -> None:
        command = [
            sys.executable,
            "-m",
            "meshwave.engine.runtime.processes.warm_process",
            "--start",
            start,
            "--worker",
            worker,
        ]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C in the terminal goes to the launcher only
        )
        self._on_event = on_event
        self._on_end = on_end
        self._ready = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="warm_process", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """True if the process has finished its imports."""
        return self._ready.is_set()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def launch(self, run: str, folder: Path, processes: int) -> None:
        """Request the processes of a run; they start as soon as everything is imported.

        Raises:
            RunError: the warm process has ended.
        """
        command = {"do": "launch", "run": run, "folder": str(folder), "processes": processes}
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise RunRefusal("warm_process_gone", {"reason": str(error)}) from None

    def close(self) -> None:
        """End the warm process and all processes that it started."""
        assert self._process.stdin is not None
        with self._lock, suppress(OSError):
            self._process.stdin.close()
        if not self.is_ready:  # still importing, and has started nothing
            self._process.kill()
        try:
            self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as events:
            for line in events:
                with suppress(ValueError):  # a last line that is cut short
                    self._handle_event(json.loads(line))
        self._process.wait()
        with self._log:
            self._on_end(self, self._end_reason())

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "ready":
            self._ready.set()
        try:
            self._on_event(event)
        except Exception:  # later events still have to be handled
            logging.getLogger(__name__).exception("lost an event of the warm process: %s", event)

    def _end_reason(self) -> str:
        code = self._process.returncode
        if code < 0:
            return render("warm_process_killed", {"signal": signal.Signals(-code).name})
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return render("warm_process_failed", {"status": code, "last_line": lines[-1] if lines else ""})
