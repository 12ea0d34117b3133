"""Transfer strategies: the paths of a slice from its sender to all receivers, one file each."""

from meshwave.engine.resharding.strategies._base import Latency, Leg, Strategy, strategies
