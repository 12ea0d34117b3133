"""Messages of launch targets."""

from __future__ import annotations

from meshwave.engine.messages import Message

_SLURM_STATES = {
    "TIMEOUT": "the time limit of the job was reached; raise `time` of the target",
    "NODE_FAIL": "a node failed; launch again, or exclude the node by a directive of the target",
    "BOOT_FAIL": "a node could not be started; launch again",
    "DEADLINE": "the deadline of the job was reached; launch again with a later one",
    "OUT_OF_MEMORY": "a node ran out of memory; request more by a directive such as --mem=0, or use a smaller model",
    "PREEMPTED": "a job of higher priority took its nodes; launch again, or use another partition",
    "FAILED": "the job script failed; read slurm.log and node-*.log in the run folder",
    "CANCELLED": "a user or an administrator cancelled the job in Slurm",
}


def _ended_by_slurm(state: str) -> str:
    return f"{_SLURM_STATES[state]} (Slurm state {state})"


MESSAGES: dict[str, Message] = {
    # the file
    "targets_unreadable": "cannot read the launch targets in {file}: {reason}; correct the file, or rename it",
    "target_not_a_table": "{file}: {target} is not a table; write [{target}] and its options below",
    "target_launcher": '{file}: target {target} has no launcher; add launcher = "NAME", one of {known:or}',
    "target_launcher_unknown": "{file}: target {target} has the unknown launcher {given}. {hint}",
    "target_reserved": "{file}: the name {target} is taken by a launcher of this machine; choose another name",
    "target_option": "{file}: target {target}: {problem}",
    "unknown_target": "there is no launch target called {target!r}. {hint} Targets are read from {files:list}",
    "unknown_place": "{name!r} is not a launch target of this page; reload the page",
    "target_required": (
        "the launcher {launcher} needs a launch target; add one to the targets file (see meshwave targets list)"
    ),
    "login_required": 'via = "ssh" needs a login node; add login = "user@host"',
    "root_required": "a remote host needs a root; add the path of a folder that all nodes share",
    # commands and hosts
    "command_missing": "the command {command} is not installed on this machine; install it, or launch on another target",
    "command_failed": "{command} failed on {host} with status {status}: {said}",
    "command_timeout": "{command} did not end within {limit_s:g} s on {host}; check that the host answers, and try again",
    "host_unreachable": "{host} cannot be reached by ssh: {said}; try `ssh {host} true`, which must work without a password",
    "copy_failed": (
        "files could not be copied to or from {host} (rsync status {status}): {said}; rsync must be installed on both sides, "
        "and the disk must have space"
    ),
    # designs
    "hosts_on_target": "hosts are emulated on this machine only; leave out --hosts, or launch on local instead of {target}",
    "target_processes": (
        "the design has {processes} processes, and target {target} allows {most}; use fewer devices, or raise "
        "`limits.processes` of the target"
    ),
    "target_disk": (
        "the run folders of target {target} use {used_bytes:quantity|B}, and its limit is {most_bytes:quantity|B}; delete "
        "some with meshwave runs delete, or raise `limits.megabytes` of the target"
    ),
    "target_minutes": "the limit of target {target} is {minutes:g} min",
    "too_many_nodes": "the design uses {nodes} nodes, and target {target} has {most}; draw fewer nodes, or raise `nodes` of the target",
    "too_many_devices_per_node": (
        "the design uses {devices} devices of a node, and nodes of target {target} have {most}; draw more nodes with fewer "
        "devices, or raise `devices_per_node` of the target"
    ),
    "checkpoints_not_shared": (
        "checkpoints and --resume need one folder that the hosts of target {target} share; set shared = true if its root "
        "folder is shared, or use one host"
    ),
    "unequal_nodes": (
        "all pods of a Kubernetes job are identical; use the same number of devices on every node for target {target}"
    ),
    "unequal_array": (
        "designs with different numbers of nodes ({nodes:list}) cannot share a job array on {target}; sweep designs with the "
        "same number of nodes together"
    ),
    "no_job_status": "kubectl printed no status of {name}: {reason}",
    "unequal_pods": (
        "all pods of a Kubernetes job are identical, but the nodes of the design have {processes:list} processes; use the "
        "same number on every node"
    ),
    "manifest_too_large": (
        "the document of the design is {bytes:,} bytes long, and a ConfigMap holds at most {most:,}; launch it on a Kubernetes target, which uses a volume"
    ),
    # checks
    "no_processes_to_check": "{launcher} does not start processes, so there is nothing to check; check local instead",
    "target_check_failed": "the check of {target} failed: {why}; from its logs: {said}",
    "too_few_nodes": "{count} nodes are too few; use 1 or more",
    "links_not_measured": "one process has no links to measure; use --nodes 2 or --devices 2",
    "versions_differ": "processes have different versions of {name} ({versions:list}); install one version on all nodes",
    "version_of_target": (
        "versions of {name} differ: {there} on the target, {here} on this machine; results may differ, and the target may "
        "reject the design"
    ),
    "device_shared": "{processes} processes share a GPU; set devices_per_node to the GPUs of a node",
    "folder_not_shared": "the nodes do not share the run folder, so runs on several nodes write no checkpoints",
    # jobs
    "unknown_job": "run {run} was launched by another version of Meshwave: {reason}; follow it with that version",
    "job_not_submitted": "the submitting process ended before the job was submitted; launch again",
    "ended_by_scheduler": "{why}; it ended after {done} of {total} steps, and the files that it wrote are kept",
    "ended_by_slurm": _ended_by_slurm,
    "node_lost": (
        "the processes on {hosts:list} were killed, the host was restarted, or its disk is full; see node-*.log in the run "
        "folder"
    ),
    "job_deleted": "the job {name} of the run was deleted from Kubernetes; launch again",
    "ended_by_kubernetes": "the job of the run failed in Kubernetes ({reason}): {message}; kubectl describe shows its pods",
    "interrupted": (
        "the scheduler stopped the run after {steps} of {total} steps; the run wrote a checkpoint, from which "
        "`meshwave run DESIGN --resume {run}` continues"
    ),
    "unreported_end": (
        "the job ended, but only {reported} of {processes} processes reported an exit status; from its logs: {said}; correct the "
        "target, or read the logs in the run folder"
    ),
}
