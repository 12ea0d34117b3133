"""Options of a run: how it differs from plain training on this machine."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from meshwave.engine.frozen import Part
from meshwave.engine.runs.checkpoints import Checkpoints
from meshwave.engine.runs.dry_run import Rehearsal
from meshwave.engine.units import quantity

HANG_TIMEOUT_S = 300.0
"""Default time without an ended action of any process after which a run is considered to hang."""


class Hosts(Part):
    """Emulated hosts for the processes of a run, with emulated links.

    A dry run is slower than modelled time, so its links are slower by the same factor.
    """

    nodes: PositiveInt
    """The number of emulated hosts. If it is the number of nodes of the cluster, each host is one of these nodes;
    otherwise the processes are divided among the hosts in equal blocks, in order."""
    intra_bandwidth: Annotated[float, Field(ge=1, le=1e24)]
    """Bytes/s of the link of each process to others of its host, one direction."""
    inter_bandwidth: Annotated[float, Field(ge=1, le=1e24)]
    """Bytes/s of a NIC between hosts, one direction; the processes of a host share the NICs of a node of the design."""

    @property
    def words(self) -> str:
        """Text such as ``on 2 emulated hosts (100 MB/s between them)``."""
        return f"on {self.nodes} emulated host{'s' * (self.nodes != 1)} ({quantity(self.inter_bandwidth, 'B/s')} between them)"


class Options(Part):
    """Options of a run in addition to its design."""

    rehearse: Rehearsal | None = None
    """Options of a dry run; null for training."""
    hosts: Hosts | None = None
    """Emulated hosts; null for the network of this machine."""
    checkpoints: Checkpoints | None = None
    """Options of checkpoints; null for a run without."""
    resume: str | None = None
    """The id of the run whose newest checkpoint this run starts from."""
    restarts: NonNegativeInt = 0
    """Times that a run that fails starts again from its newest checkpoint, or from its first step without one."""
    hang_timeout_s: Annotated[float, Field(ge=1, le=1e9)] = HANG_TIMEOUT_S
    """Seconds without an ended action of any process after which a hanging run ends."""

    @property
    def is_plain(self) -> bool:
        """True for plain training."""
        return self == PLAIN

    @property
    def words(self) -> str:
        """Text such as ``rehearsal, time x 40; on 2 emulated hosts``; empty for plain training."""
        parts = [part.words for part in (self.rehearse, self.hosts) if part is not None]
        return "; ".join([*parts, *([f"resumes run {self.resume}"] if self.resume else [])])


PLAIN = Options()
"""Plain training."""
REHEARSAL = Options(rehearse=Rehearsal())
"""A dry run at the default time-dilation factor of this machine."""
