"""Groups of the lanes of a timeline."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.designer.pages.timeline_layers import prediction_layer
from meshwave.designer.views.block_layers import block_layers
from meshwave.designer.views.lane_groups import LaneGroups, group_choices, group_lanes, group_ports
from meshwave.engine.document import Design, parse_design
from meshwave.engine.files import find_design
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.shared_links import Port
from tests.designer.timelines import one_f_one_b


def lanes_by_criterion(found: Sequence[LaneGroups]) -> dict[str, list[str]]:
    """Return the group of each lane by criterion."""
    return {groups.by: [groups.names[number] for number in groups.of] for groups in found}


def example(name: str, **pipeline: object) -> Design:
    document = parse_design(find_design(name).read_bytes()).model_dump(mode="json")
    document["pipeline"] = pipeline or document["pipeline"]
    return parse_design(document)


def test_lanes_are_grouped_by_the_nodes_of_their_meshes() -> None:
    design = example("02-two-waves")
    document = design.model_dump(mode="json")
    document["cluster"] |= {"nodes": 2, "devices_per_node": design.cluster.devices // 2}
    two_nodes = parse_design(document)
    found = lanes_by_criterion(prediction_layer(predict(two_nodes), "two nodes").groups)

    expected = [sorted({two_nodes.cluster.node_of(device) for device in mesh.devices}) for mesh in two_nodes.meshes]
    assert found["node"] == [f"node {nodes[0]}" for nodes in expected]
    assert len(set(found["node"])) == 2


def test_ports_belong_to_the_group_that_alone_uses_their_devices() -> None:
    document = example("02-two-waves").model_dump(mode="json")
    document["cluster"] |= {"nodes": 2, "devices_per_node": 2}
    design = parse_design(document)
    groups = [
        LaneGroups("node", ("node 0", "node 1"), (0, 0, 1, 1)),
        LaneGroups("rank", ("rank 0, 2", "rank 1, 3"), (0, 1, 0, 1)),
    ]
    ports = [Port("nic-out", 1), Port("link-in", 2), Port("uplink-in", 0)]
    assert group_ports(ports, groups, design) == {"node": [1, 1, -1], "rank": [-1, 0, -1]}


def test_lanes_that_hold_the_same_stages_form_a_group() -> None:
    design = example("02-two-waves", schedule="chimera", microbatches=8)
    found = lanes_by_criterion(prediction_layer(predict(design), "chimera").groups)

    assert found["stages"] == found["stages"][::-1]  # ranks that face each other hold the same stages
    assert found["stages"][0] == f"stages 0, {len(design.meshes) - 1}"


def test_groups_that_hold_all_lanes_or_one_lane_each_are_left_out() -> None:
    assert group_lanes(one_f_one_b(8, 4)) == ()
    (ranks,) = group_lanes(one_f_one_b(20, 4))
    assert ranks.by == "rank"
    assert list(ranks.names) == ["rank 0-7", "rank 8-15", "rank 16-19"]


def test_lanes_inside_a_block_are_grouped_by_device_and_by_kind() -> None:
    (layer, *_), _ = block_layers(predict(example("16-gpt2-moe")), 0, Action(Op.F, 0, 0))
    found = lanes_by_criterion(layer.groups)

    assert "compute" in found["kind"]
    names = layer.timeline.meshes
    assert [f"{device} {kind}" for device, kind in zip(found["device"], found["kind"], strict=True)] == [
        f"device {name}" for name in names
    ]


def test_a_comparison_with_a_run_can_be_grouped_by_kind() -> None:
    groups = group_lanes(one_f_one_b(16, 4))
    assert [choice["by"] for choice in group_choices([groups], is_compared=False)] == ["rank"]
    assert [choice["by"] for choice in group_choices([groups, groups], is_compared=True)] == ["rank", "kind"]
