"""Parm's automatic choice between S1 and S2, by the cost model's times for the layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from meshwave.engine import messages
from meshwave.engine.experts._base import EQUAL, Choice, Costs, ExpertSchedule, expert_schedules
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step
from meshwave.engine.findings import Problem
from meshwave.engine.units import quantity


@expert_schedules.register("parm-auto")
class ParmAuto(ExpertSchedule):
    """Use the faster of Parm's two schedules on the links of the layer.

    Both compute the same result if no token is dropped; S1 may drop other tokens than S2.
    """

    title: ClassVar = "Parm, automatic"
    published: ClassVar = "2024-07"
    chooses: ClassVar = True

    def steps(self, layer: Layer) -> list[Step]:
        raise TypeError("an automatic schedule has no steps; price it to resolve its choice")

    def choose(self, layer: Layer, costs: Costs) -> Choice:
        """Choose S1 if the messages of its forward take no longer than those of S2 (Parm's rule)."""
        problem = next(expert_schedules["parm-s1"]().problems(layer), None)
        if problem:
            return Choice("parm-s2", "parm_s2_only", {"code": problem.code, "params": dict(problem.params)})
        if layer.mp == 1:
            return Choice("parm-s1", "parm_schedules_equal", {})
        s1, s2 = costs.sent("parm-s1"), costs.sent("parm-s2")
        name, seconds, other_s = ("parm-s1", s1, s2) if s1 <= s2 * EQUAL else ("parm-s2", s2, s1)
        params = {
            "schedule": f"S{name[-1]}",
            "ratio": layer.slots_bytes / layer.input_bytes,
            "seconds": seconds,
            "other_s": other_s,
            "several_nodes": len({layer.node(device) for device in range(layer.devices)}) > 1,
            "may_drop": layer.may_drop,
        }
        return Choice(name, "parm_schedule_faster", params)

    def problems(self, layer: Layer) -> Iterator[Problem]:
        yield from expert_schedules["parm-s2"]().problems(layer)


def _describe_s2_only(code: str, params: Mapping[str, Any], **_: Any) -> str:
    return f"S2: S1 cannot run this layer ({messages.render(code, params)})"


_REASONS = {
    ("S1", False): "on one node no gather can overlap the exchange",
    ("S1", True): "too little of S2's gather overlaps the exchange between nodes",
    ("S2", False): "its gather is the smaller one",
    ("S2", True): "its gather overlaps the exchange between nodes",
}
"""Reason why a schedule is faster, by its name and by whether the layer spans several nodes."""


def _describe_faster(
    schedule: str, ratio: float, seconds: float, other_s: float, several_nodes: bool, may_drop: bool, **_: Any
) -> str:
    assumption = (
        ". This assumes that no token is dropped; otherwise S1 and S2 would drop different tokens" if may_drop else ""
    )
    other = "S2" if schedule == "S1" else "S1"
    return (
        f"{schedule} is faster (its messages take {quantity(seconds, 's')} in a forward, those of {other} "
        f"{quantity(other_s, 's')}): D (slots) is {ratio:.3g} times X (tokens), and "
        f"{_REASONS[schedule, several_nodes]}{assumption}"
    )


messages.add_messages(
    parm_s2_only=_describe_s2_only,
    parm_schedules_equal="S1: no two devices hold the same tokens, so both schedules are the same",
    parm_schedule_faster=_describe_faster,
)
