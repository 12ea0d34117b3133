"""Cross-mesh resharding: what of a tensor goes where, how, and in which order.

    from engine.transfer import Links, Mesh, Tensor, plan

    plan(tensor, source, destination, links, strategy="broadcast", ordering="ensemble")

After Zhuang et al., "On Optimizing the Communication of Model Parallelism" (arXiv:2211.05322).
Nothing here needs torch: a plan is data, the same on every rank for the same input.
"""

from engine.link_shares import Share, most_at_once
from engine.transfer._boxes import Box, Mesh, SpecError, boxes, is_empty, split_spec, volume
from engine.transfer._lanes import Held, Hops, Lane, hops, lanes, sides_of
from engine.transfer._links import Link, Links
from engine.transfer._moves import moves
from engine.transfer._plan import Plan, Planned, plan
from engine.transfer._played import MOST_PLAYED, Played, Port, Sent, play, played_seconds
from engine.transfer._rewriting import Rewritten, rewrite
from engine.transfer._schedule import Job, Placed, lower_bound, run_in_order
from engine.transfer._shares import shares
from engine.transfer._tasks import Load, Move, Side, Tensor, UnitTask, check_load, unit_tasks
from engine.transfer._transfer import Transfer, every_transfer, transfer, transfer_many
from engine.transfer.orderings import orderings
from engine.transfer.strategies import strategies

__all__ = [
    "MOST_PLAYED",
    "Box",
    "Held",
    "Hops",
    "Job",
    "Lane",
    "Link",
    "Links",
    "Load",
    "Mesh",
    "Move",
    "Placed",
    "Plan",
    "Planned",
    "Played",
    "Port",
    "Rewritten",
    "Sent",
    "Share",
    "Side",
    "SpecError",
    "Tensor",
    "Transfer",
    "UnitTask",
    "boxes",
    "check_load",
    "every_transfer",
    "hops",
    "is_empty",
    "lanes",
    "lower_bound",
    "most_at_once",
    "moves",
    "orderings",
    "plan",
    "play",
    "played_seconds",
    "rewrite",
    "run_in_order",
    "shares",
    "sides_of",
    "split_spec",
    "strategies",
    "transfer",
    "transfer_many",
    "unit_tasks",
    "volume",
]
