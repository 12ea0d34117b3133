"""How long stages take, and what they keep: the runtime's own, one process, all sizes in turns.

Each stage consists of blocks of one kind alone. Its microbatches go forward one after the other and then back,
as in a schedule, so that what is kept of one has left the caches when its backward comes. Every round plays
all stages in all ways, so that whatever else the machine does meets all of them alike; medians count.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwave.engine.costs.profile import BlockKind
from meshwave.engine.document import Design, parse_design

MICROBATCHES = 2


class Size(NamedTuple):
    """A stage of ``blocks`` of a kind, and the microbatch that goes through it."""

    kind: BlockKind
    blocks: int
    batch: int
    sequence: int
    hidden: int
    vocab: int = 512
    experts: int = 0

    @property
    def heads(self) -> int:
        return max(1, self.hidden // 64)


CPU_SIZES = (
    Size("layer", 1, 1, 64, 64),
    Size("layer", 4, 2, 64, 64),
    Size("layer", 1, 4, 64, 128),
    Size("layer", 3, 1, 128, 128),
    Size("layer", 1, 1, 256, 128),
    Size("layer", 2, 1, 512, 128),
    Size("layer", 1, 1, 128, 256),
    Size("layer", 2, 2, 128, 256),
    Size("layer", 1, 1, 512, 256),
    Size("layer", 1, 1, 128, 512),
    Size("layer", 1, 2, 256, 512),
    Size("layer", 1, 1, 128, 768),
    Size("layer", 1, 1, 256, 768),
    Size("joining", 1, 2, 64, 64),
    Size("joining", 2, 1, 128, 128),
    Size("joining", 1, 1, 128, 256),
    Size("joining", 1, 2, 128, 256),
    Size("joining", 1, 1, 256, 512),
    Size("embedding", 1, 2, 64, 64, 256),
    Size("embedding", 1, 4, 64, 128, 1024),
    Size("embedding", 1, 2, 128, 256, 4096),
    Size("embedding", 1, 1, 512, 256, 256),
    Size("embedding", 1, 2, 256, 512, 8192),
    Size("head", 1, 2, 64, 64, 256),
    Size("head", 1, 4, 64, 128, 1024),
    Size("head", 1, 2, 128, 256, 256),
    Size("head", 1, 1, 128, 256, 4096),
    Size("head", 1, 1, 512, 256, 1024),
    Size("head", 1, 1, 256, 512, 8192),
)
"""From what fits in a cache to what a core takes half a second for."""
CPU_EXPERTS = (
    Size("experts", 1, 1, 64, 64, experts=2),
    Size("experts", 2, 1, 128, 128, experts=4),
    Size("experts", 1, 1, 256, 128, experts=4),
    Size("experts", 1, 1, 128, 256, experts=4),
    Size("experts", 1, 2, 128, 256, experts=2),
)
ACCELERATOR_SIZES = (
    Size("layer", 1, 1, 256, 768),
    Size("layer", 4, 1, 512, 768),
    Size("layer", 1, 4, 1024, 1024),
    Size("layer", 2, 1, 2048, 1024),
    Size("layer", 1, 1, 4096, 1024),
    Size("layer", 2, 2, 1024, 2048),
    Size("layer", 1, 4, 2048, 2048),
    Size("layer", 1, 1, 1024, 4096),
    Size("layer", 1, 2, 2048, 4096),
    Size("joining", 1, 1, 512, 768),
    Size("joining", 2, 1, 1024, 1024),
    Size("joining", 1, 2, 1024, 2048),
    Size("joining", 1, 1, 2048, 4096),
    Size("embedding", 1, 1, 512, 768, 8192),
    Size("embedding", 1, 4, 1024, 1024, 50304),
    Size("embedding", 1, 2, 2048, 4096, 50304),
    Size("embedding", 1, 1, 4096, 2048, 32768),
    Size("head", 1, 1, 512, 768, 8192),
    Size("head", 1, 2, 1024, 1024, 50304),
    Size("head", 1, 1, 2048, 4096, 50304),
    Size("head", 1, 4, 1024, 2048, 32768),
)
ACCELERATOR_EXPERTS = (
    Size("experts", 1, 1, 512, 768, experts=4),
    Size("experts", 2, 1, 1024, 1024, experts=8),
    Size("experts", 1, 4, 1024, 1024, experts=8),
    Size("experts", 1, 1, 2048, 2048, experts=8),
)


def design_of(size: Size, precision: str) -> Design:
    """The smallest design whose model has such a stage."""
    u_transformer = size.kind == "joining"
    moe = {"experts": size.experts, "top_k": min(2, size.experts), "capacity_factor": 1.25, "every": 1}
    rates = {"peak_flops": 1e12, "memory_bytes": 1e12, "memory_bandwidth": 1e11}
    link = {"latency_s": 0.0, "bandwidth": 1e9}
    return parse_design(
        {
            "format": "meshwave/1",
            "name": size.kind,
            "cluster": {
                "nodes": 1,
                "devices_per_node": 1,
                "device": rates,
                "intra_node": link,
                "inter_node": link,
            },
            "model": {
                "kind": "u-transformer" if u_transformer else "gpt",
                "layers": size.blocks * (2 if u_transformer else 1),
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
