"""Edits of a design by gestures on the canvases, without a browser."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwave.designer.canvases.cluster import ClusterCanvas, format_rate, link_labels
from meshwave.designer.canvases.wave import WaveCanvas, schedule_choices, schedule_thumbnail, stage_routes
from meshwave.designer.state import design_edits as edits
from meshwave.designer.state import mesh_edits
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.field_limits import field_limit
from meshwave.designer.state.mesh_edits import Tiling
from meshwave.engine.costs.boundary_transfers import boundary_bytes, boundary_seconds
from meshwave.engine.document import Design, Training, parse_design
from meshwave.engine.document import Mesh as MeshPart
from meshwave.engine.errors import InputError
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.schedules import schedules
from meshwave.engine.units import quantity
from tests._findings import refusal

CLUSTER = {"nodes": 2, "devices_per_node": 4}
sizes = st.integers(1, 6)


def mesh(name: str, *devices: int, tp: int = 1) -> dict[str, Any]:
    return {"name": name, "devices": list(devices), "axes": {"dp": len(devices) // tp, "tp": tp}}


A, B = mesh("A", 0, 1), mesh("B", 4, 5)


def document(**pipeline: Any) -> dict[str, Any]:
    """Four meshes of one device on two nodes of four, 16 layers."""
    link = {"latency_s": 1e-5, "bandwidth": 25e9}
    return {
        "format": "meshwave/1",
        "cluster": {
            **CLUSTER,
            "device": {
                "name": "A100",
                "peak_flops": 312e12,
                "memory_bytes": 80e9,
                "memory_bandwidth": 2e12,
                "efficiency": 0.5,
            },
            "intra_node": {**link, "bandwidth": 300e9},
            "inter_node": link,
        },
        "model": {"kind": "gpt", "layers": 16, "hidden": 256, "heads": 4, "sequence": 128, "vocab": 1000},
        "meshes": [mesh(name, device) for name, device in zip("ABCD", (0, 1, 4, 5), strict=True)],
        "pipeline": {"schedule": "hanayo", "waves": 1, "microbatches": 4, **pipeline},
    }


# meshes


def test_a_new_mesh_becomes_the_last_rank_with_the_next_letter() -> None:
    meshes = mesh_edits.draw_mesh((A, B), CLUSTER, [2, 3, 6, 7])

    assert meshes == (A, B, {"name": "C", "devices": (2, 3, 6, 7), "axes": {"dp": 4, "tp": 1}})


@pytest.mark.parametrize(
    ("devices", "code", "params"),
    [
        ([1, 2], "taken_device", {"device": 1, "mesh": "A"}),
        ([2, 7], "incomplete_rectangle", {"device": 3}),
        ([8], "unknown_cluster_device", {"device": 8, "last": 7}),
        ([], "mesh_without_devices", {}),
        ([2, 2], "repeated_mesh_device", {}),
    ],
)
def test_an_invalid_rectangle_is_refused(devices: list[int], code: str, params: dict[str, Any]) -> None:
    problem = refusal(lambda: mesh_edits.draw_mesh((A, B), CLUSTER, devices))

    assert (problem.code, problem.params) == (code, params)


def test_a_moved_mesh_keeps_its_axes_and_may_overlap_its_old_place() -> None:
    assert mesh_edits.move_mesh((mesh("A", 0, 1, tp=2),), CLUSTER, 0, [1, 2]) == (
        {"name": "A", "devices": (1, 2), "axes": {"dp": 1, "tp": 2}},
    )
    taken = refusal(lambda: mesh_edits.move_mesh((A, B), CLUSTER, 0, [4, 5]))
    assert (taken.code, taken.params) == ("taken_device", {"device": 4, "mesh": "B"})
    fewer = refusal(lambda: mesh_edits.move_mesh((A, B), CLUSTER, 0, [2]))
    assert (fewer.code, fewer.params) == ("moved_mesh_size", {"mesh": "A", "devices": 2, "given": 1})


@pytest.mark.parametrize(("devices", "axes"), [([0, 1, 2, 3], (2, 2)), ([0, 1, 2], (3, 1)), ([0], (1, 1))])
def test_a_resized_mesh_keeps_the_largest_tp_that_divides_it(devices: list[int], axes: tuple[int, int]) -> None:
    (resized,) = mesh_edits.resize_mesh((mesh("A", 0, 1, tp=2),), CLUSTER, 0, devices)

    assert (resized["axes"]["dp"], resized["axes"]["tp"]) == axes


def test_meshes_are_renamed_reordered_and_deleted() -> None:
    assert [m["name"] for m in mesh_edits.reorder_meshes((A, B), 0, 1)] == ["B", "A"]
    assert mesh_edits.rename_mesh((A, B), 0, "  first  stage ")[0]["name"] == "first stage"
    assert mesh_edits.delete_mesh((A, B), 0) == (B,)
    taken = refusal(lambda: mesh_edits.rename_mesh((A, B), 0, "B"))
    assert (taken.code, taken.params) == ("taken_mesh_name", {"rank": 1, "name": "B"})
    assert refusal(lambda: mesh_edits.delete_mesh((A,), 0)).code == "only_mesh"
    assert refusal(lambda: mesh_edits.rename_mesh((A, B), 0, "   ")).code == "missing_name"
    assert refusal(lambda: mesh_edits.rename_mesh((A, B), 0, "x" * 1000)).code == "long_name"
    unknown = refusal(lambda: mesh_edits.reorder_meshes((A, B), 0, 2))
    assert (unknown.code, unknown.params) == ("unknown_rank", {"rank": 2, "last": 1})


def test_invalid_axes_are_refused_with_the_valid_ones() -> None:
    assert mesh_edits.set_axes((A,), 0, {"dp": 1, "tp": 2})[0]["axes"] == {"dp": 1, "tp": 2}
    problem = refusal(lambda: mesh_edits.set_axes((A,), 0, {"dp": 2, "tp": 2}))
    assert problem.code == "invalid_mesh_axes"
    assert (
        problem.message == "dp 2 x tp 2 = 4, but mesh A has 2 devices; use dp 2 x tp 1, dp 1 x tp 2, dp 1 x cp 2 x tp 1"
    )


def test_the_choices_of_axes_have_every_order_that_makes_a_difference() -> None:
    four = mesh("A", 0, 1, 2, 3)
    assert [[*each.items()] for each in mesh_edits.axes_choices(four)] == [
        [("dp", 4), ("tp", 1)],
        [("dp", 2), ("tp", 2)],
        [("tp", 2), ("dp", 2)],
        [("dp", 1), ("tp", 4)],
        [("dp", 2), ("cp", 2), ("tp", 1)],
        [("dp", 1), ("cp", 2), ("tp", 2)],
        [("dp", 1), ("cp", 4), ("tp", 1)],
    ]
    with_context = {**mesh("A", *range(8)), "axes": {"cp": 2, "dp": 4}}
    assert [*mesh_edits.full_axes(with_context["axes"]).items()] == [("cp", 2), ("dp", 4), ("tp", 1)]
    choices = mesh_edits.axes_choices(with_context)
    assert [each.get("cp", 1) for each in choices[:10]] == [2] * 10, "dp 4, dp 2 x tp 2, tp 4; each in every order"
    assert [each.get("cp", 1) for each in choices[10:]] == [1, 1, 1, 1, 4, 4, 8]


def test_a_resized_mesh_keeps_the_order_of_its_axes() -> None:
    drawn = {"name": "A", "devices": [0, 1, 2, 3], "axes": {"tp": 2, "dp": 2}}

    (resized,) = mesh_edits.resize_mesh((drawn,), CLUSTER, 0, range(8))

    assert [*resized["axes"].items()] == [("tp", 2), ("dp", 4)]


def test_places_show_the_groups_of_other_axes() -> None:
    meshes = (mesh("A", 0, 1, 2, 3, tp=2),)

    def places(axes: dict[str, int]) -> list[tuple[int, int, str]]:
        return sorted(map(tuple, mesh_edits.device_places(meshes, 0, axes)))

    assert places({"dp": 2, "tp": 2}) == [(0, 0, "dp0 tp0"), (1, 0, "dp0 tp1"), (2, 1, "dp1 tp0"), (3, 1, "dp1 tp1")]
    assert places({"tp": 2, "dp": 2}) == [(0, 0, "dp0 tp0"), (1, 1, "dp1 tp0"), (2, 0, "dp0 tp1"), (3, 1, "dp1 tp1")]
    assert places({"dp": 4, "tp": 1})[1] == (1, 0, "dp1")


@given(nodes=sizes, per_node=sizes, tiling=st.builds(Tiling, sizes, *[st.integers(1, 4)] * 3))
def test_a_tiling_has_disjoint_rectangles_or_a_reason_why_not(nodes: int, per_node: int, tiling: Tiling) -> None:
    cluster = {"nodes": nodes, "devices_per_node": per_node}
    possible, words = mesh_edits.describe_tile(cluster, tiling)
    if not possible:
        assert refusal(lambda: mesh_edits.tile_cluster(cluster, tiling)).message == words
        return

    meshes = mesh_edits.tile_cluster(cluster, tiling)

    redrawn: tuple[Any, ...] = ()
    for tiled in meshes:  # drawing refuses overlaps and what is no rectangle
        redrawn = mesh_edits.draw_mesh(redrawn, cluster, tiled["devices"], tiled["name"])
    assert len(meshes) == tiling.pp
    for tiled in meshes:
        assert {"cp": 1, **tiled["axes"], "pp": tiling.pp} == tiling._asdict()
        assert len(tiled["devices"]) == tiling.mesh_size


@given(nodes=sizes, per_node=sizes, pp=sizes, tp=sizes)
def test_a_tiling_keeps_tensor_parallel_groups_inside_a_node_if_possible(
    nodes: int, per_node: int, pp: int, tp: int
) -> None:
    assume(pp <= nodes * (per_node // tp))
    for tiled in mesh_edits.tile_cluster({"nodes": nodes, "devices_per_node": per_node}, Tiling(pp, 1, 1, tp)):
        assert len({device // per_node for device in tiled["devices"]}) == 1


def test_a_tiling_describes_its_result() -> None:
    assert mesh_edits.describe_tile(CLUSTER, Tiling(2, 1, 2, 1)) == (True, "2 meshes of 2 devices, 4 unused")
    assert mesh_edits.describe_tile(CLUSTER, Tiling(4, 2, 1, 2)) == (
        False,
        "4 x 2 x 1 x 2 needs 16 devices; the cluster has 8",
    )
    assert mesh_edits.describe_tile(CLUSTER, Tiling(2, 3, 1, 1))[0]
    assert mesh_edits.describe_tile(CLUSTER, Tiling(1, 5, 1, 1)) == (
        False,
        "1 rectangle of 5 devices do not fit on 2 x 4; use another dp x cp x tp",
    )


def test_meshes_keep_their_places_when_devices_are_added() -> None:
    cluster, meshes = mesh_edits.set_devices_per_node((A, B), CLUSTER, 6)

    assert cluster["devices_per_node"] == 6
    assert [m["devices"] for m in meshes] == [(0, 1), (6, 7)]


def test_devices_of_a_mesh_cannot_be_removed() -> None:
    node = refusal(lambda: mesh_edits.set_nodes((A, B), CLUSTER, 1))
    assert (node.code, node.params) == ("device_in_use", {"mesh": "B", "node": 1})
    device = refusal(lambda: mesh_edits.set_devices_per_node((A, B), CLUSTER, 1))
    assert (device.code, device.params) == ("device_in_use", {"mesh": "A", "node": 0, "column": 1})


def test_a_cluster_keeps_a_node_and_a_device() -> None:
    nodes = refusal(lambda: mesh_edits.set_nodes((), CLUSTER, 0))
    assert (nodes.where, nodes.code) == ("cluster.nodes", "out_of_range")
    devices = refusal(lambda: mesh_edits.set_devices_per_node((), CLUSTER, 0))
    assert (devices.where, devices.code) == ("cluster.devices_per_node", "out_of_range")


def test_mesh_names_continue_after_z() -> None:
    meshes = mesh_edits.tile_cluster({"nodes": 4, "devices_per_node": 8}, Tiling(28, 1, 1, 1))

    assert [m["name"] for m in meshes[24:]] == ["Y", "Z", "AA", "AB"]
    assert mesh_edits.next_name(meshes[1:]) == "A"


# the pipeline


def test_layers_move_across_a_boundary_and_every_stage_keeps_at_least_one() -> None:
    assert edits.move_layers((4, 4, 4), 0, 2) == (2, 6, 4)
    assert edits.move_layers((4, 4, 4), 1, -3) == (4, 7, 1)
    problem = refusal(lambda: edits.move_layers((4, 4, 4), 1, -4))
    assert problem.code == "too_few_layers_left"
    assert problem.params == {"stage": 2, "layers": 4, "minimum": 1, "count": 4, "other": 1}
    assert refusal(lambda: edits.move_layers((4, 4, 4), 2, 1)).code == "unknown_boundary"


def test_a_schedule_keeps_manual_settings_if_the_path_stays_the_same() -> None:
    by_hand = {"stages": [2, 3, 5, 6], "placement": [3, 2, 1, 0], "recompute": [1]}
    old = {"schedule": "gpipe", "microbatches": 8, "actions": None, **by_hand}
    design = parse_design({**document(), "pipeline": old})

    assert edits.choose_schedule(design, "gpipe") == old
    same, other = edits.choose_schedule(design, "1f1b"), edits.choose_schedule(design, "hanayo")
    kept = {"microbatches": 8, **by_hand}
    assert same == {"schedule": "1f1b", **kept}
    assert other == {
        "schedule": "hanayo",
        "waves": 1,
        "grouping": "grouped",
        "backward": "whole",
        **kept,
        "stages": None,
        "placement": None,
        "recompute": "none",
    }


def test_custom_starts_from_the_current_order_with_its_placement() -> None:
    placed = {"schedule": "gpipe", "microbatches": 1, "stages": [2, 3, 5, 6], "placement": [3, 2, 1, 0]}
    design = parse_design({**document(), "pipeline": placed})

    chosen = edits.choose_schedule(design, "custom")

    assert chosen["actions"] == [["3F0", "3B0"], ["2F0", "2B0"], ["1F0", "1B0"], ["0F0", "0B0"]]
    assert chosen["stages"] == [2, 3, 5, 6]
    drawn = parse_design({**document(), "pipeline": chosen})
    assert lower(drawn) == lower(design)


def test_an_order_too_large_to_draw_is_not_generated() -> None:
    design = parse_design(document(microbatches=20_000))

    with pytest.raises(InputError, match=r"from 320,000 actions, and at most 200,000 can be drawn"):
        edits.choose_schedule(design, "custom")


def test_paths_are_compared_only_if_there_are_enough_layers_for_the_stages() -> None:
    draft = document(waves=4096)
    draft["model"]["layers"] = 4

    chosen = edits.choose_schedule(parse_design(draft, draft=True), "1f1b")

    assert (chosen["schedule"], chosen["stages"]) == ("1f1b", None)


@pytest.mark.parametrize(
    ("part", "field", "bound"), [(Design, "name", 200), (MeshPart, "name", 60), (Training, "micro_batch_size", 10**6)]
)
def test_limits_of_the_controls_are_those_of_the_document(part: Any, field: str, bound: int) -> None:
    assert field_limit(part, field) == bound


# the widgets' Python side, on a session


def send(canvas: Any, page_messages: list[dict[str, Any]], **gesture: Any) -> str | None:
    """Send a gesture as the page would; return the reason if it is refused."""
    page_messages.clear()
    canvas._handle_msg(gesture)
    answer = page_messages[-1]
    assert answer["type"] == "answered"
    refused: str | None = answer["refused"]
    return refused


@pytest.fixture
def page_messages(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Messages of the canvases to the page."""
    messages: list[dict[str, Any]] = []
    for canvas in (ClusterCanvas, WaveCanvas):
        monkeypatch.setattr(canvas, "_send_msg", lambda _, message: messages.append(message))
    return messages


