"""Activations in host memory between the forward and the backward (Rhu et al., arXiv:1602.08124)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from meshwave.engine.runtime.device.accelerator import is_accelerator, use_stream

SMALLEST_BYTES = 1024
"""Smaller storages stay on the device, because a copy has a fixed cost."""
IN_FLIGHT = 5
"""Number of storages that are copied ahead of the computation, in each direction."""


class CopyStreams(NamedTuple):
    """Streams of the copies to the host, and back."""

    store: torch.Stream
    restore: torch.Stream


@cache
def copy_streams(device: torch.device) -> CopyStreams:
    """Return the streams on which an accelerator copies activations."""
    return CopyStreams(torch.Stream(device), torch.Stream(device))


class HostCopy:
    """Storage of saved tensors that has a copy in host memory."""

    def __init__(self, storage: torch.UntypedStorage, streams: CopyStreams | None) -> None:
        """Start to copy a storage to the host, on ``streams`` of its accelerator."""
        self.device, self._streams = storage.device, streams
        self._own: Tensor | None = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        self._host = torch.empty(self._own.shape, dtype=torch.uint8, pin_memory=streams is not None)
        self._copied = self._start_copy(self._host, self._own, streams and streams.store)

    def free(self) -> None:
        """Free the storage on the device after its copy."""
        self._wait()
        self._own = None

    def start_restore(self) -> None:
        """Start to copy the storage back, unless it is on the device."""
        if self._own is None:
            self._own = torch.empty(self._host.shape, dtype=torch.uint8, device=self.device)
            self._copied = self._start_copy(self._own, self._host, self._streams and self._streams.restore)

    def restore(self) -> torch.UntypedStorage:
        """Return the storage on the device."""
        self.start_restore()
        self._wait()
        assert self._own is not None, "just restored"
        return self._own.untyped_storage()

    def _start_copy(self, target: Tensor, source: Tensor, stream: torch.Stream | None) -> torch.Event | None:
        """Copy after the work of the current stream; return an event that marks the end, or None if it is done."""
        if stream is None:
            target.copy_(source)
            return None
        stream.wait_stream(torch.accelerator.current_stream(self.device))
        with use_stream(stream):
            target.copy_(source, non_blocking=True)
            return stream.record_event()

    def _wait(self) -> None:
        """Order the following work of the current stream after the copy."""
        if self._copied is not None:
            torch.accelerator.current_stream(self.device).wait_event(self._copied)


def _storage_key(tensor: Tensor) -> StorageWeakRef:
    """Return a key of the storage of a tensor; while the key exists, no other storage has an equal one."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class OffloadedTensor(NamedTuple):
    """Saved tensor whose storage is in host memory."""

    copy: HostCopy
    number: int  # of the storage in the order of the forward
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]


class ActivationOffload(saved_tensors_hooks):
    """Context of the forward of one microbatch, which moves a share of the saved storages to host memory.

    The storages are spread evenly over the forward, so that their copies overlap with computation. Tensors that share a
    storage are copied once.
    """

    def __init__(self, share: float, resident: Iterable[Tensor], device: torch.device) -> None:
        """Prepare the forward of a microbatch on a device.

        Args:
            share: share of the bytes to move.
            resident: tensors that stay on the device, because others use them too.
            device: device of the saved tensors.
        """
        super().__init__(self._pack, self._unpack)
        self._share = share
        self._resident = {_storage_key(tensor) for tensor in resident}
        self._streams = copy_streams(device) if is_accelerator(device) else None
        self._seen_bytes = self._offloaded_bytes = 0
        self._known: dict[tuple[StorageWeakRef, int], tuple[int, HostCopy] | None] = {}  # by storage and its version
        self._in_flight: deque[HostCopy] = deque()
        self._copies: list[ref[HostCopy]] = []

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._free(0)
        self._known.clear()

    def _pack(self, tensor: Tensor) -> Tensor | OffloadedTensor:
        storage = _storage_key(tensor)
        if storage in self._resident or tensor.untyped_storage().nbytes() < SMALLEST_BYTES:
            return tensor.detach()
        key = storage, tensor._version
        if key not in self._known:
            self._known[key] = self._offload(tensor.untyped_storage())
        if (found := self._known[key]) is None:
            return tensor.detach()
        number, copy = found
        offset = int(tensor.storage_offset())
        return OffloadedTensor(copy, number, tensor.dtype, offset, tensor.shape, tensor.stride())

    def _offload(self, storage: torch.UntypedStorage) -> tuple[int, HostCopy] | None:
        """Start to copy a storage to the host, unless enough bytes are there already."""
        size = storage.nbytes()
        self._seen_bytes += size
        if self._offloaded_bytes + size / 2 > self._share * self._seen_bytes:
            return None
        self._offloaded_bytes += size
        copy = HostCopy(storage, self._streams)
        self._copies.append(ref(copy))
        self._in_flight.append(copy)
        self._free(IN_FLIGHT if self._streams else 0)
        return len(self._copies) - 1, copy

    def _free(self, kept: int) -> None:
        """Free the copied storages except for the latest ``kept`` ones."""
        while len(self._in_flight) > kept:
            self._in_flight.popleft().free()

    def _unpack(self, saved: Tensor | OffloadedTensor) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        copy, number, dtype, *place = saved
        copy.start_restore()
        if self._streams is not None:
            for earlier in self._copies[max(0, number - IN_FLIGHT) : number][::-1]:
                if (other := earlier()) is not None:
                    other.start_restore()
        return torch.empty(0, dtype=dtype, device=copy.device).set_(copy.restore(), *place)
