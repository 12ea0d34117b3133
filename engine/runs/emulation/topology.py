"""Topology of an emulated cluster: the node of each process, and the rates of links."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal
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
            raise Refusal("process_count", {"processes": len(self.node_of), "most": MOST_PROCESSES})
        if not all(LEAST_RATE <= rate <= MOST_RATE for rate in (self.intra, self.inter)):
            limits = {"least": LEAST_RATE, "most": MOST_RATE}
            raise Refusal("link_rates", {"intra": self.intra, "inter": self.inter, **limits})
        if self.inter > self.intra and not self.apart:
            raise Refusal("uplink_faster_than_link", {"intra": self.intra, "inter": self.inter})

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
