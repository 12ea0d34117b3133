"""Messages of launches and runs."""

from __future__ import annotations

MESSAGES = {
    "checkpoint_missing": "run {run} has no checkpoint; launch it with --checkpoint-every to write some",
    "checkpoint_of_another_model": "the checkpoint of run {run} has another model.{key}; resume a design of the same model",
    "checkpoint_of_another_optimizer": "the checkpoint of run {run} holds the state of optimizer {optimizer}; use {optimizer}",
    "checkpoint_is_later": "run {run} has trained {done} steps already; set training.steps above {done}",
}
