"""Runs as Kubernetes jobs, submitted with kubectl: TrainJobs of Kubeflow Trainer, or JobSets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import PositiveInt

from meshwave.engine.document import Design
from meshwave.engine.findings import Problem, Refusal, RunRefusal
from meshwave.engine.frozen import nullable, text_form
from meshwave.engine.runs.attempts import read_attempts
from meshwave.engine.runs.launchers._base import launchers
from meshwave.engine.runs.launchers._jobs import JobLauncher, JobOptions, JobStatus, Phase
from meshwave.engine.runs.launchers._manifests import Json, Pods, job_set, to_yaml, train_job
from meshwave.engine.runs.launchers._torchrun import SCRIPT, NodeLayout
from meshwave.engine.runs.options import Options

MANIFEST = "manifest.yaml"
VOLUME = "runs"
Label = Annotated[
    str,
    text_form(
        r"^[A-Za-z0-9]([\w./-]*[A-Za-z0-9])?$", "letters, digits and _ . / -, with a letter or digit at both ends"
    ),
]
"""Name of a Kubernetes object, or key or value of a label."""


class KubernetesOptions(JobOptions):
    """Options of a Kubernetes target."""

    needs_root: ClassVar = True
    image: Annotated[str, text_form(r"^[\w./:@-]+$", "the name of an image, such as registry.example.org/meshwave:1")]
    """Container image with Python, torch and Meshwave."""
    claim: Label
    """PersistentVolumeClaim that all pods can write to. Pods and this machine mount it at `root`."""
    kind: Literal["trainjob", "jobset"] = "trainjob"
    """A TrainJob of Kubeflow Trainer 2.2 or newer, or a plain JobSet."""
    runtime: Label = "torch-distributed"
    """Training runtime of Kubeflow Trainer that starts the nodes of a TrainJob."""
    namespace: Label | None = nullable("the namespace of the context")
    """Namespace of the jobs."""
    context: Annotated[str, text_form(r"^[\w.:@/-]+$", "the name of a context")] | None = nullable(
        "the current context"
    )
    """Context of kubectl."""
    gpus_per_node: PositiveInt | None = nullable("no GPUs are requested")
    """Number of GPUs of each pod."""
    gpu_resource: Label = "nvidia.com/gpu"
    """Resource name of GPUs."""
    queue: Label | None = nullable("jobs are not queued by Kueue")
    """Local queue of Kueue for the jobs."""
    node_selector: dict[Label, Label] = {}
    """Labels that nodes must have."""
    grace_s: PositiveInt = 60
    """Seconds that an evicted pod has to write a checkpoint before it is killed."""


@launchers.register("kubernetes")
class KubernetesLauncher(JobLauncher):
    """Jobs of Kubernetes: one pod per node, with the user's own kubectl."""

    name: ClassVar = "kubernetes"
    title: ClassVar = "Kubernetes"
    target_options: ClassVar = KubernetesOptions

    @property
    def clients(self) -> tuple[str, ...]:
        return ("kubectl",)

    @property
    def python(self) -> str:
        return self.options.python or "python3"

    def check_requirements(self, design: Design, drawn: Design, options: Options) -> None:
        super().check_requirements(design, drawn, options)
        if len(set(NodeLayout.from_design(design).processes)) > 1:
            raise Refusal("unequal_nodes", {"target": self.target})

    def scripts(self, layout: NodeLayout, run: str, program: Sequence[str]) -> dict[str, str]:
        variables = {
            "MESHWAVE_CHECKPOINT_ON_SIGTERM": "1",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(self.options.grace_s),
        }
        return {
            SCRIPT: self.node_script(layout, program, variables=variables),
            MANIFEST: to_yaml(self._manifest(layout, self._job_name(run), ["bash", f"{program[-1]}/{SCRIPT}"])),
        }

    def _manifest(self, layout: NodeLayout, name: str, script: list[str]) -> Json:
        options = self.options
        pods = Pods(
            name=name,
            image=options.image,
            nodes=layout.nodes,
            processes=layout.processes[0],
            script=script,
            gpus=options.gpus_per_node,
            gpu_resource=options.gpu_resource,
            volumes=({"name": VOLUME, "persistentVolumeClaim": {"claimName": options.claim}},),
            mounts=({"name": VOLUME, "mountPath": options.root},),
            node_selector=options.node_selector,
            grace_s=options.grace_s,
            namespace=options.namespace,
            labels={"kueue.x-k8s.io/queue-name": options.queue} if options.queue else None,
        )
        return train_job(pods, options.runtime) if options.kind == "trainjob" else job_set(pods)

    def start(self, run: str, layout: NodeLayout, folder: str) -> Mapping[str, Any]:
        if attempts := self._failed_attempts(run):
            self.end(run, {"name": job_name(run, attempts - 1)})
        self.host.run([*self._kubectl, "create", "--filename", f"{folder}/{MANIFEST}"])
        return {"name": self._job_name(run)}

    def status(self, run: str, job: Mapping[str, Any]) -> JobStatus:
        printed = self.host.run(
            [*self._kubectl, "get", self._resource, job["name"], "--ignore-not-found", "--output=json"]
        )
        if not printed.strip():
            return JobStatus(Phase.ENDED, failure=Problem("", "job_deleted", {"name": job["name"]}))
        try:
            return kubernetes_job_status(json.loads(printed).get("status", {}))
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise RunRefusal("no_job_status", {"name": job["name"], "reason": repr(error)}) from None

    def end(self, run: str, job: Mapping[str, Any]) -> None:
        self.host.run([*self._kubectl, "delete", self._resource, job["name"], "--ignore-not-found", "--wait=false"])

    def _job_name(self, run: str) -> str:
        return job_name(run, self._failed_attempts(run))

    def _failed_attempts(self, run: str) -> int:
        return len(read_attempts(self.record.folder(run)))

    @property
    def _kubectl(self) -> list[str]:
        options = self.options
        context = [f"--context={options.context}"] if options.context else []
        return ["kubectl", *context, *([f"--namespace={options.namespace}"] if options.namespace else [])]

    @property
    def _resource(self) -> str:
        groups = {"trainjob": "trainjobs.trainer.kubeflow.org", "jobset": "jobsets.jobset.x-k8s.io"}
        return groups[self.options.kind]


def job_name(run: str, failed_attempts: int = 0) -> str:
    """Return the name of the job of a run, which differs for each attempt."""
    return f"meshwave-{run}" + (f"-{failed_attempts + 1}" if failed_attempts else "")


def kubernetes_job_status(status: Mapping[str, Any]) -> JobStatus:
    """Return the status of a TrainJob or a JobSet."""
    conditions = {each["type"]: each for each in status.get("conditions", ()) if each["status"] == "True"}
    if "Complete" in conditions or "Completed" in conditions:
        return JobStatus(Phase.ENDED)
    if failed := conditions.get("Failed"):
        params = {"reason": failed.get("reason", ""), "message": failed.get("message", "")}
        return JobStatus(Phase.ENDED, failure=Problem("", "ended_by_kubernetes", params), is_consequence=True)
    jobs = [*status.get("jobsStatus", ()), *status.get("replicatedJobsStatus", ())]
    if any(job.get(key) for job in jobs for key in ("ready", "succeeded", "failed")):  # also before Complete or Failed
        return JobStatus(Phase.RUNNING)
    waiting = conditions.get("Suspended", {})
    return JobStatus(Phase.WAITING, waiting.get("message", "") or "its pods are not ready")
