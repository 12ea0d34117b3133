"""Tables of :mod:`meshwave.engine.program.shared_links_loop`: a program, its flows, the result and working memory.

A *node* is an action of the program, a *message* a SEND, an *exchange* the collectives inside a node, for which it waits.
Other collectives run *beside* the computation of a node. A *flow* is one of these in progress: flow ``m`` is message
``m``, flow ``messages + n`` the exchange of node ``n``, flow ``messages + nodes + n`` the one beside node ``n``. Flows
of one *class* use the same ports with the same weights, and therefore have the same rate.

Tables are lists if Python runs the loop, which is faster then, and arrays if it is compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Table = Any


class Nodes(NamedTuple):
    """Actions of a program and the dependencies between them."""

    pending: Table  # [nodes] number of inputs that have not arrived
    out_ptr: Table  # [nodes + 1]
    out_node: Table  # [edges] nodes that wait for each node, without messages
    made_ptr: Table  # [nodes + 1]
    made: Table  # [messages] messages that each node sends, in order
    compute: Table  # [nodes] seconds of each part
    parts: Table  # [nodes] parts that have not ended; in each, an exchange follows computation, and a flow runs beside both
    tasks: Table  # [nodes] tasks of the current part that have not ended; see ``end_task``
    takers: Table  # [messages] node that consumes each, -1 for none
    timer_ptr: Table  # [nodes + 1]
    timer_node: Table  # [timers] node inside which each timer ends
    timer_target: Table  # [timers] node that waits for the timer instead of the end of that node
    timer_part: Table  # [timers] parts of the node that are not computed when the timer starts
    timer_delay: Table  # [timers] seconds from the beginning of that part until the timer ends


class Flows(NamedTuple):
    """Messages and exchanges, and the ports that they use."""

    kind: Table  # [flows] -1 for a node without exchanges, or without a flow beside it
    size: Table  # [flows] bytes
    latency: Table  # [kinds] seconds
    connection: Table  # [kinds]
    class_of: Table  # [kinds]
    class_ptr: Table  # [classes + 1]
    port: Table  # [uses] the ports of each class
    weight: Table  # [uses]
    most: Table  # [classes] bytes/s of a flow alone
    port_ptr: Table  # [ports + 1]
    class_at: Table  # [uses] the classes at each port
    capacity: Table  # [ports] bytes/s
    units: Table  # [ports] number of flows that may still start on an exclusive port; -1 for a shared port


class Result(NamedTuple):
    """Start and end of every action and message, and the log of rates."""

    start: Table  # [nodes]
    end: Table  # [nodes]
    cause: Table  # [nodes] a node, or nodes + a message; -1 for none
    sent: Table  # [messages] start of each
    came: Table  # [messages] arrival of each
    sent_cause: Table  # [messages] like ``cause``
    log_time: Table  # [entries] times at which the rate of a class changes; later entries may not fit
    log_class: Table
    log_rate: Table


class Workspace(NamedTuple):
    """Working memory of the loop."""

    counts: Table  # [8] see the indices below
    heap_time: Table  # [flows + timers + 1] times of events; their codes are below
    heap_order: Table
    heap_code: Table  # node: it has computed a part; nodes + flow: a latency is over; nodes + flows + timer: it ends
    behind: Table  # [flows] flow that waits behind each for its connection, -1 for none
    first: Table  # [connections] flow in progress, -1 for none
    last: Table  # [connections] last flow that waits
    waiting: Table  # [connections + 1] flows that have their connection and wait for ports, in order of request
    asked: Table  # [flows] number of the request for its connection
    heap_first: Table  # [classes] start of the heap of its flows
    marks: Table  # value of ``served`` at which each of them ends
    numbers: Table  # the flow of each mark
    busy: Table  # [classes] number of flows
    served: Table  # [classes]
    since: Table  # [classes] time to which ``served`` refers
    rate: Table  # [classes]
    ends: Table  # [2 * leaves] tree: the end of the next flow of each of ``active`` from ``leaves`` on, and of two the first
    active: Table  # [classes] busy classes, in any order
    place: Table  # [classes] index of each in ``active``
    demand: Table  # [ports] bytes/s of its flows if each were alone
    left: Table  # [ports]
    shares: Table  # [ports]
    fair: Table  # [classes]
    found: Table  # [classes] those whose rates may change now
    seeds: Table  # [ports + 1] ports from which changes of rates spread
    port_mark: Table  # [ports] number of the last event that noted each
    class_mark: Table  # [classes]


HEAP, ORDER, ACTIVE, WAITING, LOGGED, MOMENT, FOUND, SEEDS = range(8)
"""Indices of ``Workspace.counts``."""
