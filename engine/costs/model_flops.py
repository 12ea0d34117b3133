"""FLOPs of a whole model, of whichever kind."""

from __future__ import annotations

from meshwave.engine.costs import flops, u_net_blocks
from meshwave.engine.document.model import Model
from meshwave.engine.document.u_net import UNet


def model_flops(model: Model | UNet, samples: float) -> float:
    """FLOPs of ``samples`` through the whole model, forward and backward."""
    if isinstance(model, UNet):
        return u_net_blocks.model_flops(model, samples)
    return flops.model_flops(model, samples)
