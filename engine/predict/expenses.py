"""Price and energy of a step, of a million tokens, and of the whole training."""

from __future__ import annotations

from typing import NamedTuple

from meshwave.engine.document import Design

HOUR_S = 3600.0


class Expense(NamedTuple):
    """Price or energy of training, which is proportional to time and number of devices."""

    step: float
    million_tokens: float
    training: float
    """Expense of all steps of ``training.steps``."""


def _find_expense(design: Design, step_s: float, tokens: float, per_device_s: float | None) -> Expense | None:
    """Return the expense of a design; None if the rate of a device is not given.

    Args:
        design: the design; all devices of its meshes count, even while they wait.
        step_s: step time in seconds.
        tokens: number of tokens of a step.
        per_device_s: expense of one device per second.
    """
    if per_device_s is None:
        return None
    devices = sum(len(mesh.devices) for mesh in design.meshes)
    step = devices * step_s * per_device_s
    return Expense(step, step / tokens * 1e6, step * design.training.steps)


def find_price(design: Design, step_s: float, tokens: float) -> Expense | None:
    """Return the price in the currency of ``cluster.price_per_device_hour``; None if that key is not set."""
    hour = design.cluster.price_per_device_hour
    return _find_expense(design, step_s, tokens, None if hour is None else hour / HOUR_S)


def find_energy_j(design: Design, step_s: float, tokens: float) -> Expense | None:
    """Return the energy of the training in joules; None if ``cluster.watts_per_device`` is not set."""
    return _find_expense(design, step_s, tokens, design.cluster.watts_per_device)
