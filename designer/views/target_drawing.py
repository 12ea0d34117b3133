"""The cluster of a launch target in the open design.

The button *Use this cluster* measures it by a job, and *Refresh* below the drawn cluster counts its free nodes again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from meshwave.designer.state.design_session import Session
from meshwave.designer.state.job_processes import Done, Failed, JobUpdate
from meshwave.designer.state.jobs import Job, run_now
from meshwave.designer.views.launch_bar import LaunchBar
from meshwave.engine.document.cluster import Cluster
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.runs.launchers._node_counts import NodeCounts
from meshwave.engine.runs.target_check import TargetCluster, nodes_text, target_cluster, target_nodes


@dataclass(frozen=True)
class AttachedCluster:
    """Cluster of a launch target, and the nodes of it that were free at a given time."""

    target: str
    found: TargetCluster
    time_s: float = field(default_factory=time.time)
    """Time at which the nodes were counted, in Unix seconds."""

    def picture(self, cluster: Cluster) -> dict[str, Any]:
        """Return the data that the cluster canvas shows; empty if the design has another cluster by now."""
        if cluster != self.found.cluster:
            return {}
        counts, link = self.found.counts, self.found.device_links
        kind = f"{'NVLink' if link.startswith('NV') else 'PCIe'} ({link})" if link else ""
        if counts is None or counts.free is None:
            return {"link": kind}
        return {
            "link": kind,
            "target": self.target,
            "time": time.strftime("%H:%M:%S", time.localtime(self.time_s)),
            "free": counts.free,
            "total": len(counts.states),
            "nodes": [*counts.states[: cluster.nodes]],
        }


def draw_target(session: Session, bar: LaunchBar, target: str) -> None:
    """Measure the cluster of a launch target by a job, then set it as the cluster of the design in one edit."""
    session.check_editable()
    if not bar.drawing:
        bar.drawing = target
        job = Job(partial(target_cluster, target), f"cluster of {target}")
        job.add_listener(session.later or run_now, partial(_receive_update, session, bar, target))


def _receive_update(session: Session, bar: LaunchBar, target: str, update: JobUpdate) -> None:
    if isinstance(update, Done):
        bar.drawing = ""
        cluster, counts, _ = update.value
        nodes = f", nodes: {nodes_text(counts)}" if counts else ""
        try:
            session.attached = AttachedCluster(target, update.value)
            session.edit("cluster", cluster.model_dump(mode="json"), f"use the cluster of {target}{nodes}")
        except MeshwaveError as error:  # the design has changed since and no longer fits, or is read-only
            bar.notice = str(error)
    elif isinstance(update, Failed):
        bar.param.update(drawing="", notice=update.reason)


def refresh_nodes(session: Session, bar: LaunchBar) -> None:
    """Count the free nodes of the attached cluster again, outside the event loop."""
    attached = session.attached
    if attached is not None:

        def show(counts: NodeCounts | None) -> None:
            session.attached = AttachedCluster(attached.target, attached.found._replace(counts=counts))

        bar.call_target("Counting free nodes …", partial(target_nodes, attached.target), show)
