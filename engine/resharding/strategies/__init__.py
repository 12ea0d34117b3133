"""How one slice travels from its sender to all its receivers, one file a strategy."""

from meshwave.engine.resharding.strategies._base import Latency, Leg, Strategy, strategies

__all__ = ["Latency", "Leg", "Strategy", "strategies"]
