"""Expert layers that run: any schedule of :mod:`engine.moe`, any placement, forwards and backwards."""

from engine.runtime.moe.layer import ExpertLayer, all_groups, groups_of
from engine.runtime.moe.steps import Message, Steps

__all__ = ["ExpertLayer", "Message", "Steps", "all_groups", "groups_of"]
