"""Imports of the functions that jobs run; job processes are forked from a process that has imported this module."""

from meshwave.designer.state import expert_map, gallery_cards, predictions  # noqa: F401
from meshwave.designer.state import transfer_plans as plans  # noqa: F401
from meshwave.engine.cli import main as cli  # noqa: F401  multiprocessing imports the main module, which imports this
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.shared_links_simulation import compile_loop

assert predict(load_design(example("01-first-wave"))).numbers  # imports the schedules and cost models
compile_loop()
