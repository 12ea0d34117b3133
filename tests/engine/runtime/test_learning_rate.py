"""Learning rates of a run compared with the schedulers of torch.optim."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from meshwave.engine.document.training import Training

LR, STEPS, LEAST = 0.4, 12, 0.1


def torch_rates(lr_schedule: str, warmup_steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    decay_steps = STEPS - warmup_steps
    decay: LRScheduler
    if lr_schedule == "cosine":
        decay = CosineAnnealingLR(optimizer, decay_steps, eta_min=LR * LEAST)
    elif lr_schedule == "linear":
        decay = LinearLR(optimizer, 1.0, LEAST, decay_steps)
    else:
        decay = ConstantLR(optimizer, 1.0)
    schedule = decay
    if warmup_steps:
        growth = LinearLR(optimizer, 1 / warmup_steps, 1.0, max(warmup_steps - 1, 1))
        schedule = SequentialLR(optimizer, [growth, decay], [warmup_steps])
    found = []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("warmup_steps", [0, 1, 5])
@pytest.mark.parametrize("lr_schedule", ["constant", "linear", "cosine"])
def test_rates_are_those_of_torch(lr_schedule: Literal["constant", "linear", "cosine"], warmup_steps: int) -> None:
    training = Training(lr=LR, steps=STEPS, lr_schedule=lr_schedule, warmup_steps=warmup_steps, min_lr_factor=LEAST)
    found = [training.learning_rate(step) for step in range(STEPS)]
    assert found == pytest.approx(torch_rates(lr_schedule, warmup_steps))


@pytest.mark.parametrize(("kind", "middle"), [("linear", 0.5), ("cosine", 0.5), ("sqrt", 1 - 0.5**0.5)])
def test_a_rate_keeps_its_largest_value_until_the_last_steps(
    kind: Literal["linear", "cosine", "sqrt"], middle: float
) -> None:
    training = Training(lr=LR, steps=STEPS, lr_schedule=kind, warmup_steps=2, decay_steps=4)
    found = [training.learning_rate(step) / LR for step in range(STEPS)]
    assert found[:9] == pytest.approx([0.5, *[1.0] * 8])
    assert found[10] == pytest.approx(middle)
    assert training.learning_rate(STEPS) == pytest.approx(0)
    longer = training.model_copy(update={"decay_steps": 2 * STEPS})
    whole = training.model_copy(update={"decay_steps": None})
    assert [longer.learning_rate(step) for step in range(STEPS)] == [whole.learning_rate(step) for step in range(STEPS)]


def test_a_run_may_end_within_its_warm_up_or_continue_after_its_decay() -> None:
    short = Training(lr=LR, steps=2, lr_schedule="cosine", warmup_steps=4)
    assert [short.learning_rate(step) for step in range(2)] == pytest.approx([LR / 4, LR / 2])
    assert short.learning_rate(4) == pytest.approx(LR)
    assert short.learning_rate(9) == pytest.approx(0)
