"""The network of a design: the ports of its flows, and that sharing of ports explains measured times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs.alpha_beta import Message, collective_seconds
from meshwave.engine.costs.boundary_transfers import boundary_tensor
from meshwave.engine.costs.contention import LinkSharing
from meshwave.engine.costs.fabric import Fabric, ring_messages
from meshwave.engine.costs.network import exchange_usage, transfer_messages
from meshwave.engine.document import Cluster, Design, parse_design
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op
from meshwave.engine.program.shared_links import Port
from meshwave.engine.program.simulation import simulate
from meshwave.engine.resharding.strategies import strategies
from tests.engine.program.slow_network import SlowNetwork
from tests.engine.program.test_simulation import spans_of

DEVICE = {"name": "d", "peak_flops": 6e11, "memory_bytes": 4e9, "memory_bandwidth": 1.2e12, "efficiency": 0.5}
TRAINING = {"micro_batch_size": 16, "precision": "fp32"}
NEAR, FAR = {"latency_s": 1e-5, "bandwidth": 1e9}, {"latency_s": 1e-4, "bandwidth": 25e6}


def cluster_of(nodes: int = 2, per_node: int = 2, **more: Any) -> Cluster:
    given = {"nodes": nodes, "devices_per_node": per_node, "device": DEVICE, "intra_node": NEAR, "inter_node": FAR}
    return Cluster.model_validate({**given, **more})


def design_of(
    pipeline: Mapping[str, Any], meshes: list[tuple[list[int], int]], cluster: Cluster | None = None, **more: Any
) -> Design:
    """Return a GPT design on meshes given as (devices, tp)."""
    drawn = [
        {"name": f"m{rank}", "devices": devices, "axes": {"dp": len(devices) // tp, "tp": tp}}
        for rank, (devices, tp) in enumerate(meshes)
    ]
    document = {
        "format": "meshwave/1",
        "cluster": (cluster or cluster_of()).model_dump(mode="json"),
        "model": {"kind": "gpt", "layers": 16, "hidden": 256, "heads": 4, "sequence": 128, "vocab": 257},
        "meshes": drawn,
        "pipeline": {"microbatches": 8, **pipeline},
        "training": TRAINING,
        **more,
    }
    return parse_design(document)


def kinds_of(message: tuple[int, int], cluster: Cluster, sharing: LinkSharing | None = None) -> list[Port]:
    fabric = Fabric(cluster, sharing) if sharing else Fabric(cluster)
    return list(fabric.ports(*message))


def test_a_message_inside_a_node_passes_the_links_of_both_devices() -> None:
    assert kinds_of((0, 1), cluster_of()) == [Port("link-out", 0), Port("link-in", 1)]
    drawn = cluster_of(node_bandwidth=5e8)
    assert kinds_of((0, 1), drawn)[-1] == Port("switch", 0)
    assert Fabric(drawn).capacity(Port("switch", 0)) == 5e8


def test_a_message_between_nodes_passes_both_nics() -> None:
    assert kinds_of((0, 3), cluster_of()) == [Port("nic-out", 0), Port("nic-in", 1)]
    several = cluster_of(nics_per_node=2)
    assert set(kinds_of((0, 3), several)) - set(kinds_of((0, 3), cluster_of())) == {
        Port("device-out", 0),
        Port("device-in", 3),
    }
    assert Fabric(several).capacity(Port("nic-out", 0)) == 2 * FAR["bandwidth"]


def test_a_message_between_leaf_switches_passes_their_uplinks() -> None:
    cluster = cluster_of(nodes=4, uplink={"nodes": 2, "bandwidth": 30e6})

    assert Port("uplink-out", 0) not in kinds_of((0, 3), cluster)
    assert kinds_of((0, 7), cluster)[-2:] == [Port("uplink-out", 0), Port("uplink-in", 1)]
    assert Fabric(cluster).capacity(Port("uplink-in", 1)) == 30e6


def test_a_calibration_determines_the_contention_of_two_messages() -> None:
    measured = LinkSharing(1.5, 1.2, 0.8, 1.0)

    assert kinds_of((0, 1), cluster_of(), measured)[-1] == Port("switch", 0)
    assert set(kinds_of((0, 3), cluster_of(), measured)) >= {Port("nic-both", 0), Port("nic-both", 1)}
    fabric = Fabric(cluster_of(), measured)
    assert fabric.capacity(Port("switch", 0)) == pytest.approx(1.2e9)
    assert fabric.capacity(Port("nic-out", 0)) == pytest.approx(1.5 * 25e6)
    assert fabric.capacity(Port("nic-both", 0)) == pytest.approx(2 * 0.8 * 1.5 * 25e6)


@pytest.mark.parametrize("group", [(0, 1), (0, 2), (0, 1, 2, 3), (3, 0, 2)])
def test_a_ring_sends_the_minimum_of_bytes_and_takes_its_priced_time(group: tuple[int, ...]) -> None:
    cluster, size = cluster_of(), 1e6

    messages = ring_messages(group, size)

    n = len(group)
    assert sum(each.bytes for each in messages) == pytest.approx(2 * (n - 1) * size)
    assert Counter(each.source for each in messages) == Counter(each.destination for each in messages) == Counter(group)
    nodes = {cluster.node_of(device) for device in group}
    leaving = [m for m in messages if cluster.node_of(m.source) != cluster.node_of(m.destination)]
    assert len(leaving) == (len(nodes) if len(nodes) > 1 else 0), "through each node once"
    link = cluster.inter_node if leaving else cluster.intra_node
    busiest = max(Fabric(cluster).usage(messages).values())
    assert busiest / link.bandwidth + 2 * (n - 1) * link.latency_s == pytest.approx(
        collective_seconds(cluster, [group], size)
    )


WAVES = {"schedule": "hanayo", "waves": 2}
CHUNKS = {"schedule": "interleaved-1f1b", "chunks": 4}


@pytest.mark.parametrize("pipeline", [WAVES, CHUNKS], ids=["hanayo", "interleaved"])
def test_a_step_is_never_shorter_than_its_bytes_over_the_nic(pipeline: Mapping[str, Any]) -> None:
    """Regression test: 56 messages of 2.1 MB per direction at 25 MB/s need 4.7 s."""
    apart = cluster_of(per_node=1)
    prediction = predict(design_of(pipeline, [([0], 1), ([1], 1)], apart))
    program, size = prediction.program, prediction.costs.bytes

    ways = [size[program.is_send & (program.rank == rank)].sum() / FAR["bandwidth"] for rank in (0, 1)]

    assert prediction.timeline.makespan >= max(ways)
    free = design_of(pipeline, [([0], 1), ([1], 1)], apart, cost={"kind": "roofline", "transfer_model": "latency"})
    if pipeline is CHUNKS:
        assert predict(free).timeline.makespan < max(ways) * 1.05 < prediction.timeline.makespan * 1.05


DESIGNS: Mapping[str, Design] = {
    "alternating nodes": design_of({"schedule": "eager-1f1b"}, [([0], 1), ([2], 1), ([1], 1), ([3], 1)]),
    "data parallel": design_of({"schedule": "1f1b"}, [([0, 2], 1), ([1, 3], 1)]),
    "tensor parallel across nodes": design_of({"schedule": "1f1b"}, [([0, 2], 2), ([1, 3], 2)]),
    "unequal": design_of({"schedule": "1f1b"}, [([0, 2], 2), ([1, 3], 1)]),
    "sharded states": design_of(
        {"schedule": "zb-h1"},
        [([0, 2], 1), ([1, 3], 1)],
        training={**TRAINING, "sharding": "optimizer", "clip_norm": 1.0},
    ),
    "sharded gradients": design_of(
        {"schedule": "1f1b"}, [([0, 2], 1), ([1, 3], 1)], training={**TRAINING, "sharding": "gradients"}
    ),
    "sharded weights": design_of(
        {"schedule": "1f1b", "recompute": "full"},
        [([0, 2], 1), ([1, 3], 1)],
        training={**TRAINING, "sharding": "parameters", "unsharded_stages": 0},
    ),
    "several nics": design_of({"schedule": "1f1b"}, [([0, 2], 1), ([1, 3], 1)], cluster_of(nics_per_node=2)),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_simulated_designs_equal_a_reference_network(name: str) -> None:
    prediction = predict(DESIGNS[name])
    network = prediction.costs.network
    assert network is not None

    slow = SlowNetwork(prediction.program, prediction.costs.seconds, network).play()

    found = spans_of(prediction.timeline)
    for task, (_, end) in slow.items():
        assert found[task][1] == pytest.approx(end, rel=1e-6), task


@pytest.mark.parametrize("name", DESIGNS)
def test_a_flow_without_contention_takes_its_priced_time(name: str) -> None:
    """No kind of flow exceeds the capacity of its ports."""
    prediction = predict(DESIGNS[name])
    network, program = prediction.costs.network, prediction.program
    assert network is not None

    for kind in range(len(network.rate)):
        uses = slice(network.use_ptr[kind], network.use_ptr[kind + 1])
        ports = network.use_port[uses]
        assert (network.use_weight[uses] * network.rate[kind] <= network.capacity[ports] * (1 + 1e-9)).all()
    sizes = np.concatenate((network.bytes_of(program, prediction.costs.seconds), network.beside_bytes))
    kinds = np.concatenate((network.row_kind, network.beside_kind))
    alone = network.latency_s + sizes[[np.flatnonzero(kinds == kind)[0] for kind in range(len(network.rate))]]
    assert (alone > 0).all()


def test_all_messages_of_a_design_are_on_its_network() -> None:
    program = (prediction := predict(DESIGNS["tensor parallel across nodes"])).program
    network = prediction.costs.network
    assert network is not None

    flows = network.row_kind >= 0
    assert flows[program.is_send].all()
    for op, rank in product((Op.F, Op.B), (0, 1)):
        rows = (program.op == op) & (program.rank == rank)
        assert flows[rows].all() and (network.exchange_s[rows] > 0).all() and (network.parts[rows] > 1).all()
    assert not flows[program.op == Op.STEP].any()
    copies = predict(DESIGNS["data parallel"])
    assert copies.costs.network is not None
    assert (copies.costs.network.row_kind[copies.program.op == Op.REDUCE_GRAD] >= 0).all()


def test_weights_that_two_optimizer_steps_gather_share_the_nics() -> None:
    """All gradients must be reduced before the first step, so that both meshes gather at once."""
    prediction = predict(DESIGNS["sharded states"])
    program, timeline, network = prediction.program, prediction.timeline, prediction.costs.network
    steps = np.flatnonzero(timeline.op == Op.STEP)
    assert network is not None and len(steps) == 2
    weights = [
        4.0 * layers * (12 * 256**2 + 13 * 256) for layers in prediction.costs.layers
    ]  # without embedding and head
    needed = sum(weights) / 2 / FAR["bandwidth"]  # a device sends the half that it has updated

    took = timeline.end[steps].max() - timeline.start[steps].min()

    assert needed < took < 1.1 * needed
    assert prediction.costs.seconds[program.op == Op.STEP].max() < 0.6 * took, "a step alone"
    assert (network.row_kind[program.op == Op.STEP] >= 0).all()


@pytest.mark.parametrize(
    ("name", "per_microbatch", "per_step"),
    [("sharded states", 0, 2), ("sharded gradients", 1, 1), ("sharded weights", 4, 0)],
)
def test_gathers_and_scatters_of_all_microbatches_pass_the_nics(name: str, per_microbatch: int, per_step: int) -> None:
    """Both meshes have a device on each node; with recomputation, weights are gathered three times."""
    prediction = predict(DESIGNS[name])

    whole = 4.0 * prediction.numbers["parameters"]
    sent = (
        (8 * per_microbatch + per_step) * whole / 2
    )  # of each round, a device sends the half that it owns or does not

    loads = {load.port.kind: load for load in prediction.port_loads}
    assert loads["nic-out"].bytes == pytest.approx(sent, rel=1e-3)
    assert loads["nic-in"].bytes == pytest.approx(sent, rel=1e-3)
    assert prediction.timeline.makespan > sent / FAR["bandwidth"]


def test_given_costs_of_stages_are_kept_where_gathers_would_take_longer() -> None:
    column = [0.2, 0.2]
    given = {"kind": "roofline", "stage_costs": {"forward": column, "input": column, "weight": column}}
    meshes, state = [([0, 2], 1), ([1, 3], 1)], {"sharding": "parameters", "unsharded_stages": 0}
    designs = [
        design_of({"schedule": "1f1b"}, meshes, training={**TRAINING, **state}, **cost)
        for cost in ({}, {"cost": given})
    ]
    model, kept = map(predict, designs)
    forwards = kept.program.op == Op.F

    assert kept.costs.seconds[forwards] == pytest.approx(0.2)
    assert model.costs.seconds[forwards].min() > 0.5


def test_short_documents_take_at_least_as_long_as_the_gathers_beside_them() -> None:
    """The switch of the node slows the gathers."""
    shape = {"layers": 16, "hidden": 64, "heads": 4, "ffn": 256, "sequence": 128, "vocab": 256}
    state = {"micro_batch_size": 2, "sharding": "parameters", "unsharded_stages": 0}
    documents = {"document_end": 10, "document_lengths": [16], "pad_documents": True}
    costs = predict(
        design_of(
            {"schedule": "1f1b"},
            [([0, 1], 1)],
            cluster_of(intra_node={"latency_s": 1e-6, "bandwidth": 1e10}, node_bandwidth=1.2e10),
            model={"kind": "transformer", "positions": {"kind": "rope"}, **shape},
            training={**state, **documents},
        )
    ).costs

    assert costs.network is not None
    assert costs.network.beside_s.max() > 0
    assert (costs.seconds >= costs.network.beside_s).all()


def test_both_ends_of_a_pipeline_sum_the_gradients_of_a_tied_table_over_their_link() -> None:
    shape = {"layers": 16, "hidden": 256, "heads": 4, "sequence": 128, "vocab": 4096}
    tied = {"kind": "transformer", "tied_embeddings": True, **shape}
    prediction = predict(design_of({"schedule": "1f1b"}, [([0], 1), ([2], 1)], model=tied))
    program, network = prediction.program, prediction.costs.network
    assert network is not None
    steps = np.flatnonzero(program.op == Op.STEP)

    sent = network.bytes_of(program, prediction.costs.seconds)[steps]

    assert sent == pytest.approx([4096 * 256 * 4] * 2)  # a ring of two devices sends the table once in each direction
    ports = [network.ports[port].kind for port in network.use_port[network.use_ptr[network.row_kind[steps[0]]] :][:2]]
    assert ports == ["nic-out", "nic-in"]


def test_messages_between_the_same_devices_are_one_connection_in_each_direction() -> None:
    network = predict(DESIGNS["alternating nodes"]).costs.network
    program = predict(DESIGNS["alternating nodes"]).program
    assert network is not None

    pairs: dict[int, set[tuple[int, int]]] = {}
    for row in np.flatnonzero(program.is_send).tolist():
        line = int(network.connection[network.row_kind[row]])
        pairs.setdefault(line, set()).add((int(program.rank[row]), int(program.peer[row])))
    assert all(len(each) == 1 for each in pairs.values())
    assert len(pairs) == 6


def test_link_serial_limits_each_nic_to_one_transfer() -> None:
    """Both messages of a node wait for its only NIC, although they belong to different pairs of meshes."""
    cost = {"kind": "unit", "forward": 1, "backward": 2, "transfer": 1, "transfer_model": "link-serial"}
    one = predict(design_of({"schedule": "gpipe"}, [([0], 1), ([2], 1), ([1], 1), ([3], 1)], cost=cost)).timeline
    two = predict(
        design_of(
            {"schedule": "gpipe"}, [([0], 1), ([2], 1), ([1], 1), ([3], 1)], cluster_of(nics_per_node=2), cost=cost
        )
    ).timeline

    sends = np.flatnonzero(one.is_transfer)
    node = one.rank[sends] % 2  # ranks 0 and 2 are on node 0
    for side in (0, 1):
        spans = sorted(zip(one.start[sends][node == side], one.end[sends][node == side], strict=True))
        assert all(later[0] >= earlier[1] - 1e-9 for earlier, later in zip(spans, spans[1:], strict=False))
    assert two.makespan < one.makespan


def test_a_slot_hides_the_given_share_of_communication() -> None:
    """The compute of each action in a slot hides none, half or all of the exchanges of the other."""
    pipeline = {"schedule": "dualpipe", "microbatches": 8}
    meshes = [([0, 1], 2), ([2, 3], 2)]

    def step(overlap: float) -> float:
        cost = {"kind": "roofline", "overlap": overlap, "transfer_model": "latency"}
        return predict(design_of(pipeline, meshes, cost=cost)).timeline.makespan

    none, half, everything = step(0.0), step(0.5), step(1.0)
    assert everything < half < none


def test_a_message_to_itself_passes_no_port() -> None:
    assert Fabric(cluster_of()).usage([Message(1, 1, 5.0)]) == {}


@pytest.mark.parametrize("boundary", ["batch", "sequence", "hidden"])
@pytest.mark.parametrize("strategy", list(strategies))
def test_every_receiver_of_a_plan_gets_all_its_bytes(strategy: str, boundary: str) -> None:
    """The messages of the network deliver the whole tensor for any plan."""
    design = design_of(
        {"schedule": "1f1b"}, [([0, 1], 2), ([2, 3], 1)], transfer={"strategy": strategy, "boundary": boundary}
    )

    for source, destination in ((0, 1), (1, 0)):
        messages = list(transfer_messages(design, source, destination, 1))
        ends = design.meshes[destination]
        needed = boundary_tensor(design).bytes / ends.dp
        for device in ends.devices:
            came = sum(each.bytes for each in messages if each.destination == device)
            assert came >= needed * (1 - 1e-9), (device, messages)


# ---- flows that a port slows even when alone ----


@pytest.mark.parametrize("bandwidth", [2.5e7, 2.5e6])
def test_a_drawn_uplink_slows_messages_that_pass_it(bandwidth: float) -> None:
    """Two replicas send through the uplink of their leaf switch at the same time."""
    meshes = [([0, 1], 1), ([2, 3], 1)]
    wide = cluster_of(nodes=4, per_node=1)
    narrow = cluster_of(nodes=4, per_node=1, uplink={"nodes": 2, "bandwidth": bandwidth})

    free, slowed = (predict(design_of({"schedule": "gpipe"}, meshes, each)) for each in (wide, narrow))

    sends = slowed.program.is_send & (slowed.program.rank == 0)
    through = 2 * slowed.costs.bytes[sends].sum() / bandwidth
    assert slowed.timeline.makespan >= through
    assert slowed.timeline.makespan > free.timeline.makespan


def test_a_drawn_switch_slows_the_collectives_of_its_node() -> None:
    meshes = [([0, 1, 2, 3], 4)]
    free, slowed = (
        predict(design_of({"schedule": "gpipe"}, meshes, cluster_of(nodes=1, per_node=4, **more)))
        for more in ({}, {"node_bandwidth": 1e7})
    )

    assert slowed.timeline.makespan > 2 * free.timeline.makespan


def test_exchanges_of_experts_stay_in_their_block() -> None:
    """Blocks of two devices below one leaf switch send nothing over its uplink."""
    cluster = cluster_of(nodes=4, per_node=1, uplink={"nodes": 2, "bandwidth": 1e6})

    usage = exchange_usage(Fabric(cluster), [0, 1, 2, 3], [[0.0, 0.0], [100.0, 100.0]])

    assert not any(port.kind.startswith("uplink") for port in usage)
    assert usage[Port("nic-out", 2)] == 100.0


def test_exchanges_of_a_block_are_those_of_its_pairs() -> None:
    """The bytes on each port are equal if they are counted by nodes or by pairs of devices."""
    cluster = cluster_of(nodes=2, per_node=3, nics_per_node=2, node_bandwidth=1e9)
    fabric, block = Fabric(cluster), [0, 1, 3, 4, 5]
    near, far = [30.0, 10.0, 8.0, 4.0, 2.0], [6.0, 12.0, 20.0, 40.0, 2.0]

    pairs = []
    for place, device in enumerate(block):
        for others, size in (
            ([o for o in block if o != device and cluster.node_of(o) == cluster.node_of(device)], near[place]),
            ([o for o in block if cluster.node_of(o) != cluster.node_of(device)], far[place]),
        ):
            pairs += [Message(device, other, size / len(others)) for other in others]

    assert exchange_usage(fabric, block, [near, far]) == pytest.approx(fabric.usage(pairs))


def test_a_shared_slot_has_the_exchanges_of_both_actions() -> None:
    """It takes as long as both actions one after the other, and is never faster on shared links than on free ones."""
    pipeline = {"schedule": "dualpipe", "microbatches": 8, "stages": [1, 7, 1, 7]}
    meshes = [([0, 1], 2), ([2, 3], 2), ([4, 5], 2), ([6, 7], 2)]
    cluster = cluster_of(nodes=8, per_node=1)

    shared, free = (
        predict(design_of(pipeline, meshes, cluster, cost={"kind": "roofline", "transfer_model": model}))
        for model in ("shared-links", "latency")
    )

    assert shared.program.fused.any()
    assert (shared.timeline.end >= free.timeline.end - 1e-9).all()
    network = shared.costs.network
    assert network is not None
    second = np.flatnonzero(shared.program.fused)
    assert (network.row_kind[second] < 0).all() and (network.exchange_s[second] == 0).all()
    alone = [shared.costs.network.exchange_s[row - 1] for row in second]
    assert min(alone) > 0


def test_a_faster_mesh_waits_for_the_exchanges_of_its_own_layers() -> None:
    """What-if questions shorten the whole action, including its exchanges."""
    prediction = predict(design_of({"schedule": "gpipe"}, [([0, 2], 2)]))
    half = np.where(prediction.program.is_compute, 0.5, 1.0) * prediction.costs.seconds

    answer = prediction.costs.simulate(prediction.program, half).makespan

    assert answer < 0.6 * prediction.timeline.makespan


@pytest.mark.parametrize("in_order", [False, True])
def test_messages_of_a_device_share_its_nic_or_leave_in_order(in_order: bool) -> None:
    """Meshes on nodes 0, 1, 0 and 1 send activations and gradients to different devices of the other node."""
    cluster = cluster_of(inter_node={**FAR, "latency_s": 0.0}, sends_in_order=in_order)
    meshes = [([0], 1), ([2], 1), ([1], 1), ([3], 1)]

    timeline = predict(design_of({"schedule": "interleaved-1f1b"}, meshes, cluster)).timeline

    sends = timeline.is_transfer & (timeline.rank == 1)
    start, end = timeline.start[sends], timeline.end[sends]
    order = np.argsort(start)
    assert (start[order][1:] >= end[order][:-1] - 1e-9).all() == in_order


def test_link_serial_has_only_nics_and_links_as_ports() -> None:
    cost = {"kind": "unit", "forward": 1, "backward": 2, "transfer": 1, "transfer_model": "link-serial"}
    meshes = [([0], 1), ([1], 1), ([2], 1), ([3], 1)]
    plain, drawn = (
        predict(design_of({"schedule": "gpipe"}, meshes, cluster_of(nodes=4, per_node=1, **more), cost=cost))
        for more in ({}, {"uplink": {"nodes": 1, "bandwidth": 1e9}, "node_bandwidth": 1e9})
    )

    assert plain.timeline.makespan == drawn.timeline.makespan


@pytest.mark.parametrize("name", DESIGNS)
def test_ports_with_equal_flows_are_simulated_as_one(name: str) -> None:
    """Times do not change if ports that cannot be full are removed, and ports with the same flows are merged."""
    prediction = predict(DESIGNS[name])
    network, program, seconds = prediction.costs.network, prediction.program, prediction.costs.seconds
    assert network is not None

    whole = replace(network)
    whole.__dict__["coupling"] = whole  # nothing is left out
    assert len(network.coupled_network.ports) <= len(network.ports)
    simulated, every = (simulate(program, seconds, "shared-links", network=each) for each in (network, whole))

    assert simulated.end == pytest.approx(every.end, rel=1e-9)
