"""Cost models: seconds and bytes of every action, and the memory that each device needs."""

from meshwave.engine.costs.cost_model import CostModel, Costs, estimate, layers_per_stage, pricing_model, wait_seconds
from meshwave.engine.costs.device_memory import DeviceMemory, device_memory, join_equal_devices
from meshwave.engine.costs.memory import (
    PeakMemory,
    memory_over_time,
    memory_parts_over_time,
    peak_inflight,
    peak_memory,
)
from meshwave.engine.costs.stage_balance import balanced_split, equal_split
from meshwave.engine.document.cost import cost_models
