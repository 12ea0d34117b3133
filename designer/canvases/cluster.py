"""The cluster on which meshes are drawn; the Python side of ``static/cluster/cluster.js``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import param

from meshwave.designer.canvases.difference_marks import MarkedCanvas
from meshwave.designer.kit.canvas import Edit, PlainData, parse_integers, read_value, widget
from meshwave.designer.kit.shortcuts import canvas_commands
from meshwave.designer.state import mesh_edits
from meshwave.designer.state.field_limits import NAME_LENGTH, field_limit
from meshwave.engine.document.cluster import MAX_DEVICES, Cluster

LIMITS = {
    "nodes": field_limit(Cluster, "nodes"),
    "devices_per_node": field_limit(Cluster, "devices_per_node"),
    "devices": MAX_DEVICES,
    "name": NAME_LENGTH,
}


Axes = Annotated[dict[str, int], lambda pairs: {str(axis): int(size) for axis, size in pairs}]
"""Axes and sizes in a gesture: a list of pairs, outermost first."""


@widget("cluster/cluster.js", "kit/shell.css", "kit/differences.css")
class ClusterCanvas(MarkedCanvas):
    """Widget that shows nodes and devices as tiles, on which meshes are drawn, moved and resized.

    :meth:`show` draws a document. ``on_edit`` is called with the path ``meshes`` or ``cluster.nodes``, or with the
    empty path and all top-level keys that change together.
    """

    nodes = param.Integer(default=1, bounds=(1, None))
    devices_per_node = param.Integer(default=1, bounds=(1, None))
    meshes = param.String(
        default=PlainData([]), doc="Name, devices, axes and possible axes of each mesh, in pipeline order."
    )
    places = param.String(default=PlainData([]), doc="DevicePlace of each device of the mesh whose groups are shown.")
    links = param.Dict(default={}, doc="Labels of the links: intra and inter.")
    attached = param.Dict(default={}, doc="Picture of the AttachedCluster that is drawn.")
    limits = param.Dict(default=LIMITS, doc="Limits of the steppers, and of the length of a mesh name.")
    flags = param.List(default=[], doc="Ranks of marked meshes, with a colour and a text.")
    selected = param.Integer(default=-1, doc="Rank of the selected mesh, -1 for none.")

    commands = param.List(default=canvas_commands("Cluster"), constant=True, doc="Entries of the context menu.")

    def __init__(
        self,
        on_edit: Edit | None = None,
        on_pane: Callable[[str], None] | None = None,
        on_refresh: Callable[[], None] | None = None,
        **params: Any,
    ) -> None:
        """Create the canvas.

        Args:
            on_edit: called with each edit.
            on_pane: called with the name of the pane that should replace the canvas.
            on_refresh: called to count the free nodes of the attached cluster again.
            **params: other parameters.
        """
        super().__init__(on_edit, **params)
        self._on_pane_chosen, self._on_refresh_asked = on_pane, on_refresh
        self._cluster: Mapping[str, Any] = {"nodes": 1, "devices_per_node": 1}
        self._meshes: mesh_edits.Meshes = ()
        self.param.watch(lambda _: self._show_places(), "selected")

    def show(self, document: Mapping[str, Any], attached: Mapping[str, Any] = MappingProxyType({})) -> None:  # type: ignore[override]  # Panel's own serves a page
        """Draw the cluster and the meshes of a document (a Design dumped as JSON), and the picture of its AttachedCluster."""
        self._cluster = dict(document["cluster"])
        self._meshes = tuple(document["meshes"])
        self.param.update(
            nodes=self._cluster["nodes"],
            devices_per_node=self._cluster["devices_per_node"],
            meshes=PlainData(_meshes_data(self._meshes)),
            links=link_labels(self._cluster, attached.get("link", "")),
            attached={**attached},
            selected=min(self.selected, len(self._meshes) - 1),
        )
        self._show_places()

    def _show_places(self) -> None:
        """Show the places of the devices of the selected mesh."""
        is_mesh = 0 <= self.selected < len(self._meshes)
        self.places = PlainData(mesh_edits.device_places(self._meshes, self.selected) if is_mesh else [])

    # ---- gestures ----

    def _on_pane(self, pane: str) -> None:
        if self._on_pane_chosen is not None:
            self._on_pane_chosen(pane)

    def _on_refresh(self) -> None:
        if self._on_refresh_asked is not None:
            self._on_refresh_asked()

    def _on_draw(self, devices: list[int]) -> None:
        meshes = mesh_edits.draw_mesh(self._meshes, self._cluster, devices)
        self._edit_meshes(meshes, f"draw mesh {meshes[-1]['name']}")
        self.selected = len(self._meshes) - 1

    def _on_move(self, mesh: int, devices: list[int]) -> None:
        meshes = mesh_edits.move_mesh(self._meshes, self._cluster, mesh, devices)
        self._edit_meshes(meshes, f"move mesh {meshes[mesh]['name']}")

    def _on_resize(self, mesh: int, devices: list[int]) -> None:
        meshes = mesh_edits.resize_mesh(self._meshes, self._cluster, mesh, devices)
        self._edit_meshes(meshes, f"resize mesh {meshes[mesh]['name']}")

    def _on_delete(self, mesh: int) -> None:
        meshes = mesh_edits.delete_mesh(self._meshes, mesh)
        name = self._meshes[mesh]["name"]
        self.selected = -1
        self._edit_meshes(meshes, f"delete mesh {name}")

    def _on_rename(self, mesh: int, name: str) -> None:
        meshes = mesh_edits.rename_mesh(self._meshes, mesh, name)
        self._edit_meshes(meshes, f"rename mesh {self._meshes[mesh]['name']} to {meshes[mesh]['name']}")

    def _on_axes(self, mesh: int, axes: Axes) -> None:
        meshes = mesh_edits.set_axes(self._meshes, mesh, axes)
        words = " x ".join(f"{axis} {size}" for axis, size in axes.items())
        self._edit_meshes(meshes, f"mesh {meshes[mesh]['name']}: {words}")

    def _on_preview_axes(self, mesh: int, axes: Axes) -> None:
        """Show the places that the devices of a mesh would have; without axes, those of the selected mesh again."""
        if axes:
            self.places = PlainData(mesh_edits.device_places(self._meshes, mesh, axes))
        else:
            self._show_places()

    def _on_devices(self, mesh: int, text: str) -> None:
        devices = read_value({"text": re.split(r"[\s,;]+", text.strip())}, "text", parse_integers)
        meshes = mesh_edits.move_mesh(self._meshes, self._cluster, mesh, devices)
        self._edit_meshes(meshes, f"order of the devices of mesh {meshes[mesh]['name']}")

    def _on_reorder(self, mesh: int, rank: int) -> None:
        meshes = mesh_edits.reorder_meshes(self._meshes, mesh, rank)
        self._edit_meshes(meshes, f"move mesh {meshes[rank]['name']} to rank {rank}")
        self.selected = rank

    def _on_tile(self, pp: int, dp: int, cp: int, tp: int) -> None:
        tiling = mesh_edits.Tiling(pp, dp, cp, tp)
        self.selected = -1
        self._edit_meshes(mesh_edits.tile_cluster(self._cluster, tiling), f"tile {tiling}")

    def _on_try_tile(self, pp: int, dp: int, cp: int, tp: int) -> None:
        """Describe the result of a tiling while its numbers are typed; nothing is edited."""
        possible, words = mesh_edits.describe_tile(self._cluster, mesh_edits.Tiling(pp, dp, cp, tp))
        self._send_msg({"type": "tile", "possible": possible, "words": words})

    def _on_nodes(self, value: int) -> None:
        cluster, _ = mesh_edits.set_nodes(self._meshes, self._cluster, value)
        self._edit("cluster.nodes", cluster["nodes"], f"{cluster['nodes']} nodes")

    def _on_devices_per_node(self, value: int) -> None:
        cluster, meshes = mesh_edits.set_devices_per_node(self._meshes, self._cluster, value)
        changes = {"cluster": cluster, "meshes": _to_documents(meshes)}
        self._edit("", changes, f"{cluster['devices_per_node']} devices per node")

    def _edit_meshes(self, meshes: mesh_edits.Meshes, label: str) -> None:
        self._edit("meshes", _to_documents(meshes), label)


def link_labels(cluster: Mapping[str, Any], reported: str = "") -> dict[str, str]:
    """Return the bandwidth and kind of each link of the cluster as text.

    The kind follows from the bandwidth; ``reported`` replaces it inside a node.
    """
    labels = {}
    for name, kinds in _KINDS.items():
        bandwidth = cluster.get(f"{name}_node", {}).get("bandwidth")
        if bandwidth is not None:
            kind = next(kind for least, kind in kinds if bandwidth >= least)
            labels[name] = f"{format_rate(bandwidth)} {(name == 'intra' and reported) or kind}"
    return labels


# Smallest bandwidth of one direction, in bytes/s, at which a link gets each name.
_KINDS = {
    "intra": ((150e9, "NVLink-class"), (8e9, "PCIe-class"), (0, "shared memory")),
    "inter": ((10e9, "InfiniBand-class"), (0, "Ethernet-class")),
}


def format_rate(bandwidth: float) -> str:
    """Format bytes per second: ``25 GB/s``, ``1.25 GB/s``."""
    for size, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")):
        if bandwidth >= size:
            return f"{bandwidth / size:.3g} {unit}"
    return f"{bandwidth / 1e3:.3g} kB/s"


def _meshes_data(meshes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    choices: dict[tuple[int, str], list[Any]] = {}  # most meshes of a large design are alike
    found = []
    for mesh in meshes:
        axes = mesh_edits.full_axes(mesh["axes"])
        kind = len(mesh["devices"]), str(mesh["axes"])
        if kind not in choices:
            choices[kind] = [[*each.items()] for each in mesh_edits.axes_choices(mesh)]
        named = {"name": mesh["name"], "devices": list(mesh["devices"])}
        found.append({**named, "axes": [*axes.items()], "choices": choices[kind]})
    return found


def _to_documents(meshes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return meshes as JSON documents that share no lists or dictionaries."""
    return [{**mesh, "devices": list(mesh["devices"]), "axes": dict(mesh["axes"])} for mesh in meshes]
