"""A worker without torch that does what the name of its design says, such as ``"raise in 2"``."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEP_S = 0.01


class Player:
    """One process of a run, with the failures that a test can request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = int(os.environ["RANK"])
        design = json.loads((folder / "design.json").read_text("utf-8"))
        self.steps = design["training"]["steps"]
        self.verb, _, whom = design["name"].partition(" in ")
        self.is_meant = whom in ("", str(self.process))

    def play(self) -> int:
        self.event("started", pid=os.getpid(), note="computes nothing")
        for step in range(self.steps):
            time.sleep(STEP_S)
            self.event("step", step=step)
            if self.process == 0:
                loss = None if self.verb == "diverge" and step else 5.0 - step
                self.line("metrics.jsonl", step=step, loss=loss, grad_norm=loss, seconds=STEP_S, tokens_per_s=1e3)
            if self.is_meant and self.verb not in ("train", "diverge"):
                return int(getattr(self, f"do_{self.verb}")() or 0)
            if self.verb == "raise" and self.process == 0 and (self.folder / "error-2.json").exists():
                self.error("Connection closed by peer")
                return 1
        print(f"process {self.process} is done")
        return 0

    def do_raise(self) -> int:
        self.error("rank 2, action 3 of 9, 2F1: ValueError('shapes differ')", rank=2, action="2F1")
        while not (self.folder / "error-0.json").exists():  # an interpreter takes its time to leave
            time.sleep(STEP_S)
        return 1

    def do_leave(self) -> int:
        print("I have had enough")
        return 3

    def do_abort(self) -> None:
        print("terminate called after throwing gloo::EnforceNotMet", flush=True)
        os.abort()

    def do_sleep(self) -> None:
        time.sleep(600)

    def do_ignore(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.event("deaf")
        time.sleep(600)

    def do_bear(self) -> None:
        """Start a child process that outlives this process if nothing ends it."""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        self.event("bore", pid=child.pid)
        time.sleep(600)

    def do_look(self) -> None:
        """Report the arguments and the environment of the process."""
        found = {
            "environment": dict(os.environ),
            "descriptors": [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)],
            "others": sum(int(fd) > 2 for fd in os.listdir("/proc/self/fd")) - 1,  # the one that lists
            "folder": os.getcwd(),
            "umask": os.umask(0o077),
            "session": os.getsid(0) == os.getpid(),
            "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        }
        (self.folder / f"look-{self.process}.json").write_text(json.dumps(found))

    def event(self, event: str, **values: Any) -> None:
        self.line(f"events-{self.process}.jsonl", time=time.time(), event=event, **values)

    def line(self, name: str, **values: Any) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(values) + "\n")

    def error(self, error: str, **where: Any) -> None:
        report = {"process": self.process, "rank": None, "action": None, "time": time.time(), "error": error}
        path = self.folder / f"error-{self.process}.json"
        path.with_suffix(".tmp").write_text(json.dumps({**report, "traceback": "", **where}))
        path.with_suffix(".tmp").rename(path)


def main(folder: str) -> None:
    status = Player(Path(folder)).play()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
