"""Linux network namespaces, through calls of the C library."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

CLONE_NEWUSER, CLONE_NEWNET, PR_SET_PDEATHSIG = 0x10000000, 0x40000000, 1  # from linux/sched.h, linux/prctl.h
SETTINGS = {
    "tcp_congestion_control": "reno",  # available in every kernel, unlike BBR it does not probe for the rate first
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": "4096 16777216 33554432",  # large enough that the receiver does not limit the rate
}
"""TCP settings inside the namespaces."""


def new_namespace() -> int:
    """Move this process into a new network namespace, and return a descriptor that keeps the namespace open.

    A process that is not root becomes root of a user namespace.
    """
    try:
        _unshare(CLONE_NEWNET)
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    return open_namespace("net")


def open_namespace(kind: str) -> int:
    """Return a descriptor of the namespace of this process, such as ``net`` or ``user``."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def enter_namespace(descriptor: int, kind: int) -> None:
    """Move this thread into a namespace; threads that it starts later inherit the namespace."""
    _check_status(libc().setns(descriptor, kind))


def _unshare(flags: int) -> None:
    _check_status(libc().unshare(flags))


def _check_status(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def libc() -> Any:
    """Return the C library."""
    return ctypes.CDLL(None, use_errno=True)