@pytest.fixture
def session() -> Session:
    return Session(parse_design(document()))


@pytest.fixture
def cluster(session: Session) -> ClusterCanvas:
    canvas = ClusterCanvas(session.edit)
    session.param.watch(lambda event: canvas.show(event.new.model_dump(mode="json")), "design")
    canvas.show(session.design.model_dump(mode="json"))
    return canvas


@pytest.fixture
def wave(session: Session) -> WaveCanvas:
    canvas = WaveCanvas(session.edit)

    def show(*_: Any) -> None:
        if session.is_stale:
            canvas.show(session.design)
        else:
            canvas.show(session.design, session.prediction.program, session.prediction.costs)

    session.param.watch(show, ["design", "prediction", "problems"])
    show()
    return canvas


def names(session: Session) -> list[str]:
    return [mesh.name for mesh in session.design.meshes]


def test_every_gesture_on_the_cluster_is_one_undo_step(
    session: Session, cluster: ClusterCanvas, page_messages: list[dict[str, Any]]
) -> None:
    for gesture, label in [
        ({"type": "draw", "devices": [2, 3]}, "draw mesh E"),
        ({"type": "move", "mesh": 4, "devices": [6, 7]}, "move mesh E"),
        ({"type": "resize", "mesh": 4, "devices": [2, 3, 6, 7]}, "resize mesh E"),
        ({"type": "axes", "mesh": 4, "axes": [["dp", 2], ["tp", 2]]}, "mesh E: dp 2 x tp 2"),
        ({"type": "axes", "mesh": 4, "axes": [["tp", 2], ["dp", 2]]}, "mesh E: tp 2 x dp 2"),
        ({"type": "devices", "mesh": 4, "text": "2, 6 3;7"}, "order of the devices of mesh E"),
        ({"type": "rename", "mesh": 4, "name": "tail"}, "rename mesh E to tail"),
        ({"type": "reorder", "mesh": 4, "rank": 0}, "move mesh tail to rank 0"),
        ({"type": "delete", "mesh": 0}, "delete mesh tail"),
        ({"type": "nodes", "value": 3}, "3 nodes"),
        ({"type": "devices_per_node", "value": 8}, "8 devices per node"),
        ({"type": "tile", "pp": 2, "dp": 2, "cp": 2, "tp": 1}, "tile 2 x 2 x 2 x 1"),
    ]:
        before = session.design
        assert send(cluster, page_messages, **gesture) is None, gesture
        assert session.history[0] == label
        session.undo()
        assert session.design == before
        session.redo()
    assert names(session) == ["A", "B"]


