"""Cluster of a launch target that was copied into the open design. It is state of the page, not of the design."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from meshwave.engine.document.cluster import Cluster
from meshwave.engine.runs.target_check import TargetCluster


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
