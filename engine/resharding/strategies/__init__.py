"""How one slice travels from its sender to all its receivers, one file a strategy."""

from meshwave.engine.resharding.strategies._base import Latency, Strategy, strategies

__all__ = ["Latency", "Strategy", "strategies"]