def test_a_refused_gesture_returns_a_reason_and_changes_nothing(
    session: Session, cluster: ClusterCanvas, page_messages: list[dict[str, Any]]
) -> None:
    before = session.design

    assert send(cluster, page_messages, type="draw", devices=[1, 2]) == (
        "device 1 belongs to mesh B; a device can be in one mesh only"
    )
    assert (
        send(cluster, page_messages, type="tile", pp=3, dp=3, cp=1, tp=1)
        == "3 x 3 x 1 x 1 needs 9 devices; the cluster has 8"
    )
    assert session.design is before


def test_an_unknown_message_is_ignored(cluster: ClusterCanvas, page_messages: list[dict[str, Any]]) -> None:
    cluster._handle_msg({"type": "show", "document": {}})

    assert page_messages == []


def test_a_new_mesh_is_selected(session: Session, cluster: ClusterCanvas, page_messages: list[dict[str, Any]]) -> None:
    send(cluster, page_messages, type="draw", devices=[2, 3, 6, 7])

    assert cluster.selected == 4
    assert cluster.meshes.data[4] == {
        "name": "E",
        "devices": [2, 3, 6, 7],
        "axes": [("dp", 4), ("tp", 1)],
        "choices": [
            [("dp", 4), ("tp", 1)],
            [("dp", 2), ("tp", 2)],
            [("tp", 2), ("dp", 2)],
            [("dp", 1), ("tp", 4)],
            [("dp", 2), ("cp", 2), ("tp", 1)],
            [("dp", 1), ("cp", 2), ("tp", 2)],
            [("dp", 1), ("cp", 4), ("tp", 1)],
        ],
    }
    assert [place.indices for place in cluster.places.data] == ["dp0", "dp1", "dp2", "dp3"]


