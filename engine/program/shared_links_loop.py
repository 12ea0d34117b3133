"""Event loop of :mod:`meshwave.engine.program.shared_links`: plain loops over flat tables, for Python or numba.

A *node* is an action of the program, a *message* a SEND, an *exchange* the collectives inside a node. A *flow* is a
message or an exchange in progress: flow ``m`` is message ``m``, flow ``messages + n`` the exchange of node ``n``. Flows
of one *class* use the same ports with the same weights, and therefore have the same rate.

``served[c]`` is the number of bytes that a flow of class ``c`` would have transferred if it had always been active, so
that a rate change updates a class instead of each of its flows: a flow that starts at ``served`` ends at ``served +
size``.

Tables are lists if Python runs the loop, which is faster then, and arrays if it is compiled. The functions take the
tables that they use as separate arguments, since numba is ten times slower if it passes a tuple of fifty arrays.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

RATE_TOLERANCE = 1e-9
"""Relative difference up to which rates count as equal."""

Table = Any


class Nodes(NamedTuple):
    """Actions of a program and the dependencies between them."""

    pending: Table  # [nodes] number of inputs that have not arrived
    out_ptr: Table  # [nodes + 1]
    out_node: Table  # [edges] nodes that wait for each node, without messages
    made_ptr: Table  # [nodes + 1]
    made: Table  # [messages] messages that each node sends, in order
    compute: Table  # [nodes] seconds of each part
    parts: Table  # [nodes] parts that are not computed; exchanges of a node run between its parts
    takers: Table  # [messages] node that consumes each, -1 for none


class Flows(NamedTuple):
    """Messages and exchanges, and the ports that they use."""

    kind: Table  # [flows] -1 for a node without exchanges
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


class Room(NamedTuple):
    """Working memory of the loop."""

    counts: Table  # [8] see the indices below
    heap_time: Table  # [flows + 1] events: a node has computed a part, or (nodes + flow) a latency is over
    heap_order: Table
    heap_code: Table
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
"""Indices of ``Room.counts``."""


def play_flows(nodes: Nodes, flows: Flows, result: Result, room: Room) -> int:
    """Simulate a program on shared links and return the number of rate changes, logged or not.

    The loop is one function because numba passes tables slowly: with one function per kind of event, the compiled loop
    took 30% longer (32 meshes, 256 microbatches).
    """
    pending, out_ptr, out_node, made_ptr, made, compute, parts, takers = nodes
    kind, size, latency, connection, class_of, class_ptr, port, weight, most, port_ptr, class_at, capacity, units = (
        flows
    )
    start, end, cause, sent, came, sent_cause, log_time, log_class, log_rate = result
    counts, heap_time, heap_order, heap_code, behind, first, last, waiting, asked, heap_first = room[:10]
    marks, numbers, busy, served, since, rate, ends, active, place, demand, left, shares = room[10:22]
    fair, found, seeds, port_mark, class_mark = room[22:]
    count, messages, now = len(pending), len(takers), 0.0
    push(heap_time, heap_order, heap_code, counts, compute[0], 0)
    while counts[HEAP] > 0 or counts[ACTIVE] > 0:
        counts[MOMENT] += 1
        counts[FOUND] = counts[SEEDS] = 0
        done, ended = -1, -1  # node, flow
        if counts[HEAP] == 0 or ends[1] < heap_time[0]:
            now = max(now, ends[1])
            flow_class = active[find_first_end(ends)]
            served[flow_class] += rate[flow_class] * (now - since[flow_class])
            since[flow_class] = now
            ended = pop_mark(marks, numbers, heap_first[flow_class], busy[flow_class])
            mark_ports(class_ptr, port, demand, capacity, port_mark, seeds, counts, flow_class)
            add_demand(class_ptr, port, weight, demand, capacity, units, -most[flow_class], flow_class)
            busy[flow_class] -= 1
            if busy[flow_class] > 0:
                mark_class(class_mark, found, counts, flow_class)
            else:
                served[flow_class] = rate[flow_class] = 0.0
                counts[ACTIVE] -= 1
                moved, to = active[counts[ACTIVE]], place[flow_class]
                set_end(ends, to, ends[(len(ends) >> 1) + counts[ACTIVE]])
                set_end(ends, counts[ACTIVE], math.inf)
                active[to], place[moved] = moved, to
                log(log_time, log_class, log_rate, counts, now, flow_class, 0.0)
            line = connection[kind[ended]]
            first[line] = -1
            if behind[ended] >= 0:
                first[line] = behind[ended]
                queue(waiting, asked, counts, behind[ended])
            if ended < messages:
                came[ended] = now
                taker = takers[ended]
                if taker >= 0:
                    pending[taker] -= 1
                    if pending[taker] == 0:
                        start[taker], cause[taker] = now, count + ended
                        push(heap_time, heap_order, heap_code, counts, now + compute[taker], taker)
            else:
                node = ended - messages
                parts[node] -= 1
                if parts[node] == 0:
                    done = node
                else:
                    push(heap_time, heap_order, heap_code, counts, now + compute[node], node)
        else:
            pop(heap_time, heap_order, heap_code, counts)
            now = max(now, heap_time[counts[HEAP]])
            code = heap_code[counts[HEAP]]
            if code >= count:  # a latency is over
                flow = code - count
                line = connection[kind[flow]]
                counts[ORDER] += 1
                asked[flow] = counts[ORDER]
                if first[line] >= 0:
                    behind[last[line]] = flow
                else:
                    first[line] = flow
                    queue(waiting, asked, counts, flow)
                last[line] = flow
            elif kind[messages + code] >= 0:  # a part is computed, and exchanges follow
                moment = now + latency[kind[messages + code]]
                push(heap_time, heap_order, heap_code, counts, moment, count + messages + code)
            else:
                done = code
        if done >= 0:
            end[done] = now
            for at in range(out_ptr[done], out_ptr[done + 1]):
                node = out_node[at]
                pending[node] -= 1
                if pending[node] == 0:
                    start[node], cause[node] = now, done
                    push(heap_time, heap_order, heap_code, counts, now + compute[node], node)
            for at in range(made_ptr[done], made_ptr[done + 1]):
                message = made[at]
                sent[message], sent_cause[message] = now, done
                push(heap_time, heap_order, heap_code, counts, now + latency[kind[message]], count + message)
        kept, here = 0, counts[WAITING]
        for at in range(here):
            flow = waiting[at]
            flow_class = class_of[kind[flow]]
            if not has_units(class_ptr, port, units, flow_class):
                waiting[kept] = flow
                kept += 1
                continue
            if ended >= 0 and flow < messages:
                sent[flow] = now
                sent_cause[flow] = count + ended if ended < messages else ended - messages
            if busy[flow_class] == 0:
                place[flow_class] = counts[ACTIVE]
                active[counts[ACTIVE]] = flow_class
                counts[ACTIVE] += 1
                since[flow_class] = now
            served[flow_class] += rate[flow_class] * (now - since[flow_class])
            since[flow_class] = now
            add_demand(class_ptr, port, weight, demand, capacity, units, most[flow_class], flow_class)
            mark_ports(class_ptr, port, demand, capacity, port_mark, seeds, counts, flow_class)
            mark_class(class_mark, found, counts, flow_class)
            push_mark(marks, numbers, heap_first[flow_class], busy[flow_class], served[flow_class] + size[flow], flow)
            busy[flow_class] += 1
        counts[WAITING] = kept
        if counts[FOUND] + counts[SEEDS] == 0:
            continue
        find_coupled(
            class_ptr, port, port_ptr, class_at, busy, demand, capacity, port_mark, class_mark, seeds, found, counts
        )
        compute_fair_rates(
            class_ptr, port, weight, most, busy, demand, capacity, left, shares, fair, found, counts[FOUND]
        )
        for at in range(counts[FOUND]):
            flow_class = found[at]
            if fair[flow_class] != rate[flow_class]:
                served[flow_class] += rate[flow_class] * (now - since[flow_class])
                since[flow_class], rate[flow_class] = now, fair[flow_class]
                log(log_time, log_class, log_rate, counts, now, flow_class, fair[flow_class])
            left_to_serve = max(0.0, marks[heap_first[flow_class]] - served[flow_class])
            set_end(ends, place[flow_class], since[flow_class] + left_to_serve / rate[flow_class])
    return int(counts[LOGGED])


def find_first_end(ends: Table) -> int:
    """Return the index in ``active`` of the class whose next flow ends first."""
    leaves, at = len(ends) >> 1, 1
    while at < leaves:
        at = 2 * at + (ends[2 * at] > ends[at])
    return at - leaves


def set_end(ends: Table, place: int, end: float) -> None:
    """Set the end of the next flow of the class at index ``place`` in ``active``; infinite for none."""
    at = (len(ends) >> 1) + place
    ends[at] = end
    while at > 1:
        at >>= 1
        first = min(ends[2 * at], ends[2 * at + 1])
        if ends[at] == first:
            break
        ends[at] = first


def log(
    log_time: Table, log_class: Table, log_rate: Table, counts: Table, now: float, flow_class: int, rate: float
) -> None:
    """Append the rate of a class to the log, if the log is not full."""
    at = counts[LOGGED]
    if at < len(log_time):
        log_time[at], log_class[at], log_rate[at] = now, flow_class, rate
    counts[LOGGED] += 1


# ---- events: a binary heap ----


def push(times: Table, orders: Table, codes: Table, counts: Table, time: float, code: int) -> None:
    """Add an event: a node has computed a part, or (``nodes + flow``) a latency has ended."""
    counts[ORDER] += 1
    at = counts[HEAP]
    counts[HEAP] += 1
    while at > 0 and times[(at - 1) >> 1] > time:  # events of equal time keep their order
        above = (at - 1) >> 1
        times[at], orders[at], codes[at] = times[above], orders[above], codes[above]
        at = above
    times[at], orders[at], codes[at] = time, counts[ORDER], code


def pop(times: Table, orders: Table, codes: Table, counts: Table) -> None:
    """Move the first event behind the end of the heap."""
    counts[HEAP] -= 1
    last = counts[HEAP]
    first_time, first_code = times[0], codes[0]
    time, order, code = times[last], orders[last], codes[last]
    at, below = 0, 1
    while below < last:
        if below + 1 < last and is_before(times, orders, below + 1, times[below], orders[below]):
            below += 1
        if not is_before(times, orders, below, time, order):
            break
        times[at], orders[at], codes[at] = times[below], orders[below], codes[below]
        at, below = below, 2 * below + 1
    times[at], orders[at], codes[at] = time, order, code
    times[last], codes[last] = first_time, first_code


def push_mark(marks: Table, flows: Table, first: int, count: int, mark: float, flow: int) -> None:
    """Add a flow to the ``count`` flows of a class, whose heap starts at ``first``."""
    at = count
    while at > 0 and marks[first + ((at - 1) >> 1)] > mark:
        above = first + ((at - 1) >> 1)
        marks[first + at], flows[first + at] = marks[above], flows[above]
        at = above - first
    marks[first + at], flows[first + at] = mark, flow


def pop_mark(marks: Table, flows: Table, first: int, count: int) -> int:
    """Remove the flow that ends first from the ``count`` flows of a class, and return it."""
    found, last = flows[first], count - 1
    mark, flow = marks[first + last], flows[first + last]
    at, below = 0, 1
    while below < last:
        if below + 1 < last and is_before(marks, flows, first + below + 1, marks[first + below], flows[first + below]):
            below += 1
        if not is_before(marks, flows, first + below, mark, flow):
            break
        marks[first + at], flows[first + at] = marks[first + below], flows[first + below]
        at, below = below, 2 * below + 1
    marks[first + at], flows[first + at] = mark, flow
    return int(found)


def is_before(keys: Table, orders: Table, at: int, key: float, order: int) -> bool:
    """Return True if the heap entry ``at`` comes before a given key and order."""
    return bool(keys[at] < key or (keys[at] == key and orders[at] < order))


# ---- start of flows ----


def queue(waiting: Table, asked: Table, counts: Table, flow: int) -> None:
    """Insert the first flow of a connection into the flows that wait for ports, in the order of their requests."""
    at = counts[WAITING]
    while at > 0 and asked[waiting[at - 1]] > asked[flow]:
        waiting[at] = waiting[at - 1]
        at -= 1
    waiting[at] = flow
    counts[WAITING] += 1


def has_units(class_ptr: Table, port: Table, units: Table, flow_class: int) -> bool:
    """Return True if a flow of a class may start, which requires free units on its exclusive ports."""
    free = True
    for use in range(class_ptr[flow_class], class_ptr[flow_class + 1]):
        free = free and units[port[use]] != 0
    return free


def add_demand(
    class_ptr: Table,
    port: Table,
    weight: Table,
    demand: Table,
    capacity: Table,
    units: Table,
    rate: float,
    flow_class: int,
) -> None:
    """Add a flow of a class to the demand of its ports; with a negative rate, remove one."""
    for use in range(class_ptr[flow_class], class_ptr[flow_class + 1]):
        at = port[use]
        demand[at] += weight[use] * rate
        if demand[at] < capacity[at] * RATE_TOLERANCE:
            demand[at] = 0.0
        if units[at] >= 0:
            units[at] += -1 if rate > 0 else 1


# ---- rates ----


def mark_ports(
    class_ptr: Table,
    port: Table,
    demand: Table,
    capacity: Table,
    port_mark: Table,
    seeds: Table,
    counts: Table,
    flow_class: int,
) -> None:
    """Mark the ports of a class that all their flows together could fill, since rates may change there."""
    for use in range(class_ptr[flow_class], class_ptr[flow_class + 1]):
        at = port[use]
        if port_mark[at] != counts[MOMENT] and demand[at] > capacity[at] * (1 + RATE_TOLERANCE):
            port_mark[at] = counts[MOMENT]
            seeds[counts[SEEDS]] = at
            counts[SEEDS] += 1


def mark_class(class_mark: Table, found: Table, counts: Table, flow_class: int) -> None:
    """Mark a class whose rate must be computed."""
    if class_mark[flow_class] != counts[MOMENT]:
        class_mark[flow_class] = counts[MOMENT]
        found[counts[FOUND]] = flow_class
        counts[FOUND] += 1


def find_coupled(
    class_ptr: Table,
    port: Table,
    port_ptr: Table,
    class_at: Table,
    busy: Table,
    demand: Table,
    capacity: Table,
    port_mark: Table,
    class_mark: Table,
    seeds: Table,
    found: Table,
    counts: Table,
) -> None:
    """Mark all busy classes whose rates depend on the marked ports.

    These are the classes that use a marked port, and recursively those that share with them a port that could be full.
    """
    while counts[SEEDS] > 0:
        counts[SEEDS] -= 1
        seed = seeds[counts[SEEDS]]
        for at in range(port_ptr[seed], port_ptr[seed + 1]):
            flow_class = class_at[at]
            if busy[flow_class] > 0 and class_mark[flow_class] != counts[MOMENT]:
                mark_class(class_mark, found, counts, flow_class)
                mark_ports(class_ptr, port, demand, capacity, port_mark, seeds, counts, flow_class)


def compute_fair_rates(
    class_ptr: Table,
    port: Table,
    weight: Table,
    most: Table,
    busy: Table,
    demand: Table,
    capacity: Table,
    left: Table,
    shares: Table,
    fair: Table,
    found: Table,
    count: int,
) -> None:
    """Compute the max-min fair rates of the classes in ``found``, and reorder ``found``.

    Progressive filling (Bertsekas and Gallager, "Data Networks", section 6.5.2): the port with the smallest capacity
    per flow limits the rate of its flows, then the next port, and so on. A flow that uses a port with weight ``w``
    takes ``w`` shares of it.
    """
    for at in range(count):
        for use in range(class_ptr[found[at]], class_ptr[found[at] + 1]):
            left[port[use]], shares[port[use]] = capacity[port[use]], 0.0
    for at in range(count):
        for use in range(class_ptr[found[at]], class_ptr[found[at] + 1]):
            shares[port[use]] += busy[found[at]] * weight[use]
    while count > 0:
        least = most[found[0]]
        for at in range(count):
            flow_class = found[at]
            fair[flow_class] = fair_rate(class_ptr, port, demand, capacity, left, shares, most[flow_class], flow_class)
            least = min(least, fair[flow_class])
        at = 0
        while at < count:
            flow_class = found[at]
            if fair[flow_class] > least * (1 + RATE_TOLERANCE):
                at += 1
                continue
            fair[flow_class] = least
            for use in range(class_ptr[flow_class], class_ptr[flow_class + 1]):
                left[port[use]] -= least * busy[flow_class] * weight[use]
                shares[port[use]] -= busy[flow_class] * weight[use]
            count -= 1
            found[at], found[count] = found[count], flow_class


def fair_rate(
    class_ptr: Table,
    port: Table,
    demand: Table,
    capacity: Table,
    left: Table,
    shares: Table,
    most: float,
    flow_class: int,
) -> float:
    """Return the rate that the most loaded port of a class leaves for each of its flows."""
    rate = most
    for use in range(class_ptr[flow_class], class_ptr[flow_class + 1]):
        at = port[use]
        if demand[at] > capacity[at] * (1 + RATE_TOLERANCE) and left[at] < rate * shares[at]:
            rate = left[at] / shares[at]
    return rate
