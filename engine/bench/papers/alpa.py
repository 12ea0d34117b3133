"""Transfers of alpa before broadcast: point-to-point sends, and a local all-gather of a whole tensor.

The strategy ``local-allgather`` gathers each slice separately, as the paper describes it. The released sources of alpa
implement the strategy ``rewrite-allgather`` instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from meshwave.engine.resharding import Job, Links, Load, Side, Tensor, UnitTask, run_in_order, strategies, unit_tasks


def send_recv_seconds(tensor: Tensor, source: Side, destination: Side, links: Links) -> float:
    """Return the seconds of a transfer by point-to-point sends.

    Messages are ordered by receiver, and for each receiver by slice in the order of the destination's boxes. Each slice
    is sent by the device that has sent the fewest bytes so far; ties go to the lowest rank (the released code takes
    any).
    """
    return _sent_seconds(unit_tasks(tensor, *source, *destination), links)


def local_allgather_seconds(tensor: Tensor, source: Side, destination: Side, links: Links) -> float:
    """Return the seconds of a transfer that sends the parts of a rewritten destination, then gathers them locally."""
    member = strategies["rewrite-allgather"]()
    tasks = member.unit_tasks(Load(tensor, source, destination))
    return _sent_seconds(tasks, links) + member.gather_seconds(tasks, links)


def _sent_seconds(tasks: Sequence[UnitTask], links: Links) -> float:
    sent: dict[int, int] = defaultdict(int)
    jobs: list[Job] = []
    order: list[tuple[int, int]] = []
    for task, receiver in _messages(tasks):
        sender = min(task.senders, key=lambda rank: (sent[rank], rank))
        sent[sender] += task.bytes
        host = links.host[sender]
        took = links.link_between(sender, receiver).seconds(task.bytes)
        order.append((len(jobs), host))
        jobs.append(Job(task.bytes, {host: took}, (links.host[receiver],)))
    return max((placed.end for placed in run_in_order(jobs, order, links.nics)), default=0.0)


def _messages(tasks: Sequence[UnitTask]) -> Iterator[tuple[UnitTask, int]]:
    """Yield each slice with its receiver; for slices passed on in rings, with the first receiver of each ring."""
    for receivers, same in groupby(tasks, key=lambda task: tuple(ring[0] for ring in task.rings) or task.receivers):
        slices = list(same)
        yield from ((task, receiver) for receiver in receivers for task in slices)
