"""The cluster on which meshes are drawn: the Python face of ``static/cluster/cluster.js``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import param

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Canvas, Edit, plain_text, value_of, whole_numbers
from meshwave.designer.state import mesh_edits
from meshwave.designer.state.field_limits import NAME_LENGTH

NODES, DEVICES_PER_NODE = 128, 16  # what the steppers offer at most; a document may hold more


class ClusterCanvas(Canvas):
    """Nodes and devices as tiles, and the meshes that a person draws, moves and shapes on them.

    Give it the document by :meth:`show`; it calls ``on_edit`` with the path ``meshes`` or
    ``cluster.nodes``, and, where more has to change in the same step, the empty path with the
    top-level keys that change together.
    """

    nodes = param.Integer(default=1, bounds=(1, None))
    devices_per_node = param.Integer(default=1, bounds=(1, None))
    meshes = param.List(default=[], doc="In pipeline order: name, devices, dp, tp and the ways to factor them.")
    links = param.Dict(default={}, doc="What is written at the links: intra and inter, as text.")
    limits = param.Dict(
        default={"nodes": NODES, "devices_per_node": DEVICES_PER_NODE, "name": NAME_LENGTH},
        doc="The most of a stepper, and the letters of a mesh's name.",
    )
    selected = param.Integer(default=-1, doc="Rank of the mesh that is selected, -1 for none.")

    _esm = module("cluster/cluster.js")
    _stylesheets: ClassVar = [read_static("kit/canvas.css"), read_static("cluster/cluster.css")]
    _gestures = (
        "draw", "move", "resize", "delete", "rename", "axes", "reorder",
        "tile", "try_tile", "nodes", "devices_per_node", "pane",
    )  # fmt: skip

    def __init__(
        self, on_edit: Edit | None = None, on_pane: Callable[[str], None] | None = None, **params: Any
    ) -> None:
        """``on_pane`` is told the pane that a person wants to see in place of this."""
        super().__init__(on_edit, **params)
        self._to_pane = on_pane
        self._cluster: Mapping[str, Any] = {"nodes": 1, "devices_per_node": 1}
        self._meshes: mesh_edits.Meshes = ()

    def show(self, document: Mapping[str, Any]) -> None:  # type: ignore[override]  # Panel's own serves a page
        """Draw the cluster and the meshes of a document (a Design dumped as JSON)."""
        self._cluster = dict(document["cluster"])
        self._meshes = tuple(document["meshes"])
        self.param.update(
            nodes=self._cluster["nodes"],
            devices_per_node=self._cluster["devices_per_node"],
            meshes=[_drawn(mesh) for mesh in self._meshes],
            links=link_labels(self._cluster),
            selected=min(self.selected, len(self._meshes) - 1),
        )

    # one method a gesture

    def _on_pane(self, gesture: Mapping[str, Any]) -> None:
        if self._to_pane is not None:
            self._to_pane(value_of(gesture, "pane", plain_text))

    def _on_draw(self, gesture: Mapping[str, Any]) -> None:
        meshes = mesh_edits.draw(self._meshes, self._cluster, value_of(gesture, "devices", whole_numbers))
        self._put(meshes, f"draw mesh {meshes[-1]['name']}")
        self.selected = len(self._meshes) - 1

    def _on_move(self, gesture: Mapping[str, Any]) -> None:
        rank = value_of(gesture, "mesh", int)
        meshes = mesh_edits.move(self._meshes, self._cluster, rank, value_of(gesture, "devices", whole_numbers))
        self._put(meshes, f"move mesh {meshes[rank]['name']}")

    def _on_resize(self, gesture: Mapping[str, Any]) -> None:
        rank = value_of(gesture, "mesh", int)
        meshes = mesh_edits.resize(self._meshes, self._cluster, rank, value_of(gesture, "devices", whole_numbers))
        self._put(meshes, f"resize mesh {meshes[rank]['name']}")

    def _on_delete(self, gesture: Mapping[str, Any]) -> None:
        rank = value_of(gesture, "mesh", int)
        meshes = mesh_edits.delete(self._meshes, rank)
        name = self._meshes[rank]["name"]
        self.selected = -1
        self._put(meshes, f"delete mesh {name}")

    def _on_rename(self, gesture: Mapping[str, Any]) -> None:
        rank = value_of(gesture, "mesh", int)
        meshes = mesh_edits.rename(self._meshes, rank, value_of(gesture, "name", plain_text))
        self._put(meshes, f"rename mesh {self._meshes[rank]['name']} to {meshes[rank]['name']}")

    def _on_axes(self, gesture: Mapping[str, Any]) -> None:
        rank, dp, tp = (value_of(gesture, key, int) for key in ("mesh", "dp", "tp"))
        meshes = mesh_edits.set_axes(self._meshes, rank, dp, tp)
        self._put(meshes, f"mesh {meshes[rank]['name']}: dp {dp} x tp {tp}")

    def _on_reorder(self, gesture: Mapping[str, Any]) -> None:
        mesh, rank = value_of(gesture, "mesh", int), value_of(gesture, "rank", int)
        meshes = mesh_edits.reorder(self._meshes, mesh, rank)
        self._put(meshes, f"mesh {meshes[rank]['name']} becomes rank {rank}")
        self.selected = rank

    def _on_tile(self, gesture: Mapping[str, Any]) -> None:
        pp, dp, tp = _tiling(gesture)
        self.selected = -1
        self._put(mesh_edits.tile(self._cluster, pp, dp, tp), f"tile {pp} x {dp} x {tp}")

    def _on_try_tile(self, gesture: Mapping[str, Any]) -> None:
        """Say what a tiling would do while its numbers are typed; nothing is edited."""
        possible, words = mesh_edits.describe_tile(self._cluster, *_tiling(gesture))
        self._send_msg({"type": "tile", "possible": possible, "words": words})

    def _on_nodes(self, gesture: Mapping[str, Any]) -> None:
        cluster, _ = mesh_edits.set_nodes(self._meshes, self._cluster, value_of(gesture, "value", int))
        self._edit("cluster.nodes", cluster["nodes"], f"{cluster['nodes']} nodes")

    def _on_devices_per_node(self, gesture: Mapping[str, Any]) -> None:
        cluster, meshes = mesh_edits.set_devices_per_node(self._meshes, self._cluster, value_of(gesture, "value", int))
        changes = {"cluster": cluster, "meshes": _listed(meshes)}
        self._edit("", changes, f"{cluster['devices_per_node']} devices per node")

    def _put(self, meshes: mesh_edits.Meshes, label: str) -> None:
        self._edit("meshes", _listed(meshes), label)


def link_labels(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Bandwidth and the kind of link it is typical of, per link of the cluster, as text."""
    labels = {}
    for name, kinds in _KINDS.items():
        bandwidth = cluster.get(f"{name}_node", {}).get("bandwidth")
        if bandwidth is not None:
            kind = next(kind for least, kind in kinds if bandwidth >= least)
            labels[name] = f"{format_rate(bandwidth)} {kind}"
    return labels


