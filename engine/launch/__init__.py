"""Starting runs and remembering them: one file a launcher, a folder a run, one record of all runs."""

from engine.launch._launcher import Capabilities, Launcher, launchers, reconcile
from engine.launch._run import Run, loss_in_words
from engine.launch.bundle import Bundle, read_bundle, write_bundle
from engine.launch.record import Entry, Record, State

__all__ = ["Bundle", "Capabilities", "Entry", "Launcher", "Record", "Run", "State"]
__all__ += ["launchers", "loss_in_words", "read_bundle", "reconcile", "write_bundle"]
