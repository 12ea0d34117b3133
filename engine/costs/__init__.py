"""What things cost: seconds and bytes of every action, and what the devices hold."""

from meshwave.engine.costs.cost_model import CostModel, Costs, cost_models, estimate, layers_per_stage, waits
from meshwave.engine.costs.memory import PeakMemory, memory_over_time, peak_inflight, peak_memory
from meshwave.engine.costs.stage_balance import balanced_split, equal_split

__all__ = ["CostModel", "Costs", "PeakMemory", "balanced_split", "cost_models", "equal_split", "estimate"]
__all__ += ["layers_per_stage", "memory_over_time", "peak_inflight", "peak_memory", "waits"]