def test_axes_are_previewed_without_an_edit(
    session: Session, cluster: ClusterCanvas, page_messages: list[dict[str, Any]]
) -> None:
    send(cluster, page_messages, type="draw", devices=[2, 3, 6, 7])
    before = session.design

    assert send(cluster, page_messages, type="preview_axes", mesh=4, axes=[["tp", 2], ["dp", 2]]) is None

    assert [(place.device, place.group) for place in cluster.places.data] == [(2, 0), (6, 0), (3, 1), (7, 1)]
    assert session.design is before
    assert send(cluster, page_messages, type="preview_axes", mesh=4, axes=[]) is None
    assert {place.group for place in cluster.places.data} == {0}


def test_links_are_labelled_with_their_rate_and_class() -> None:
    assert link_labels(document()["cluster"]) == {"intra": "300 GB/s NVLink-class", "inter": "25 GB/s InfiniBand-class"}
    assert [format_rate(rate) for rate in (1.2e12, 1.25e9, 4e5)] == ["1.2 TB/s", "1.25 GB/s", "400 kB/s"]


def test_every_gesture_on_the_wave_is_one_undo_step(
    session: Session, wave: WaveCanvas, page_messages: list[dict[str, Any]]
) -> None:
    assert send(wave, page_messages, type="move_layers", boundary=0, count=1) is None
    assert session.history[0] == "move 1 layer from stage 0 to 1"
    assert session.design.pipeline.stages[:2] == (1, 3)
    assert not wave.picture.data["balanced"]
    assert send(wave, page_messages, type="balance") is None
    assert session.design.pipeline.stages is None
    assert send(wave, page_messages, type="dial", value=2) is None
    assert session.design.pipeline.waves == 2
    assert [group["label"] for group in wave.picture.data["groups"]] == ["wave 1", "wave 2"]
    assert send(wave, page_messages, type="microbatches", value=8) is None
    assert send(wave, page_messages, type="option", key="grouping", value="ungrouped") is None
    assert send(wave, page_messages, type="schedule", name="chimera") is None
    assert wave.picture.data["routes"] == [[0, 1, 2, 3], [3, 2, 1, 0]]
    for _ in range(6):
        session.undo()
    assert session.design == parse_design(document())


