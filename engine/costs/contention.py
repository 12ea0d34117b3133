"""Slowdown of messages that use one link at the same time, as measured by ``meshwave calibrate``.

A profile has one :class:`Contention` per kind of link. Every value is a ratio to the same message alone, measured in
the same repetition. The value is the median; all repetitions are stored with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Annotated, Literal, Self

from pydantic import Field

from meshwave.engine.frozen import Part
from meshwave.engine.units import quantity

LinkKind = Literal["same_node", "across_nodes"]
Order = Literal["sequential", "shared"]
Positive = Annotated[float, Field(gt=0, le=1e9)]
Repetitions = 10_000
SEQUENTIAL_BELOW = 0.75
"""Ratio of the first to the second finish time below which two messages count as sent one after the other.

The ratio is 0.5 for equal messages that do not overlap, and 1 for messages that share the link evenly.
"""


class Ratio(Part):
    """Time or rate relative to that of the same message alone."""

    median: Positive
    samples: Annotated[tuple[Positive, ...], Field(min_length=1, max_length=Repetitions)]
    """One ratio per repetition."""

    @classmethod
    def from_samples(cls, samples: Sequence[float]) -> Self:
        """Return the ratio whose value is the median of ``samples``."""
        return cls(median=median(samples), samples=tuple(samples))

    @property
    def residuals(self) -> list[float]:
        """Deviation of each repetition from the median, as a share of the median."""
        return [sample / self.median - 1 for sample in self.samples]

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartiles of the repetitions."""
        if len(self.samples) == 1:
            return self.median, self.median
        first, _, third = quantiles(self.samples, n=4, method="inclusive")
        return first, third


class PairOrder(Part):
    """Order of two equal messages that are sent at the same time from one process to another."""

    order: Order
    """*sequential*: the first has the link to itself and the second follows; *shared*: both finish together."""
    first_s: Positive
    """Seconds from the start until the first message has arrived (median)."""
    second_s: Positive
    """Seconds from the start until the second message has arrived (median)."""
    samples: Annotated[tuple[tuple[Positive, Positive], ...], Field(min_length=1, max_length=Repetitions)]
    """Seconds until the first and the second message have arrived, per repetition."""

    @classmethod
    def from_samples(cls, samples: Sequence[tuple[float, float]]) -> Self:
        """Return the order that the finish times of the first and second message in ``samples`` (seconds) show."""
        first_s, second_s = (median(times) for times in zip(*samples, strict=True))
        is_sequential = median(first / second for first, second in samples) < SEQUENTIAL_BELOW
        order: Order = "sequential" if is_sequential else "shared"
        return cls(order=order, first_s=first_s, second_s=second_s, samples=tuple(samples))


class CollectiveBesideTransfer(Part):
    """Slowdown of a ring all-reduce and a message on one link, in the same direction at the same time.

    Both send equally many bytes over the link, so that both are busy for most of the measurement; a longer collective
    beside a shorter message is slowed down less.
    """

    ranks: Annotated[int, Field(ge=2, le=4096)]
    """Number of processes of the all-reduce."""
    collective_bytes: Positive
    """Size of the all-reduced buffer in bytes."""
    collective_alone_s: Positive
    """Seconds of the all-reduce alone (median)."""
    collective_slowdown: Ratio
    """Seconds of the all-reduce while the message is sent, relative to the all-reduce alone."""
    transfer_slowdown: Ratio
    """Seconds of the message during the all-reduce, relative to the message alone."""


class Contention(Part):
    """Rates and orders of simultaneous messages over one kind of link."""

    pair: LinkKind
    """*same_node*: between processes of one node; *across_nodes*: over the NICs of two nodes."""
    message_bytes: Positive
    """Size of every message in bytes."""
    alone_s: Positive
    """Seconds of one message alone (median)."""
    alone_samples_s: Annotated[tuple[Positive, ...], Field(min_length=1, max_length=Repetitions)]
    """Seconds of one message alone, per repetition."""
    shared_rate: Ratio | None = None
    """Total bytes/s of two messages between two pairs of processes in one direction, relative to one message alone.

    Across nodes both use one NIC: 1 if the NIC is the bottleneck, up to 2 if a single message cannot saturate it.
    """
    duplex_rate: Ratio | None = None
    """Bytes/s of the slower direction of a pair when both directions are busy, relative to one direction alone.

    1 for a full-duplex link, 0.5 if the directions share the link.
    """
    pair_order: PairOrder | None = None
    collective_beside_transfer: CollectiveBesideTransfer | None = None


