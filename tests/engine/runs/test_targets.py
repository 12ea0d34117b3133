"""Launch targets: their files, and the behaviour that all launchers of jobs share."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.costs.alpha_beta import collective_seconds
from meshwave.engine.errors import RunError
from meshwave.engine.findings import FindingError, Refusal, RunRefusal
from meshwave.engine.predict.prediction import predict
from meshwave.engine.run_files import write_document
from meshwave.engine.runs import Options, Record, Run, State, reconcile, silence_text
from meshwave.engine.runs.emulation.hosts import default_hosts
from meshwave.engine.runs.launchers import _host, launchers, open_run, specify_run, ssh
from meshwave.engine.runs.launchers._base import Launcher
from meshwave.engine.runs.launchers._host import CommandResult, LocalHost, SshHost
from meshwave.engine.runs.launchers._job_files import last_errors
from meshwave.engine.runs.launchers._jobs import JobLauncher, JobStatus, Phase
from meshwave.engine.runs.launchers._limits import TargetLimits
from meshwave.engine.runs.launchers._node_counts import NodeCounts, nodes_of_partition
from meshwave.engine.runs.launchers._torchrun import NodeLayout
from meshwave.engine.runs.launchers.kubernetes import KubernetesLauncher, KubernetesOptions
from meshwave.engine.runs.launchers.ssh import SshLauncher, SshOptions
from meshwave.engine.runs.process_identity import own_handle
from meshwave.engine.runs.recording import Clocks
from meshwave.engine.runs.run import POLL_S
from meshwave.engine.runs.run_folder import read_bundle, write_bundle
from meshwave.engine.runs.target_check import (
    DeviceReport,
    LinkReport,
    ProcessReport,
    TargetReport,
    drawn_links,
    report_lines,
)
from meshwave.engine.runs.targets import find_target, open_target, read_targets, training_targets
from meshwave.engine.units import quantity
from tests.conftest import PATIENCE_S, wait_until
from tests.engine.runs.jobs import two_nodes
from tests.engine.runs.play import draw

JOB_LAUNCHERS = [name for name, member in launchers.items() if member.needs_target]
EXAMPLES: dict[str, dict[str, Any]] = {
    "slurm": {"partition": "main"},
    "ssh": {"hosts": ["box1", "box2"], "root": "/nowhere"},
    "kubernetes": {"image": "image", "claim": "claim", "root": "/nowhere"},
}
"""Options of a target of each launcher."""
GONE = own_handle()._replace(born="1")
"""A process that no longer exists."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MESHWAVE_TARGETS", str(tmp_path / "targets.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    return tmp_path / "targets.toml"


def test_this_machine_is_always_a_target(file: Path) -> None:
    assert find_target("local").options is None
    assert set(read_targets()) == {name for name, member in launchers.items() if not member.needs_target}


def test_targets_are_listed_and_offered(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('[gpus]\nlauncher = "slurm"\npartition = "gpu"\nsetup = ["module load cuda"]\n')

    assert cli.main(["targets", "list", "--json"]) == 0

    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)["targets"]}
    assert (listed["gpus"]["launcher"], listed["gpus"]["options"]["partition"]) == ("slurm", "gpu")
    assert [target.title for target in training_targets()] == [
        "This machine",
        "This machine, with torchrun",
        "gpus (Slurm)",
    ]


