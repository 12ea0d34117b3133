"""Schedules of an expert layer, one file each; being in the folder is being registered."""

from engine.moe._layer import Layer, contiguous, shares
from engine.moe._links import Fit, Line, Links
from engine.moe._play import LAYER_OPS, Played, play
from engine.moe._price import Collective, Price, Rates, price
from engine.moe._schedule import ExpertSchedule, expert_schedules
from engine.moe._steps import Step, StepOp, backward

__all__ = [
    "LAYER_OPS",
    "Collective",
    "ExpertSchedule",
    "Fit",
    "Layer",
    "Line",
    "Links",
    "Played",
    "Price",
    "Rates",
    "Step",
    "StepOp",
    "backward",
    "contiguous",
    "expert_schedules",
    "play",
    "price",
    "shares",
]
