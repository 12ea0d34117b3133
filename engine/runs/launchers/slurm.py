"""Runs as Slurm jobs, submitted on this machine or on a login node."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from meshwave.engine.errors import MeshwaveError, RunError
from meshwave.engine.files import write_private
from meshwave.engine.findings import Problem, Refusal
from meshwave.engine.frozen import nullable, text_form, validation_error
from meshwave.engine.messages import render
from meshwave.engine.runs.checkpoints import INTERRUPTED
from meshwave.engine.runs.launchers._base import launchers
from meshwave.engine.runs.launchers._host import Host, LocalHost, SshHost
from meshwave.engine.runs.launchers._jobs import (
    Address,
    JobLauncher,
    JobOptions,
    JobStatus,
    Line,
    Phase,
)
from meshwave.engine.runs.launchers._node_counts import NodeCounts, nodes_of_partition
from meshwave.engine.runs.launchers._torchrun import FIRST_PORT, PORTS, PROCESS_MODULE, SCRIPT, NodeLayout
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_entry import State
from meshwave.engine.runs.run_folder import Bundle, RunSpec

JOB_SCRIPT = "job.sh"
ARRAY_SCRIPT = "array.sh"
LOG = "slurm.log"
RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"}
WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESIZING",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
}
FAILED = "FAILED"
ENDED_BY_SLURM = {"TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "PREEMPTED", "CANCELLED", FAILED}
Word = Annotated[str, text_form(r"^[\w.,:@+%*&|()\[\]=/-]+$", "one word without spaces and quotes")]

Mount = Annotated[
    str, text_form(r"^/[\w./+@=-]*(:/[\w./+@=-]*(:[\w+]+)?)?$", "a folder such as /data, or /data:/mnt:ro")
]
Time = Annotated[str, text_form(r"^[\d:-]+$", "a time such as 04:00:00")]
Directive = Annotated[str, text_form(r"^--?[A-Za-z][^\n\r\x00]*$", "an option such as --exclusive, in one line")]
Image = Annotated[str, text_form(r"^[\w./][^\s\x00]*$", "the name or the file of an image, without spaces")]


class SlurmOptions(JobOptions):
    """Options of a Slurm target."""

    partition: Word | None = nullable("the default of the cluster")
    """Partition of the jobs."""
    account: Word | None = nullable("the default of the user")
    """Account to which jobs are charged."""
    time: Time | None = nullable("the default of the partition")
    """Time limit, such as `04:00:00`."""
    gpus_per_node: NonNegativeInt | None = nullable("no GPUs are requested")
    """Number of GPUs to request on each node."""
    constraint: Word | None = nullable("any node")
    """Features that nodes must have."""
    directives: tuple[Directive, ...] = ()
    """Additional options of sbatch, such as `--exclusive`."""
    container: Image | None = nullable("processes run without a container")
    """Image of the container of the processes: for Pyxis a name such as `nvcr.io#nvidia/pytorch:25.09-py3` or a `.sqsh`
    file, for Apptainer a `.sif` file or a name such as `docker://...`. `python` and `setup` are then those of the image."""
    container_runtime: Literal["pyxis", "apptainer"] = "pyxis"
    """Software that starts the container: the plugin Pyxis of Slurm, or Apptainer."""
    container_mounts: tuple[Mount, ...] = ()
    """Folders that the container sees, such as `/data` or `/data:/mnt:ro`. The run folders are always mounted."""
    signal_before_s: PositiveInt = 60
    """Seconds before the time limit at which a run writes a checkpoint and ends."""
    restarts: NonNegativeInt = 10
    """Maximum number of times that a job is requeued after its time limit, preemption or the loss of a node."""
    via: Literal["ssh"] | None = nullable("Slurm's commands run on this machine")
    """Connection to Slurm's commands; `ssh` runs them on the login node."""
    login: Address | None = nullable("none")
    """Login node for `via = "ssh"`: a name from the ssh configuration, or `user@host`."""
    ssh_options: tuple[Line, ...] = ()
    """Additional arguments of ssh, such as `-p` and `2222`."""

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if self.via is not None and self.login is None:
            raise validation_error("login", "login_required")
        if self.via is not None and self.root is None:
            raise validation_error("root", "root_required")
        return self


