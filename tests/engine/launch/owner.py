"""A process that launches a run and does nothing else, so that it can be killed: HOME NAME."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from engine.cost import layers_per_stage
from engine.design import load_design
from engine.launch import Record, launchers
from engine.lowering import lower

if __name__ == "__main__":
    home, design = Path(sys.argv[1]), load_design(sys.argv[2])
    launcher = launchers["local"](Record(home), worker="stand_in", path=Path(__file__).parent)
    run = launcher.submit(design, lower(design), layers_per_stage(design))
    print(run.id, flush=True)
    time.sleep(600)
