"""Process that calibrates a node: ``python -m meshwave.engine.runtime.processes.target_calibration FOLDER``.

It reads the options from ``calibration.json`` and writes ``profile.json``.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from meshwave.engine.files import write_private
from meshwave.engine.runs.target_calibration import PLAN, PROFILE
from meshwave.engine.runtime.calibration import CalibrationProgress, calibrate_machine, default_options

TORCHRUN_PREFIXES = ("MASTER_", "TORCHELASTIC_", "GROUP_", "ROLE_")
TORCHRUN_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}


def main(folder: Path) -> None:
    """Calibrate this node and write its profile to ``folder``."""
    for name in [*os.environ]:  # the processes of the calibration make groups of their own
        if name in TORCHRUN_VARIABLES or name.startswith(TORCHRUN_PREFIXES):
            del os.environ[name]
    plan = json.loads((folder / PLAN).read_text("utf-8"))
    profile = calibrate_machine(replace(default_options(), **plan), _print_progress)
    write_private(folder / PROFILE, profile.to_json())


def _print_progress(progress: CalibrationProgress) -> None:
    print(f"{progress.share:4.0%} {progress.message}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m meshwave.engine.runtime.processes.target_calibration FOLDER")
    main(Path(sys.argv[1]))
