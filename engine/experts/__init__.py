"""Schedules of an expert layer, one file each; every module in this folder is registered automatically."""

from meshwave.engine.experts._base import (
    Choice,
    Costs,
    ExpertSchedule,
    exchange_step,
    expert_schedule_names,
    expert_schedules,
    gate_step,
    token_order_step,
    token_restore_step,
    whole_experts_step,
)
from meshwave.engine.experts._collectives import Collective, CostedStep, Fit, Line, Links, traffic
from meshwave.engine.experts._dropped_tokens import dropped_token_share
from meshwave.engine.experts._layer import Layer, Placement, equal_blocks, indivisible_experts, load_shares
from meshwave.engine.experts._placement import (
    balance_experts,
    crossing_assignments,
    device_load,
    device_rows,
    load_per_replica,
)
from meshwave.engine.experts._price import (
    NO_COMPUTE,
    Price,
    Rates,
    experts_per_device,
    max_experts_per_device,
    price_expert_schedule,
    resolve_choice,
)
from meshwave.engine.experts._steps import Step, StepOp, backward_steps
from meshwave.engine.experts._timeline import LAYER_OPS, LayerTimeline, simulate_layer
