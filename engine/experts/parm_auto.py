"""Parm's automatic choice between S1 and S2, by what the model of cost says of this layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine.experts._base import Choice, Costs, ExpertSchedule, expert_schedules
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step
from meshwave.engine.findings import Problem
from meshwave.engine.units import quantity

WHY = {
    ("parm-s1", False): "nothing can hide on one node",
    ("parm-s1", True): "too little of S2's gather hides between nodes",
    ("parm-s2", False): "its gather is the smaller one",
    ("parm-s2", True): "its gather hides under the exchange between nodes",
}
"""Why a schedule is the faster one, by whether there are several nodes."""


@expert_schedules.register("parm-auto")
class ParmAuto(ExpertSchedule):
    """Whichever of Parm's two schedules takes less time on the links that the layer lies on.

    Both compute the same as long as no token is dropped; where tokens are, S1 may drop others.
    """

    title: ClassVar = "Parm, automatic"
    published: ClassVar = "2024-07"
    chooses: ClassVar = True

    def steps(self, layer: Layer) -> list[Step]:
        raise TypeError("an automatic schedule has no steps of its own; price it to know what it chooses")

    def choose(self, layer: Layer, costs: Costs) -> Choice:
        """S1 where it takes no longer than S2 (the selection rule of Parm, forwards)."""
        problem = next(expert_schedules["parm-s1"]().problems(layer), None)
        if problem:
            return Choice("parm-s2", f"S2: {problem.message}, which S1 would need")
        if layer.mp == 1:
            return Choice("parm-s1", "S1: no two devices hold the same tokens, so that both are the same")
        s1, s2 = costs.sent("parm-s1"), costs.sent("parm-s2")
        nodes = len({layer.node(device) for device in range(layer.devices)})
        name, took, instead = ("parm-s1", s1, s2) if s1 <= s2 else ("parm-s2", s2, s1)
        return Choice(
            name,
            f"S{name[-1]}: D (slots) is {layer.slots_bytes / layer.input_bytes:.3g} times X (tokens) and {WHY[name, nodes > 1]} "
            f"({quantity(took, 's')} against {quantity(instead, 's')} a forward){_assumed(layer)}",
        )

    def problems(self, layer: Layer) -> Iterator[Problem]:
        yield from expert_schedules["parm-s2"]().problems(layer)


def _assumed(layer: Layer) -> str:
    """What the two are compared on that a training may not keep to."""
    if not layer.may_drop:
        return ""
    return "; assumed that no token is dropped, of which the two would drop different ones"
