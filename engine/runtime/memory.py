"""Freed memory stays with the process, ready for the next step, which asks for the same again."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # from glibc's malloc.h
KEPT, STRIDE, LARGEST = 2**31 - 1, 2**26, 2**25  # bytes


def keep_freed_memory() -> None:
    """Tell glibc not to hand tensors' memory back to the kernel at every free: fetching it anew, zeroed and
    page by page, takes one to two percent of a step on a CPU. Does nothing where there is no glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((M_TRIM_THRESHOLD, KEPT), (M_TOP_PAD, STRIDE), (M_MMAP_THRESHOLD, LARGEST)):
            mallopt(option, value)
