"""Schedules of an expert layer, one file each; being in the folder is being registered."""

from meshwave.engine.experts._base import (
    Choice,
    Costs,
    ExpertSchedule,
    exchange,
    expert_schedule_names,
    expert_schedules,
    gate,
    order,
    restore,
    whole_experts,
)
from meshwave.engine.experts._collectives import Collective, Costed, Fit, Line, Links, traffic
from meshwave.engine.experts._dropped_tokens import dropped_shares
from meshwave.engine.experts._layer import Homes, Layer, equal_blocks, indivisible_experts, load_shares
from meshwave.engine.experts._placement import (
    balance_experts,
    copy_load,
    crossing_assignments,
    device_load,
    device_rows,
)
from meshwave.engine.experts._price import NO_COMPUTE, Price, Rates, expert_weight_bytes, price, resolve_choice
from meshwave.engine.experts._steps import Step, StepOp, backward
from meshwave.engine.experts._timeline import LAYER_OPS, Played, play

__all__ = [
    "LAYER_OPS",
    "NO_COMPUTE",
    "Choice",
    "Collective",
    "Costed",
    "Costs",
    "ExpertSchedule",
    "Fit",
    "Homes",
    "Layer",
    "Line",
    "Links",
    "Played",
    "Price",
    "Rates",
    "Step",
    "StepOp",
    "backward",
    "balance_experts",
    "copy_load",
    "crossing_assignments",
    "device_load",
    "device_rows",
    "dropped_shares",
    "equal_blocks",
    "exchange",
    "expert_schedule_names",
    "expert_schedules",
    "expert_weight_bytes",
    "gate",
    "indivisible_experts",
    "load_shares",
    "order",
    "play",
    "price",
    "resolve_choice",
    "restore",
    "traffic",
    "whole_experts",
]
