"""Expert layers that run: any schedule of :mod:`meshwave.engine.experts`, any placement, forwards and backwards."""

from meshwave.engine.runtime.experts.layer import ExpertLayer, all_groups, groups_of
from meshwave.engine.runtime.experts.steps import Message, Steps

__all__ = ["ExpertLayer", "Message", "Steps", "all_groups", "groups_of"]
