"""A real Slurm with two nodes on this machine, each in its own network namespace, with or without accounting."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.engine.runs import namespaces
from tests.engine.runs.guard import Guard
from tests.engine.runs.namespaces import INTERFACE, Network, search_path

__all__ = ["INTERFACE"]

PROGRAMS = ("slurmctld", "slurmd", "munged")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults")
CLIENTS = ("sbatch", "scontrol", "scancel", "squeue", "sinfo", "srun", "sacct", "sacctmgr")
START_S = 15.0
CONFIGURATION = """
ClusterName=meshwave
SlurmctldHost={host}(10.77.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
{accounting}
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeHostname={host} NodeAddr=10.77.0.1 Port={node_1} CPUs=8
NodeName=n2 NodeHostname={host} NodeAddr=10.77.0.2 Port={node_2} CPUs=8
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""
NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none"
ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=10.77.0.1
AccountingStoragePass={folder}/munge.socket
"""
DATABASE_DAEMON = """
DbdHost={host}
DbdAddr=10.77.0.1
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
"""


def missing_requirement(*, accounting: bool = False) -> str:
    """Return the reason why the cluster cannot be started here; empty if it can."""
    if why := namespaces.missing_requirement():
        return why
    programs = (*PROGRAMS, "sbatch", *(ACCOUNTING_PROGRAMS if accounting else ()))
    absent = [name for name in programs if shutil.which(name, path=search_path()) is None]
    return f"not installed: {', '.join(absent)} (scripts/setup.py test installs their packages)" if absent else ""


@dataclass(frozen=True)
class Cluster:
    """Handle of a running cluster for tests."""

    folder: Path
    bin: Path
    """Folder with Slurm's commands, configured for the controller."""
    network: Network

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of a user of the cluster."""
        path = os.pathsep.join([str(self.bin), os.environ.get("PATH", "")])
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def command(self, *command: str) -> str:
        """Run one of Slurm's commands and return its output."""
        environment = {**os.environ, **self.variables}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@contextmanager
def running(folder: Path, *, accounting: bool = False, forgets: bool = False) -> Iterator[Cluster]:
    """Start the cluster, and stop it at the end of this context.

    If it ``forgets``, the controller discards a job within seconds after its end.
    """
    first = 17_000 + os.getpid() % 1000 * 3
    host = os.uname().nodename
    ports = {"port": first, "node_1": first + 1, "node_2": first + 2}
    accounts = ACCOUNTING.format(folder=folder) if accounting else NO_ACCOUNTING
    accounts += "\nMinJobAge=2" if forgets else ""
    parts = {"folder": folder, "host": host, "accounting": accounts}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**parts, **ports))
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o600)
    environment = {**os.environ, "PATH": search_path()}
    with namespaces.running() as network:
        guard = network.guard
        guard.start("munged", *_munge_options(folder), environment=environment)
        inside = [network.enter(number) for number in range(2)]
        cluster = Cluster(folder, _write_clients(folder, inside[0]), network)
        if accounting:
            _start_accounting(guard, cluster, inside[0])
        configuration = ["-f", str(folder / "slurm.conf")]
        guard.start(*inside[0], "slurmctld", *configuration, "-c", environment=environment)
        for number, enter in enumerate(inside, 1):
            guard.start(*enter, "slurmd", *configuration, "-N", f"n{number}", environment=environment)
        _wait_until_idle(cluster)
        try:
            yield cluster
        finally:
            _end_jobs(cluster)


def _start_accounting(guard: Guard, cluster: Cluster, enter: list[str]) -> None:
    """Start MariaDB and slurmdbd, and add the cluster to the database, which the controller must find there."""
    folder, socket = cluster.folder, cluster.folder / "mariadb.socket"
    path = folder / "slurmdbd.conf"
    path.write_text(DATABASE_DAEMON.format(folder=folder, host=os.uname().nodename))
    path.chmod(0o600)
    environment = {**os.environ, "PATH": search_path(), "MYSQL_UNIX_PORT": str(socket)}
    data = ["--no-defaults", f"--datadir={folder}/mariadb", "--user=root"]
    log = f">>{folder}/mariadb.log 2>&1"
    install = ["mariadb-install-db", *data, "--skip-test-db", "--auth-root-authentication-method=normal"]
    guard.start("sh", "-c", f"exec {shlex.join(install)} {log}", environment=environment)
    serve = ["mariadbd", *data, "--skip-networking", f"--socket={socket}"]
    wait = f"for _ in $(seq 100); do [ -S {socket} ] && exit; sleep 0.1; done; cat {folder}/mariadb.log >&2; exit 1"
    guard.start("sh", "-c", f"{shlex.join(serve)} {log} & {wait}", environment=environment)
    guard.start(*enter, "slurmdbd", environment={**environment, "SLURM_CONF": str(folder / "slurm.conf")})
    _wait_until_ready(lambda: cluster.command("sacctmgr", "-i", "add", "cluster", "meshwave"), folder / "slurmdbd.log")


def _munge_options(folder: Path) -> list[str]:
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
    files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
    return ["--force", *(f"--{option}={folder / name}" for option, name in files.items())]


def _write_clients(folder: Path, enter: list[str]) -> Path:
    """Write Slurm's commands for a machine outside the network of the cluster."""
    (folder / "bin").mkdir()
    for name in CLIENTS:
        path = folder / "bin" / name
        path.write_text(
            f'#!/bin/sh\nexport SLURM_CONF={folder}/slurm.conf\nexec {" ".join(enter)} /usr/bin/{name} "$@"\n'
        )
        path.chmod(0o755)
    return folder / "bin"


def _wait_until_idle(cluster: Cluster) -> None:
    def are_idle() -> bool:
        shown = cluster.command("sinfo", "--noheader", "--partition=main", "--format=%D %t")
        return shown.split() == ["2", "idle"]

    _wait_until_ready(are_idle, cluster.folder / "slurmctld.log")


def _wait_until_ready(attempt: Callable[[], object], log: Path) -> None:
    """Call a function until it returns True; it may raise errors of commands before."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with suppress(subprocess.CalledProcessError):
            if attempt():
                return
        time.sleep(0.2)
    raise RuntimeError(f"Slurm is not ready: {log.read_text()[-2000:]}")


def _end_jobs(cluster: Cluster) -> None:
    with suppress(subprocess.CalledProcessError):
        cluster.command("scancel", "--user=root", "--signal=KILL", "--full")
        cluster.command("scancel", "--user=root")
        time.sleep(1)
