"""What an expert schedule is: the steps of a layer, forwards."""

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
    """What an automatic schedule chose, and why as a message of the catalogue."""

    name: str
    code: str
    params: Mapping[str, Any]

    @property
    def reason(self) -> str:
        """Why, with schedules by their names in a document."""
        return render(self.code, self.params)

    @property
    def titled_reason(self) -> str:
        """Why, with schedules by the titles that the page shows."""
        titles = {name: schedule.title for name, schedule in expert_schedules.items()}
        return render(self.code, {**self.params, "titles": titles})


class Costs(NamedTuple):
    """What an automatic schedule may ask of another one of the same layer, by its name."""

    sent: Callable[[str], float]  # seconds of the messages of a forward
    whole: Callable[[str], float]  # seconds of a forward and a backward, gate and experts included


class ExpertSchedule(ABC):
    """How tokens reach their experts and come back. A member is one file in this folder.

    The first sentence of its docstring is its help text.
    """

    title: ClassVar[str]
    published: ClassVar[str] = "9999"  # year and month of its first paper: people meet them in this order
    places: ClassVar[str] = "ep"  # the group over which the experts are spread
    cuts: ClassVar[bool] = True  # whether an expert is cut over the esp group
    gate_is_partial: ClassVar[bool] = False  # each mp device has a part of the gate's gradient: sum over mp
    chooses: ClassVar[bool] = False  # among others, by what they cost
    gate_sees_part: ClassVar[bool] = False  # of the tokens of an input: where some are dropped, other ones
    option: ClassVar[bool] = True  # offered to people; a variant of another is not

    @abstractmethod
    def steps(self, layer: Layer) -> list[Step]:
        """What every device does, forwards."""

    def problems(self, layer: Layer) -> Iterator[Problem]:
        """Why this schedule cannot run the layer; each at a field of :class:`Layer`, with a way out."""
        yield from layer.problems()

    def seen(self, layer: Layer) -> int:
        """How often an expert sees each token: its gradients are that many times too large."""
        return 1

    def choose(self, layer: Layer, costs: Costs) -> Choice | None:
        """The schedule that it comes to, if it chooses among others by what they cost."""
        return None

    @classmethod
    def help(cls) -> str:
        return cleandoc(cls.__doc__ or "")


expert_schedules: Registry[type[ExpertSchedule]] = Registry("expert schedule", "meshwave.engine.experts")


def expert_schedule_names(*, option: bool = True) -> list[str]:
    """The names of all that are offered, as the field came to know them; or with the variants of others."""
    known = expert_schedules.items()
    return sorted(
        (name for name, schedule in known if schedule.option or not option),
        key=lambda name: (expert_schedules[name].published, expert_schedules[name].title),
    )


# ---- steps with their sizes, in the words of the papers ----


def gate(layer: Layer, tokens: float) -> Step:
    """Scores of ``tokens`` tokens: ``2 S M E`` FLOPs."""
    return Step(StepOp.GATE, flops=2.0 * tokens * layer.hidden * layer.experts)


def order(layer: Layer, slots: float) -> Step:
    """Tokens into ``slots`` slots an expert."""
    return Step(StepOp.ORDER, bytes=layer.experts * slots * layer.hidden * layer.item_bytes)


def restore(layer: Layer, slots: float) -> Step:
    """Back, weighted."""
    return Step(StepOp.RESTORE, bytes=layer.experts * slots * layer.hidden * layer.item_bytes)


def experts(layer: Layer, rows: float) -> Step:
    """Two products of ``rows`` rows with an expert's width cut in ``esp``: ``4 rows M H / esp`` FLOPs."""
    return _products(layer, rows, "ep", layer.esp)


def whole_experts(layer: Layer, rows: float, group: str) -> Step:
    """The same of experts that are spread over ``group`` and not cut."""
    return _products(layer, rows, group, 1)


def _products(layer: Layer, rows: float, group: str, cut: int) -> Step:
    flops = 4.0 * rows * layer.hidden * layer.ffn_hidden / cut
    return Step(StepOp.EXPERTS, group, flops=flops, rows=rows, cut=cut)


def exchange(op: StepOp, group: str, layer: Layer, slots: float, copies: int = 1) -> Step:
    """An all-to-all of ``slots`` slots an expert and ``copies`` of the sources that send."""
    size = layer.experts * slots * layer.hidden * layer.item_bytes
    return Step(op, group, bytes=size * copies, copies=copies)