def test_a_file_of_the_user_replaces_targets_of_a_deployment(file: Path) -> None:
    file.write_text('[a]\nlauncher = "slurm"\npartition = "theirs"\n[b]\nlauncher = "slurm"\n')
    own = file.parent / "configuration/meshwave/targets.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[a]\nlauncher = "slurm"\npartition = "mine"\n')

    assert read_targets()["a"].options.partition == "mine"  # type: ignore[union-attr]
    assert "b" in read_targets()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"x = {'[' * 5000}", "cannot read the launch targets in .*: the TOML is nested too deeply; correct"),
        ("[x\n", "cannot read the launch targets in .*targets.toml: the TOML is invalid: .*; correct the file"),
        ("x = 1\n", r"targets.toml: x is not a table; write \[x\]"),
        ("[x]\n", "target x has no launcher; add launcher = .*, one of kubernetes, slurm or ssh"),
        ('[x]\nlauncher = "slrum"\n', "target x has the unknown launcher 'slrum'. Did you mean 'slurm'"),
        ("[x]\nlauncher = 3\n", "target x has the unknown launcher 3"),
        ('[local]\nlauncher = "slurm"\n', "the name local is taken"),
        ("[local.limits]\nminutes = 0\n", "target local: limits.minutes: "),
        ("[threads.limits]\nminutes = 1\n", "the name threads is taken"),
        ('[x]\nlauncher = "slurm"\npartitio = "gpu"\n', "target x: partitio: unknown key .* Did you mean 'partition'"),
        ('[x]\nlauncher = "slurm"\nnodes = "two"\n', "target x: nodes: "),
        ('[x]\nlauncher = "slurm"\nlimits.minutes = 0\n', "target x: limits.minutes: "),
        ('[x]\nlauncher = "slurm"\npartition = "a b; rm"\n', "target x: partition: .* should be one word"),
        ('[x]\nlauncher = "slurm"\ndirectives = ["--x\\nrm"]\n', r"target x: directives\[0\]: "),
        ('[x]\nlauncher = "slurm"\nvia = "ssh"\nroot = "/a"\n', "target x: login: .*needs a login node; add login"),
        (
            '[x]\nlauncher = "slurm"\ncontainer = "-x"\n',
            "target x: container: .* should be the name or the file of an image",
        ),
        ('[x]\nlauncher = "slurm"\ncontainer_mounts = ["/a,/b"]\n', r"target x: container_mounts\[0\]: "),
        ('[x]\nlauncher = "ssh"\nhosts = ["-oProxyCommand=x"]\nroot = "/a"\n', r"target x: hosts\[0\]: "),
        ('[x]\nlauncher = "ssh"\nhosts = ["a"]\n', "target x: root: a remote host needs a root"),
        (
            '[x]\nlauncher = "ssh"\nhosts = ["a"]\nroot = "relative"\n',
            "target x: root: .* should be an absolute path of letters",
        ),
    ],
)
def test_an_error_names_file_target_and_key(file: Path, text: str, message: str) -> None:
    file.write_text(text)

    with pytest.raises(Refusal, match=message):
        read_targets()
    assert [target.name for target in training_targets()] == ["local", "torchrun"]


def test_an_unknown_target_is_refused_with_the_nearest_one(file: Path, record: Record) -> None:
    file.write_text('[cluster]\nlauncher = "slurm"\n')

    with pytest.raises(Refusal, match=r"no launch target called 'clutser'. Did you mean 'cluster'\?.*targets.toml"):
        open_target(record, "clutser")


def test_processes_are_numbered_by_mesh_and_started_by_node() -> None:
    design = draw(pp=4)
    crossed = [
        mesh.model_copy(update={"devices": (device,)}) for mesh, device in zip(design.meshes, (0, 2, 1, 3), strict=True)
    ]
    cluster = design.cluster.model_copy(update={"nodes": 2, "devices_per_node": 2})

    layout = NodeLayout.from_design(design.model_copy(update={"cluster": cluster, "meshes": tuple(crossed)}))

    assert layout.processes == (2, 2)
    assert layout.order == (0, 2, 1, 3)


# ---- the contract of launchers of jobs ----


@pytest.fixture(params=JOB_LAUNCHERS)
def member(request: pytest.FixtureRequest, record: Record) -> JobLauncher:
    """A launcher of each kind, with options."""
    launcher = launchers[request.param]
    assert launcher.target_options is not None
    options = launcher.target_options.model_validate_json(json.dumps(EXAMPLES[request.param]))
    found: Any = launcher
    made: JobLauncher = found(record, options, "there")
    return made


