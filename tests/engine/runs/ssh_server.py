"""A real sshd on two loopback addresses of this machine, with keys of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

ADDRESSES = {"one": "127.0.0.1", "two": "127.0.0.2"}
START_S = 10.0


def missing() -> str:
    """Why the server cannot be started here; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "a test server on two loopback addresses needs Linux"
    absent = [name for name in ("ssh", "ssh-keygen", "rsync") if shutil.which(name) is None]
    if _sshd() is None:
        absent.append("sshd")
    return f"not installed: {', '.join(absent)} (scripts/setup.py test installs openssh-server)" if absent else ""


def _sshd() -> str | None:
    return shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


@dataclass(frozen=True)
class Server:
    """The server as tests see it: hosts called ``one`` and ``two``."""

    options: tuple[str, ...]
    """Options of ssh that find the hosts."""
    log: Path
    process: subprocess.Popen[bytes]

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server inside this context: it accepts connections, and no host answers on them."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextmanager
def running(folder: Path, path: str = "") -> Iterator[Server]:
    """Start the server; it ends with this context. ``path`` is the ``PATH`` of remote commands."""
    port = _free_port()
    for key in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    (folder / "user_key.pub").rename(folder / "authorized_keys")
    variables = ["SHLVL=1", *([f"PATH={path}"] if path else [])]  # at level 0, bash reads the user's .bashrc
    server = [
        *(f"ListenAddress {address}:{port}" for address in ADDRESSES.values()),
        f"HostKey {folder}/host_key",
        f"AuthorizedKeysFile {folder}/authorized_keys",
        f"PidFile {folder}/sshd.pid",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "MaxStartups 100",
        f"SetEnv {' '.join(variables)}",
    ]
    client = [
        f"IdentityFile {folder}/user_key",
        "IdentitiesOnly yes",
        f"UserKnownHostsFile {folder}/known_hosts",
        "StrictHostKeyChecking accept-new",
        f"Port {port}",
        *(f"Host {name}\n  HostName {address}" for name, address in ADDRESSES.items()),
    ]
    (folder / "sshd_config").write_text("\n".join(server) + "\n")
    (folder / "ssh_config").write_text("\n".join(client) + "\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it for separated privileges
    log = folder / "sshd.log"
    sshd = subprocess.Popen([_sshd() or "", "-D", "-f", folder / "sshd_config", "-E", log])
    try:
        _wait_for(port, log)
        yield Server(("-F", str(folder / "ssh_config")), log, sshd)
    finally:
        sshd.terminate()
        sshd.wait()


def _free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind((ADDRESSES["one"], 0))
        return int(found.getsockname()[1])


def _wait_for(port: int, log: Path) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((ADDRESSES["two"], port), 1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise RuntimeError(f"sshd did not start: {log.read_text()}") from None
            time.sleep(0.05)
