"""Runs on this machine that torchrun starts; they continue without the process that launched them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from meshwave.engine.document import Design
from meshwave.engine.machine import gpu_count, usable_cores
from meshwave.engine.runs.launchers._base import MOST_PROCESSES, Capabilities, launchers
from meshwave.engine.runs.launchers._host import Host, LocalHost
from meshwave.engine.runs.launchers._limits import MachineOptions
from meshwave.engine.runs.launchers._machine import MachineLauncher
from meshwave.engine.runs.launchers._torchrun import NodeLayout
from meshwave.engine.runs.launchers.ssh import SshLauncher, SshOptions
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_folder import process_count

MOST_CORES = 8
"""Maximum number of processes of a check that are started without GPUs."""


@launchers.register("torchrun")
class TorchrunLauncher(MachineLauncher, SshLauncher):
    """Launcher that starts all processes of a design on this machine with torchrun.

    The only host is this machine, which is reached without ssh. A run starts some seconds later than from a warm
    process, and does not end with the process that launched it.
    """

    name: ClassVar = "torchrun"
    title: ClassVar = "This machine, with torchrun"
    needs_target: ClassVar = False
    target_options: ClassVar = MachineOptions
    clients: tuple[str, ...] = ("bash", "setsid", "pgrep")
    hosts: Sequence[Host] = (LocalHost(),)

    def __init__(self, record: Record, options: MachineOptions | None = None, target: str = "torchrun") -> None:
        """Create the launcher, with the options of this machine as a launch target; None for the defaults."""
        self._machine = options or MachineOptions()
        given = SshOptions(
            hosts=("localhost",),
            address="127.0.0.1",
            interface="lo0" if sys.platform == "darwin" else "lo",
            root=str(record.place / "runs"),
            shared=True,
            limits=self._machine.limits,
        )
        super().__init__(record, given, target)

    @property
    def default_devices_per_node(self) -> int:
        """One process for each GPU, or for each core if there is none."""
        return gpu_count() or min(usable_cores(), MOST_CORES)

    def probe(self) -> Capabilities:
        if refusal := self.missing():
            return Capabilities(refusal)
        can = super().probe()
        return (
            replace(can, most_processes=MOST_PROCESSES, note="torchrun starts the processes") if can.can_launch else can
        )

    def handle(self) -> Mapping[str, Any]:
        return {**super().handle(), "options": self._machine.model_dump(mode="json")}

    def layout(self, design: Design) -> NodeLayout:
        """Return the layout of one node with all processes, however many nodes are drawn."""
        processes = process_count(design)
        return NodeLayout((processes,), tuple(range(processes)))

    def prepare_folder(self, run: str) -> Path:
        return self.record.folder(run)
