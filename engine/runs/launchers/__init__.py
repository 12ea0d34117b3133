"""Launchers: one file each starts runs on one kind of place."""

from meshwave.engine.runs.launchers._base import (
    Capabilities,
    Launcher,
    OwningLauncher,
    launchers,
    open_run,
    reconcile,
    settled,
)

__all__ = ["Capabilities", "Launcher", "OwningLauncher", "launchers", "open_run", "reconcile", "settled"]
