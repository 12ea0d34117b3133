"""Launchers: each module starts runs in one kind of place."""

from meshwave.engine.runs.launchers._base import (
    Capabilities,
    Launcher,
    OwningLauncher,
    enter_folders,
    entry_of_folder,
    launchers,
    open_run,
    reconcile,
    specify_run,
    usual_launcher,
)
from meshwave.engine.runs.launchers._environment import environment
from meshwave.engine.runs.launchers._threaded import ThreadedLauncher

__all__ = ["Capabilities", "Launcher", "OwningLauncher", "ThreadedLauncher", "enter_folders", "entry_of_folder"]
__all__ += ["environment", "launchers", "open_run", "reconcile", "specify_run", "usual_launcher"]
