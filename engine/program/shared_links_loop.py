"""Event loop of :mod:`meshwave.engine.program.shared_links`: plain loops over flat tables, for Python or numba.

``served[c]`` is the number of bytes that a flow of class ``c`` would have transferred if it had always been active, so
that a rate change updates a class instead of each of its flows: a flow that starts at ``served`` ends at ``served +
size``.
"""

from __future__ import annotations

import math

from meshwave.engine.program.shared_links_tables import (
    ACTIVE,
    FOUND,
    HEAP,
    LOGGED,
    MOMENT,
    ORDER,
    SEEDS,
    WAITING,
    Flows,
    Nodes,
    Result,
    Table,
    Workspace,
)

RATE_TOLERANCE = 1e-9
"""Relative difference up to which rates count as equal."""


def simulate_flows(nodes: Nodes, flows: Flows, result: Result, workspace: Workspace) -> int:
    """Simulate a program on shared links and return the number of rate changes, logged or not."""
    counts, now = workspace.counts, 0.0
    start_part(nodes, flows, workspace, now, 0)
    while counts[HEAP] > 0 or counts[ACTIVE] > 0:
        counts[MOMENT] += 1
        counts[FOUND] = counts[SEEDS] = 0
        ended = -1
        if counts[HEAP] == 0 or workspace.ends[1] < workspace.heap_time[0]:
            now = max(now, workspace.ends[1])
            ended = end_first_flow(flows, result, workspace, now)
            done = deliver_flow(nodes, flows, result, workspace, now, ended)
        else:
            pop_event(workspace)
            now = max(now, workspace.heap_time[counts[HEAP]])
            done = handle_event(nodes, flows, result, workspace, now, workspace.heap_code[counts[HEAP]])
        if done >= 0:
            end_node(nodes, flows, result, workspace, now, done)
        start_flows(nodes, flows, result, workspace, now, ended)
        if counts[FOUND] + counts[SEEDS] > 0:
            update_rates(flows, result, workspace, now)
    return int(counts[LOGGED])


# ---- nodes ----


def handle_event(nodes: Nodes, flows: Flows, result: Result, workspace: Workspace, now: float, code: int) -> int:
    """Continue a flow whose latency is over or a node that has computed a part; return the node that ends, or -1."""
    count, exchange, done = len(nodes.pending), len(nodes.takers) + code, -1
    timer = code - count - len(flows.kind)
    if timer >= 0:
        count_input(nodes, flows, result, workspace, now, nodes.timer_target[timer], nodes.timer_node[timer])
    elif code >= count:  # a latency is over
        request_connection(flows, workspace, code - count)
    elif flows.kind[exchange] >= 0:  # a part is computed, and exchanges follow
        push_event(workspace, now + flows.latency[flows.kind[exchange]], count + exchange)
    else:
        done = end_task(nodes, flows, workspace, now, code)
    return done


def deliver_flow(nodes: Nodes, flows: Flows, result: Result, workspace: Workspace, now: float, flow: int) -> int:
    """Continue the node that waits for a flow; return the node if it ends, otherwise -1."""
    messages, done = len(nodes.takers), -1
    if flow < messages:
        result.came[flow] = now
        if nodes.takers[flow] >= 0:
            count_input(nodes, flows, result, workspace, now, nodes.takers[flow], len(nodes.pending) + flow)
    else:
        done = end_task(nodes, flows, workspace, now, (flow - messages) % len(nodes.pending))
    return done


def end_task(nodes: Nodes, flows: Flows, workspace: Workspace, now: float, node: int) -> int:
    """End one task of the current part of a node, and return the node if it ends, otherwise -1.

    The tasks are the computation with the exchange after it, and the flow beside both.
    """
    done = -1
    nodes.tasks[node] -= 1
    if nodes.tasks[node] == 0:
        nodes.parts[node] -= 1
        if nodes.parts[node] == 0:
            done = node
        else:
            start_part(nodes, flows, workspace, now, node)
    return done


