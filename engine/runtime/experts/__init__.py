"""Expert layers in training, with any schedule of :mod:`meshwave.engine.experts` and any expert placement."""

from meshwave.engine.runtime.experts.layer import ExpertLayer, device_groups, required_groups
from meshwave.engine.runtime.experts.steps import CollectiveRecord, StepRunner
