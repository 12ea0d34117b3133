"""Schedule of a run's checkpoints, and the output of its weights at the end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from meshwave.engine.run_files import write_document
from meshwave.engine.runs.checkpoints import FOLDER, INTERRUPTED, WEIGHTS_FILE, Checkpoint, Checkpoints, step_folder
from meshwave.engine.runtime.execution.checkpoint import (
    WEIGHTS,
    Checkpointer,
    import_checkpoint_modules,
    read_whole_state,
)
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.runtime.execution.trainer import Trainer

INTERRUPTED_STATUS = 75
"""Exit status of a process that wrote a checkpoint after a request to end: EX_TEMPFAIL of sysexits.h."""


class Interrupted(Exception):
    """Exception raised after a run has written a checkpoint because it received a request to end."""


class EndRequest:
    """Request to end a run: SIGTERM, which schedulers send before a time limit or a preemption.

    A cancelled run ends at once.
    """

    def __init__(self, folder: Path) -> None:
        self.is_heard = os.environ.get("MESHWAVE_CHECKPOINT_ON_SIGTERM") == "1"
        self.is_set = False
        self._folder = folder
        if self.is_heard:
            signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, *_: object) -> None:
        if (self._folder / "cancel").exists():
            os._exit(128 + signal.SIGTERM)
        self.is_set = True


Report = Callable[..., None]
"""Function that writes an event, given its name and its values as keywords."""


class Checkpointing:
    """Checkpoint schedule of a training run; all processes of the run make the same calls."""

    def __init__(self, folder: Path, job: Job, trainer: Trainer, process: int, report: Report) -> None:
        self._folder, self._trainer, self._process, self._report = folder, trainer, process, report
        self._plan, self._steps = job.checkpoints, job.design.training.steps
        if self._plan is not None:  # imported during training, they would slow steps and delay the second checkpoint
            import_checkpoint_modules()
        self._request = EndRequest(folder)
        plan = self._plan or (Checkpoints() if self._request.is_heard else None)
        self._writer = _make_writer(folder / FOLDER, job, trainer, plan) if plan else None
        self._saved_steps, self._saved_s = 0, time.monotonic()
        self._ends = False

    def after_step(self, steps: int) -> None:
        """Start a checkpoint after ``steps`` steps of training, if one is due or the run has received a request to end."""
        self._ends = (
            self._request.is_heard and steps < self._steps and self._trainer.is_true_on_any(self._request.is_set)
        )
        if self._ends or (self._plan is not None and self._is_due(self._plan, steps)):
            self._save(steps)

    def before_step(self) -> None:
        """End the run before its next step if it has received a request to end.

        Raises:
            Interrupted: the run received a request to end, and its checkpoint is complete.
        """
        if self._ends:
            assert self._writer is not None
            self._writer.close()
            if self._process == 0:
                write_document(self._folder / INTERRUPTED, {"steps": self._saved_steps})
            raise Interrupted

    def finish(self, steps: int) -> None:
        """Write the final state and the weights of the whole model."""
        if self._writer is None or self._plan is None:
            return
        if self._saved_steps != steps:
            self._save(steps)
        self._writer.close()
        if self._process == 0:
            write_weights(step_folder(self._folder / FOLDER, steps), self._folder / WEIGHTS_FILE)

    def _is_due(self, plan: Checkpoints, steps: int) -> bool:
        if plan.every_steps is not None and steps % plan.every_steps == 0:
            return True
        if plan.every_s is None:
            return False
        is_over = self._process == 0 and time.monotonic() - self._saved_s >= plan.every_s
        return self._trainer.is_true_on_any(is_over)

    def _save(self, steps: int) -> None:
        assert self._writer is not None
        started = time.monotonic()
        self._writer.save(steps)
        self._saved_steps, self._saved_s = steps, time.monotonic()
        self._report("checkpoint", steps=steps, stall_s=self._saved_s - started)


def _make_writer(folder: Path, job: Job, trainer: Trainer, plan: Checkpoints) -> Checkpointer:
    return Checkpointer(folder, Checkpoint.initial_manifest(job.design), trainer.state, plan.keep)


def write_weights(checkpoint: Path, path: Path) -> None:
    """Write the weights of a checkpoint to one safetensors file, under their names in the whole model.

    Weights in bfloat16 are written in float32, because numpy, which reads the file, does not have bfloat16.
    """
    from safetensors.torch import save_file

    weights: dict[str, Any] = {
        name.removeprefix(WEIGHTS): tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        for name, tensor in read_whole_state(checkpoint, lambda name: name.startswith(WEIGHTS))
    }
    unfinished = path.with_suffix(".tmp")
    save_file(weights, unfinished)
    unfinished.replace(path)