def count_input(
    nodes: Nodes, flows: Flows, result: Result, workspace: Workspace, now: float, node: int, cause: int
) -> None:
    """Count an input that has arrived at a node, and start the node if it was the last one."""
    nodes.pending[node] -= 1
    if nodes.pending[node] == 0:
        result.start[node], result.cause[node] = now, cause
        start_part(nodes, flows, workspace, now, node)


def start_part(nodes: Nodes, flows: Flows, workspace: Workspace, now: float, node: int) -> None:
    """Begin to compute the next part of a node, and start the flow beside it and the timers that begin with it."""
    count = len(nodes.pending)
    beside = len(nodes.takers) + count + node
    nodes.tasks[node] = 1
    push_event(workspace, now + nodes.compute[node], node)
    if flows.kind[beside] >= 0:
        nodes.tasks[node] = 2
        push_event(workspace, now + flows.latency[flows.kind[beside]], count + beside)
    for timer in range(nodes.timer_ptr[node], nodes.timer_ptr[node + 1]):
        if nodes.timer_part[timer] == nodes.parts[node]:
            push_event(workspace, now + nodes.timer_delay[timer], count + len(flows.kind) + timer)


def end_node(nodes: Nodes, flows: Flows, result: Result, workspace: Workspace, now: float, done: int) -> None:
    """End a node: its output arrives at the nodes that wait for it, and the latencies of its messages begin."""
    result.end[done] = now
    for at in range(nodes.out_ptr[done], nodes.out_ptr[done + 1]):
        count_input(nodes, flows, result, workspace, now, nodes.out_node[at], done)
    for at in range(nodes.made_ptr[done], nodes.made_ptr[done + 1]):
        message = nodes.made[at]
        result.sent[message], result.sent_cause[message] = now, done
        push_event(workspace, now + flows.latency[flows.kind[message]], len(nodes.pending) + message)


# ---- flows ----


def request_connection(flows: Flows, workspace: Workspace, flow: int) -> None:
    """Give a flow its connection, or let it wait behind the last flow that has requested it."""
    line, counts = flows.connection[flows.kind[flow]], workspace.counts
    counts[ORDER] += 1
    workspace.asked[flow] = counts[ORDER]
    if workspace.first[line] >= 0:
        workspace.behind[workspace.last[line]] = flow
    else:
        workspace.first[line] = flow
        enqueue_flow(workspace, flow)
    workspace.last[line] = flow


def end_first_flow(flows: Flows, result: Result, workspace: Workspace, now: float) -> int:
    """End the flow that ends first, give its connection to the next one, and return it."""
    flow_class = workspace.active[find_first_end(workspace.ends)]
    update_transferred_bytes(workspace, now, flow_class)
    ended = pop_mark(workspace.marks, workspace.numbers, workspace.heap_first[flow_class], workspace.busy[flow_class])
    mark_ports(flows, workspace, flow_class)
    add_demand(flows, workspace, -flows.most[flow_class], flow_class)
    workspace.busy[flow_class] -= 1
    if workspace.busy[flow_class] > 0:
        mark_class(workspace, flow_class)
    else:
        deactivate_class(workspace, flow_class)
        log_rate(result, workspace.counts, now, flow_class, 0.0)
    line = flows.connection[flows.kind[ended]]
    workspace.first[line] = workspace.behind[ended]
    if workspace.behind[ended] >= 0:
        enqueue_flow(workspace, workspace.behind[ended])
    return ended


