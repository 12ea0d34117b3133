"""Sizes of the stages that a calibration measures, and the smallest design that contains such a stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshwave.engine.costs.profile import BlockKind
from meshwave.engine.document import Design, parse_design

MICROBATCHES = 2


class StageSize(NamedTuple):
    """Size of a measured stage: ``blocks`` blocks of one kind, and the shape of a microbatch."""

    kind: BlockKind
    blocks: int
    batch: int
    sequence: int
    hidden: int
    vocab: int = 512
    experts: int = 0

    @property
    def heads(self) -> int:
        """Number of attention heads, of 64 features each."""
        return max(1, self.hidden // 64)


Sizes = Mapping[BlockKind, Sequence[tuple[int, ...]]]
"""The fields of :class:`StageSize` after the kind."""
# fmt: off
CPU_SIZES: Sizes = {
    "layer": (
        (1, 1, 64, 64), (4, 2, 64, 64), (1, 4, 64, 128), (3, 1, 128, 128), (1, 1, 256, 128), (2, 1, 512, 128),
        (1, 1, 128, 256), (2, 2, 128, 256), (1, 1, 512, 256), (1, 1, 128, 512), (1, 2, 256, 512), (1, 1, 128, 768),
        (1, 1, 256, 768),
    ),
    "joining": ((1, 2, 64, 64), (2, 1, 128, 128), (1, 1, 128, 256), (1, 2, 128, 256), (1, 1, 256, 512)),
    "embedding": (
        (1, 2, 64, 64, 256), (1, 4, 64, 128, 1024), (1, 2, 128, 256, 4096), (1, 1, 512, 256, 256),
        (1, 2, 256, 512, 8192),
    ),
    "head": (
        (1, 2, 64, 64, 256), (1, 4, 64, 128, 1024), (1, 2, 128, 256, 256), (1, 1, 128, 256, 4096),
        (1, 1, 512, 256, 1024), (1, 1, 256, 512, 8192),
    ),
    "experts": (
        (1, 1, 64, 64, 512, 2), (2, 1, 128, 128, 512, 4), (1, 1, 256, 128, 512, 4), (1, 1, 128, 256, 512, 4),
        (1, 2, 128, 256, 512, 2),
    ),
}
"""Sizes from one that fits into a cache to one that takes a core half a second."""
ACCELERATOR_SIZES: Sizes = {
    "layer": (
        (1, 1, 256, 768), (4, 1, 512, 768), (1, 4, 1024, 1024), (2, 1, 2048, 1024), (1, 1, 4096, 1024),
        (2, 2, 1024, 2048), (1, 4, 2048, 2048), (1, 1, 1024, 4096), (1, 2, 2048, 4096),
    ),
    "joining": ((1, 1, 512, 768), (2, 1, 1024, 1024), (1, 2, 1024, 2048), (1, 1, 2048, 4096)),
    "embedding": (
        (1, 1, 512, 768, 8192), (1, 4, 1024, 1024, 50304), (1, 2, 2048, 4096, 50304), (1, 1, 4096, 2048, 32768),
    ),
    "head": (
        (1, 1, 512, 768, 8192), (1, 2, 1024, 1024, 50304), (1, 1, 2048, 4096, 50304), (1, 4, 1024, 2048, 32768),
    ),
    "experts": (
        (1, 1, 512, 768, 512, 4), (2, 1, 1024, 1024, 512, 8), (1, 4, 1024, 1024, 512, 8), (1, 1, 2048, 2048, 512, 8),
    ),
}
# fmt: on


def stage_sizes(*, is_accelerator: bool, has_experts: bool) -> list[StageSize]:
    """Return the stage sizes to measure on a kind of device; stages with experts only if ``has_experts``."""
    sizes = ACCELERATOR_SIZES if is_accelerator else CPU_SIZES
    kinds = [kind for kind in sizes if has_experts or kind != "experts"]
    return [StageSize(kind, *size) for kind in kinds for size in sizes[kind]]


def stage_design(size: StageSize, precision: str) -> Design:
    """Return the smallest design whose model contains a stage of this size."""
    has_skips = size.kind == "joining"
    moe = {"experts": size.experts, "top_k": min(2, size.experts), "capacity_factor": 1.25, "every": 1}
    device = {"peak_flops": 1e12, "memory_bytes": 1e12, "memory_bandwidth": 1e11}
    link = {"latency_s": 0.0, "bandwidth": 1e9}
    return parse_design(
        {
            "format": "meshwave/1",
            "name": size.kind,
            "cluster": {
                "nodes": 1,
                "devices_per_node": 1,
                "device": device,
                "intra_node": link,
                "inter_node": link,
            },
            "model": {
                "kind": "u-transformer" if has_skips else "gpt",
                "layers": size.blocks * (2 if has_skips else 1),
                "hidden": size.hidden,
                "heads": size.heads,
                "sequence": size.sequence,
                "vocab": size.vocab,
                **({"moe": moe} if size.experts else {}),
            },
            "meshes": [{"name": "m", "devices": [0], "axes": {"dp": 1, "tp": 1}}],
            "pipeline": {"schedule": "gpipe", "microbatches": MICROBATCHES},
            "training": {"micro_batch_size": size.batch, "precision": precision},
        }
    )
