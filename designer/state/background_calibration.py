"""Calibration of this machine in a thread of the server: one at a time, with progress and cancellation."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from meshwave.engine.costs.profile import Profile
from meshwave.engine.costs.profile_store import check_can_store, profile_file_name, store_profile, write_spare_profile
from meshwave.engine.errors import InputError, MeshwaveError
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
    """Name of the profile that is measured."""
    share: float = 0.0
    words: str = ""

    @property
    def runs(self) -> bool:
        """Whether a calibration is running."""
        return self.state == "runs"


class BackgroundCalibration:
    """The calibration of this machine, shared by all tabs."""

    def __init__(self, measure: Measure = calibrate_machine) -> None:
        self._measure = measure
        self._standing = CalibrationStatus()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._thread: threading.Thread | None = None

    @property
    def standing(self) -> CalibrationStatus:
        return self._standing

    def hear(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener``, in any thread, whenever it stands otherwise; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def start(self, name: str) -> None:
        """Measure this machine as ``meshwave calibrate`` does, and keep what comes of it under a name.

        Raises:
            InputError: one goes on, or no profile of that name can be kept.
        """
        name = profile_file_name(name)
        check_can_store(name)
        with self._lock:
            if self._standing.runs:
                raise InputError("this machine is being measured; wait for that, or stop it")
            self._over.clear()
            self._standing = CalibrationStatus("runs", name, 0.0, "starting")
        self._heard()  # first: its end must not be told before its beginning
        self._thread = threading.Thread(target=self._run, args=(name,), daemon=True, name="calibrate")
        self._thread.start()

    def stop(self) -> None:
        """Cancel the calibration at its next progress report; no profile is stored."""
        with self._lock:
            if not self._standing.runs:
                return
            self._over.set()
            self._standing = replace(self._standing, words="stopping")
        self._heard()

    def close(self, patience_s: float = 5.0) -> None:
        """Cancel the calibration and wait until its processes have ended."""
        self.stop()
        if self._thread is not None:
            self._thread.join(patience_s)

    def _run(self, name: str) -> None:
        try:
            profile = self._measure(default_options(), self._follow)
            self._go_on()
            standing = _store_profile(profile, name)
        except Stopped:
            standing = CalibrationStatus("stopped", name, 0.0, "stopped; nothing was kept")
        except MeshwaveError as error:
            standing = CalibrationStatus("failed", name, 0.0, str(error))
        except Exception as wrong:  # a defect of ours: whoever waits must not wait for ever
            traceback.print_exc()
            standing = CalibrationStatus(
                "failed", name, 0.0, f"it went wrong inside Meshwave ({wrong!r}); the terminal says more"
            )
        self._tell(standing)

    def _go_on(self) -> None:
        if self._over.is_set():
            raise Stopped

    def _follow(self, progress: CalibrationProgress) -> None:
        self._go_on()
        self._tell(CalibrationStatus("runs", self._standing.name, progress.share, progress.message))

    def _tell(self, standing: CalibrationStatus) -> None:
        with self._lock:
            if standing == self._standing and standing.share:
                return
            self._standing = standing
        self._heard()

    def _heard(self) -> None:
        for listener in [*self._listeners]:
            listener()


def _store_profile(profile: Profile, name: str) -> CalibrationStatus:
    try:
        store_profile(profile, name)
    except InputError as error:  # the disk was filled meanwhile: what took minutes is not thrown away
        spare = write_spare_profile(profile)
        return CalibrationStatus("failed", name, 0.0, f"{error}{f'; what was measured is in {spare}' if spare else ''}")
    return CalibrationStatus("done", name, 1.0, "measured and kept")


class Stopped(Exception):
    """Raised in the calibration thread after it was canceled."""
