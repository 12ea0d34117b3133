"""Cross-mesh resharding: what of a tensor goes where, how, and in which order.

    from meshwave.engine.resharding import Links, Mesh, Tensor, plan

    plan(tensor, source, destination, links, strategy="broadcast", ordering="ensemble")

After Zhuang et al., "On Optimizing the Communication of Model Parallelism" (arXiv:2211.05322).
Nothing here needs torch: a plan is data, the same on every rank for the same input.
"""

from meshwave.engine.program.link_shares import Share, most_at_once
from meshwave.engine.resharding.boxes import Box, Mesh, SpecError, boxes, is_empty, split_spec, volume
from meshwave.engine.resharding.link_lanes import Held, Hops, Lane, hops, lanes, sides_of
from meshwave.engine.resharding.links import Link, Links
from meshwave.engine.resharding.moves import moves
from meshwave.engine.resharding.orderings import orderings
from meshwave.engine.resharding.plan import Plan, Planned, plan
from meshwave.engine.resharding.playback import MOST_PLAYED, Played, Port, Sent, play, played_seconds
from meshwave.engine.resharding.port_shares import shares
from meshwave.engine.resharding.problem import Job, Placed, lower_bound, run_in_order
from meshwave.engine.resharding.rewriting import Rewritten, rewrite
from meshwave.engine.resharding.strategies import strategies
from meshwave.engine.resharding.tasks import Load, Move, Side, Tensor, UnitTask, check_load, unit_tasks
from meshwave.engine.resharding.transfer import Transfer, every_transfer, transfer, transfer_many

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
