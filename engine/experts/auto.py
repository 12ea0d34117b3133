"""Automatic choice among all expert schedules, by the cost model's times for the layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from meshwave.engine import messages
from meshwave.engine.experts._base import (
    EQUAL,
    Choice,
    Costs,
    ExpertSchedule,
    expert_schedule_names,
    expert_schedules,
)
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step
from meshwave.engine.findings import Problem
from meshwave.engine.units import quantity


@expert_schedules.register("auto")
class Auto(ExpertSchedule):
    """Use the schedule with the shortest forward and backward, experts included.

    Only schedules that can run the given placement and groups and that train to the same result are candidates. Parm's
    own rule, which compares its two schedules only, is ``parm-auto``.
    """

    title: ClassVar = "Automatic"
    chooses: ClassVar = True

    def steps(self, layer: Layer) -> list[Step]:
        raise TypeError("an automatic schedule has no steps; price it to resolve its choice")

    def choose(self, layer: Layer, costs: Costs) -> Choice:
        """Choose the fastest candidate; of equally fast ones the oldest."""
        excluded = dict(exclusions(layer))
        seconds = {name: costs.whole(name) for name in _candidates() if name not in excluded}
        name = next(each for each in seconds if seconds[each] <= min(seconds.values()) * EQUAL)
        slower = {other: taken for other, taken in seconds.items() if taken > seconds[name] * EQUAL}
        params = {
            "name": name,
            "seconds": seconds[name],
            "equal": [other for other in seconds if other not in slower and other != name],
            "runner_up": sorted(slower.items(), key=lambda each: each[1])[:1],
            "excluded": [[other, problem.code, dict(problem.params)] for other, problem in excluded.items()],
        }
        return Choice(name, "fastest_expert_schedule", params)


def exclusions(layer: Layer) -> Iterator[tuple[str, Problem]]:
    """Yield the schedules that need another expert placement, or train to another result, each with the reason."""
    for name in _candidates():
        schedule = expert_schedules[name]()
        problem = next(schedule.problems(layer), None)
        if schedule.places == "mp" and not is_one_tensor_parallel_group(layer):
            yield name, Problem("mp", "other_expert_placement", {"mp": layer.mp, "ep": layer.ep, "esp": layer.esp})
        elif problem is not None:
            yield name, problem
        elif schedule.gate_sees_part and layer.mp > 1 and layer.may_drop:
            yield name, Problem("capacity_factor", "other_dropped_tokens")


def _candidates() -> list[str]:
    """Return the names of the candidate schedules, by date of publication."""
    return [name for name in expert_schedule_names() if not expert_schedules[name].chooses]


def is_one_tensor_parallel_group(layer: Layer) -> bool:
    """Return True if the devices of the layer are one tensor-parallel group that holds whole experts.

    A place is then a device, and has the same experts under all schedules.
    """
    return layer.esp == 1 and layer.ep == layer.mp


def _describe_fastest(
    name: str,
    seconds: float,
    equal: Sequence[str],
    runner_up: Sequence[tuple[str, float]],
    excluded: Sequence[tuple[str, str, Mapping[str, Any]]],
    titles: Mapping[str, str] = MappingProxyType({}),
) -> str:
    def schedule_title(schedule: str) -> str:
        return titles.get(schedule, schedule)

    text = f"{schedule_title(name)} takes {quantity(seconds, 's')} for a forward and a backward"
    if equal:
        text += f", as fast as {', '.join(map(schedule_title, equal))}"
    for other, longer in runner_up:
        text += f"; {schedule_title(other)} takes {quantity(longer, 's')}"
    for other, code, params in excluded:
        text += f"; {schedule_title(other)} is excluded ({messages.render(code, params)})"
    return text


messages.add_messages(
    fastest_expert_schedule=_describe_fastest,
    other_expert_placement=(
        "it keeps whole experts on the {mp} {mp:plural|device|devices} of a tensor-parallel group, but this design "
        "distributes them over ep={ep} x esp={esp}"
    ),
    other_dropped_tokens="it may drop different tokens than a gate that routes all tokens, so the training result may differ",
)