@launchers.register("slurm")
class SlurmLauncher(JobLauncher):
    """Slurm jobs: one torchrun per node, submitted on this cluster or through a login node."""

    name: ClassVar = "slurm"
    title: ClassVar = "Slurm"
    target_options: ClassVar = SlurmOptions

    _array: list[Bundle] | None = None  # runs that are submitted as one job array

    def submit_all(self, specs: Sequence[RunSpec]) -> list[Run]:
        """Submit several runs as one job array.

        Raises:
            Refusal: the runs need different numbers of nodes.
        """
        nodes = {NodeLayout.from_design(spec.design).nodes for spec in specs}
        if len(nodes) > 1:
            raise Refusal("unequal_array", {"target": self.target, "nodes": sorted(nodes)})
        array: list[Bundle] = []
        runs: list[Run] = []
        self._array = array
        try:
            runs.extend(map(self.submit, specs))
            jobs = self._submit_array(array, nodes.pop()) if array else []
        except RunError as error:  # such as that of sbatch
            self._end_without_job(runs, array, State.FAILED, str(error))
            raise
        except BaseException:  # such as a refused design
            self._end_without_job(runs, array, State.CANCELLED, render("cancelled_before_start", {}))
            raise
        finally:
            self._array = None
        for bundle, job in zip(array, jobs, strict=True):
            self.record_job(bundle, {"id": job})
        return runs

    def _end_without_job(self, runs: Sequence[Run], array: Sequence[Bundle], state: State, reason: str) -> None:
        """Record the end of the runs of an array that is not submitted, and cancel those that wait in the queue."""
        for bundle in array:
            self.record.change_state(bundle.run, state, reason)
        for run in runs:
            with suppress(MeshwaveError):
                run.cancel()

    def launch(self, bundle: Bundle) -> None:
        if self._array is None:
            super().launch(bundle)
        else:
            self._array.append(bundle)

    def _submit_array(self, bundles: Sequence[Bundle], nodes: int) -> list[str]:
        """Submit the jobs of runs as an array, and return the job id of each run."""
        first = bundles[0].folder
        folders = [
            self.push_program(NodeLayout.from_design(each.design), each.folder, PROCESS_MODULE) for each in bundles
        ]
        write_private(first / ARRAY_SCRIPT, array_script(self.options, nodes, folders))
        self.push(first, folders[0])
        array = self._sbatch(f"{folders[0]}/{ARRAY_SCRIPT}")
        return [f"{array}_{number}" for number in range(len(bundles))]

    @cached_property
    def host(self) -> Host:
        return SshHost(self.options.login, self.options.ssh_options) if self.options.via else LocalHost()

    @property
    def clients(self) -> tuple[str, ...]:
        return ("ssh", "rsync") if self.options.via else ("sbatch", "scontrol", "scancel")

    def count_nodes(self) -> NodeCounts | None:
        listed = self.host.run(["sinfo", "--noheader", "--Node", "--format=%P %N %t"])
        counts = nodes_of_partition(listed, self.options.partition)
        return counts.limit(self.options.nodes) if counts else None

    @property
    def uses_own_python(self) -> bool:
        return super().uses_own_python and self.options.container is None

    def scripts(self, layout: NodeLayout, run: str, program: Sequence[str]) -> dict[str, str]:
        variables = {
            "MESHWAVE_CHECKPOINT_ON_SIGTERM": "1",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(self.options.signal_before_s),
        }
        return {
            SCRIPT: self.node_script(layout, program, variables=variables),
            JOB_SCRIPT: job_script(self.options, layout, f"meshwave-{run}", program[-1]),
        }

    def start(self, run: str, layout: NodeLayout, folder: str) -> Mapping[str, Any]:
        return {"id": self._sbatch(f"{folder}/{JOB_SCRIPT}")}

    def _sbatch(self, script: str) -> str:
        """Submit a script and return the id of its job."""
        printed = self.host.run(["sbatch", "--parsable", script])
        return printed.strip().partition(";")[0]  # the name of the cluster may follow

    def status(self, run: str, job: Mapping[str, Any]) -> JobStatus:
        done = self.host.run_unchecked(["scontrol", "--oneliner", "show", "job", job["id"]])
        if done.status == 0:
            found = slurm_job_status(_scontrol_field(done.output, "JobState"), _scontrol_field(done.output, "Reason"))
            is_pending = found.phase is Phase.WAITING
            return (
                replace(found, note=self._waiting_reason(found.note, job["id"], done.output)) if is_pending else found
            )
        if "Invalid job id" in done.error:  # it ended some minutes ago
            return self._status_from_accounting(job["id"])
        self.host.run(["scontrol", "ping"])  # raises if the controller does not answer
        return JobStatus(Phase.WAITING, " ".join(done.error.split()))

    def _waiting_reason(self, reason: str, job: str, shown: str) -> str:
        """Return the reason why a job waits, and its position among the pending jobs of its partition."""
        command = ["squeue", "--noheader", "--states=PENDING", "--sort=-p,i", "--format=%A"]
        done = self.host.run_unchecked([*command, f"--partition={_scontrol_field(shown, 'Partition')}"])
        pending = [*dict.fromkeys(done.output.split())]
        if done.status != 0 or job not in pending:
            return reason
        params = {"position": pending.index(job) + 1, "queued": len(pending), "run": ""}
        return "; ".join(filter(None, (reason, render("queued", params))))

    def _status_from_accounting(self, job: str) -> JobStatus:
        """Return the status of a job that the controller no longer knows; accounting may be unavailable too."""
        done = self.host.run_unchecked(
            ["sacct", "--noheader", "--parsable2", "--allocations", "--jobs", job, "--format=State"]
        )
        states = done.output.split()
        return slurm_job_status(states[0], "") if done.status == 0 and states else JobStatus(Phase.ENDED)

    def end(self, run: str, job: Mapping[str, Any]) -> None:
        self.host.run(["scancel", "--quiet", job["id"]])


