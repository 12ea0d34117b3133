"""A small cluster's network on this machine: a network namespace a process, and links of two speeds.

Each process has a link to the switch (a bridge) of its node, and each node one uplink to the switch
between nodes; both ends of a link are held to its rate by token buckets, which are inside the kernel
and in the way of every byte. Where links are to be apart, a process has a second one for what leaves
its node, to a switch that has the uplink.

Nothing outlives who holds it: namespaces have no names here, and the kernel takes them away, with
every link in them, when the last process that is in them or holds a descriptor of them is gone,
however it went.

``python -m meshwave.engine.runs.emulation.network`` tries whether this machine can, and says what it lacks.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

CLONE_NEWUSER, CLONE_NEWNET, PR_SET_PDEATHSIG = 0x10000000, 0x40000000, 1  # from linux/sched.h, linux/prctl.h
SETTINGS = {
    "tcp_congestion_control": "reno",  # in every kernel, and the same everywhere; BBR probes for the rate first
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": "4096 16777216 33554432",  # so that the receiver does not hold back what the route lets through
}
"""Of TCP inside the namespaces."""


# ---- namespaces ----


def new_namespace() -> int:
    """Move this process into a new network namespace, as root of a user namespace where it is not
    root already; returns a descriptor that keeps it."""
    try:
        _unshare(CLONE_NEWNET)
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    return _namespace("net")


def _namespace(kind: str) -> int:
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def _set_namespace(descriptor: int, kind: int) -> None:
    """Move this thread into a namespace; threads that it starts later are born there."""
    _called(_libc().setns(descriptor, kind))


def _unshare(flags: int) -> None:
    _called(_libc().unshare(flags))


def _called(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
