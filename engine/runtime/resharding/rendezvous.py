"""Some of all processes agree on something through the store of the default group; nobody else needs to come."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from meshwave.engine.errors import RunError

FIRST_TAG, TAGS = 1 << 29, 1 << 29
"""Gloo's tags are whole numbers below 2^31; the lower ones are those of pipelines and of single transfers."""
_MEETINGS: WeakKeyDictionary[Any, Counter[tuple[int, ...]]] = WeakKeyDictionary()
"""Of a default group: how often the same processes have met."""


class Meeting:
    """One agreement among ``processes``, which all come to their meetings in the same order."""

    def __init__(self, processes: Sequence[int], timeout: timedelta | None = None) -> None:
        """``timeout``: the longest that this process waits for the others; none: that of the store."""
        self.processes = tuple(processes)
        self._timeout = timeout
        self._store: Any = dist.distributed_c10d._get_default_store()
        met = _MEETINGS.setdefault(dist.distributed_c10d._get_default_group(), Counter())
        who = sha256(repr(self.processes).encode()).hexdigest()[:16]
        self._key = f"meshwave/resharding/{who}/{met[self.processes]}"
        met[self.processes] += 1

    def exchange(self, what: str, said: Mapping[str, Any]) -> list[dict[str, Any]]:
        """``[processes]`` what each says.

        Raises:
            RunError: some did not come in time.
        """
        keys = [f"{self._key}/{what}/{process}" for process in self.processes]
        self._store.set(keys[self.processes.index(dist.get_rank())], json.dumps(said))
        self._wait(keys)
        return [json.loads(self._store.get(key)) for key in keys]

    def take_tags(self, count: int) -> int:
        """Return the first of ``count`` tags that no other transfer of any processes has.

        Raises:
            RunError: the first process did not come in time.
        """
        key = f"{self._key}/tag"
        if dist.get_rank() == self.processes[0]:
            past = int(self._store.add("meshwave/resharding/tags", count))
            self._store.set(key, str(past - count))
        self._wait([key])
        taken = int(self._store.get(key))
        return FIRST_TAG + taken % max(1, TAGS - count)

    def _wait(self, keys: Sequence[str]) -> None:
        """
        Raises:
            RunError: a key was not set in time; the store is not asked again, for those that gave up may take it along.
        """
        for process, key in zip(self.processes, keys, strict=False):  # the first process sets what all take from one
            try:
                if self._timeout is None:
                    self._store.wait([key])
                else:
                    self._store.wait([key], self._timeout)
            except RuntimeError as error:
                everybody = ", ".join(map(str, self.processes))
                raise RunError(
                    f"process {dist.get_rank()} waits for {process} to agree on a transfer: processes {everybody} are all "
                    f"to call it, with the same tensors and in the same order as others among them ({error})"
                ) from error