def slurm_job_status(state: str, reason: str) -> JobStatus:
    """Return the job status for a state of Slurm and its reason."""
    if state in WAITING:
        return JobStatus(Phase.WAITING, "" if reason == "None" else reason)
    if state in RUNNING:
        return JobStatus(Phase.RUNNING)
    if state in ENDED_BY_SLURM:
        failure = Problem("", "ended_by_slurm", {"state": state})
        return JobStatus(Phase.ENDED, failure=failure, is_consequence=state == FAILED)
    return JobStatus(Phase.ENDED)


def _scontrol_field(text: str, name: str) -> str:
    """Return the value of a field in the output of scontrol."""
    found = re.search(rf"(?:^| ){name}=(\S*)", text)
    return found[1] if found else ""


def job_script(options: SlurmOptions, layout: NodeLayout, name: str, folder: str) -> str:
    """Return the sbatch script that starts the processes of a run."""
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {directive}" for directive in sbatch_directives(options, layout.nodes, name)),
        f"#SBATCH --output={folder}/{LOG}",
        "#SBATCH --open-mode=append",
        "",
        "# Starts one torchrun per node. A requeued job resumes from its last checkpoint.",
        f"cd {shlex.quote(folder)} || exit 1",
        f"rm -f {INTERRUPTED} error-*.json exit-*.json",
        *HEAD_ADDRESS,
        "# Each node writes its own log: srun may lose the last output of a task that fails.",
        f'node_command=\'exec bash {SCRIPT} "$SLURM_NODEID" "$0" "$1" >>"node-$SLURM_NODEID.log" 2>&1\'',
        f'srun --kill-on-bad-exit=1 {container_words(options, folder)}bash -c "$node_command" "$address" "$port"',
        "status=$?",
        *_requeue_lines(options.restarts),
        "exit $status",
    ]
    return "\n".join(lines) + "\n"


def container_words(options: SlurmOptions, folder: str) -> str:
    """Return the options of srun, or the command after them, that start the container of a run, followed by a space."""
    if options.container is None:
        return ""
    runs = str(PurePosixPath(folder).parent)  # a resumed run reads the folder of another run
    mounts = ",".join(mount if ":" in mount else f"{mount}:{mount}" for mount in (runs, *options.container_mounts))
    if options.container_runtime == "pyxis":
        words = [
            f"--container-image={options.container}",
            f"--container-mounts={mounts}",
            f"--container-workdir={folder}",
        ]
    else:
        gpus = ["--nv"] if options.gpus_per_node else []
        words = ["apptainer", "exec", *gpus, "--bind", mounts, "--pwd", folder, options.container]
    return f"{shlex.join(words)} "


HEAD_ADDRESS = (
    'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    'address=$(scontrol --oneliner show node "$head" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")',
    f"port=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))",
)
"""Shell lines that determine the address of node 0 as Slurm reaches it."""


def array_script(options: SlurmOptions, nodes: int, folders: Sequence[str]) -> str:
    """Return the sbatch script of a job array; each job runs the script in one of the folders."""
    given = [
        *sbatch_directives(options, nodes, "meshwave-sweep"),
        f"--array=0-{len(folders) - 1}",
        "--output=/dev/null",
    ]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {directive}" for directive in given),
        "",
        f"folders=({shlex.join(folders)})",
        'folder="${folders[$SLURM_ARRAY_TASK_ID]}"',
        f'exec bash "$folder/{JOB_SCRIPT}" >>"$folder/{LOG}" 2>&1',
    ]
    return "\n".join(lines) + "\n"


def _requeue_lines(restarts: int) -> Iterator[str]:
    if restarts:
        yield f'if [ -e {INTERRUPTED} ] && [ ! -e cancel ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then'
        yield '    scontrol requeue "$SLURM_JOB_ID"'
        yield "fi"


def sbatch_directives(options: SlurmOptions, nodes: int, name: str) -> Iterator[str]:
    """Yield the sbatch options of a job with this number of nodes."""
    yield f"--job-name={name}"
    yield f"--nodes={nodes}"
    yield "--ntasks-per-node=1"
    if options.gpus_per_node:
        yield f"--gpus-per-node={options.gpus_per_node}"
    for key in ("partition", "account", "time", "constraint"):
        value = getattr(options, key)
        if value is not None:
            yield f"--{key}={value}"
    yield f"--signal=TERM@{options.signal_before_s}"
    yield "--requeue" if options.restarts else "--no-requeue"
    yield from options.directives
