"""Calibration of this machine in a thread of the server: one at a time, with progress and cancellation."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from meshwave.designer.kit.defects import defect_text
from meshwave.engine.costs.profile import Profile
from meshwave.engine.costs.profile_store import check_can_store, profile_file_name, store_profile, write_spare_profile
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.findings import Refusal
from meshwave.engine.runtime.calibration import (
    CalibrationOptions,
    CalibrationProgress,
    calibrate_machine,
    default_options,
)

Listener = Callable[[], None]
Measure = Callable[[CalibrationOptions, Callable[[CalibrationProgress], None]], Profile]


@dataclass(frozen=True)
class CalibrationStatus:
    """State and progress of a calibration."""

    state: Literal["idle", "runs", "done", "failed", "stopped"] = "idle"
    name: str = ""
    """Name of the profile that is being measured."""
    share: float = 0.0
    words: str = ""

    @property
    def is_running(self) -> bool:
        """True while a calibration is running."""
        return self.state == "runs"


class BackgroundCalibration:
    """The calibration of this machine in a thread; all tabs share it."""

    def __init__(self, measure: Measure = calibrate_machine) -> None:
        self._measure = measure
        self._status = CalibrationStatus()
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> CalibrationStatus:
        """Current status."""
        return self._status

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener``, in any thread, after each change of the status; return a function that unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def start(self, name: str) -> None:
        """Calibrate this machine like ``meshwave calibrate`` and store the profile under a name.

        Raises:
            Refusal: a calibration is already running, or no profile can be stored under the name.
        """
        name = profile_file_name(name)
        check_can_store(name)
        with self._lock:
            if self._status.is_running:
                raise Refusal("already_calibrating")
            self._cancelled.clear()
            self._status = CalibrationStatus("runs", name, 0.0, "starting")
        self._notify()  # before the thread starts, so that listeners see the statuses in order
        self._thread = threading.Thread(target=self._run, args=(name,), daemon=True, name="calibrate")
        self._thread.start()

    def stop(self) -> None:
        """Cancel the calibration at its next progress report; no profile is stored."""
        with self._lock:
            if not self._status.is_running:
                return
            self._cancelled.set()
            self._status = replace(self._status, words="stopping")
        self._notify()

    def close(self, patience_s: float = 5.0) -> None:
        """Cancel the calibration and wait at most ``patience_s`` seconds until its processes have ended."""
        self.stop()
        if self._thread is not None:
            self._thread.join(patience_s)

    def _run(self, name: str) -> None:
        try:
            profile = self._measure(default_options(), self._report_progress)
            self._check_cancelled()
            status = _store_profile(profile, name)
        except Stopped:
            status = CalibrationStatus("stopped", name, 0.0, "stopped; no profile was stored")
        except MeshwaveError as error:
            status = CalibrationStatus("failed", name, 0.0, str(error))
        except Exception as wrong:  # an internal error must not leave listeners waiting
            traceback.print_exc()
            status = CalibrationStatus("failed", name, 0.0, defect_text(wrong))
        self._set_status(status)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Stopped

    def _report_progress(self, progress: CalibrationProgress) -> None:
        self._check_cancelled()
        self._set_status(CalibrationStatus("runs", self._status.name, progress.share, progress.message))

    def _set_status(self, status: CalibrationStatus) -> None:
        with self._lock:
            if status == self._status and status.share:
                return
            self._status = status
        self._notify()

    def _notify(self) -> None:
        for listener in [*self._listeners]:
            listener()


def _store_profile(profile: Profile, name: str) -> CalibrationStatus:
    try:
        store_profile(profile, name)
    except InputError as error:  # such as a full disk: do not lose measurements that took minutes
        spare = write_spare_profile(profile)
        return CalibrationStatus(
            "failed", name, 0.0, f"{error}{f'; the profile was saved as {spare}' if spare else ''}"
        )
    return CalibrationStatus("done", name, 1.0, "profile stored")


class Stopped(Exception):
    """Raised in the calibration thread after it was cancelled."""