@dataclass(frozen=True)
class LinkSharing:
    """Capacity of links for the network model.

    Each factor is a multiple of the rate of one message alone; 1.0 if it was not measured.
    """

    across_nodes_capacity: float = 1.0
    """Total rate of two messages over one NIC in one direction, from 1 to 2."""
    same_node_capacity: float | None = None
    """Total rate of two messages between distinct pairs of processes of one node, from 1 to 2.

    None if it was not measured: each device then has its own link.
    """
    across_nodes_duplex: float = 1.0
    """Rate of each direction between nodes when both are busy, from 0.5 to 1."""
    same_node_duplex: float = 1.0
    """Rate of each direction inside a node when both are busy, from 0.5 to 1."""


UNMEASURED_LINK = LinkSharing()
"""Factors of a link that was not measured."""


def link_sharing(measured: Iterable[Contention]) -> LinkSharing:
    """Return how concurrent flows share links, from measurements limited to physically possible values."""
    found = {each.pair: each for each in measured}
    across_capacity, across_duplex = _link_factors(found.get("across_nodes"))
    inside_capacity, inside_duplex = _link_factors(found.get("same_node"))
    known = "same_node" in found and found["same_node"].shared_rate is not None
    return LinkSharing(across_capacity, inside_capacity if known else None, across_duplex, inside_duplex)


def _link_factors(found: Contention | None) -> tuple[float, float]:
    """Return the capacity factor and the duplex factor of a kind of link."""
    if found is None:
        return 1.0, 1.0
    return _clamp(found.shared_rate, 1.0, 2.0), _clamp(found.duplex_rate, 0.5, 1.0)


def _clamp(ratio: Ratio | None, least: float, most: float) -> float:
    return 1.0 if ratio is None else min(most, max(least, ratio.median))


# ---- as text ----

ROWS = (
    "one message alone",
    "two pairs of processes at once",
    "both directions at once",
    "two messages of one pair at once",
    "all-reduce beside a message",
)
"""Names of the measurements, in the order of :func:`describe_contention`."""


def describe_contention(found: Contention) -> tuple[str, ...]:
    """Return a text with units for each measurement in ``ROWS``, such as "24.9 MB/s each"; empty if unmeasured."""
    rate = found.message_bytes / found.alone_s
    alone = f"{quantity(found.message_bytes, 'B')} in {quantity(found.alone_s, 's')}, {quantity(rate, 'B/s')}"
    shared, duplex = found.shared_rate, found.duplex_rate
    return (
        alone,
        f"{quantity(rate * shared.median, 'B/s')} in total, {_ratio_text(shared)} one alone" if shared else "",
        f"{quantity(rate * duplex.median, 'B/s')} each way, {_ratio_text(duplex)} one way alone" if duplex else "",
        _describe_order(found.pair_order) if found.pair_order else "",
        _describe_collective(found.collective_beside_transfer) if found.collective_beside_transfer else "",
    )


def _describe_order(pair: PairOrder) -> str:
    order = "one after the other" if pair.order == "sequential" else "they share the link"
    return f"{order}: arrived after {quantity(pair.first_s, 's')} and {quantity(pair.second_s, 's')}"


def _describe_collective(beside: CollectiveBesideTransfer) -> str:
    collective, transfer = _ratio_text(beside.collective_slowdown), _ratio_text(beside.transfer_slowdown)
    return f"all-reduce of {beside.ranks} ranks {collective} its time alone, message {transfer}"


def _ratio_text(ratio: Ratio) -> str:
    """Return a ratio as text: ``1.02x (IQR 0.99-1.04)``."""
    first, third = ratio.quartiles
    return f"{ratio.median:.2f}x (IQR {first:.2f}-{third:.2f})"
