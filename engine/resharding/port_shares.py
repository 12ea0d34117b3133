"""Shares of each port's capacity that messages use over time, in the simulation of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.program.link_shares import PortUse, Share, Steps, max_shares_per_port, stack_shares
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.plan_simulation import PlanSimulation, Port, Ports, SimulatedMessage, port_capacity

NO_STEPS = Steps((0.0,), (0.0,))


def port_shares(simulated: PlanSimulation, links: Links) -> dict[Port, list[Share]]:
    """Return the stacked shares of the messages on each port.

    Consecutive messages stay on the same line unless others use it. A message on a link of infinite bandwidth, which
    takes no time, has the whole port.
    """
    sent = simulated.messages or ()
    passing: dict[Port, list[int]] = {}
    for number, each in enumerate(sent):
        for port in each.ports:
            passing.setdefault(port, []).append(number)
    most = max_shares_per_port(len(passing))
    return {
        port: stack_shares(_port_uses(simulated, sent, numbers, port_capacity(port, links)), most)
        for port, numbers in passing.items()
    }


def _port_uses(
    simulated: PlanSimulation, sent: Sequence[SimulatedMessage], numbers: Sequence[int], most: float
) -> list[PortUse]:
    """Return the messages on a port with a capacity of ``most`` bytes/s, with their shares."""
    parts = {ports: _share_steps(simulated, ports, most) for ports in {sent[number].ports for number in numbers}}
    return [
        PortUse(
            number, sent[number].start_s, sent[number].end_s, _mean_share(sent[number], most), parts[sent[number].ports]
        )
        for number in numbers
    ]


def _share_steps(simulated: PlanSimulation, ports: Ports, most: float) -> Steps:
    rates = simulated.rates.get(ports, ())
    return Steps([moment for moment, _ in rates], [rate / most for _, rate in rates]) if rates else NO_STEPS


def _mean_share(each: SimulatedMessage, most: float) -> float:
    took = each.end_s - each.start_s
    return min(1.0, each.bytes / took / most) if took and most else 1.0