@pytest.fixture
def no_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all programs of the machine."""
    monkeypatch.setenv("PATH", "/nowhere")


def enter(launcher: Launcher, state: State = State.STARTING, **more: Any) -> Run:
    """Enter a run of a launcher, with its folder, as if it had been launched."""
    design = two_nodes()
    handle = {**launcher.handle(), **more}
    entry, _ = launcher.record.submit(
        name="run", launcher=launcher.name, handle=handle, digest="", processes=2, steps=3, limit=1000
    )
    write_bundle(specify_run(predict(design)), launcher.record.folder(entry.id))
    if state is State.RUNNING:
        launcher.record.change_state(entry.id, state)
    return Run(launcher.record, entry.id, launcher)


def test_without_a_target_nothing_can_be_launched(member: JobLauncher) -> None:
    refusal = type(member)(member.record).probe().refusal

    assert refusal is not None
    assert "needs a launch target" in refusal.message


@pytest.mark.usefixtures("no_clients")
def test_a_missing_client_is_named(member: JobLauncher) -> None:
    can = member.probe()

    assert can.refusal is not None
    assert "is not installed on this machine; install it" in can.refusal.message
    with pytest.raises(RunError, match="is not installed"):
        member.submit(specify_run(predict(two_nodes())))
    assert member.record.entries() == []


def test_the_launcher_of_a_run_is_found_with_its_options(member: JobLauncher) -> None:
    run = enter(member)

    found = launchers[member.name].from_entry(member.record, run.entry)

    assert isinstance(found, JobLauncher)
    assert (found.options, found.target) == (member.options, "there")


def test_emulated_hosts_and_too_many_nodes_are_refused(member: JobLauncher) -> None:
    design = two_nodes()
    with pytest.raises(Refusal, match="emulated on this machine only"):
        member.check_requirements(design, design, Options(hosts=default_hosts(design)))
    member.options = member.options.model_copy(update={"nodes": 1})
    with pytest.raises(Refusal, match="uses 2 nodes, and target there has 1"):
        member.check_requirements(design, design, Options())


def test_runs_over_the_limits_of_a_target_are_refused(member: JobLauncher) -> None:
    design = two_nodes()
    (enter(member).folder / "data.txt").write_bytes(bytes(3_000_000))

    member.options = member.options.model_copy(update={"limits": TargetLimits(megabytes=2.0)})
    with pytest.raises(Refusal, match="run folders of target there use 3.* MB, and its limit is 2 MB; delete some"):
        member.check_limits(design)
    member.options = member.options.model_copy(update={"limits": TargetLimits(processes=1)})
    with pytest.raises(Refusal, match="the design has 2 processes, and target there allows 1"):
        member.check_limits(design)


def test_a_target_limits_the_runs_that_are_active_at_the_same_time(member: JobLauncher) -> None:
    assert member.runs_at_once == member.most_runs
    member.options = member.options.model_copy(update={"limits": TargetLimits(runs=1)})

    enter(member)
    entry, _ = member.record.submit(
        name="next",
        launcher=member.name,
        handle=member.handle(),
        digest="",
        processes=2,
        steps=3,
        limit=member.runs_at_once,
    )

    assert entry.state is State.QUEUED


def test_a_queued_run_notices_the_end_of_an_active_run_that_no_process_follows(
    member: JobLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(member), "start_next", lambda self: False)
    active = enter(member, State.RUNNING, job={"id": "1"})
    about = {"name": "next", "launcher": member.name, "handle": member.handle(), "digest": ""}
    queued, _ = member.record.submit(**about, processes=2, steps=3, limit=1)  # type: ignore[arg-type]
    (active.folder / "result.json").write_text('{"state": "SUCCEEDED", "reason": "3 of 3 steps"}')

    member.poll(Run(member.record, queued.id))

    assert queued.state is State.QUEUED
    assert member.record.get(active.id).state is State.SUCCEEDED


def test_the_time_limit_of_a_target_is_part_of_the_run_folder(
    member: JobLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of the run read it there, so that it holds without a Meshwave that follows the run."""
    member.options = member.options.model_copy(update={"limits": TargetLimits(minutes=90.0)})
    monkeypatch.setattr(type(member), "push", lambda self, folder, remote: None)
    folder = enter(member).folder

    member.push_program(NodeLayout.from_design(two_nodes()), folder, "module")

    assert json.loads((folder / "time-limit.json").read_text()) == {"minutes": 90.0, "target": "there"}


@pytest.mark.parametrize(
    ("partition", "counts"),
    [
        (None, NodeCounts(3, 2, (("n1", False), ("n2", True), ("n3", True)))),
        ("debug", NodeCounts(1, 0, (("n4", False),))),
        ("gone", None),
    ],
)
def test_the_nodes_of_a_partition_are_counted(partition: str | None, counts: NodeCounts | None) -> None:
    assert nodes_of_partition("main* n1 mix\nmain* n2 idle\nmain* n3 idle~\ndebug n4 idle*\n", partition) == counts


