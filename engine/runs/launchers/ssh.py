"""Runs on hosts without a scheduler: one torchrun on each, started by OpenSSH."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from meshwave.engine.document import Design
from meshwave.engine.findings import Problem, Refusal, RunRefusal
from meshwave.engine.frozen import Part, nullable, text_form
from meshwave.engine.runs.launchers._base import launchers
from meshwave.engine.runs.launchers._host import Host, SshHost
from meshwave.engine.runs.launchers._job_files import cancel_command
from meshwave.engine.runs.launchers._jobs import (
    Address,
    JobLauncher,
    JobOptions,
    JobStatus,
    Line,
    Phase,
)
from meshwave.engine.runs.launchers._node_counts import NodeCounts
from meshwave.engine.runs.launchers._torchrun import NodeLayout, rendezvous_port
from meshwave.engine.runs.options import Options

IDENTITY = """
identity() {
    stat=$(<"/proc/$1/stat") && set -- ${stat##*) } && echo "${20} $(</proc/sys/kernel/random/boot_id)"
} 2>/dev/null
is_same() { [ "$(identity "$1")" = "$2" ] || [ "$(ps -o lstart= -p "$1")" = "$2" ]; }
"""
"""Shell functions that identify a process by its start in clock ticks and by the start of its host.

Unlike the time that ps prints, they do not change with the clock, the time zone or the language of the host. Earlier
versions recorded that time.
"""
START = (
    IDENTITY
    + """cd "$1" || exit 1
rm -f "node-$2.exit" error-*.json exit-*.json
setsid bash -c 'trap : TERM; bash node.sh "$@"; echo $? >"node-$1.exit"' node "$2" "$3" "$4" \
    </dev/null >>"node-$2.log" 2>&1 &
echo $! $(identity $!) >"node-$2.leader"
echo $!
identity $!
true
"""
)
"""Shell script that starts the processes of a node in a session of their own, and prints its leader and start."""
LOOK = (
    IDENTITY
    + """is_same "$3" "$4" && [[ $(ps -o stat= -p "$3") = [!Z]* ]] && leader=alive || leader=gone
grep . "$1/node-$2.exit" 2>/dev/null || echo $leader
"""
)
"""Shell script that prints the exit status of a node, or whether its session leader is alive.

It looks for the leader first, because the leader may write the exit status and end at any moment. On a full disk, the
file of the exit status is empty.
"""
ABANDON = (
    IDENTITY
    + """
read -r pid born <"$1/node-$2.leader" && is_same "$pid" "$born" && kill -TERM -- "-$pid" "$pid"; true
"""
)
"""Shell script that ends a node whose start was not confirmed, because the connection was lost in the meantime."""
END = (
    IDENTITY
    + """is_same "$1" "$2" && kill -TERM -- "-$1"; true
"""
)
"""Shell script that ends a node, unless its session leader has ended and the process number was reused."""
KILL = (
    IDENTITY
    + """is_same "$1" "$2" || exit 0
for _ in $(seq "$3"); do
    processes=$(pgrep -g "$1" | grep -vx "$1") || exit 0
    sleep 0.1
done
kill -KILL $processes
true
"""
)
"""Shell script that kills the processes of a node except its session leader, which then writes the exit status, if they
do not end within a number of tenths of a second. torchrun does not notice SIGTERM while its node has succeeded and it
waits up to five minutes for another node that has failed.
"""
PATIENCE_TENTHS_S = 30


class SshOptions(JobOptions):
    """Options of a target of hosts without a scheduler. The hosts need Linux, bash and rsync."""

    needs_root: ClassVar = True
    hosts: Annotated[tuple[Address, ...], Field(min_length=1)]
    """Hosts of the nodes in order: names from the ssh configuration, or `user@host`."""
    address: Annotated[str, text_form(r"^[\w.:-]+$", "a host name or an IP address")] | None = nullable(
        "the name of the first host"
    )
    """Address at which the other hosts reach the first one."""
    shared: bool = False
    """True if `root` is one folder that all hosts share. Checkpoints require it."""
    ssh_options: tuple[Line, ...] = ()
    """Additional arguments of ssh, such as `-p` and `2222`."""


@launchers.register("ssh")
class SshLauncher(JobLauncher):
    """Hosts without a scheduler: OpenSSH starts one torchrun on each."""

    name: ClassVar = "ssh"
    title: ClassVar = "Hosts over ssh"
    most_runs: ClassVar = 1
    target_options: ClassVar[type[Part]] = SshOptions

    @property
    def host(self) -> Host:
        return self.hosts[0]

    @cached_property
    def hosts(self) -> Sequence[Host]:
        """Hosts of the nodes."""
        return [SshHost(host, self.options.ssh_options) for host in self.options.hosts]

    @property
    def clients(self) -> tuple[str, ...]:
        return ("ssh", "rsync")

    @property
    def max_nodes(self) -> int:
        return min(self.options.nodes or len(self.hosts), len(self.hosts))

    def count_nodes(self) -> NodeCounts:
        return NodeCounts(self.max_nodes)

    def remove(self, folder: Path) -> None:
        _run_all([(host, ["rm", "-rf", "--", self.folder_on_nodes(folder)]) for host in self.hosts])

    def check_requirements(self, design: Design, drawn: Design, options: Options) -> None:
        super().check_requirements(design, drawn, options)
        if self.layout(design).nodes > 1 and not self.options.shared and (options.checkpoints or options.resume):
            raise Refusal("checkpoints_not_shared", {"target": self.target})

    def push(self, folder: Path, remote: str) -> None:
        for host in self.hosts[:1] if self.options.shared else self.hosts:
            host.push(folder, remote)

    def pull(self, folder: Path, job: Mapping[str, Any], *, everything: bool = False) -> None:
        for host in self.hosts[: 1 if self.options.shared else len(job["nodes"])]:
            host.pull(self.folder_on_nodes(folder), folder, everything=everything)

    def start(self, run: str, layout: NodeLayout, folder: str) -> Mapping[str, Any]:
        address = self.options.address or self.options.hosts[0].rpartition("@")[2]
        port = str(rendezvous_port(int.from_bytes(run.encode())))
        job: dict[str, Any] = {"nodes": []}
        try:
            for node in range(layout.nodes):
                printed = self.hosts[node].run(["bash", "-c", START, "start", folder, str(node), address, port])
                pid, _, born = printed.rstrip("\n").partition("\n")
                job["nodes"].append({"pid": pid, "born": born})
        except BaseException:
            node = len(job["nodes"])
            for host in self.hosts[node : node + 1]:
                with suppress(RunRefusal):
                    host.run(["bash", "-c", ABANDON, "abandon", folder, str(node)])
            self.end(run, job)
            raise
        return job

    def status(self, run: str, job: Mapping[str, Any]) -> JobStatus:
        ends = [self._exit_status(run, node, each) for node, each in enumerate(job["nodes"])]
        if None in ends:
            if any(ends):  # a node failed, and the others may wait for it
                self.end(run, job)
            return JobStatus(Phase.RUNNING)
        lost = [self.options.hosts[node] for node, status in enumerate(ends) if status == LOST]
        return JobStatus(Phase.ENDED, failure=Problem("", "node_lost", {"hosts": lost}) if lost else None)

    def _exit_status(self, run: str, node: int, started: Mapping[str, str]) -> int | None:
        """Return the exit status of a node: None while it runs, :data:`LOST` if it wrote none."""
        folder = self.folder_on_nodes(self.record.folder(run))
        look = ["bash", "-c", LOOK, "look", folder, str(node), started["pid"], started["born"]]
        match self.hosts[node].run(look).split():
            case [*_, "gone"]:
                return LOST
            case [*_, status] if status.isdecimal():
                return int(status)
        return None

    def end(self, run: str, job: Mapping[str, Any]) -> None:
        nodes = [*zip(self.hosts, job["nodes"], strict=False)]
        end = [(host, ["bash", "-c", END, "end", node["pid"], node["born"]]) for host, node in nodes]
        patience = str(PATIENCE_TENTHS_S)
        kill = [(host, ["bash", "-c", KILL, "kill", node["pid"], node["born"], patience]) for host, node in nodes]
        _run_all([*end, *kill])

    def mark_cancelled(self, folder: str, why: str) -> None:
        _run_all([(host, cancel_command(folder, why)) for host in self.hosts])


def _run_all(commands: Sequence[tuple[Host, Sequence[str]]]) -> None:
    """Run commands on hosts; after a failure, only those of other hosts.

    Raises:
        RunRefusal: the first command that failed, as on a host that does not respond.
    """
    failures: dict[Host, RunRefusal] = {}
    for host, command in commands:
        try:
            if host not in failures:
                host.run(command)
        except RunRefusal as error:
            failures[host] = error
    if failures:
        raise next(iter(failures.values()))


LOST = 255
"""Exit status of a node that wrote none, for example because its host was restarted."""
