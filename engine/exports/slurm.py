"""Slurm export: a script for sbatch that trains a design, for users who submit jobs themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwave.engine.exports._base import Export, exports
from meshwave.engine.exports.script import Script
from meshwave.engine.runs.launchers._torchrun import SCRIPT, NodeLayout, node_script
from meshwave.engine.runs.launchers.slurm import HEAD_ADDRESS, SlurmOptions, sbatch_directives

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

DESIGN = "design.py"


@exports.register("slurm")
class Slurm(Export):
    """Slurm job that trains the design with torchrun; it contains the whole design."""

    title = "Job script for Slurm"
    note = "sbatch submits it to a cluster that has Meshwave"
    suffix = ".sbatch"
    mime = "application/x-sh"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        """Return the script.

        Raises:
            DesignError: the design can be planned but not run.
        """
        layout = NodeLayout.from_design(prediction.design)
        node = node_script(layout, [DESIGN, "--out", "."], python="python3", setup=['cd "$(dirname "$0")" || exit 1'])
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {each}" for each in sbatch_directives(SlurmOptions(restarts=0), layout.nodes, "meshwave")),
            "# To use one of these lines, remove its first #:",
            "##SBATCH --partition=NAME",
            "##SBATCH --time=04:00:00",
            f"##SBATCH --gpus-per-node={max(layout.processes)}",
            "",
            "# Load modules or activate the environment that has Meshwave here.",
            "",
            "# Folder for the results, shared by all nodes:",
            "run=${MESHWAVE_RUN:-$PWD/meshwave-$SLURM_JOB_ID}",
            'mkdir -p "$run" || exit 1',
            *_here_document(DESIGN, Script.to_bytes(prediction).decode()),
            *_here_document(SCRIPT, node),
            *HEAD_ADDRESS,
            f'srun --kill-on-bad-exit=1 bash -c \'exec bash "$0/{SCRIPT}" "$SLURM_NODEID" "$1" "$2"\' \\',
            '    "$run" "$address" "$port"',
        ]
        return ("\n".join(lines) + "\n").encode()


def _here_document(name: str, text: str) -> list[str]:
    return [f"cat >\"$run/{name}\" <<'END_OF_FILE'", text.rstrip("\n"), "END_OF_FILE"]
