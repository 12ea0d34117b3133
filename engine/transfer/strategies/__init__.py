"""How one slice travels from its sender to all its receivers, one file a strategy."""

from engine.transfer.strategies._base import Latency, Strategy, strategies

__all__ = ["Latency", "Strategy", "strategies"]
