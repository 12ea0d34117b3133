"""A real sshd on two hosts of this machine, with its own keys.

The hosts are network namespaces with addresses and a link between them or, if the machine does not allow namespaces,
two loopback addresses.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engine.runs import namespaces
from tests.engine.runs.guard import Guard
from tests.engine.runs.namespaces import ADDRESSES, INTERFACE, Network

NAMES = ("one", "two")
LOOPBACK = ("127.0.0.1", "127.0.0.2")
PROXY = "trap : HUP; exec 3<>/dev/tcp/%h/%p; cat <&3 & cat >&3; kill $!"
"""Bash command that connects ssh with a host, run inside the namespace of the host."""


def missing_requirement() -> str:
    """Return the reason why the server cannot be started here; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "a test server on two hosts needs Linux"
    absent = [name for name in ("ssh", "ssh-keygen", "rsync") if shutil.which(name) is None]
    if _sshd() is None:
        absent.append("sshd")
    return f"not installed: {', '.join(absent)} (scripts/setup.py test installs openssh-server)" if absent else ""


def _sshd() -> str | None:
    return shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


@dataclass(frozen=True)
class Server:
    """Handle of the running server for tests; its hosts are called ``one`` and ``two``."""

    options: tuple[str, ...]
    """Options with which ssh reaches the hosts."""
    folder: Path
    network: Network | None
    """Namespaces of the hosts; None if they are loopback addresses."""

    @property
    def address(self) -> str:
        """The address of the first host."""
        return ADDRESSES[0] if self.network else LOOPBACK[0]

    @property
    def interface(self) -> str:
        """Network interface between the hosts."""
        return INTERFACE if self.network else "lo"

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Suspend the server inside this context: it accepts connections but does not respond on them."""
        pids = [int((self.folder / f"{name}.pid").read_text()) for name in NAMES]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


@contextmanager
def running(folder: Path, path: str = "") -> Iterator[Server]:
    """Start the server, and stop it at the end of this context; ``path`` is the ``PATH`` of remote commands."""
    with ExitStack() as stack:
        network = None if namespaces.missing_requirement() else stack.enter_context(namespaces.running())
        guard = network.guard if network else stack.enter_context(Guard(()))
        port = _free_port()
        for key in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        (folder / "user_key.pub").rename(folder / "authorized_keys")
        client = [
            f"IdentityFile {folder}/user_key",
            "IdentitiesOnly yes",
            f"UserKnownHostsFile {folder}/known_hosts",
            "StrictHostKeyChecking accept-new",
            f"Port {port}",
        ]
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it for separated privileges
        for number, name in enumerate(NAMES):
            address = (ADDRESSES if network else LOOPBACK)[number]
            file = folder / f"{name}.conf"
            file.write_text("\n".join(_server_lines(folder, name, f"{address}:{port}", path)) + "\n")
            enter = network.enter(number) if network else []
            environment = {**os.environ, "PATH": namespaces.search_path()}
            guard.start(*enter, _sshd() or "", "-f", str(file), "-E", str(folder / "sshd.log"), environment=environment)
            proxy = [f"  ProxyCommand {shlex.join([*enter, 'bash', '-c', PROXY])}"] if network else []
            client += [f"Host {name}", f"  HostName {address}", *proxy]
        (folder / "ssh_config").write_text("\n".join(client) + "\n")
        yield Server(("-F", str(folder / "ssh_config")), folder, network)


def _server_lines(folder: Path, name: str, address: str, path: str) -> list[str]:
    variables = ["SHLVL=1", *([f"PATH={path}"] if path else [])]  # at level 0, bash reads the user's .bashrc
    return [
        f"ListenAddress {address}",
        f"HostKey {folder}/host_key",
        f"AuthorizedKeysFile {folder}/authorized_keys",
        f"PidFile {folder}/{name}.pid",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "MaxStartups 100",
        f"SetEnv {' '.join(variables)}",
    ]


def _free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind((LOOPBACK[0], 0))
        return int(found.getsockname()[1])
