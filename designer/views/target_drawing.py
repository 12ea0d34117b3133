"""The cluster of a launch target in the open design.

The button *Use this cluster* measures it by a job, and *Refresh* below the drawn cluster counts its free nodes again.
"""

from __future__ import annotations

from functools import partial

from meshwave.designer.state.attached_cluster import AttachedCluster
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.job_processes import Done, Failed, JobUpdate
from meshwave.designer.state.jobs import Job, run_now
from meshwave.designer.views.launch_bar import LaunchBar
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.runs.launchers._node_counts import NodeCounts
from meshwave.engine.runs.target_check import nodes_text, target_cluster, target_nodes


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
