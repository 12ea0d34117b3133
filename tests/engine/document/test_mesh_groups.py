"""Groups of the devices of a mesh: one rule for the document, the simulator and the processes of a run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs.collective_flows import reduction_rings
from meshwave.engine.costs.device_sizes import device_sizes, device_workload
from meshwave.engine.costs.network import transfer_messages
from meshwave.engine.costs.stage_prices import MeshPrices
from meshwave.engine.document import Cluster, Design, Mesh, parse_design
from meshwave.engine.document.changes import apply_changes, find_changes
from meshwave.engine.document.differences import describe_differences
from meshwave.engine.lowering.lower import lower
from meshwave.engine.lowering.updates import weight_sharer_counts
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op
from meshwave.engine.runtime.communication.process_layout import MeshShape, ProcessLayout

Groups = set[frozenset[int]]
LINK = {"latency_s": 1e-6, "bandwidth": 1e11}


def document(axes: dict[str, int], *meshes: Sequence[int], nodes: int = 2) -> dict[str, Any]:
    devices = sum(map(len, meshes))
    device = {"peak_flops": 1e14, "memory_bytes": 8e10, "memory_bandwidth": 1e12}
    per_node = -(-devices // nodes)
    return {
        "format": "meshwave/1",
        "cluster": {
            "nodes": nodes,
            "devices_per_node": per_node,
            "device": device,
            "intra_node": LINK,
            "inter_node": {**LINK, "bandwidth": 1e9},
        },
        "model": {"kind": "gpt", "layers": 4, "hidden": 48, "heads": 12, "sequence": 16, "vocab": 300},
        "meshes": [{"name": f"m{n}", "devices": list(each), "axes": axes} for n, each in enumerate(meshes)],
        "pipeline": {"schedule": "1f1b", "microbatches": 2},
    }


def groups_of(devices: Sequence[int], axes: dict[str, int], axis: str) -> Groups:
    """Return groups by their definition: devices in row-major order over the axes, outermost first."""
    grid = np.reshape(devices, [*axes.values()])
    along = np.moveaxis(grid, [*axes].index(axis), -1)
    return group_sets(along.reshape(-1, axes[axis]).tolist())


def group_sets(groups: Iterable[Iterable[int]]) -> Groups:
    return {frozenset(group) for group in groups}


axes_of_two_meshes = st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 3, 4]), st.booleans(), st.integers(0, 999))


@given(drawn=axes_of_two_meshes)
def test_document_simulator_and_processes_have_the_same_groups(drawn: tuple[int, int, bool, int]) -> None:
    dp, tp, is_tp_outside, seed = drawn
    axes = {"tp": tp, "dp": dp} if is_tp_outside else {"dp": dp, "tp": tp}
    devices = random.Random(seed).sample(range(2 * dp * tp), 2 * dp * tp)
    design = parse_design(document(axes, devices[: dp * tp], devices[dp * tp :]))
    program = lower(design)
    layout = ProcessLayout(program, tuple(MeshShape(mesh.dp, mesh.tp) for mesh in design.meshes))
    place = design.process_devices

    for rank, mesh in enumerate(design.meshes):
        of_tp, of_dp = (groups_of(mesh.devices, axes, axis) for axis in ("tp", "dp"))
        assert (group_sets(mesh.groups("tp")), group_sets(mesh.groups("dp"))) == (of_tp, of_dp)
        assert all_reduced_groups(design.cluster, design, mesh) == (of_tp if tp > 1 else set())
        own = [group for group in layout.tp_groups() if layout.rank(group[0]) == rank]
        assert group_sets([place[process] for process in group] for group in own) == of_tp
        stage = program.stages_of(rank)[0]
        copies = [layout.stage_processes(stage, index) for index in range(tp)]
        assert group_sets([place[process] for process in group] for group in copies) == of_dp
        rings = reduction_rings(design, program, device_sizes(design, program, (2, 2)))
        assert group_sets(ring.devices for ring in rings[stage]) == of_dp
        assert weight_sharer_counts(design)[rank] == len(copies[0])
    if tp == 1:  # each copy sends to the copy of the same index
        pairs = {(message.source, message.destination) for message in transfer_messages(design, 0, 1, 1)}
        assert pairs == {(place[copy], place[dp + copy]) for copy in range(dp)}


def all_reduced_groups(cluster: Cluster, design: Design, mesh: Mesh) -> Groups:
    """Return the groups that the prices of a dense layer all-reduce."""
    found: Groups = set()

    def recording_search(cluster: Cluster, groups: Iterable[Iterable[int]], size: float, rounds: int = 2) -> float:
        found.update(group for group in group_sets(groups) if len(group) > 1)
        return 1.0

    assert MeshPrices(cluster, mesh, device_workload(design, mesh), collective=recording_search).layer.forward > 0
    return found


@pytest.mark.parametrize("order", [*permutations(["dp", "cp", "tp"])])
def test_ordered_devices_follow_dp_cp_and_tp(order: tuple[str, ...]) -> None:
    axes = {axis: {"dp": 2, "cp": 3, "tp": 2}[axis] for axis in order}
    mesh = Mesh.model_validate({"name": "A", "devices": tuple(range(12)), "axes": axes})

    assert group_sets(np.reshape(mesh.ordered_devices, (6, 2)).tolist()) == groups_of(range(12), axes, "tp")
    assert group_sets(mesh.groups("cp")) == groups_of(range(12), axes, "cp")
    assert mesh.place_on(mesh.ordered_devices).ordered_devices == mesh.ordered_devices


def test_the_order_of_the_axes_chooses_the_links() -> None:
    """Groups along the inner axis of four devices on two nodes are inside nodes, whose links are faster."""
    inside = seconds_by_op(parse_design(document({"dp": 2, "tp": 2}, range(4))))
    across = seconds_by_op(parse_design(document({"tp": 2, "dp": 2}, range(4))))

    assert across[Op.F] > 2 * inside[Op.F], "tensor-parallel groups"
    assert across[Op.REDUCE_GRAD] < inside[Op.REDUCE_GRAD] / 2, "data-parallel groups"
    assert across == seconds_by_op(parse_design(document({"dp": 2, "tp": 2}, [0, 2, 1, 3])))


def seconds_by_op(design: Design) -> dict[int, float]:
    prediction = predict(design)
    ops, seconds = prediction.program.op, prediction.costs.seconds
    return {op: float(seconds[ops == op].sum()) for op in np.unique(ops).tolist()}


def test_the_order_of_an_axis_of_size_one_has_no_effect() -> None:
    one, other = (parse_design(document(axes, range(4))) for axes in ({"dp": 4, "tp": 1}, {"tp": 1, "dp": 4}))

    assert one.process_devices == other.process_devices
    assert predict(one).timeline.makespan == predict(other).timeline.makespan


def test_another_order_of_axes_is_another_design() -> None:
    one, other = (parse_design(document(axes, range(4))) for axes in ({"dp": 2, "tp": 2}, {"tp": 2, "dp": 2}))

    assert one != other
    (change,) = find_changes(one.model_dump(mode="json"), other.model_dump(mode="json"))
    assert change.path == ("meshes", "m0", "axes")
    assert parse_design(apply_changes(one.model_dump(mode="json"), [change])) == other
    assert parse_design(other.to_json()) == other
    assert [*parse_design(other.to_json()).meshes[0].axes] == ["tp", "dp"]
    assert describe_differences(one, other) == [
        "mesh m0: 4 devices from 0 (dp 2 x tp 2) -> 4 devices from 0 (tp 2 x dp 2)"
    ]
    moved = parse_design(document({"dp": 2, "tp": 2}, [0, 2, 1, 3]))
    assert describe_differences(one, moved) == [
        "mesh m0: 4 devices from 0 (dp 2 x tp 2) -> devices 0, 2, 1, 3 (dp 2 x tp 2)"
    ]
