"""Runs: launchers, the run folder, the run database, recordings, and comparisons with predictions."""

from meshwave.engine.runs.launchers import Capabilities, Launcher, reconcile
from meshwave.engine.runs.options import Hosts, Options
from meshwave.engine.runs.run import Run, format_step_time, loss_suffix, loss_text, silence_text
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import Entry, State
from meshwave.engine.runs.run_folder import Bundle, read_bundle, read_options, write_bundle