def start_flows(nodes: Nodes, flows: Flows, result: Result, workspace: Workspace, now: float, ended: int) -> None:
    """Start the waiting flows whose ports are free; ``ended`` is the flow that has ended now, -1 for none."""
    count, messages, kept = len(nodes.pending), len(nodes.takers), 0
    for at in range(workspace.counts[WAITING]):
        flow = workspace.waiting[at]
        if not has_units(flows.class_ptr, flows.port, flows.units, flows.class_of[flows.kind[flow]]):
            workspace.waiting[kept] = flow
            kept += 1
            continue
        if ended >= 0 and flow < messages:
            result.sent[flow] = now
            result.sent_cause[flow] = count + ended if ended < messages else (ended - messages) % count
        start_flow(flows, workspace, now, flow)
    workspace.counts[WAITING] = kept


def start_flow(flows: Flows, workspace: Workspace, now: float, flow: int) -> None:
    """Add a flow to its class."""
    flow_class = flows.class_of[flows.kind[flow]]
    if workspace.busy[flow_class] == 0:
        workspace.place[flow_class] = workspace.counts[ACTIVE]
        workspace.active[workspace.counts[ACTIVE]] = flow_class
        workspace.counts[ACTIVE] += 1
    update_transferred_bytes(workspace, now, flow_class)
    add_demand(flows, workspace, flows.most[flow_class], flow_class)
    mark_ports(flows, workspace, flow_class)
    mark_class(workspace, flow_class)
    mark = workspace.served[flow_class] + flows.size[flow]
    push_mark(
        workspace.marks, workspace.numbers, workspace.heap_first[flow_class], workspace.busy[flow_class], mark, flow
    )
    workspace.busy[flow_class] += 1


def update_transferred_bytes(workspace: Workspace, now: float, flow_class: int) -> None:
    """Update the bytes that the flows of a class have transferred."""
    workspace.served[flow_class] += workspace.rate[flow_class] * (now - workspace.since[flow_class])
    workspace.since[flow_class] = now


def deactivate_class(workspace: Workspace, flow_class: int) -> None:
    """Remove a class from the active ones after its last flow has ended."""
    counts, ends, active = workspace.counts, workspace.ends, workspace.active
    workspace.served[flow_class] = workspace.rate[flow_class] = 0.0
    counts[ACTIVE] -= 1
    moved, to = active[counts[ACTIVE]], workspace.place[flow_class]
    set_end(ends, to, ends[(len(ends) >> 1) + counts[ACTIVE]])
    set_end(ends, counts[ACTIVE], math.inf)
    active[to], workspace.place[moved] = moved, to


def enqueue_flow(workspace: Workspace, flow: int) -> None:
    """Insert the first flow of a connection into the flows that wait for ports, in the order of their requests."""
    waiting, asked = workspace.waiting, workspace.asked
    at = workspace.counts[WAITING]
    while at > 0 and asked[waiting[at - 1]] > asked[flow]:
        waiting[at] = waiting[at - 1]
        at -= 1
    waiting[at] = flow
    workspace.counts[WAITING] += 1


def has_units(class_ptr: Table, port: Table, units: Table, flow_class: int) -> bool:
    """Return True if a flow of a class may start, which requires free units on its exclusive ports."""
    free = True
    for use in range(class_ptr[flow_class], class_ptr[flow_class + 1]):
        free = free and units[port[use]] != 0
    return free


def add_demand(flows: Flows, workspace: Workspace, rate: float, flow_class: int) -> None:
    """Add a flow of a class to the demand of its ports; with a negative rate, remove one."""
    demand, units = workspace.demand, flows.units
    for use in range(flows.class_ptr[flow_class], flows.class_ptr[flow_class + 1]):
        at = flows.port[use]
        demand[at] += flows.weight[use] * rate
        if demand[at] < flows.capacity[at] * RATE_TOLERANCE:
            demand[at] = 0.0
        if units[at] >= 0:
            units[at] += -1 if rate > 0 else 1


# ---- ends of the active classes: a tree ----


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


# ---- events: a binary heap ----


