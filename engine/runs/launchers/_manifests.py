"""Kubernetes manifests: a TrainJob of Kubeflow Trainer, or a plain JobSet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONTAINER = "node"
"""Name of the replicated job and of its container, as the runtimes of Kubeflow Trainer call them."""
PORT = 29_500
Json = dict[str, Any]


@dataclass(frozen=True)
class Pods:
    """Pods of a job, one per node."""

    name: str
    """Name of the job."""
    image: str
    nodes: int
    processes: int
    """Number of processes of each node."""
    script: Sequence[str]
    """Command that starts a node; its last arguments are the number of the node, and the address and port of node 0."""
    gpus: int | None = None
    gpu_resource: str = "nvidia.com/gpu"
    volumes: tuple[Json, ...] = ()
    mounts: tuple[Json, ...] = ()
    node_selector: Mapping[str, str] | None = None
    grace_s: int = 30
    """Seconds between SIGTERM and SIGKILL."""
    namespace: str | None = None
    labels: Mapping[str, str] | None = None

    @property
    def metadata(self) -> Json:
        """Metadata of the job."""
        namespace = {"namespace": self.namespace} if self.namespace else {}
        return {
            "name": self.name,
            **namespace,
            "labels": {"app.kubernetes.io/managed-by": "meshwave", **(self.labels or {})},
        }

    @property
    def resources(self) -> Json:
        """Resources of a pod; empty if it uses no GPU."""
        return {"limits": {self.gpu_resource: self.gpus}} if self.gpus else {}

    @property
    def scheduling(self) -> Json:
        """Constraints on the nodes on which a pod may run, and the time that it has to end."""
        nodes = {"nodeSelector": dict(self.node_selector)} if self.node_selector else {}
        return {**nodes, "terminationGracePeriodSeconds": self.grace_s}

    def command(self, node: str, address: str, port: str) -> list[str]:
        """Return the command of a container; the arguments are shell expressions for its environment variables."""
        return ["bash", "-c", f'exec "$@" "{node}" "{address}" "{port}"', "node", *self.script]


def train_job(pods: Pods, runtime: str) -> Json:
    """Return a TrainJob of Kubeflow Trainer v2.2 or newer, whose nodes are started by a training runtime for torch."""
    resources = {"resourcesPerNode": pods.resources} if pods.resources else {}
    patch: Json = {"spec": {**pods.scheduling, "volumes": list(pods.volumes), "containers": [_volume_mounts(pods)]}}
    replicated = {"name": CONTAINER, "template": {"spec": {"template": patch}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": pods.metadata,
        "spec": {
            "runtimeRef": {"name": runtime},
            "trainer": {
                "image": pods.image,
                "command": pods.command("$PET_NODE_RANK", "$PET_MASTER_ADDR", "$PET_MASTER_PORT"),
                "numNodes": pods.nodes,
                "numProcPerNode": pods.processes,
                **resources,
            },
            "runtimePatches": [
                {
                    "manager": "meshwave.io/launcher",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
                }
            ],
        },
    }


def job_set(pods: Pods) -> Json:
    """Return a JobSet whose pods find each other by host name."""
    head = f"{pods.name}-{CONTAINER}-0-0.{pods.name}"
    container = {
        **_volume_mounts(pods),
        "image": pods.image,
        "command": pods.command("$JOB_COMPLETION_INDEX", head, str(PORT)),
        **({"resources": pods.resources} if pods.resources else {}),
    }
    pod = {"restartPolicy": "Never", **pods.scheduling, "volumes": list(pods.volumes), "containers": [container]}
    job = {
        "parallelism": pods.nodes,
        "completions": pods.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": pods.metadata,
        "spec": {
            "network": {"enableDNSHostnames": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": CONTAINER, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _volume_mounts(pods: Pods) -> Json:
    return {"name": CONTAINER, "volumeMounts": list(pods.mounts)}


def to_yaml(*documents: Json) -> str:
    """Return documents as human-readable YAML, in which texts of several lines are blocks."""
    import yaml  # not at the top, because planning needs numpy and pydantic alone

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # yaml has no types
        pass

    def represent_text(dumper: Dumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, represent_text)
    found: str = yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=math.inf)
    return found
