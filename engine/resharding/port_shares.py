"""How messages share a port while a plan is played: which of them has which part of it, from when to when."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.program.link_shares import Passing, Share, Steps, most_per_port, stack_shares
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.playback import Played, Port, Ports, Sent, capacity

NOTHING = Steps((0.0,), (0.0,))


def shares(played: Played, links: Links) -> dict[Port, list[Share]]:
    """What each port of a play carries, one message on the other; those that follow one another lie in one line as
    far as others leave it to them. A message on a free link, which takes no time, has all of it."""
    sent = played.messages or ()
    passing: dict[Port, list[int]] = {}
    for number, each in enumerate(sent):
        for port in each.ports:
            passing.setdefault(port, []).append(number)
    most = most_per_port(len(passing))
    return {
        port: stack_shares(_of_port(played, sent, numbers, capacity(port, links)), most)
        for port, numbers in passing.items()
    }


def _of_port(played: Played, sent: Sequence[Sent], numbers: Sequence[int], most: float) -> list[Passing]:
    """The messages of a port that can carry ``most`` bytes/s."""
    parts = {ports: _steps(played, ports, most) for ports in {sent[number].ports for number in numbers}}
    return [
        Passing(number, sent[number].start_s, sent[number].end_s, _mean(sent[number], most), parts[sent[number].ports])
        for number in numbers
    ]


def _steps(played: Played, ports: Ports, most: float) -> Steps:
    rates = played.rates.get(ports, ())
    return Steps([moment for moment, _ in rates], [rate / most for _, rate in rates]) if rates else NOTHING


def _mean(each: Sent, most: float) -> float:
    took = each.end_s - each.start_s
    return min(1.0, each.bytes / took / most) if took and most else 1.0
