"""Starting runs and remembering them: one file a launcher, a folder a run, one record of all runs."""

from engine.launch._launcher import Capabilities, Launcher, launchers, reconcile
from engine.launch._run import Run, loss_in_words, loss_of, step_time
from engine.launch.bundle import Bundle, read_bundle, read_options, write_bundle
from engine.launch.options import Hosts, Options
from engine.launch.record import Entry, Record, State

__all__ = ["Bundle", "Capabilities", "Entry", "Hosts", "Launcher", "Options", "Record", "Run", "State"]
__all__ += [
    "launchers",
    "loss_in_words",
    "loss_of",
    "read_bundle",
    "read_options",
    "reconcile",
    "step_time",
    "write_bundle",
]
