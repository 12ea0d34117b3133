"""The processes of a run on nodes: how many each node has, and the script that starts them with torchrun."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwave.engine.document import Design

PROCESS_MODULE = "meshwave.engine.runtime.processes.torchrun_process"
SCRIPT = "node.sh"
FIRST_PORT, PORTS = 20_000, 12_000
"""Ports of rendezvous: below those that Linux gives to outgoing connections."""


@dataclass(frozen=True)
class NodeLayout:
    """The processes of each node. torchrun numbers them node by node, a run numbers them mesh by mesh."""

    processes: tuple[int, ...]
    """The number of processes of each node."""
    order: tuple[int, ...]
    """The process of the run for each rank of torchrun."""

    @classmethod
    def from_design(cls, design: Design) -> NodeLayout:
        """Return the layout of the devices that a design uses."""
        devices = [device for mesh in design.meshes for device in mesh.devices]
        counts = Counter(design.cluster.node_of(device) for device in devices)
        order = sorted(range(len(devices)), key=devices.__getitem__)
        return cls(tuple(counts[node] for node in sorted(counts)), tuple(order))

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.processes)


def rendezvous_port(number: int) -> int:
    """Return the port of a job, so that two jobs on one node rarely share it."""
    return FIRST_PORT + number % PORTS


def node_script(
    layout: NodeLayout,
    program: Sequence[str],
    *,
    python: str,
    setup: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> str:
    """Return the script that starts a ``program``, with its arguments, as the processes of one node.

    ``setup`` are lines of the user's.
    """
    exported = {**NODE_VARIABLES, "MESHWAVE_PROCESS_ORDER": " ".join(map(str, layout.order)), **(variables or {})}
    torchrun = [
        f"exec {shlex.quote(python)} -m torch.distributed.run",
        f"--nnodes {layout.nodes}",
        '--node-rank "$node"',
        '--nproc-per-node "${processes[$node]}"',
        '--master-addr "$address"',
        '--master-port "$port"',
        shlex.join(program),
    ]
    lines = [
        "#!/bin/bash",
        f"# Starts the processes of one node of a Meshwave run: {SCRIPT} NODE ADDRESS PORT",
        "# ADDRESS and PORT are those at which node 0 can be reached.",
        "umask 077",
        "node=$1 address=$2 port=$3",
        f"processes=({' '.join(map(str, layout.processes))})",
        *_exports(exported),
        *setup,
        " \\\n    ".join(torchrun),
    ]
    return "\n".join(lines) + "\n"


NODE_VARIABLES: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",  # the cores go to processes
    "PYTHONSAFEPATH": "1",  # nothing is imported from the run folder
    "PYTHONUNBUFFERED": "1",  # a log is read while it is written
}


def interface_variables(interface: str | None) -> dict[str, str]:
    """Return the variables that bind gloo and NCCL to a network interface."""
    return {} if interface is None else dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), interface)


def _exports(variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in variables.items():
        yield f"export {name}={shlex.quote(value)}"
