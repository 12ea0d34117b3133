"""Hosts from which runs are launched: this machine, or a machine that OpenSSH reaches."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from meshwave.engine.findings import RunRefusal
from meshwave.engine.runs.launchers._environment import PASSED_ON

COMMAND_TIMEOUT_S = 60.0
COPY_TIMEOUT_S = 60
"""Time, in seconds, without any data after which a copy is given up; the copy of a large checkpoint takes longer."""
CONNECT_TIMEOUT_S = 10
SSH_FAILED = 255
"""Exit status of ssh if the connection fails."""
CLIENT_VARIABLES = frozenset({"SLURM_CONF", "KUBECONFIG", "SSH_AUTH_SOCK"})
"""Environment variables by which the clients of schedulers find their cluster."""
LARGE = ("checkpoints", "initial-weights", "weights.safetensors", "*.tmp")
"""Patterns of files that are not copied during a run, because they are large or incomplete."""


class CommandResult(NamedTuple):
    """Result of a command."""

    status: int
    output: str
    error: str


class Host(ABC):
    """Machine that runs commands and stores run folders where the processes of the runs can read them."""

    name: str

    @abstractmethod
    def run_unchecked(self, command: Sequence[str]) -> CommandResult:
        """Run a command and return its result, whatever its exit status.

        Raises:
            RunRefusal: the command does not exist, the host does not answer, or the command does not end.
        """

    @abstractmethod
    def push(self, folder: Path, remote: str) -> None:
        """Copy a run folder to its place on the host."""

    @abstractmethod
    def pull(self, remote: str, folder: Path, *, everything: bool = False) -> None:
        """Copy back the files that processes have written so far; ``everything`` includes checkpoints and weights."""

    def run(self, command: Sequence[str]) -> str:
        """Run a command and return its output.

        Raises:
            RunRefusal: the command fails.
        """
        done = self.run_unchecked(command)
        if done.status != 0:
            said = " ".join((done.error or done.output).split())[-500:]
            params = {"command": command[0], "host": self.name, "status": done.status, "said": said or "no message"}
            raise RunRefusal("command_failed", params)
        return done.output


class LocalHost(Host):
    """This machine, whose run folders are on a file system that the nodes share."""

    name = "this machine"

    def run_unchecked(self, command: Sequence[str]) -> CommandResult:
        return execute(command, self.name)

    def push(self, folder: Path, remote: str) -> None:
        """Do nothing, because the folder is shared."""

    def pull(self, remote: str, folder: Path, *, everything: bool = False) -> None:
        """Do nothing, because the folder is shared."""


class SshHost(Host):
    """Machine that OpenSSH reaches without a password; files are copied by rsync."""

    def __init__(self, address: str, options: Sequence[str] = ()) -> None:
        self.name = address
        self._ssh = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}", *options]

    def run_unchecked(self, command: Sequence[str]) -> CommandResult:
        done = execute([*self._ssh, "--", self.name, shlex.join(command)], self.name)
        if done.status == SSH_FAILED:
            raise RunRefusal("host_unreachable", {"host": self.name, "said": " ".join(done.error.split())[-500:]})
        return done

    def push(self, folder: Path, remote: str) -> None:
        self.run(["mkdir", "-p", "-m", "700", remote])
        self._rsync(f"{folder}/", f"{self.name}:{remote}/")

    def pull(self, remote: str, folder: Path, *, everything: bool = False) -> None:
        left_out = [] if everything else [f"--exclude={pattern}" for pattern in LARGE]
        self._rsync(*left_out, f"{self.name}:{remote}/", f"{folder}/")

    def _rsync(self, *arguments: str) -> None:
        kept = ["--include=.metadata", "--exclude=.*"]  # .metadata belongs to checkpoints; .* is reserved space
        command = [
            "rsync",
            "--archive",
            f"--timeout={COPY_TIMEOUT_S}",
            *kept,
            "--rsh",
            shlex.join(self._ssh),
            *arguments,
        ]
        done = execute(command, self.name, ends_by_itself=True)
        if done.status != 0:
            said = " ".join(done.error.split())[-500:]
            raise RunRefusal("copy_failed", {"host": self.name, "status": done.status, "said": said})


def execute(command: Sequence[str], host: str = LocalHost.name, *, ends_by_itself: bool = False) -> CommandResult:
    """Run a command on this machine and return its result.

    Args:
        command: the command with its arguments.
        host: name of the host that it talks to.
        ends_by_itself: True if it ends when its host does not respond, so that its time is not limited.

    Raises:
        RunRefusal: the command does not exist, or does not end.
    """
    if shutil.which(command[0]) is None:
        raise RunRefusal("command_missing", {"command": command[0]})
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=client_environment(),
            timeout=None if ends_by_itself else COMMAND_TIMEOUT_S,
            start_new_session=True,  # Ctrl-C in the terminal must not reach the command
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunRefusal(
            "command_timeout", {"command": command[0], "host": host, "limit_s": COMMAND_TIMEOUT_S}
        ) from None
    return CommandResult(done.returncode, done.stdout, done.stderr)


def client_environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a scheduler's client: those variables of ``given`` that it may read."""
    return {name: value for name, value in given.items() if name in PASSED_ON | CLIENT_VARIABLES}
