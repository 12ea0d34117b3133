"""Schedules of an expert layer, one file each; being in the folder is being registered."""

from meshwave.engine.experts._base import (
    Choice,
    Costs,
    ExpertSchedule,
    by_age,
    exchange,
    expert_schedules,
    gate,
    order,
    restore,
    whole_experts,
)
from meshwave.engine.experts._collectives import Collective, Costed, Fit, Line, Links, traffic
from meshwave.engine.experts._dropped_tokens import dropped
from meshwave.engine.experts._layer import Homes, Layer, contiguous, indivisible_experts, shares
from meshwave.engine.experts._placement import balance, copy_load, crossing, device_load, device_rows
from meshwave.engine.experts._price import NO_COMPUTE, Price, Rates, chosen, held, price
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
    "balance",
    "by_age",
    "chosen",
    "contiguous",
    "copy_load",
    "crossing",
    "device_load",
    "device_rows",
    "dropped",
    "exchange",
    "expert_schedules",
    "gate",
    "held",
    "indivisible_experts",
    "order",
    "play",
    "price",
    "restore",
    "shares",
    "traffic",
    "whole_experts",
]