def test_the_wave_reverses_at_its_last_mesh_and_its_shares_add_up(wave: WaveCanvas) -> None:
    assert wave.picture.data["routes"] == [[0, 1, 2, 3, 3, 2, 1, 0]]
    assert sum(wave.picture.data["layers"]) == 16
    assert sum(wave.picture.data["shares"]) == pytest.approx(1)


def skipping_design(schedule: str, *layers: int) -> Design:
    """Return a model with 12 layers, of which the first six have skip connections to the last six."""
    found = {**document(), "pipeline": {"schedule": schedule, "microbatches": 4, "stages": list(layers)}}
    found["model"] |= {"kind": "u-transformer", "layers": 12}
    return parse_design(found)


def arcs(design: Design) -> list[tuple[int, int, int, str]]:
    canvas, prediction = WaveCanvas(), predict(design)
    canvas.show(design, prediction.program, prediction.costs)
    return [(arc["from"], arc["to"], arc["replica"], arc["way"]) for arc in canvas.picture.data["skips"]]


def test_skip_connections_are_arcs_that_name_tensors_and_meshes() -> None:
    design = skipping_design("1f1b", 3, 3, 3, 3)
    prediction = predict(design)
    far, near = stage_routes(design, prediction.program, prediction.costs)["skips"]

    size = quantity(boundary_bytes(design, 0, 3, 3), "B")
    took = quantity(boundary_seconds(design, 0, 3, 3), "s")
    assert far["words"] == (
        f"3 skip tensors from stage 0 to stage 3: {size} per microbatch, in one direct message from mesh A to mesh D, "
        f"{took} on the link; the gradients return the same way"
    )
    with_its_input = quantity(boundary_bytes(design, 1, 2, 4), "B")
    assert f"({with_its_input} per microbatch in total)" in near["words"]
    assert "from mesh B to mesh C" in near["words"]


