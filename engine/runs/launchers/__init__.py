"""Launchers: each module starts runs in one kind of place."""

from meshwave.engine.runs.launchers._base import (
    Capabilities,
    Launcher,
    check_place,
    default_launcher,
    launchers,
    open_run,
)
from meshwave.engine.runs.launchers._environment import process_environment
from meshwave.engine.runs.launchers._folders import read_entry, remove_from_hosts, restore_entries
from meshwave.engine.runs.launchers._owning import OwningLauncher
from meshwave.engine.runs.launchers._place_checks import PlaceChecks, reconcile
from meshwave.engine.runs.launchers._specification import resumed_launch, specify_run
from meshwave.engine.runs.launchers._threaded import ThreadedLauncher