def test_a_run_that_is_cancelled_while_its_job_is_submitted_ends(
    member: JobLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []
    run = enter(member)

    def start_program(*_: object) -> dict[str, str]:
        run.cancel()
        return {"id": "1"}

    monkeypatch.setattr(type(member), "start_program", start_program)
    monkeypatch.setattr(type(member), "mark_cancelled", lambda *_: None)
    monkeypatch.setattr(type(member), "end", lambda self, run, job: ended.append((run, job)))

    member.launch(read_bundle(run.folder))

    assert ended == [(run.id, {"id": "1"})]


@pytest.mark.usefixtures("no_clients")
def test_a_run_stays_as_it_is_while_its_cluster_does_not_answer(member: JobLauncher) -> None:
    job = {"id": "1", "name": "x", "nodes": [{"pid": "1", "born": "x"}, {"pid": "1", "born": "x"}]}
    run = enter(member, State.RUNNING, job=job)

    reconcile(member.record)
    with pytest.raises(FindingError):
        run.cancel()

    assert run.state is State.RUNNING
    assert re.fullmatch(r"no answer since \d\d:\d\d: .* is not installed .*", silence_text(run.entry))


def test_a_job_that_could_not_start_its_processes_ends_with_the_reason_in_its_logs(
    member: JobLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(member), "status", lambda *asked: JobStatus(Phase.ENDED))
    monkeypatch.setattr(type(member), "pull", lambda *asked, everything: None)
    run = enter(member, job={"id": "7"})
    (run.folder / "node-0.log").write_text("node.sh: line 14: module: command not found\n")

    member.poll(run)

    assert run.state is State.LOST
    assert (
        "only 0 of 2 processes reported an exit status; from its logs: node.sh: line 14: module: command" in run.reason
    )


def test_logs_without_an_error_say_their_last_lines(tmp_path: Path) -> None:
    (tmp_path / "node-0.log").write_text("".join(f"step {number}\n" for number in range(9)))
    (tmp_path / "slurm.log").write_text("slurmstepd: Detected 1 oom_kill event\n\n")

    assert last_errors(tmp_path) == "step 7 / step 8 / slurmstepd: Detected 1 oom_kill event"
    (tmp_path / "node-0.log").write_text("RuntimeError: no address\nstep 1\n")
    assert last_errors(tmp_path) == "RuntimeError: no address"


def test_a_run_whose_job_was_requeued_shows_why_it_waits(member: JobLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = [JobStatus(Phase.WAITING, "JobHeldAdmin"), JobStatus(Phase.RUNNING)]
    monkeypatch.setattr(type(member), "status", lambda *asked: statuses.pop(0))
    monkeypatch.setattr(type(member), "pull", lambda *asked, everything: None)
    run = enter(member, State.RUNNING, job={"id": "7"})

    member.poll(run)
    assert (run.state, run.waiting_reason) == (State.RUNNING, "JobHeldAdmin")
    member.poll(run)
    assert (run.state, run.waiting_reason) == (State.RUNNING, "")


def test_a_run_that_was_not_submitted_is_lost_once_its_owner_is_gone(member: JobLauncher) -> None:
    own, others = enter(member), enter(member, owner=GONE)

    reconcile(member.record)

    assert own.state is State.STARTING
    assert (others.state, others.reason) == (
        State.LOST,
        "the submitting process ended before the job was submitted; launch again",
    )


def test_a_written_result_is_recorded(member: JobLauncher) -> None:
    run = enter(member, State.RUNNING, job={"id": "1"})
    write_document(run.folder / "result.json", {"state": "FAILED", "reason": "why", "exits": []})

    reconcile(member.record)

    assert (member.record.get(run.id).state, run.reason) == (State.FAILED, "why")


def test_a_run_of_another_version_is_not_changed(member: JobLauncher) -> None:
    run = enter(member, State.RUNNING, options={"unknown": 1})

    reconcile(member.record)

    assert member.record.get(run.id).state is State.RUNNING
    with pytest.raises(Refusal, match="was launched by another version of Meshwave: "):
        open_run(member.record, run.id)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts need Linux")
def test_processes_of_a_host_that_ignore_the_request_to_end_are_killed(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State of a host whose torchrun has succeeded while another host has failed."""
    monkeypatch.setattr(ssh, "PATIENCE_TENTHS_S", 2)
    launcher = SshLauncher(record, SshOptions(hosts=("one",), root="/work"), "boxes")
    host = LocalHost()
    monkeypatch.setitem(vars(launcher), "hosts", [host])
    script = "trap : TERM; bash -c 'trap \"\" TERM; exec sleep 60'; echo $? >status"
    leader = subprocess.Popen(["bash", "-c", script], start_new_session=True, cwd=tmp_path)
    pid = str(leader.pid)
    assert wait_until(lambda: "sleep" in host.run_unchecked(["ps", "-o", "comm=", "-g", pid]).output)
    born = host.run(["ps", "-o", "lstart=", "-p", pid]).rstrip("\n")

    launcher.end("run", {"nodes": [{"pid": pid, "born": "another process"}]})
    assert leader.poll() is None
    launcher.end("run", {"nodes": [{"pid": pid, "born": born}]})

    leader.wait(timeout=PATIENCE_S)
    assert (tmp_path / "status").read_text() == "137\n", "the status of a killed process"


class OtherClock(LocalHost):
    """A host that prints times in another time zone than this machine."""

    def run_unchecked(self, command: Sequence[str]) -> CommandResult:
        return super().run_unchecked(["env", "TZ=Pacific/Auckland", *command])


@pytest.fixture
def node(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SshLauncher, Run, Path]]:
    """A launcher whose only host is this machine, with an active run of one process that waits, and its run folder."""
    launcher = SshLauncher(record, SshOptions(hosts=("one",), root=str(tmp_path)), "boxes")
    monkeypatch.setitem(vars(launcher), "hosts", [LocalHost()])
    run = enter(launcher, State.RUNNING)
    folder = tmp_path / run.id
    folder.mkdir()
    (folder / "node.sh").write_text("sleep 60\n")
    record.set_handle(run.id, {"job": launcher.start(run.id, NodeLayout((1,), (0,)), str(folder))})
    yield launcher, run, folder
    launcher.end(run.id, run.entry.handle["job"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts need Linux")
def test_a_run_is_found_again_when_its_host_prints_another_time(
    node: tuple[SshLauncher, Run, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, run, folder = node
    job = run.entry.handle["job"]
    monkeypatch.setitem(vars(launcher), "hosts", [OtherClock()])

    assert launcher.status(run.id, job) == JobStatus(Phase.RUNNING)
    launcher.end(run.id, job)
    assert wait_until(lambda: (folder / "node-0.exit").exists() and (folder / "node-0.exit").read_text())
    assert launcher.status(run.id, job) == JobStatus(Phase.ENDED)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts need Linux")
def test_a_node_that_could_not_write_its_exit_status_on_a_full_disk_has_ended(
    node: tuple[SshLauncher, Run, Path],
) -> None:
    launcher, run, folder = node
    job = run.entry.handle["job"]
    (folder / "node-0.exit").touch()
    assert launcher.status(run.id, job) == JobStatus(Phase.RUNNING), "the leader is about to write its status"

    os.killpg(int(job["nodes"][0]["pid"]), signal.SIGKILL)

    assert wait_until(lambda: launcher.status(run.id, job).phase is Phase.ENDED)
    assert "disk is full" in launcher.status(run.id, job).failure.message  # type: ignore[union-attr]


class TalkativeHost(LocalHost):
    """A host on which kubectl prints something else than the status of a job."""

    def run(self, command: Sequence[str]) -> str:
        return "error: the server has asked for the client to provide credentials"


def test_a_run_stays_as_it_is_while_kubectl_prints_no_status(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KubernetesLauncher, "host", TalkativeHost())
    options = KubernetesOptions.model_validate_json(json.dumps(EXAMPLES["kubernetes"]))
    run = enter(KubernetesLauncher(record, options, "k8s"), State.RUNNING, job={"name": "meshwave-run"})

    assert run.wait(timeout_s=POLL_S + 0.5) is State.RUNNING

    assert "kubectl printed no status of meshwave-run" in silence_text(run.entry)


class ForgetfulHost(LocalHost):
    """A host whose connection is lost after the first command was executed."""

    lost = 0

    def run(self, command: Sequence[str]) -> str:
        printed = super().run(command)
        self.lost += 1
        if self.lost == 1:
            raise RunRefusal("host_unreachable", {"host": "one", "said": "Connection reset by peer"})
        return printed


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts need Linux")
def test_a_node_whose_start_was_not_confirmed_is_ended(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = SshLauncher(record, SshOptions(hosts=("one",), root=str(tmp_path)), "boxes")
    monkeypatch.setitem(vars(launcher), "hosts", [ForgetfulHost()])
    (tmp_path / "run").mkdir()
    (tmp_path / "run/node.sh").write_text("exec sleep 60\n")

    with pytest.raises(RunRefusal, match="Connection reset by peer"):
        launcher.start("run", NodeLayout((1,), (0,)), str(tmp_path / "run"))

    pid, born = (tmp_path / "run/node-0.leader").read_text().rstrip("\n").split(" ", 1)
    job = {"nodes": [{"pid": pid, "born": born}]}
    assert wait_until(lambda: launcher.status("run", job).phase is Phase.ENDED)


SLOW_SSH = """#!{python}
import subprocess, sys, time
given = sys.argv[1:]
while given[0].startswith("-"):
    given = given[2:]
remote = subprocess.Popen(" ".join(given[1:]), shell=True, stdout=subprocess.PIPE)
while data := remote.stdout.read1(1 << 16):
    time.sleep(0.1)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
sys.exit(remote.wait())
"""
"""Command ``ssh`` that runs commands on this machine, and receives their output slowly."""


@pytest.mark.skipif(shutil.which("rsync") is None, reason="files are copied by rsync")
def test_a_copy_takes_as_long_as_data_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host, "COMMAND_TIMEOUT_S", 1.0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "ssh").write_text(SLOW_SSH.format(python=sys.executable))
    (tmp_path / "ssh").chmod(0o755)
    for name in ("remote", "local"):
        (tmp_path / name).mkdir()
    content = os.urandom(2_000_000)
    (tmp_path / "remote/weights.safetensors").write_bytes(content)

    SshHost("one").pull(str(tmp_path / "remote"), tmp_path / "local", everything=True)

    assert [path.name for path in (tmp_path / "local").iterdir()] == ["weights.safetensors"]
    assert (tmp_path / "local/weights.safetensors").read_bytes() == content


class StandInHost(LocalHost):
    """A host that records the commands that it is asked to run, and may not respond."""

    def __init__(self, *, responds: bool) -> None:
        self.commands: list[Sequence[str]] = []
        self.responds = responds

    def run(self, command: Sequence[str]) -> str:
        self.commands.append(command)
        if not self.responds:
            raise RunRefusal("host_unreachable", {"host": "one", "said": "timed out"})
        return ""


def test_a_cancelled_run_ends_on_all_hosts_that_respond(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = SshLauncher(record, SshOptions(hosts=("one", "two"), root="/work"), "boxes")
    hosts = [StandInHost(responds=False), StandInHost(responds=True)]
    monkeypatch.setitem(vars(launcher), "hosts", hosts)
    run = enter(launcher, State.RUNNING, job={"nodes": [{"pid": "1", "born": "x"}, {"pid": "2", "born": "x"}]})

    with pytest.raises(RunRefusal, match="one cannot be reached by ssh"):
        run.cancel()

    assert [command[0] for command in hosts[1].commands] == ["sh", "bash", "bash"]


def test_a_deleted_run_is_removed_from_its_hosts(
    record: Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(record.place))
    hosts = [StandInHost(responds=False), StandInHost(responds=True)]
    monkeypatch.setattr(SshLauncher, "hosts", hosts)
    run = enter(SshLauncher(record, SshOptions(hosts=("one", "two"), root="/srv/runs"), "boxes"))
    record.change_state(run.id, State.FAILED, "it failed")

    assert cli.main(["runs", "delete", run.id]) == 1

    assert [*hosts[0].commands, *hosts[1].commands] == 2 * [["rm", "-rf", "--", f"/srv/runs/{run.id}"]]
    told = capsys.readouterr()
    assert told.out == f"deleted {run.id}  run\n"
    assert "is deleted here, but its folder may be left on its hosts: one cannot be reached by ssh" in told.err
    assert record.entries() == []


def test_a_run_that_was_cancelled_in_the_queue_is_deleted_without_asking_its_hosts(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(record.place))
    host = StandInHost(responds=False)
    monkeypatch.setattr(SshLauncher, "hosts", [host])
    launcher = SshLauncher(record, SshOptions(hosts=("one",), root="/srv/runs"), "boxes")
    entry, _ = record.submit(
        name="run", launcher="ssh", handle=launcher.handle(), digest="", processes=1, steps=1, limit=0
    )
    launcher.cancel(Run(record, entry.id, launcher))

    assert cli.main(["runs", "delete", entry.id]) == 0

    assert host.commands == []


def test_a_host_that_does_not_respond_for_one_run_is_not_asked_for_the_others(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = StandInHost(responds=False)
    monkeypatch.setattr(SshLauncher, "hosts", [host])
    launcher = SshLauncher(record, SshOptions(hosts=("one",), root="/work"), "boxes")
    job = {"nodes": [{"pid": "1", "born": "x"}]}
    runs = [enter(launcher, State.RUNNING, job=job) for _ in range(3)]

    reconcile(record)

    assert len(host.commands) == 1
    assert all("one cannot be reached by ssh" in silence_text(run.entry) for run in runs)
    reconcile(record)
    assert len(host.commands) == 2


def test_a_measured_all_reduce_is_compared_with_the_prediction_for_the_drawn_cluster() -> None:
    link = {"processes": 2, "latency_s": 1e-5, "bandwidth": 2e9, "all_reduce_bandwidth": 1.5e9}
    inside, between = LinkReport(**link), LinkReport(**{**link, "processes": 4})  # type: ignore[arg-type]
    about = {"host": "n1", "device": "CPU", "identity": "", "memory_bytes": 1e9, "cores": 2, "versions": {}}
    processes = tuple(ProcessReport(process=rank, node=rank // 2, **about) for rank in range(8))  # type: ignore[arg-type]
    device = DeviceReport(flops=1e9, memory_bandwidth=1e9)
    report = TargetReport(
        processes=processes, all_seen=(True,), backend="gloo", intra_node=inside, inter_node=between, device=device
    )
    drawn = two_nodes().cluster.model_copy(update={"nodes": 4, "devices_per_node": 2})
    seconds = collective_seconds(drawn, [[0, 2, 4, 6]], 2**24)

    lines = [line for line in report_lines(report, Clocks(), drawn=drawn) if line.startswith("link")]

    assert len(lines) == 2
    bus = quantity(1.5 * 2**24 / seconds, "B/s")
    assert lines[1].endswith(f"all-reduce of 4 processes 1.5 GB/s (drawn: {bus})")
    assert between.drawn_all_reduce(drawn.model_copy(update={"devices_per_node": 1}), is_inside=False)
    assert drawn_links(report, drawn)["inter_node"] == (drawn.inter_node.bandwidth, 1.5 * 2**24 / seconds)
    small = drawn.model_copy(update={"nodes": 2})
    assert inside.drawn_all_reduce(small, is_inside=True)
    assert between.drawn_all_reduce(small, is_inside=False) is None


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.slow
def test_this_machine_is_checked_by_processes_of_torchrun(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))

    (tmp_path / "design.json").write_text(two_nodes().to_json())
    command = ["targets", "check", "local", "--devices", "2", "--json", "--design", str(tmp_path / "design.json")]

    assert cli.main(command) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["drawn"]["intra_node"]["bandwidth"] == two_nodes().cluster.intra_node.bandwidth
    assert (found["problems"], found["nodes"]["total"]) == ([], 1)
    report = TargetReport.model_validate_json(json.dumps(found["report"]))
    assert [each.node for each in report.processes] == [0, 0]
    assert report.inter_node is None
    assert report.intra_node is not None
    assert report.cluster().intra_node.bandwidth > 1e6
    assert [*(tmp_path / "home/runs").iterdir()] == []
