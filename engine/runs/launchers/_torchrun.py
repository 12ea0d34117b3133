"""Processes of a run on nodes: their number on each node, and the script that starts them with torchrun."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwave.engine.document import Design

PROCESS_MODULE = "meshwave.engine.runtime.processes.torchrun_process"
SCRIPT = "node.sh"
PROGRAM = "process.py"
FIRST_PORT, PORTS = 20_000, 12_000
"""First port and number of ports for rendezvous, below the ports that Linux uses for outgoing connections."""


@dataclass(frozen=True)
class NodeLayout:
    """Processes of each node.

    torchrun numbers the processes node by node, whereas a run numbers them mesh by mesh.
    """

    processes: tuple[int, ...]
    """Number of processes of each node."""
    order: tuple[int, ...]
    """Process number within the run for each process rank of torchrun."""

    @classmethod
    def from_design(cls, design: Design) -> NodeLayout:
        """Return the layout of the devices that a design uses."""
        devices = design.process_devices
        counts = Counter(design.cluster.node_of(device) for device in devices)
        order = sorted(range(len(devices)), key=devices.__getitem__)
        return cls(tuple(counts[node] for node in sorted(counts)), tuple(order))

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.processes)


def rendezvous_port(number: int) -> int:
    """Return the rendezvous port of a job; two jobs on one node rarely have the same port."""
    return FIRST_PORT + number % PORTS


def node_script(
    layout: NodeLayout,
    program: Sequence[str],
    *,
    python: str,
    setup: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> str:
    """Return the shell script that starts ``program``, a command with arguments, as the processes of one node.

    ``setup`` are shell lines of the user that run first.
    """
    exported = {**NODE_VARIABLES, "MESHWAVE_PROCESS_ORDER": " ".join(map(str, layout.order)), **(variables or {})}
    torchrun = [
        f"exec {shlex.quote(python)} -m torch.distributed.run",
        f"--nnodes {layout.nodes}",
        '--node-rank "$node"',
        '--nproc-per-node "${processes[$node]}"',
        '--master-addr "$address"',
        '--master-port "$port"',
        "--log-dir /dev/null",  # or each run leaves an empty folder in the temporary folder of the node
        shlex.join(program),
    ]
    lines = [
        "#!/bin/bash",
        f"# Starts the processes of one node of a Meshwave run: {SCRIPT} NODE ADDRESS PORT",
        "# ADDRESS and PORT are those at which node 0 can be reached.",
        "umask 077",
        "node=$1 address=$2 port=$3",
        f"processes=({' '.join(map(str, layout.processes))})",
        *_export_commands(exported),
        *setup,
        " \\\n    ".join(torchrun),
    ]
    return "\n".join(lines) + "\n"


NODE_VARIABLES: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",  # the processes of a node share its cores
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # counting GPUs through CUDA prevents forks from using it
    "PYTHONSAFEPATH": "1",  # do not import modules from the run folder
    "PYTHONUNBUFFERED": "1",  # unbuffered, because the log is read during the run
}


def process_program(module: str) -> str:
    """Return the Python program that runs ``module`` in each process of a node."""
    return f"""# Runs in each process of the node; its argument is the run folder.
from runpy import run_module

run_module("{module}", run_name="__main__", alter_sys=True)
"""


def forked_program(folder: str) -> list[str]:
    """Return the arguments of torchrun that run the program of a folder in forks of torchrun."""
    return ["--start-method", "fork", "--run-path", f"{folder}/{PROGRAM}", folder]


def interface_variables(interface: str | None) -> dict[str, str]:
    """Return the variables that bind gloo and NCCL to a network interface."""
    return {} if interface is None else dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), interface)


def _export_commands(variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in variables.items():
        yield f"export {name}={shlex.quote(value)}"
