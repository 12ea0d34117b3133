"""Two hosts on this machine: network namespaces with one address each, and a link between them."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.engine.runs.guard import Guard

PROGRAMS = ("nsenter", "unshare", "ip", "tc")
INTERFACE = "mw0"
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def missing_requirement() -> str:
    """Return the reason why this machine cannot emulate the hosts; empty if it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "hosts in network namespaces need root on Linux"
    if absent := [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]:
        return f"not installed: {', '.join(absent)} (scripts/setup.py test installs their packages)"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"this machine permits no network namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


@dataclass(frozen=True)
class Network:
    """The two hosts, which are removed at the end of the context with all daemons that its guard started."""

    names: tuple[str, str]
    guard: Guard

    def enter(self, number: int) -> list[str]:
        """Return the start of a command that runs on a host."""
        return ["nsenter", f"--net=/run/netns/{self.names[number]}"]

    @contextmanager
    def slow_link(self, bits_per_s: float) -> Iterator[None]:
        """Limit the rate of the link between the hosts in each direction, inside this context."""
        limit = ["tbf", "rate", f"{bits_per_s:.0f}bit", "burst", "128kb", "latency", "20ms"]
        try:
            for name in self.names:
                _run("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", *limit)
            yield
        finally:
            for name in self.names:
                _run("tc", "-n", name, "qdisc", "del", "dev", INTERFACE, "root")


@contextmanager
def running() -> Iterator[Network]:
    """Create the hosts, and remove them at the end of this context."""
    key = secrets.token_hex(3)
    names = (f"mw{key}a", f"mw{key}b")
    with Guard(names) as guard:
        for name in names:
            _run("ip", "netns", "add", name)
        peer = ["type", "veth", "peer", "name", INTERFACE, "netns", names[1]]
        _run("ip", "-n", names[0], "link", "add", "name", INTERFACE, *peer)  # never among the links of the machine
        for name, address in zip(names, ADDRESSES, strict=True):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", INTERFACE, "up")
        yield Network(names, guard)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
