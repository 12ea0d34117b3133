"""Topology of an emulated cluster: the node of each process, and the rates of links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal
from meshwave.engine.run_files import NotNegative, RunFile, damaged_file, read_document

FORMAT: Literal["meshwave-network/1"] = "meshwave-network/1"
FILE = "network.json"
"""File of a run folder that describes its emulated network."""
SUBNET = "10.78.0.0/16"
MOST_PROCESSES = 64
LEAST_RATE, MOST_RATE = 1e4, 1e11
"""Limits of emulated link rates in bytes/s; slower links take too long, faster links exceed any machine."""
Rate = Annotated[float, Field(allow_inf_nan=True)]
"""Rate in bytes/s; the check of the limits rejects infinite rates and NaN, with the limits in its message."""


class Topology(RunFile):
    """Node of each process, and link rates in bytes/s in each direction."""

    format: Literal["meshwave-network/1"] = FORMAT
    node_of: tuple[Annotated[int, Field(ge=0, lt=MOST_PROCESSES)], ...]
    """Node index of each process, ``[processes]``."""
    intra: Rate
    """Rate of the link of each process inside its node, in bytes/s."""
    inter: Rate
    """Rate of one NIC in bytes/s."""
    nics: Annotated[int, Field(ge=1)] = 1
    """Number of NICs of a node, which its processes share."""
    apart: bool = False
    """True if messages to other nodes use a second link of the process, as fast as one NIC, as in the cost models.

    Otherwise they use its link inside the node.
    """
    latency_s: NotNegative = 0.0
    """Latency between nodes in the design, in seconds; it is not emulated."""
    note: str = ""
    """Description of the network, shown with the times of its runs."""

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if not 1 <= len(self.node_of) <= MOST_PROCESSES:
            raise Refusal("process_count", {"processes": len(self.node_of), "most": MOST_PROCESSES})
        if not all(LEAST_RATE <= rate <= MOST_RATE for rate in (self.intra, self.inter)):
            limits = {"least": LEAST_RATE, "most": MOST_RATE}
            raise Refusal("link_rates", {"intra": self.intra, "inter": self.inter, **limits})
        if self.inter > self.intra and not self.apart:
            raise Refusal("uplink_faster_than_link", {"intra": self.intra, "inter": self.inter})
        return self

    @property
    def processes(self) -> int:
        """Number of processes."""
        return len(self.node_of)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return max(self.node_of) + 1

    @property
    def has_two_links(self) -> bool:
        """True if processes have two links; in a single node each process has only one."""
        return self.apart and self.nodes > 1

    def address(self, process: int) -> str:
        """Return the address of a process: ``10.78.NODE.NUMBER``, numbered from 1 within each node."""
        node = self.node_of[process]
        return f"10.78.{node}.{self.node_of[:process].count(node) + 1}"

    def to_json(self) -> str:
        """Return the content of ``network.json``."""
        return self.model_dump_json(indent=2) + "\n"


def read_topology(folder: Path) -> Topology | None:
    """Return the emulated network of a run folder; None if the run uses the network of this machine.

    Raises:
        RunFolderError: the file is damaged.
    """
    try:
        return read_document(folder / FILE, Topology)
    except InputError as error:
        raise damaged_file(folder / FILE, str(error)) from None
