"""What a job needs, imported once: its process is forked from one that has imported this."""

from meshwave.designer.state import predictions  # noqa: F401
from meshwave.designer.state import transfer_plans as plans  # noqa: F401
from meshwave.designer.views import (
    expert_map,  # noqa: F401
    gallery_cards,  # noqa: F401
)
from meshwave.engine.cli import main as cli  # noqa: F401  multiprocessing imports the main module in each process, and that this
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.shared_links_simulation import compile_loop

assert predict(load_design(example("01-first-wave"))).numbers  # imports schedules and models of cost
compile_loop()