def test_every_replica_has_its_arcs_and_a_wave_keeps_both_ends_on_a_mesh() -> None:
    assert arcs(skipping_design("chimera", 3, 3, 3, 3)) == [
        (0, 3, 0, "sent"), (0, 3, 1, "sent"), (1, 2, 0, "beside"), (1, 2, 1, "beside"),
    ]  # fmt: skip
    assert {way for *_, way in arcs(skipping_design("hanayo", 1, 2, 1, 2, 2, 1, 2, 1))} == {"kept"}
    assert arcs(parse_design(document())) == []


def test_the_number_of_waves_is_limited_by_the_layers(wave: WaveCanvas, page_messages: list[dict[str, Any]]) -> None:
    send(wave, page_messages, type="dial", value=2)

    assert wave.picture.data["dial"] == {
        "key": "waves",
        "label": "waves",
        "value": 2,
        "most": 2,
        "reason": "24 stages need 24 layers; the model has 16",
    }


def test_schedules_have_thumbnails_and_reasons_why_they_cannot_be_chosen() -> None:
    for name in schedules:
        picture = schedule_thumbnail(name)
        assert (picture is None) == (name == "custom")
        if picture:
            assert set(picture["rank"]) == {0, 1, 2, 3}
            assert max(picture["end"]) == picture["makespan"]
    draft = document()
    draft["meshes"].pop()
    reasons = {choice["name"]: choice["reason"] for choice in schedule_choices(parse_design(draft))}
    assert "even number" in reasons["chimera"]
    assert reasons["custom"] is None
    assert reasons["gpipe"] is None


