"""Kubernetes export: a manifest that trains a design, for users who submit jobs themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwave.engine.exports._base import Export, exports
from meshwave.engine.exports.script import Script
from meshwave.engine.findings import Refusal
from meshwave.engine.runs.launchers._manifests import Pods, to_yaml, train_job
from meshwave.engine.runs.launchers._torchrun import SCRIPT, NodeLayout, node_script

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

NAME = "meshwave-design"
LARGEST_BYTES = 1_000_000
"""Maximum size of a ConfigMap in bytes; Kubernetes limits it to 1 MiB."""
HEAD = """\
# A TrainJob of Kubeflow Trainer 2.2 or newer: kubectl create --filename FILE
# Set image to one with Python, torch and Meshwave, and add GPUs as resourcesPerNode.
# Results are lost with the pods unless the volume "results" is persistent.
"""


@exports.register("kubernetes")
class Kubernetes(Export):
    """TrainJob that trains the design with torchrun, and a ConfigMap with the whole design."""

    title = "Manifest for Kubernetes"
    note = "kubectl submits it to a cluster with Kubeflow Trainer"
    suffix = ".yaml"
    mime = "application/yaml"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        """Return the manifest.

        Raises:
            DesignError: the design can be planned but not run.
            Refusal: the design does not fit into a ConfigMap, or its nodes have different numbers of processes.
        """
        layout = NodeLayout.from_design(prediction.design)
        if len(set(layout.processes)) > 1:
            raise Refusal("unequal_pods", {"processes": layout.processes})
        design = Script.to_bytes(prediction).decode()
        if len(design) > LARGEST_BYTES:
            raise Refusal("manifest_too_large", {"bytes": len(design), "most": LARGEST_BYTES})
        node = node_script(layout, ["/meshwave/design.py", "--out", "/results"], python="python3")
        files = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME},
            "data": {"design.py": design, SCRIPT: node},
        }
        pods = Pods(
            name=NAME,
            image="REGISTRY/meshwave:latest",
            nodes=layout.nodes,
            processes=layout.processes[0],
            script=["bash", f"/meshwave/{SCRIPT}"],
            volumes=({"name": "design", "configMap": {"name": NAME}}, {"name": "results", "emptyDir": {}}),
            mounts=({"name": "design", "mountPath": "/meshwave"}, {"name": "results", "mountPath": "/results"}),
        )
        return (HEAD + to_yaml(files, train_job(pods, "torch-distributed"))).encode()
