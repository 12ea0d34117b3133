"""Shared links: the loop compared with a slow reference, its two forms with each other, and properties of sharing."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program import shared_links_simulation as shared_play
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program, parse_program
from meshwave.engine.program.shared_links import Network, Port, pair_network
from meshwave.engine.program.shared_links_simulation import simulate_shared_links
from meshwave.engine.program.simulation import computing_seconds, flow_bytes, link_rates, simulate
from meshwave.engine.program.timeline import Timeline
from tests._strategies import document, programs, seconds, seeds
from tests.engine.program.slow_network import SlowNetwork, fair_rates
from tests.engine.program.test_simulation import spans_of


def network_of(
    program: Program, seed: int, *, ranks_per_node: int = 2, exchanges: bool = True, beside: bool = True
) -> Network:
    """Return a random network: nodes of some ranks with one NIC each, random sizes, latencies and weights.

    Computations of odd ranks have ``exchanges``; of three ranks, those of two have collectives ``beside`` them.
    """
    rng = np.random.default_rng(seed)
    kinds: dict[tuple[int, ...], int] = {}
    row_kind, beside_kind = np.full((2, len(program)), -1)
    for row in range(len(program)):
        op, rank, peer = int(program.op[row]), int(program.rank[row]), int(program.peer[row])
        if op in (Op.SEND_F, Op.SEND_B):
            row_kind[row] = kinds.setdefault((op, rank, peer), len(kinds))
        elif op == Op.REDUCE_GRAD:
            row_kind[row] = kinds.setdefault((op, rank), len(kinds))
        elif exchanges and op in (Op.F, Op.B) and rank % 2 and not program.fused[row]:  # of a slot, its first row
            row_kind[row] = kinds.setdefault((op, rank, -1, int(program.stage[row])), len(kinds))
        if beside and op in (Op.F, Op.B) and rank % 3 != 2 and not program.fused[row]:
            beside_kind[row] = kinds.setdefault((op, rank, -1, int(program.stage[row]), -1), len(kinds))
    nodes = -(-program.ranks // ranks_per_node)
    ports = [Port(side, node) for side in ("nic-out", "nic-in") for node in range(nodes)]  # type: ignore[arg-type]
    ptr, port, weight, line = [0], [], [], {}
    for key in kinds:
        rank, peer = key[1], key[2] if len(key) == 3 else (key[1] + 1) % program.ranks
        port += [rank // ranks_per_node, nodes + peer // ranks_per_node]
        weight += [1.0, float(rng.choice([0.5, 1.0, 1.0]))]
        ptr.append(len(port))
        line[key] = (rank, peer) if len(key) == 3 else (key, "own")
    lines = {name: number for number, name in enumerate(dict.fromkeys(line.values()))}
    parts, exchange_s = np.ones(len(program), np.int64), np.zeros(len(program))
    computing = (row_kind >= 0) & program.is_compute
    parts[computing | (beside_kind >= 0)] = 2
    exchange_s[computing] = 0.5 * seconds(program, seed)[computing]
    return Network(
        ports=tuple(ports),
        capacity=rng.choice([1.0, 1.5, 2.0], len(ports)),
        latency_s=rng.choice([0.0, 0.1], len(kinds)),
        rate=np.ones(len(kinds)),
        connection=np.array([lines[line[key]] for key in kinds], np.int64),
        use_ptr=np.array(ptr),
        use_port=np.array(port, np.int64),
        use_weight=np.array(weight),
        row_kind=row_kind,
        exchange_s=exchange_s,
        beside_kind=beside_kind,
        beside_s=np.where(beside_kind >= 0, rng.uniform(0.2, 1.5) * seconds(program, seed), 0.0),
        parts=parts,
        units=np.full(len(ports), -1),
    )


def nics_of(program: Program, *, units: int = -1, capacity: float = 1.0) -> Network:
    """Return a network with one NIC per rank."""
    pairs = pair_network(program)
    kinds = [np.flatnonzero(pairs.row_kind == kind)[0] for kind in range(len(pairs.rate))]
    ends = [(int(program.rank[row]), program.ranks + int(program.peer[row])) for row in kinds]
    ports = [Port(side, rank) for side in ("nic-out", "nic-in") for rank in range(program.ranks)]  # type: ignore[arg-type]
    return replace(
        pairs,
        ports=tuple(ports),
        capacity=np.full(len(ports), capacity if units < 0 else 1e300),
        use_ptr=np.arange(0, 2 * len(ends) + 1, 2),
        use_port=np.array(ends, np.int64).reshape(-1),
        use_weight=np.ones(2 * len(ends)),
        units=np.full(len(ports), units),
    )


def untied_durations(program: Program, seed: int) -> NDArray[np.float64]:
    """Return durations without equal sums, because the order of simultaneous flows depends on rounding."""
    return seconds(program, seed) + np.random.default_rng(seed).uniform(1e-3, 2e-3, len(program))


def simulated_timeline(program: Program, takes: NDArray[np.float64], network: Network) -> Timeline:
    """Simulate with the loop, even if no link is shared."""
    return link_rates(program, takes, network, 0)[0]


@pytest.mark.slow
@given(program=programs(), seed=seeds)
def test_the_simulation_equals_a_reference_network(program: Program, seed: int) -> None:
    takes, network = untied_durations(program, seed), network_of(program, seed)

    found = spans_of(simulated_timeline(program, takes, network))

    for task, (start, end) in SlowNetwork(program, takes, network).play().items():
        assert found[task][1] == pytest.approx(end, rel=1e-7, abs=1e-7), task
        if task[1].op not in (Op.SEND_F, Op.SEND_B):  # of a tie by rounding, whether it waited is a matter of taste
            assert found[task][0] == pytest.approx(start, rel=1e-7, abs=1e-7), task


@given(program=programs(), seed=seeds)
def test_exclusive_links_equal_a_reference_network(program: Program, seed: int) -> None:
    takes, network = untied_durations(program, seed), nics_of(program, units=1 + seed % 2)

    found = spans_of(simulate(program, takes, "link-serial", network=network))

    for task, span in SlowNetwork(program, takes, network).play().items():
        assert found[task] == pytest.approx(span, rel=1e-9, abs=1e-9), task


@given(program=programs() | programs(slots=True), seed=seeds)
def test_the_compiled_loop_equals_the_python_loop(program: Program, seed: int) -> None:
    assert find_spec("numba"), "the tests install numba"
    takes, network = seconds(program, seed), network_of(program, seed)
    args = program, computing_seconds(program, takes, network)
    sizes = flow_bytes(program, takes, network)

    compiled = simulate_shared_links(*args, sizes, network, must_compile=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_play, "compiled_module", lambda name: None)
        interpreted = simulate_shared_links(*args, sizes, network)

    for one, other in zip(compiled[:7], interpreted[:7], strict=True):
        assert one.tolist() == other.tolist()


@given(program=programs() | programs(slots=True), seed=seeds)
def test_without_sharing_each_flow_takes_its_time_alone(program: Program, seed: int) -> None:
    """The fast path and the loop give equal times on a network without full ports."""
    takes = seconds(program, seed)
    network = network_of(program, seed, exchanges=False, beside=False)
    own_lines = replace(network, capacity=np.full(len(network.ports), 1e6))
    takes[network.row_kind >= 0] += 0.1  # at least their latency

    alone, loop = simulate(program, takes, "latency"), simulated_timeline(program, takes, own_lines)

    first_of_line = simulate(program, takes, "shared-links", network=own_lines)
    assert (first_of_line.end >= alone.end - 1e-9).all()
    if np.array_equal(first_of_line.end, alone.end):
        assert loop.end.tolist() == pytest.approx(alone.end.tolist(), rel=1e-9, abs=1e-9)


@pytest.mark.slow
@given(program=programs() | programs(slots=True), seed=seeds)
def test_sharing_never_helps(program: Program, seed: int) -> None:
    takes, network = seconds(program, seed), network_of(program, seed)
    takes[network.row_kind >= 0] += 0.2

    shared = simulate(program, takes, "shared-links", network=network)

    assert (shared.end >= simulate(program, takes, "latency").end - 1e-9).all()


@pytest.mark.slow
@given(program=programs(), seed=seeds)
def test_causes_are_the_ends_for_which_spans_waited(program: Program, seed: int) -> None:
    takes, network = seconds(program, seed), network_of(program, seed)

    timeline = simulated_timeline(program, takes, network)

    for span, cause in enumerate(timeline.cause.tolist()):
        assert timeline.start[span] == (timeline.end[cause] if cause >= 0 else 0.0)


@given(kinds=st.lists(st.integers(0, 3), min_size=1, max_size=12), seed=seeds)
def test_a_fair_rate_is_that_of_a_full_port_or_the_most(kinds: list[int], seed: int) -> None:
    """Definition of max-min fairness, checked for the reference implementation."""
    program = parse_program("0F0 0SEND_F0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0")
    network = replace(
        network_of(program, seed),
        use_ptr=np.array([0, 2, 4, 6, 8]),
        use_port=np.array([0, 1, 0, 2, 1, 2, 2, 3]),
        use_weight=np.ones(8),
        rate=np.array([1.0, 0.3, 1.0, 2.0]),
        capacity=np.array([1.0, 2.0, 1.5, 0.7]),
        ports=tuple(Port("nic-out", number) for number in range(4)),
    )

    rates = fair_rates(network, kinds)

    used = np.zeros(4)
    for kind, rate in zip(kinds, rates, strict=True):
        used[network.use_port[2 * kind : 2 * kind + 2]] += rate
    assert (used <= network.capacity * (1 + 1e-9)).all()
    for kind, rate in zip(kinds, rates, strict=True):
        ports = network.use_port[2 * kind : 2 * kind + 2]
        is_bottleneck = [
            used[port] >= network.capacity[port] * (1 - 1e-9)
            and rate
            >= max(r for k, r in zip(kinds, rates, strict=True) if port in network.use_port[2 * k : 2 * k + 2]) - 1e-9
            for port in ports
        ]
        assert rate >= network.rate[kind] * (1 - 1e-9) or any(is_bottleneck)


def test_an_unused_copy_delays_no_reduction() -> None:
    """One microbatch uses only one of the two pipelines of Chimera."""
    program = lower(parse_design(document({"schedule": "chimera", "microbatches": 1, "replicas": 2}, 4)))
    takes = np.ones(len(program))

    shared = simulated_timeline(program, takes, network_of(program, 0, exchanges=False, beside=False))

    assert shared.makespan >= simulate(program, takes).makespan - 1e-9


def test_a_collective_beside_a_computation_extends_it_only_if_it_takes_longer() -> None:
    """Rank 0 gathers 2 bytes in each of two parts of 3 s; rank 1 sends 3 bytes through the same port from 1 s on."""
    program = parse_program("""
        0F0
        0F1 0SEND_F1
        1RECV_F1 1F1
    """)
    takes = np.array([{0: 6.0, 1: 1.0}.get(int(rank), 1.0) for rank in program.rank])
    takes[program.is_send] = 3.0
    links = pair_network(program)
    beside = np.where((program.rank == 0) & program.is_compute, 1, -1)
    for size, end in ((2.0, 7.0), (1.0, 6.0)):  # with 1 byte, both parts have gathered before they are computed
        network = replace(
            links,
            ports=(Port("nic-out", 0),),
            capacity=np.ones(1),
            latency_s=np.zeros(2),
            rate=np.ones(2),
            connection=np.arange(2),
            use_ptr=np.arange(3),
            use_port=np.zeros(2, np.int64),
            use_weight=np.ones(2),
            units=np.full(1, -1),
            beside_kind=beside,
            beside_s=np.where(beside >= 0, 2 * size, 0.0),
            parts=np.where(beside >= 0, 2, 1),
        )

        timeline = simulate(program, takes, "shared-links", network=network)

        assert timeline.end[(timeline.rank == 0) & timeline.is_compute] == pytest.approx([end])


TWO = parse_program("""
    0F0 0SEND_F0 0F1 0SEND_F1
    1RECV_F0 1F0 1RECV_F1 1F1