def push_event(workspace: Workspace, time: float, code: int) -> None:
    """Add an event: a node has computed a part, or (``nodes + flow``) a latency has ended."""
    counts, times, orders, codes = workspace.counts, workspace.heap_time, workspace.heap_order, workspace.heap_code
    counts[ORDER] += 1
    at = counts[HEAP]
    counts[HEAP] += 1
    while at > 0 and times[(at - 1) >> 1] > time:  # events of equal time keep their order
        above = (at - 1) >> 1
        times[at], orders[at], codes[at] = times[above], orders[above], codes[above]
        at = above
    times[at], orders[at], codes[at] = time, counts[ORDER], code


def pop_event(workspace: Workspace) -> None:
    """Move the first event behind the end of the heap."""
    counts, times, orders, codes = workspace.counts, workspace.heap_time, workspace.heap_order, workspace.heap_code
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


# ---- rates ----


def update_rates(flows: Flows, result: Result, workspace: Workspace, now: float) -> None:
    """Update the rates of the marked classes, and of the classes that depend on them."""
    counts, found, fair, rate = workspace.counts, workspace.found, workspace.fair, workspace.rate
    mark_coupled_classes(flows, workspace)
    compute_fair_rates(
        flows.class_ptr, flows.port, flows.weight, flows.most, workspace.busy, workspace.demand, flows.capacity, workspace.left,
        workspace.shares, fair, found, counts[FOUND],
    )  # fmt: skip
    for at in range(counts[FOUND]):
        flow_class = found[at]
        if fair[flow_class] != rate[flow_class]:
            update_transferred_bytes(workspace, now, flow_class)
            rate[flow_class] = fair[flow_class]
            log_rate(result, counts, now, flow_class, fair[flow_class])
        left_to_serve = max(0.0, workspace.marks[workspace.heap_first[flow_class]] - workspace.served[flow_class])
        set_end(
            workspace.ends, workspace.place[flow_class], workspace.since[flow_class] + left_to_serve / rate[flow_class]
        )


def mark_ports(flows: Flows, workspace: Workspace, flow_class: int) -> None:
    """Mark the ports of a class that all their flows together could fill, since rates may change there."""
    counts = workspace.counts
    for use in range(flows.class_ptr[flow_class], flows.class_ptr[flow_class + 1]):
        at = flows.port[use]
        is_marked = workspace.port_mark[at] == counts[MOMENT]
        if not is_marked and workspace.demand[at] > flows.capacity[at] * (1 + RATE_TOLERANCE):
            workspace.port_mark[at] = counts[MOMENT]
            workspace.seeds[counts[SEEDS]] = at
            counts[SEEDS] += 1


def mark_class(workspace: Workspace, flow_class: int) -> None:
    """Mark a class whose rate must be computed."""
    counts = workspace.counts
    if workspace.class_mark[flow_class] != counts[MOMENT]:
        workspace.class_mark[flow_class] = counts[MOMENT]
        workspace.found[counts[FOUND]] = flow_class
        counts[FOUND] += 1


def mark_coupled_classes(flows: Flows, workspace: Workspace) -> None:
    """Mark all busy classes whose rates depend on the marked ports.

    These are the classes that use a marked port, and recursively those that share with them a port that could be full.
    """
    counts = workspace.counts
    while counts[SEEDS] > 0:
        counts[SEEDS] -= 1
        seed = workspace.seeds[counts[SEEDS]]
        for at in range(flows.port_ptr[seed], flows.port_ptr[seed + 1]):
            flow_class = flows.class_at[at]
            if workspace.busy[flow_class] > 0 and workspace.class_mark[flow_class] != counts[MOMENT]:
                mark_class(workspace, flow_class)
                mark_ports(flows, workspace, flow_class)


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


def log_rate(result: Result, counts: Table, now: float, flow_class: int, rate: float) -> None:
    """Append the rate of a class of equal flows to the log, if the log is not full."""
    at = counts[LOGGED]
    if at < len(result.log_time):
        result.log_time[at], result.log_class[at], result.log_rate[at] = now, flow_class, rate
    counts[LOGGED] += 1
