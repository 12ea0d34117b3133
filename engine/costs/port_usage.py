"""Messages between devices, and the bytes that they send through the ports of a cluster, as arrays.

A design of 16,384 devices has as many messages in one transfer, so neither is stored as one object per message or port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self, get_args

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.alpha_beta import Message
from meshwave.engine.document.cluster import MAX_DEVICES
from meshwave.engine.program.shared_links import Port, PortKind

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]

PORT_KINDS: Final[tuple[PortKind, ...]] = get_args(PortKind)
PORT_CODES: Final = len(PORT_KINDS) * MAX_DEVICES
"""Number of port codes."""


def port_codes(kind: PortKind, numbers: Int64s) -> Int64s:
    """Return the codes of the ports of one kind: integers that stand for ports in arrays."""
    return numbers + PORT_KINDS.index(kind) * MAX_DEVICES


def port_kinds(codes: Int64s) -> Int64s:
    """Return the index in ``PORT_KINDS`` of the kind of each port."""
    return codes // MAX_DEVICES


def ports_of_codes(codes: Int64s) -> list[Port]:
    """Return the port for which each code stands."""
    kinds, numbers = divmod(codes, MAX_DEVICES)
    return [Port(PORT_KINDS[kind], number) for kind, number in zip(kinds.tolist(), numbers.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages between devices; iteration yields a :class:`Message` for each."""

    source: Int64s  # [messages] device
    destination: Int64s  # [messages] device
    bytes: Floats  # [messages]

    @classmethod
    def from_list(cls, messages: Iterable[Message]) -> Self:
        """Return messages that are given one by one."""
        table = np.array(list(messages), np.float64).reshape(-1, len(Message._fields))
        return cls(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2])

    @classmethod
    def join(cls, parts: Sequence[Messages]) -> Self:
        """Return the messages of several parts, one part after another."""
        columns = ([getattr(part, name) for part in parts] for name in ("source", "destination", "bytes"))
        return cls(*map(np.concatenate, columns)) if parts else cls.from_list(())

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Message]:
        columns = self.source.tolist(), self.destination.tolist(), self.bytes.tolist()
        return (Message(*each) for each in zip(*columns, strict=True))

    def sent_by(self, devices: Sequence[int]) -> Messages:
        """Return the messages whose source is one of ``devices``."""
        kept = np.isin(self.source, devices)
        return Messages(self.source[kept], self.destination[kept], self.bytes[kept])


class Usage(Mapping[Port, float]):
    """Bytes that pass through each port, in the order in which the ports are first used."""

    def __init__(self, codes: Int64s, sizes: Floats) -> None:
        """Store the bytes of ports.

        Args:
            codes: [ports] codes of the ports, each once.
            sizes: [ports] bytes.
        """
        self.codes, self.sizes = codes, sizes

    @classmethod
    def total(cls, codes: Int64s, sizes: Floats) -> Self:
        """Return the usage of single contributions, of which several may be for one port."""
        ports, first, number = np.unique(codes, return_index=True, return_inverse=True)
        order = np.argsort(first)
        total: Floats = np.bincount(number.reshape(-1), sizes, minlength=len(ports)).astype(np.float64)
        return cls(ports[order], total[order])

    @classmethod
    def from_mapping(cls, bytes_of_port: Mapping[Port, float]) -> Self:
        """Return a usage that is given port by port."""
        codes = [PORT_KINDS.index(port.kind) * MAX_DEVICES + port.number for port in bytes_of_port]
        return cls(np.array(codes, np.int64), np.array(list(bytes_of_port.values()), np.float64))

    def scale(self, factor: float) -> Usage:
        """Return the usage of ``factor`` times the bytes."""
        return Usage(self.codes, self.sizes * factor)

    def divide(self, parts: int) -> Usage:
        """Return the usage of one of several equal parts."""
        return Usage(self.codes, self.sizes / parts)

    def select(self, kept: NDArray[np.bool_]) -> Usage:
        """Return the usage of some of the ports."""
        return Usage(self.codes[kept], self.sizes[kept])

    @cached_property
    def kinds(self) -> Int64s:
        """Index of the kind of each port in ``PORT_KINDS``."""
        return port_kinds(self.codes)

    def __getitem__(self, port: Port) -> float:
        (places,) = np.nonzero(self.codes == port_codes(port.kind, np.array(port.number)))
        if not len(places):
            raise KeyError(port)
        return float(self.sizes[places[0]])

    def __iter__(self) -> Iterator[Port]:
        return iter(ports_of_codes(self.codes))

    def __len__(self) -> int:
        return len(self.codes)


def sum_usages(usages: Iterable[Usage]) -> Usage:
    """Return the total of several usages per port."""
    found = list(usages)
    if len(found) == 1:
        return found[0]
    return Usage.total(*(np.concatenate([getattr(each, name) for each in found]) for name in ("codes", "sizes")))
