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


class Choice(NamedTuple):
    """The choice of an automatic schedule, and its reason as a message of the catalogue."""

    name: str
    code: str
    params: Mapping[str, Any]

    @property
    def reason(self) -> str:
        """Reason as text, with schedules by their names in a document."""
        return render(self.code, self.params)

    @property
    def titled_reason(self) -> str:
        """Reason as text, with schedules by the titles that the page shows."""
        titles = {name: schedule.title for name, schedule in expert_schedules.items()}
        return render(self.code, {**self.params, "titles": titles})


class Costs(NamedTuple):
    """Costs of other schedules of the same layer, by name, for an automatic schedule."""

    sent: Callable[[str], float]  # seconds of the messages of a forward
    whole: Callable[[str], float]  # seconds of a forward and a backward, with gate and experts


class ExpertSchedule(ABC):
    """A schedule that sends tokens to their experts and back. A member is one file in this folder.

    The first sentence of its docstring is its help text.
    """

    title: ClassVar[str]
    published: ClassVar[str] = "9999"  # year and month of its first paper, which order the menus
    places: ClassVar[str] = "ep"  # the group over which the experts are distributed
    shards_experts: ClassVar[bool] = True  # each expert is sharded over the esp group
    gate_is_partial: ClassVar[bool] = False  # each mp device has an addend of the gate's gradient
    chooses: ClassVar[bool] = False  # it selects another schedule by cost
    gate_sees_part: ClassVar[bool] = False  # a gate sees a part of an input, and so may drop other tokens
    is_listed: ClassVar[bool] = True  # listed in menus; variants of another schedule are not

    @abstractmethod
    def steps(self, layer: Layer) -> list[Step]:
        """Return the steps of every device for the forward."""

    def problems(self, layer: Layer) -> Iterator[Problem]:
        """Yield the reasons why this schedule cannot run the layer, located at fields of :class:`Layer`, with fixes."""
        yield from layer.problems()

    def token_copies(self, layer: Layer) -> int:
        """Return how often an expert processes each token; its gradients are too large by that factor."""
        return 1

    def choose(self, layer: Layer, costs: Costs) -> Choice | None:
        """Return the schedule that an automatic schedule selects by cost; None if it is not automatic."""
        return None

    @classmethod
    def help(cls) -> str:
        return cleandoc(cls.__doc__ or "")


expert_schedules: Registry[type[ExpertSchedule]] = Registry("expert schedule", "meshwave.engine.experts")


def expert_schedule_names(*, option: bool = True) -> list[str]:
    """Return the names of the schedules that users can select, by date of publication; of all with ``option=False``."""
    known = expert_schedules.items()
    return sorted(
        (name for name, schedule in known if schedule.is_listed or not option),
        key=lambda name: (expert_schedules[name].published, expert_schedules[name].title),
    )


# ---- steps with their sizes, in the terms of the papers ----


def gate(layer: Layer, tokens: float) -> Step:
    """Return the gate over ``tokens`` tokens: ``2 S M E`` FLOPs."""
    return Step(StepOp.GATE, flops=2.0 * tokens * layer.hidden * layer.experts)


def order_tokens(layer: Layer, slots: float) -> Step:
    """Return the step that copies tokens into ``slots`` slots per expert."""
    return Step(StepOp.ORDER, bytes=layer.experts * slots * layer.hidden * layer.item_bytes)


def restore_tokens(layer: Layer, slots: float) -> Step:
    """Return the step that copies slots back to tokens, weighted by the gate."""
    return Step(StepOp.RESTORE, bytes=layer.experts * slots * layer.hidden * layer.item_bytes)


def experts(layer: Layer, rows: float) -> Step:
    """Return the products of ``rows`` rows with experts sharded over ``esp``.

    ``4 rows M H / esp`` FLOPs, ``6 rows M H / esp`` if the experts are gated.
    """
    return _products(layer, rows, "ep", layer.esp)


def whole_experts(layer: Layer, rows: float, group: str) -> Step:
    """Return the same products with unsharded experts that are distributed over ``group``."""
    return _products(layer, rows, group, 1)


def _products(layer: Layer, rows: float, group: str, cut: int) -> Step:
    flops = 2.0 * layer.matrices * rows * layer.hidden * layer.ffn_hidden / cut
    return Step(StepOp.EXPERTS, group, flops=flops, rows=rows, cut=cut)


def exchange(op: StepOp, group: str, layer: Layer, slots: float, copies: int = 1) -> Step:
    """Return an all-to-all of ``slots`` slots per expert and ``copies`` of the sending sources."""
    size = layer.experts * slots * layer.hidden * layer.item_bytes
    return Step(op, group, bytes=size * copies, copies=copies)