def test_custom_is_selected_by_its_thumbnail_as_in_the_form(
    session: Session, wave: WaveCanvas, page_messages: list[dict[str, Any]]
) -> None:
    before = session.prediction.timeline.makespan

    assert send(wave, page_messages, type="schedule", name="custom") is None

    assert session.design.pipeline.schedule == "custom"
    assert session.prediction.timeline.makespan == before
    session.edit("model.layers", 2, "2 layers")
    session.undo()
    session.undo()
    session.edit("model.layers", 2, "2 layers")
    assert "fix its problems first" in (send(wave, page_messages, type="schedule", name="custom") or "")


def test_a_draft_can_change_a_schedule_that_does_not_fit(
    session: Session, cluster: ClusterCanvas, wave: WaveCanvas, page_messages: list[dict[str, Any]]
) -> None:
    send(wave, page_messages, type="schedule", name="chimera")
    send(cluster, page_messages, type="delete", mesh=3)
    assert wave.picture.data["stale"]
    assert wave.picture.data["routes"] == [[0, 1, 2, 3], [3, 2, 1, 0]]  # of the last valid design

    assert "last valid design" in (send(wave, page_messages, type="move_layers", boundary=0, count=1) or "")
    assert send(wave, page_messages, type="schedule", name="1f1b") is None

    assert not wave.picture.data["stale"]
    assert wave.picture.data["routes"] == [[0, 1, 2]]
