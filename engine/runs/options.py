"""Options of a run, which make it differ from plain training on this machine."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from meshwave.engine.frozen import Part
from meshwave.engine.runs.checkpoints import Checkpoints
from meshwave.engine.runs.dry_run import Rehearsal
from meshwave.engine.units import quantity

HANG_TIMEOUT_S = 300.0
"""Default time, in seconds, without a completed action of any process after which a run counts as hung."""


class Hosts(Part):
    """Emulated hosts and links for the processes of a run.

    In a dry run, links are slowed down by the time-dilation factor.
    """

    nodes: PositiveInt
    """Number of emulated hosts.

    If it equals the number of nodes of the cluster, each host is one of these nodes; otherwise the processes are
    divided among the hosts in order, in equal blocks.
    """
    intra_bandwidth: Annotated[float, Field(ge=1, le=1e24)]
    """Bandwidth of the link from each process to others of its host, one direction, in bytes/s."""
    inter_bandwidth: Annotated[float, Field(ge=1, le=1e24)]
    """Bandwidth of a NIC between hosts, one direction, in bytes/s; a host has as many NICs as a node of the design."""

    @property
    def description(self) -> str:
        """Text such as ``on 2 emulated hosts (100 MB/s between them)``."""
        return f"on {self.nodes} emulated host{'s' * (self.nodes != 1)} ({quantity(self.inter_bandwidth, 'B/s')} between them)"


class Options(Part):
    """Options of a run in addition to its design."""

    rehearse: Rehearsal | None = None
    """Options of a dry run; null for training."""
    hosts: Hosts | None = None
    """Emulated hosts; null for the network of this machine."""
    checkpoints: Checkpoints | None = None
    """Options of checkpoints; null for a run without checkpoints."""
    resume: str | None = None
    """ID of the run whose newest checkpoint this run starts from."""
    initial_weights: str | None = None
    """Path of the safetensors file or folder whose weights training starts from; null for randomly drawn weights."""
    restarts: NonNegativeInt = 0
    """Maximum number of restarts of a failed run, from its newest checkpoint or, without one, from its first step."""
    hang_timeout_s: Annotated[float, Field(ge=1, le=1e9)] = HANG_TIMEOUT_S
    """Seconds without a completed action of any process after which a hung run is ended."""

    @property
    def is_plain(self) -> bool:
        """True for plain training."""
        return self == PLAIN

    @property
    def description(self) -> str:
        """Text such as ``dry run, time x 40; on 2 emulated hosts``; empty for plain training."""
        parts: list[str] = [part.description for part in (self.rehearse, self.hosts) if part is not None]
        parts += [f"resumes run {self.resume}"] if self.resume else []
        parts += [f"starts from {PurePath(self.initial_weights).name}"] if self.initial_weights else []
        return "; ".join(parts)


PLAIN = Options()
"""Options of plain training."""
REHEARSAL = Options(rehearse=Rehearsal())
"""Options of a dry run at the default time-dilation factor of this machine."""
