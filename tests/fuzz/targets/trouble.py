"""A target for the tests of the workers that does what its input says; it is not fuzzed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.oracle import Act, Complaint
from tests.fuzz.target import Target


class Trouble(Target):
    """Calls that hang, take all memory or end the process."""

    def seeds(self) -> list[bytes]:
        return [*map(str.encode, ACTS)]

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        name = path.read_text()
        if name in ACTS:
            yield name, ACTS[name]


def _hang() -> Iterator[Complaint]:
    while True:
        time.process_time()


def _take_memory() -> Iterator[Complaint]:
    bytearray(10**11)
    return iter(())


def _exit() -> Iterator[Complaint]:
    os._exit(3)


ACTS: dict[str, Act] = {"busy": _hang, "large": _take_memory, "exit": _exit}
TARGET = Trouble()
