"""How a tensor gets from one mesh to another."""

from __future__ import annotations

from typing import Literal

from engine.part import Part


class Transfer(Part):
    """A strategy over unit tasks, put in an ordering."""

    strategy: Literal["send-recv", "local-allgather", "global-allgather", "broadcast"] = "broadcast"
    """How one piece of the tensor travels to all that need it."""
    ordering: Literal["naive", "load-balance", "dfs", "randomized", "ensemble"] = "load-balance"
    """Who sends which piece, and when."""
