"""The automatic choice among all expert schedules, by what the model of cost says of this layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine.experts._base import Choice, Costs, ExpertSchedule, by_age, expert_schedules
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step
from meshwave.engine.units import quantity

ALIKE = 1 + 1e-9
"""Times that differ by less are one: of these the older schedule is taken, whatever the rounding of the sums."""


@expert_schedules.register("auto")
class Auto(ExpertSchedule):
    """Whichever of all schedules takes the least time, forward and backward, experts included.

    It chooses among those that can run the experts where they lie, in the groups that are drawn, and that
    train to the same result. Parm's own rule, between its two schedules alone, is ``parm-auto``.
    """

    title: ClassVar = "Automatic"
    chooses: ClassVar = True

    def steps(self, layer: Layer) -> list[Step]:
        raise TypeError("an automatic schedule has no steps of its own; price it to know what it chooses")

    def choose(self, layer: Layer, costs: Costs) -> Choice:
        """The fastest of those that are left, or of equals the oldest; why the others are left out."""
        out = dict(left_out(layer))
        took = {name: costs.whole(name) for name in _stepped() if name not in out}
        name = next(each for each in took if took[each] <= min(took.values()) * ALIKE)
        return Choice(
            name, f"{name} takes {quantity(took[name], 's')} a forward and a backward{_others(took, name, out)}"
        )


def left_out(layer: Layer) -> Iterator[tuple[str, str]]:
    """The schedules that would need other places for the experts, or that would train to another result, and why."""
    for name in _stepped():
        schedule = expert_schedules[name]()
        problem = next(schedule.problems(layer), None)
        if schedule.places == "mp" and not _is_one_input(layer):
            group = f"the {layer.mp} device{'s' * (layer.mp > 1)} of a tensor-parallel group"
            yield name, f"it keeps whole experts on {group}, and they lie on ep={layer.ep} x esp={layer.esp}"
        elif problem is not None:
            yield name, problem.message.partition(";")[0]
        elif schedule.gate_sees_part and layer.mp > 1 and layer.may_drop:
            yield name, "it may drop other tokens than a gate that sees all, and so train to another result"


def _stepped() -> list[str]:
    """The schedules to choose among, as the field came to know them."""
    return [name for name in by_age() if not expert_schedules[name].chooses]


def _is_one_input(layer: Layer) -> bool:
    """Whether the devices of the layer are one tensor-parallel group that holds whole experts: then a place
    is a device, with the same experts under all schedules."""
    return layer.esp == 1 and layer.ep == layer.mp


def _others(took: dict[str, float], name: str, out: dict[str, str]) -> str:
    """Of a sentence what is said of those that were not chosen."""
    slower = {other: seconds for other, seconds in took.items() if seconds > took[name] * ALIKE}
    alike = [other for other in took if other not in slower and other != name]
    words = f", as {', '.join(alike)} would" if alike else ""
    following = min(slower, key=slower.__getitem__, default=None)
    if following:
        words += f", {following} {quantity(slower[following], 's')}"
    return words + "".join(f"; {other} is left out: {why}" for other, why in out.items())
