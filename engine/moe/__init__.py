"""Schedules of an expert layer, one file each; being in the folder is being registered."""

from engine.moe._balance import balance, copy_load, crossing, device_load, device_rows
from engine.moe._drops import dropped
from engine.moe._layer import Homes, Layer, contiguous, shares
from engine.moe._links import Fit, Line, Links
from engine.moe._play import LAYER_OPS, Played, play
from engine.moe._price import NO_COMPUTE, Collective, Costed, Price, Rates, chosen, held, price, traffic
from engine.moe._schedule import Choice, Costs, ExpertSchedule, by_age, expert_schedules, in_titles
from engine.moe._steps import Step, StepOp, backward

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
    "expert_schedules",
    "held",
    "in_titles",
    "play",
    "price",
    "shares",
    "traffic",
]
