"""What is trained, for how long, at which precision."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from meshwave.engine.frozen import FileName, Part, nullable


class Training(Part):
    """A training run."""

    micro_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Sequences in one microbatch of one data-parallel copy."""
    steps: Annotated[int, Field(ge=1, le=10_000_000)] = 20
    """Optimizer steps."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """How weights follow gradients."""
    lr: PositiveFloat = 3e-4
    """Learning rate."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay."""
    clip_norm: PositiveFloat | None = nullable("left as they are")
    """Gradients are scaled down to this norm."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """Number format of the compute; weights stay in fp32 under bf16."""
    compile: bool = False
    """Let torch.compile fuse each block before its first step, which then takes a minute longer. Blocks with
    experts, blocks that are cut, and stages whose backward is split run as they are; no prediction knows of it."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Names the initial weights and the order of the data."""
    data: FileName | None = nullable("the text that comes with Meshwave")
    """File name of a text to train on."""
