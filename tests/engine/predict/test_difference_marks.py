"""Marks at the differences between two designs."""

from __future__ import annotations

from typing import Any

from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.differences import describe_differences
from meshwave.engine.predict.difference_marks import expert_marks, mesh_marks, stage_marks
from meshwave.engine.predict.prediction import predict
from tests._strategies import document


def pipeline_design(ranks: int = 4, **pipeline: Any) -> Design:
    return parse_design(document({"schedule": "1f1b", "microbatches": 4, **pipeline}, ranks))


def changed_design(design: Design, **sections: Any) -> Design:
    return parse_design({**design.model_dump(mode="json"), **sections})


def on_devices(design: Design, *devices: list[int], names: str = "") -> Design:
    """Return the design with meshes on these devices of two nodes of four."""
    meshes = [
        {"name": names[rank] if names else f"m{rank}", "devices": each, "axes": {"dp": len(each), "tp": 1}}
        for rank, each in enumerate(devices)
    ]
    cluster = {**design.model_dump(mode="json")["cluster"], "nodes": 2, "devices_per_node": 4}
    return changed_design(design, cluster=cluster, meshes=meshes)


def test_meshes_are_marked_where_they_moved_or_changed_their_size() -> None:
    before = on_devices(pipeline_design(), [0], [1], [2], [3])
    after = on_devices(pipeline_design(), [0], [5], [2, 6], [3])

    moved, resized = mesh_marks(after, before)
    assert (moved.kind, moved.name, moved.rank, moved.devices) == ("moved", "m1", 1, (1,))
    assert (resized.kind, resized.rank, resized.devices) == ("resized", 2, (2,))
    assert [moved.words, resized.words] == [
        line for line in describe_differences(before, after) if line.startswith("mesh ")
    ]


def test_the_order_of_devices_and_axes_are_marked_without_another_place() -> None:
    before = on_devices(pipeline_design(2), [0, 1], [2, 3])
    after = on_devices(pipeline_design(2), [1, 0], [2, 3])

    assert [(mark.kind, mark.rank) for mark in mesh_marks(after, before)] == [("axes", 0)]


def test_an_added_and_a_removed_mesh_are_marked_by_name() -> None:
    before = on_devices(pipeline_design(3), [0], [1], [2], names="ABC")
    removed = on_devices(pipeline_design(2), [0], [2], names="AC")

    (mark,) = mesh_marks(removed, before)
    assert (mark.kind, mark.name, mark.rank, mark.devices) == ("removed", "B", -1, (1,))
    (mark,) = mesh_marks(before, removed)
    assert (mark.kind, mark.name, mark.rank, mark.devices) == ("added", "B", 1, ())


def test_places_in_another_cluster_keep_node_and_column_or_are_left_out() -> None:
    before = on_devices(pipeline_design(), [0], [1], [3], [4])
    meshes = [{"name": f"m{at}", "devices": [at], "axes": {"dp": 1, "tp": 1}} for at in range(4)]
    cluster = {**before.model_dump(mode="json")["cluster"], "devices_per_node": 2}
    narrow = changed_design(before, cluster=cluster, meshes=meshes)

    assert [(mark.name, mark.devices) for mark in mesh_marks(narrow, before)] == [("m2", ()), ("m3", (2,))]


def test_stages_are_marked_on_another_mesh_and_with_other_layers() -> None:
    before, after = (pipeline_design(stages=layers) for layers in ([59, 61, 60, 60], [60, 60, 60, 60]))
    marks = stage_marks(predict(after), predict(before))

    assert [(mark.kind, mark.stage, mark.layers) for mark in marks] == [("layers", 0, 1), ("layers", 1, -1)]
    assert marks[0].words == "stage 0: 59 -> 60 layers"


def test_stages_of_another_schedule_are_marked_as_moved_or_added() -> None:
    before, after = predict(pipeline_design()), predict(pipeline_design(schedule="hanayo", waves=1))
    marks = stage_marks(after, before)

    stages = after.program.stages
    assert [mark.stage for mark in marks if mark.kind == "added"] == list(range(4, stages))
    back = predict(pipeline_design(schedule="chimera"))
    routes = [each.program.placement.tolist() for each in (before, back)]
    moved = [mark for mark in stage_marks(back, before) if mark.kind == "moved"]
    assert [(mark.stage, mark.mesh) for mark in moved if not mark.replica] == [
        (stage, old) for stage, (old, new) in enumerate(zip(routes[0][0], routes[1][0], strict=False)) if old != new
    ]


def test_equal_designs_have_no_marks() -> None:
    design = pipeline_design()
    assert not mesh_marks(design, design)
    assert not stage_marks(predict(design), predict(design))
    assert not expert_marks([[0], [1]], [[0], [1]], ["A", "B"])


def test_experts_are_marked_on_places_that_they_left_or_reached() -> None:
    marks = expert_marks([[0], [1, 2]], [[0, 1], [2]], ["device 0", "device 1"])

    assert [(mark.kind, mark.expert, mark.place) for mark in marks] == [("removed", 1, 0), ("added", 1, 1)]
    assert expert_marks([[0]], [[0], [1]], ["device 0"]) == []
