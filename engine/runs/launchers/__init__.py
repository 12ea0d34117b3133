"""Launchers: one file each starts runs on one kind of place."""

from meshwave.engine.runs.launchers._base import (
    Capabilities,
    Launcher,
    OwningLauncher,
    launchers,
    open_run,
    reconcile,
    specify_run,
    usual_launcher,
)
from meshwave.engine.runs.launchers._environment import environment
from meshwave.engine.runs.launchers._threaded import ThreadedLauncher

__all__ = ["Capabilities", "Launcher", "OwningLauncher", "ThreadedLauncher", "environment", "launchers", "open_run"]
__all__ += ["reconcile", "specify_run", "usual_launcher"]
