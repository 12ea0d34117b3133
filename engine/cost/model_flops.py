"""FLOPs of a whole model, of whichever kind."""

from __future__ import annotations

from engine.cost import flops, u_net_blocks
from engine.design.model import Model
from engine.design.u_net import UNet


def model_flops(model: Model | UNet, samples: float) -> float:
    """FLOPs of ``samples`` through the whole model, forward and backward."""
    if isinstance(model, UNet):
        return u_net_blocks.model_flops(model, samples)
    return flops.model_flops(model, samples)
