"""Cross-mesh resharding: plans that send a tensor from one mesh and sharding spec to another.

    from meshwave.engine.resharding import Links, Mesh, Tensor, plan

    plan(tensor, source, destination, links, strategy="broadcast", ordering="ensemble")

After Zhuang et al., "On Optimizing the Communication of Model Parallelism" (arXiv:2211.05322). This package does not
need torch: a plan is data, and equal inputs give equal plans on every rank.
"""

from meshwave.engine.program.link_shares import Share, max_concurrent_messages
from meshwave.engine.resharding.boxes import Box, Mesh, SpecError, is_empty, rank_boxes, split_spec, volume
from meshwave.engine.resharding.link_lanes import Hops, Lane, LaneUse, nic_sides, plan_lanes, task_hops
from meshwave.engine.resharding.links import Link, Links
from meshwave.engine.resharding.moves import plan_moves, plan_traffic
from meshwave.engine.resharding.orderings import orderings
from meshwave.engine.resharding.plan import Plan, PlannedTask, plan
from meshwave.engine.resharding.plan_simulation import (
    MAX_SIMULATED_MESSAGES,
    PlanSimulation,
    Port,
    SimulatedMessage,
    simulate_plan,
    simulated_plan_seconds,
)
from meshwave.engine.resharding.port_shares import port_shares
from meshwave.engine.resharding.problem import Job, PlacedJob, lower_bound, run_in_order
from meshwave.engine.resharding.rewriting import RewrittenDestination, rewrite_destination
from meshwave.engine.resharding.strategies import strategies
from meshwave.engine.resharding.tasks import Load, Move, Side, Tensor, UnitTask, check_load, unit_tasks
from meshwave.engine.resharding.transfer import Transfer, candidate_transfers, plan_joint_transfer, plan_transfer
