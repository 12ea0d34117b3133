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

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from meshwave.engine.errors import InputError
from meshwave.engine.run_files import NotNegative, RunFile, damaged, read_document

FORMAT, FILE = "meshwave-network/1", "network.json"
"""Of a run folder whose processes get a network of their own."""
SUBNET = "10.78.0.0/16"
MOST_PROCESSES = 64
LEAST_RATE, MOST_RATE = 1e4, 1e11
"""Bytes/s: from where a message still comes within a person's patience to where no machine holds a link back."""


@dataclass(frozen=True)
class Topology:
    """Who sits where, and what links carry, in bytes/s in each direction."""

    node_of: tuple[int, ...]
    """[processes], nodes counted from 0."""
    intra: float
    """Of the link of each process."""
    inter: float
    """Of one NIC, of which a node has ``nics``."""
    nics: int = 1
    apart: bool = False
    """Whether what a process sends to other nodes passes a second link, as fast as one NIC, and not the
    one it has inside its node: so the model of cost has it. A node's NICs are shared either way."""
    latency_s: float = 0.0
    """What any message between nodes would take at least. It is not emulated, only told: see ``note``."""
    note: str = ""
    """What a person who looks at times of it should know."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.node_of) <= MOST_PROCESSES:
            raise InputError(f"{len(self.node_of)} processes cannot be; use 1 to {MOST_PROCESSES}")
        if not all(LEAST_RATE <= rate <= MOST_RATE for rate in (self.intra, self.inter)):
            raise InputError(
                f"links of {self.intra:g} and {self.inter:g} bytes/s cannot be; use {LEAST_RATE:g} to {MOST_RATE:g}"
            )
        if self.inter > self.intra and not self.apart:
            raise InputError(
                f"links of {self.intra:g} bytes/s inside nodes and {self.inter:g} between them cannot be; make the one "
                "between nodes the smaller, since what leaves a node passes a link inside it too"
            )

    @property
    def processes(self) -> int:
        return len(self.node_of)

    @property
    def nodes(self) -> int:
        return max(self.node_of) + 1

    @property
    def is_apart(self) -> bool:
        """Whether processes have two links; inside a single node one is all there is."""
        return self.apart and self.nodes > 1

    def address(self, process: int) -> str:
        """``10.78.NODE.NUMBER``, the numbers of a node's processes from 1."""
        node = self.node_of[process]
        return f"10.78.{node}.{self.node_of[:process].count(node) + 1}"

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"


class _File(RunFile):
    format: Literal["meshwave-network/1"]
    node_of: tuple[Annotated[int, Field(ge=0, lt=MOST_PROCESSES)], ...]
    intra: float
    inter: float
    nics: Annotated[int, Field(ge=1)]
    apart: bool
    latency_s: NotNegative
    note: str


def read_topology(folder: Path) -> Topology | None:
    """The network that the processes of a run folder are to be in; None where they are in this machine's own.

    Raises:
        RunFolderError: the file is damaged.
    """
    found = read_document(folder / FILE, _File)
    try:
        return Topology(**found.model_dump(exclude={"format"})) if found else None
    except InputError as error:
        raise damaged(folder / FILE, str(error)) from None
