"""Links shared during a step: the results equal the simulator's if all flows are announced in time."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.program.flow_table import FlowTable
from meshwave.engine.program.program import Program, parse_program
from meshwave.engine.program.shared_links import Network
from meshwave.engine.program.shared_links_simulation import FlowTimes, simulate_shared_links
from meshwave.engine.program.simulation import computing_seconds, flow_bytes
from meshwave.engine.runs.dry_run import wait_until
from meshwave.engine.runs.live_links import GRACE_NS, LiveLinks, LiveNetwork
from tests._strategies import programs, seconds, seeds
from tests.engine.program.test_shared_links import TWO, network_of, nics_of, untied_durations

MS = 10**6


def simulated_flows(program: Program, takes: NDArray[np.float64], network: Network) -> FlowTimes:
    sizes = flow_bytes(program, takes, network)
    return simulate_shared_links(program, computing_seconds(program, takes, network), sizes, network)


class Announced:
    """A step whose flows are announced when they become ready, by the simulated start and end times."""

    def __init__(
        self, program: Program, takes: NDArray[np.float64], network: Network, play: FlowTimes, early: float
    ) -> None:
        """Create the step. ``early`` is the time between an announcement and the moment at which the flow is ready."""
        self._program, self._play, self._early = program, play, early
        self.table = FlowTable.from_program(program, takes, network, [1] * program.ranks)
        self.live = LiveNetwork(self.table)
        self._computing = computing_seconds(program, takes, network)
        self._node = np.zeros(len(program), np.int64)
        self._node[program.graph.nodes] = np.arange(1, len(program.graph.nodes) + 1)
        self._came = dict(zip(play.sends.tolist(), play.came.tolist(), strict=True))

    def play(self) -> None:
        """Announce the flows one by one in the order of time; flows of later parts follow from earlier results."""
        first = {self.table.flows_of_row(row)[0]: ready for row, ready in self._first_flows()}
        waiting = dict(first)
        while waiting:
            flow = min(waiting, key=lambda flow: waiting[flow])
            ready = waiting.pop(flow)
            self.live.simulate_until(ready - self._early)
            self.live.announce(flow, ready)
            self._follow(waiting)

    def _follow(self, waiting: dict[int, float]) -> None:
        """Announce the parts that can compute after the preceding exchange has ended, by the current estimates."""
        for row in np.flatnonzero(self.table.parts > 1).tolist():
            flows = self.table.flows_of_row(row)
            for before, flow in zip(flows, flows[1:], strict=False):
                end = self.live.end_time(before)
                if end is not None and self.live.end_time(flow) is None:
                    waiting[flow] = end + self._computing[row] / len(flows)

    def _first_flows(self) -> list[tuple[int, float]]:
        """Return the first flow of each row, and the time at which it is ready."""
        program, found = self._program, []
        sends, makers = program.send_rows
        made = dict(zip(sends.tolist(), makers.tolist(), strict=True))
        for row in np.flatnonzero(self.table.first >= 0).tolist():
            if row in made:
                found.append((row, float(self._play.end[self._node[program.slot[made[row]]]])))
            elif program.op[row] == Op.REDUCE_GRAD:
                found.append((row, self._complete(row)))
            else:
                parts = int(self.table.parts[row])
                found.append((row, float(self._play.start[self._node[row]] + self._computing[row] / parts)))
        return found

    def _complete(self, row: int) -> float:
        """Return the time at which the last copy of a stage has its gradients."""
        graph, node = self._program.graph, self._node[row]
        sources = graph.edge_source[graph.edge_ptr[node] : graph.edge_ptr[node + 1]]
        rows = np.concatenate(([0], graph.nodes))[sources]
        return float(self._play.end[sources[self._program.op[rows] != Op.REDUCE_GRAD]].max())

    def check(self) -> None:
        """Check that each flow ended when the simulator says."""
        for row in np.flatnonzero(self.table.first >= 0).tolist():
            end = self.live.end_time(self.table.flows_of_row(row)[-1])
            assert end is not None
            is_message = self.table.is_message[self.table.first[row]]
            assert end == pytest.approx(self._came[row] if is_message else self._play.end[self._node[row]], abs=1e-6), (
                row
            )


@given(program=programs() | programs(slots=True), seed=seeds, early=st.sampled_from([0.0, 0.5, 100.0]))
def test_live_links_equal_the_simulator_if_flows_are_announced_in_time(
    program: Program, seed: int, early: float
) -> None:
    takes, network = seconds(program, seed), network_of(program, seed, beside=False)
    announced = Announced(program, takes, network, simulated_flows(program, takes, network), early)

    announced.play()

    announced.check()


@given(program=programs(), seed=seeds)
def test_serial_links_equal_the_simulator(program: Program, seed: int) -> None:
    takes = untied_durations(program, seed)
    network = nics_of(program, units=1 + seed % 2)
    announced = Announced(program, takes, network, simulated_flows(program, takes, network), 0.5)

    announced.play()

    announced.check()


# ---- one flow at a time ----


def two_messages(capacity: float = 1.0) -> FlowTable:
    """Return two messages of 3 bytes from one rank to another at one byte per second."""
    takes = np.array([3.0 if op == Op.SEND_F else 1.0 for op in TWO.op])
    return FlowTable.from_program(TWO, takes, nics_of(TWO, capacity=capacity), [1, 1])


def test_an_estimate_moves_when_another_flow_is_announced() -> None:
    program = parse_program("""
        0F0 0SEND_F0
        0F1 0SEND_F1
        1RECV_F0 1F0
        1RECV_F1 1F1
    """)
    takes = np.array([3.0 if op == Op.SEND_F else 1.0 for op in program.op])
    live = LiveNetwork(
        FlowTable.from_program(program, takes, replace(nics_of(program), use_port=np.array([0, 6, 0, 7])), [1] * 4)
    )

    live.announce(0, 1.0)
    alone = live.end_time(0)
    live.announce(1, 2.0)

    assert alone == 4.0
    assert (live.end_time(0), live.end_time(1)) == (6.0, 7.0)


def test_flows_of_one_connection_follow_one_another() -> None:
    live = LiveNetwork(two_messages())

    live.announce(1, 2.0)
    live.announce(0, 1.0)

    assert (live.end_time(0), live.end_time(1)) == (4.0, 7.0)
    assert (live.start_time(0), live.start_time(1)) == (1.0, 4.0)


def test_a_flow_that_is_announced_late_is_ready_at_the_committed_time() -> None:
    live = LiveNetwork(two_messages())

    live.simulate_until(5.0)
    live.announce(0, 1.0)

    assert live.end_time(0) == 8.0
    assert live.end_time(1) is None


def test_a_step_does_not_depend_on_the_previous_one() -> None:
    live = LiveNetwork(two_messages())
    live.announce(0, 1.0)

    live.start()

    assert live.end_time(0) is None


# ---- by the clock ----


def test_waiting_for_a_flow_lasts_until_it_is_complete() -> None:
    """Two processes use one shared table; 3 bytes take 30 ms on this clock."""
    table = two_messages()
    board = np.zeros(table.cells[-1], np.int64)
    sender, receiver = LiveLinks(table, board, 0.01), LiveLinks(table, board, 0.01)
    start = time.perf_counter_ns()
    for links in (sender, receiver):
        links.start(start)

    sender.announce(0, 0, start + 10 * MS)
    sender.announce(1, 0, start + 20 * MS)
    due = receiver.wait(1, wait_until)

    assert due == start + 70 * MS
    assert time.perf_counter_ns() >= due
    assert receiver.start_ns(1) == start + 40 * MS


def test_a_flow_waits_for_all_participants() -> None:
    table = two_messages()
    table = FlowTable.from_program(TWO, np.where(TWO.is_send, 3.0, 1.0), table.network, [2, 2])
    board = np.zeros(table.cells[-1], np.int64)
    links = LiveLinks(table, board, 0.01)
    start = time.perf_counter_ns()
    links.start(start)

    links.announce(0, 0, start)
    alone = links._flow_end_ns(0)
    links.announce(0, 1, start + GRACE_NS)

    assert alone is None
    assert links._flow_end_ns(0) == start + GRACE_NS + 30 * MS
