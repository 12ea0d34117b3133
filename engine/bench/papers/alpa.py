"""What alpa did before broadcast: plain sends, and the local all-gather of a whole tensor.

The strategy ``local-allgather`` gathers slice by slice, as the paper describes it. alpa does something else
(its released sources), which is the strategy ``rewrite-allgather``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from meshwave.engine.resharding import Job, Links, Load, Side, Tensor, UnitTask, run_in_order, strategies, unit_tasks


def send_recv_seconds(tensor: Tensor, source: Side, destination: Side, links: Links) -> float:
    """Receiver by receiver, and for each slice by slice, in the order of the destination's boxes; each message comes
    from the device that has sent the fewest bytes so far, the lowest of equals (the released code takes any)."""
    return _sent_seconds(unit_tasks(tensor, *source, *destination), links)


def seconds(tensor: Tensor, source: Side, destination: Side, links: Links) -> float:
    """The same for the parts of the rewritten destination, which are gathered at the end."""
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
    """Pairs of a slice and who is sent it: of slices that are handed on in rings, the first of each ring."""
    for receivers, same in groupby(tasks, key=lambda task: tuple(ring[0] for ring in task.rings) or task.receivers):
        slices = list(same)
        yield from ((task, receiver) for receiver in receivers for task in slices)