""")


def test_messages_of_one_pair_are_sequential() -> None:
    """Two messages of 3 s, produced at 1 and 2: the first uses the link until 4, the second until 7."""
    takes = np.array([{0: 1.0, 4: 3.0}.get(int(op), 0.0) for op in TWO.op])
    network = nics_of(TWO)

    spans = {
        str(action): span
        for (_, action), span in spans_of(simulate(TWO, takes, "shared-links", network=network)).items()
    }

    assert spans["0SEND_F0"] == (1.0, 4.0)
    assert spans["0SEND_F1"] == (4.0, 7.0)
    assert spans["1F1"] == (7.0, 8.0)


@pytest.mark.parametrize(("capacity", "took"), [(2.0, 3.0), (1.0, 6.0), (0.5, 12.0)])
def test_two_concurrent_flows_share_a_nic(capacity: float, took: float) -> None:
    """Two ranks of one node send 3 bytes each at the same time, through one NIC."""
    program = parse_program("""
        0F0 0SEND_F0
        0F1 0SEND_F1
        1RECV_F0 1F0
        1RECV_F1 1F1
    """)
    takes = np.array([{0: 1.0, 4: 3.0}.get(int(op), 0.0) for op in program.op])
    shared = replace(nics_of(program, capacity=capacity), use_port=np.array([0, 6, 0, 7]))

    timeline = simulate(program, takes, "shared-links", network=shared)

    assert (timeline.end - timeline.start)[timeline.is_transfer] == pytest.approx([took, took])