# Bytes/s from which a link of one direction is likely to be of a kind.
_KINDS = {
    "intra": ((150e9, "NVLink-class"), (8e9, "PCIe-class"), (0, "shared memory")),
    "inter": ((10e9, "InfiniBand-class"), (0, "Ethernet-class")),
}


def format_rate(bandwidth: float) -> str:
    """Bytes/s as a person writes them: ``25 GB/s``, ``1.25 GB/s``."""
    for size, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")):
        if bandwidth >= size:
            return f"{bandwidth / size:.3g} {unit}"
    return f"{bandwidth / 1e3:.3g} kB/s"


def _drawn(mesh: Mapping[str, Any]) -> dict[str, Any]:
    devices = list(mesh["devices"])
    axes = {axis: mesh["axes"].get(axis, 1) for axis in ("dp", "tp")}
    return {"name": mesh["name"], "devices": devices, **axes, "ways": mesh_edits.factors(len(devices))}


def _listed(meshes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Meshes as JSON has them: lists, and dicts of their own."""
    return [{**mesh, "devices": list(mesh["devices"]), "axes": dict(mesh["axes"])} for mesh in meshes]


def _tiling(gesture: Mapping[str, Any]) -> tuple[int, int, int]:
    pp, dp, tp = (value_of(gesture, key, int) for key in ("pp", "dp", "tp"))
    return pp, dp, tp
