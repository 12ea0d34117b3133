"""Jobs of torchrun on this machine, which check and measure it as a launch target; its runs start from a warm process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from meshwave.engine.machine import gpu_count, usable_cores
from meshwave.engine.runs.launchers._host import Host, LocalHost
from meshwave.engine.runs.launchers.ssh import SshLauncher, SshOptions
from meshwave.engine.runs.run_database import Record

MOST_CORES = 8
"""Maximum number of processes of a check that are started without GPUs."""


class LocalJobs(SshLauncher):
    """The only host is this machine, which is reached without ssh."""

    clients: tuple[str, ...] = ()
    hosts: Sequence[Host] = (LocalHost(),)

    def __init__(self, record: Record, target: str) -> None:
        """Create the launcher: one process for each GPU, or for each core if there is none."""
        options = SshOptions(
            hosts=("localhost",),
            address="127.0.0.1",
            interface="lo0" if sys.platform == "darwin" else "lo",
            root=str(record.place / "runs"),
            shared=True,
            devices_per_node=gpu_count() or min(usable_cores(), MOST_CORES),
        )
        super().__init__(record, options, target)

    def prepare_folder(self, run: str) -> Path:
        return self.record.folder(run)
