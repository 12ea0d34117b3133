"""Agreement among a subset of the processes, through the store of the default group."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from meshwave.engine.findings import RunRefusal

FIRST_TAG, TAGS = 1 << 29, 1 << 29
"""First tag and number of tags of these transfers. Gloo's tags are integers below 2^31; pipelines and transfers of one
tensor use the lower tags."""
_RENDEZVOUS_COUNTS: WeakKeyDictionary[Any, Counter[tuple[int, ...]]] = WeakKeyDictionary()
"""Number of rendezvous so far of each set of processes, by default group."""


class Rendezvous:
    """Rendezvous of ``processes``, which all create it in the same order as their other rendezvous."""

    def __init__(self, processes: Sequence[int], timeout: timedelta | None = None) -> None:
        """Create a rendezvous. ``timeout`` is the longest wait for the other processes; None for that of the store."""
        self.processes = tuple(processes)
        self._timeout = timeout
        self._store: Any = dist.distributed_c10d._get_default_store()
        counts = _RENDEZVOUS_COUNTS.setdefault(dist.distributed_c10d._get_default_group(), Counter())
        who = sha256(repr(self.processes).encode()).hexdigest()[:16]
        self._key = f"meshwave/resharding/{who}/{counts[self.processes]}"
        counts[self.processes] += 1

    def gather(self, topic: str, statement: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the statements of all processes, in the order of ``processes``.

        Raises:
            RunError: a process did not make a statement in time.
        """
        keys = [f"{self._key}/{topic}/{process}" for process in self.processes]
        self._store.set(keys[self.processes.index(dist.get_rank())], json.dumps(statement))
        self._wait(keys)
        return [json.loads(self._store.get(key)) for key in keys]

    def take_tags(self, count: int) -> int:
        """Return the first of ``count`` consecutive tags that no other transfer uses. This ends the rendezvous.

        The first process returns last: the store may end with it, and the others must have read the tags by then.

        Raises:
            RunError: the first process did not publish the tags in time, or another process did not read them in time.
        """
        key = f"{self._key}/tag"
        if dist.get_rank() == self.processes[0]:
            taken = int(self._store.add("meshwave/resharding/tags", count)) - count
            self._store.set(key, str(taken))
            self._wait([key, *(f"{key}/{process}" for process in self.processes[1:])])
        else:
            self._wait([key])
            taken = int(self._store.get(key))
            self._store.set(f"{key}/{dist.get_rank()}", "")
        return FIRST_TAG + taken % max(1, TAGS - count)

    def _wait(self, keys: Sequence[str]) -> None:
        """Wait until all ``keys`` are set in the store.

        Raises:
            RunError: a key was not set in time. The error is raised without further queries, because the store ends
                with its process, which may have given up.
        """
        for process, key in zip(self.processes, keys, strict=False):
            try:
                if self._timeout is None:
                    self._store.wait([key])
                else:
                    self._store.wait([key], self._timeout)
            except RuntimeError as error:
                params = {"process": dist.get_rank(), "awaited": process, "reason": str(error)}
                everybody = ", ".join(map(str, self.processes))
                raise RunRefusal("transfer_timeout", {**params, "processes": everybody}) from error
