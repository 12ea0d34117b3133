"""A process that starts daemons for tests, and ends them with all their child processes when its input closes.

Its input closes also when the tests are killed. Arguments: names of the network namespaces that it deletes then.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h
GRACE_S = 3.0


class Guard:
    """Client of the guard process. Its daemons end with this context or with this process."""

    def __init__(self, namespaces: tuple[str, ...]) -> None:
        command = [sys.executable, __file__, *namespaces]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def start(self, *command: str, environment: Mapping[str, str]) -> None:
        """Start a daemon by a command that ends when the daemon is ready."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([command, dict(environment)]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if answer:
            raise RuntimeError(f"{command[0]} failed: {answer}")


def main(namespaces: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        command, environment = json.loads(line)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        print(json.dumps(done.stderr or done.returncode if done.returncode else ""), flush=True)
    deadline = time.monotonic() + GRACE_S
    while children := _children():  # those of children that end become ours
        number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(0.1)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    for name in namespaces:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _children() -> list[int]:
    pid = os.getpid()
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


if __name__ == "__main__":
    main(sys.argv[1:])
