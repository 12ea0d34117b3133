"""A process that only launches a run, so that tests can kill it: HOME DESIGN [OPTIONS]."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from meshwave.engine.document import load_design
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Options, Record
from meshwave.engine.runs.launchers import launchers, specify_run

if __name__ == "__main__":
    home, design = Path(sys.argv[1]), load_design(sys.argv[2])
    launcher = launchers["local"](Record(home), worker="stand_in", path=Path(__file__).parent)
    options = Options.model_validate_json(sys.argv[3]) if len(sys.argv) > 3 else Options()
    run = launcher.submit(specify_run(predict(design), options))
    print(run.id, flush=True)
    time.sleep(600)
