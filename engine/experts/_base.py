"""Base class of expert schedules, and the steps of a layer's forward that they combine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from inspect import cleandoc
from typing import Any, ClassVar, NamedTuple

from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step, StepOp
from meshwave.engine.findings import Problem
from meshwave.engine.messages import render
from meshwave.engine.registry import Registry

EQUAL = 1 + 1e-9
"""Ratio up to which two times count as equal, so that rounding does not affect a choice."""


class Choice(NamedTuple):
    """Choice of an automatic schedule, and the reason as a message of the catalogue."""

    name: str
    code: str
    params: Mapping[str, Any]

    @property
    def reason(self) -> str:
        """Reason as text, which names schedules as documents do."""
        return render(self.code, self.params)

    @property
    def titled_reason(self) -> str:
        """Reason as text, which names schedules by their titles on the page."""
        titles = {name: schedule.title for name, schedule in expert_schedules.items()}
        return render(self.code, {**self.params, "titles": titles})


class Costs(NamedTuple):
    """Functions that return the costs of a schedule of the same layer by its name, for an automatic schedule."""

    sent: Callable[[str], float]  # exposed seconds of the messages of a forward
    whole: Callable[[str], float]  # seconds of a forward and a backward, including gate and experts


class ExpertSchedule(ABC):
    """Schedule that sends tokens to their experts and back. A member is one file in this folder.

    The first sentence of its docstring is its help text.
    """

    title: ClassVar[str]
    published: ClassVar[str] = "9999"  # year and month of its first paper, by which menus are sorted
    places: ClassVar[str] = "ep"  # kind of group over which the experts are distributed
    shards_experts: ClassVar[bool] = True  # True if each expert is sharded over the esp group
    gate_is_partial: ClassVar[bool] = False  # True if each mp device has a partial sum of the gate's gradient
    chooses: ClassVar[bool] = False  # True if it selects another schedule by cost
    gate_sees_part: ClassVar[bool] = False  # True if a gate routes a part of an input, and may drop other tokens
    is_listed: ClassVar[bool] = True  # True if listed in menus; False for variants of another schedule

    @abstractmethod
    def steps(self, layer: Layer) -> list[Step]:
        """Return the steps of the forward, which every device runs in this order."""

    def problems(self, layer: Layer) -> Iterator[Problem]:
        """Yield the reasons why this schedule cannot run the layer, located at fields of :class:`Layer`, with fixes."""
        yield from layer.problems()

    def token_copies(self, layer: Layer) -> int:
        """Return the number of times an expert processes each token; its gradients are divided by this factor."""
        return 1

    def choose(self, layer: Layer, costs: Costs) -> Choice | None:
        """Return the schedule that an automatic schedule selects by cost; None if it is not automatic."""
        return None

    @classmethod
    def help(cls) -> str:
        return cleandoc(cls.__doc__ or "")


expert_schedules: Registry[type[ExpertSchedule]] = Registry("expert schedule", "meshwave.engine.experts")


def expert_schedule_names(*, option: bool = True) -> list[str]:
    """Return the names of the schedules that users can select, or of all schedules, sorted by date of publication."""
    known = expert_schedules.items()
    return sorted(
        (name for name, schedule in known if schedule.is_listed or not option),
        key=lambda name: (expert_schedules[name].published, expert_schedules[name].title),
    )


# ---- steps with their sizes, in the terms of the papers ----


def gate_step(layer: Layer, tokens: float) -> Step:
    """Return the gate step over ``tokens`` tokens: ``2 S M E`` FLOPs."""
    return Step(StepOp.GATE, flops=2.0 * tokens * layer.hidden * layer.experts)


def token_order_step(layer: Layer, slots: float) -> Step:
    """Return the step that copies tokens into ``slots`` slots per expert."""
    return Step(StepOp.ORDER, bytes=layer.experts * slots * layer.hidden * layer.item_bytes)


def token_restore_step(layer: Layer, slots: float) -> Step:
    """Return the step that copies slots back to tokens, weighted by the gate."""
    return Step(StepOp.RESTORE, bytes=layer.experts * slots * layer.hidden * layer.item_bytes)


def experts_step(layer: Layer, rows: float) -> Step:
    """Return the step in which experts sharded over ``esp`` compute ``rows`` rows.

    It takes ``4 rows M H / esp`` FLOPs, or ``6 rows M H / esp`` if the experts are gated.
    """
    return _matrix_products_step(layer, rows, "ep", layer.esp)


def whole_experts_step(layer: Layer, rows: float, group: str) -> Step:
    """Return the step in which unsharded experts, distributed over ``group``, compute ``rows`` rows."""
    return _matrix_products_step(layer, rows, group, 1)


def _matrix_products_step(layer: Layer, rows: float, group: str, cut: int) -> Step:
    """Return the step of the matrix products of experts, each divided among ``cut`` devices."""
    flops = 2.0 * layer.matrices * rows * layer.hidden * layer.ffn_hidden / cut
    return Step(StepOp.EXPERTS, group, flops=flops, rows=rows, cut=cut)


def exchange_step(op: StepOp, group: str, layer: Layer, slots: float, copies: int = 1) -> Step:
    """Return an all-to-all step of ``slots`` slots per expert, after the slots of ``copies`` sources are gathered."""
    size = layer.experts * slots * layer.hidden * layer.item_bytes
    return Step(op, group, bytes=size * copies, copies=copies)
