"""How a run differs from plain training on this machine: kept in its folder and in the record."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from meshwave.engine.frozen import Part
from meshwave.engine.runs.checkpoints import Checkpoints
from meshwave.engine.runs.dry_run import Rehearsal
from meshwave.engine.units import quantity


class Hosts(Part):
    """Emulated hosts for the processes of a run, with links like those of a drawn cluster.

    A dry run is slower, so its links are slower by the same factor.
    """

    nodes: PositiveInt
    """Emulated hosts. As many as the cluster has nodes are those nodes; to more or fewer the processes are dealt
    in equal blocks, in order."""
    intra_bandwidth: Annotated[float, Field(ge=1, le=1e24)]
    """Bytes/s of the link of each process to others of its host, one direction."""
    inter_bandwidth: Annotated[float, Field(ge=1, le=1e24)]
    """Bytes/s of a NIC between hosts, one direction; the processes of a host share as many as the design draws."""

    @property
    def words(self) -> str:
        """Text such as ``on 2 emulated hosts (100 MB/s between them)``."""
        return f"on {self.nodes} emulated host{'s' * (self.nodes != 1)} ({quantity(self.inter_bandwidth, 'B/s')} between them)"


class Options(Part):
    """Options of a run besides its design."""

    rehearse: Rehearsal | None = None
    """Wait instead of computing."""
    hosts: Hosts | None = None
    """Spread the processes over emulated hosts."""
    checkpoints: Checkpoints | None = None
    """Write checkpoints; null: none."""
    resume: str | None = None
    """The id of the run whose newest checkpoint this one starts from."""
    hang_timeout_s: Annotated[float, Field(ge=1, le=1e9)] | None = None
    """Seconds without an ended action after which the run is taken to hang, and ends; null: 300."""

    @property
    def is_plain(self) -> bool:
        """Whether it is plain training."""
        return self == PLAIN

    @property
    def words(self) -> str:
        """``rehearsal, time x 40; on 2 emulated hosts``; nothing for plain training."""
        parts = [part.words for part in (self.rehearse, self.hosts) if part is not None]
        return "; ".join([*parts, *([f"resumes run {self.resume}"] if self.resume else [])])


PLAIN = Options()
"""Training, with nothing else asked for."""
REHEARSAL = Options(rehearse=Rehearsal())
"""A rehearsal at the scale at which it is true on this machine."""
