"""Steps of expert schedules, each with its adjoint.

A schedule defines the forward only. Every step is a linear map of its tensor, or one of the two computations, so the
backward consists of the adjoints of the steps in reverse order. The cost model prices these steps, the layer's timeline
draws them, and the runtime executes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class StepOp(StrEnum):
    """Operation of a device on its tensor. ``n`` is the size of the step's group."""

    GATE = "gate"  # choose the experts of each token
    ORDER = "order"  # tokens [S, M] to slots [E, T, M]
    RESTORE = "restore"  # slots back to tokens, weighted by the gate
    EXPERTS = "experts"  # feed-forward of all received rows

    SPLIT_TOKENS = "split tokens"  # keep 1/n of the tokens, which are the same on the whole group
    GATHER_TOKENS = "gather tokens"  # all-gather
    SPLIT_SLOTS = "split slots"  # the same for the slots of each expert
    GATHER_SLOTS = "gather slots"
    COPY = "copy"  # identity; its adjoint sums over the group
    REDUCE = "reduce"  # all-reduce of partial sums, with equal results on all devices

    GATHER_SHARDS = "gather shards"  # all-gather: concatenate the slots of all n devices
    SCATTER_SHARDS = "scatter shards"  # reduce-scatter of partial sums: each device gets its own slots
    REDUCE_SHARDS = "reduce shards"  # all-reduce of partial sums; each device uses different slots of the result
    KEEP_SHARD = "keep shard"  # select the own slots from the concatenation
    PAD_SHARD = "pad shard"  # concatenate with zeros for the other devices
    GATHER_INPUTS = "gather inputs"  # all-gather: concatenate the tokens of all n devices
    SCATTER_INPUTS = "scatter inputs"  # reduce-scatter of tokens
    KEEP_INPUT = "keep input"  # select the own tokens from the concatenation
    PAD_INPUT = "pad input"  # concatenate with zeros for the other devices
    DUMP = "dump"  # n copies, one for each device that holds a shard of the expert
    SUM = "sum"  # sum the results of these n devices

    DISPATCH = "dispatch"  # all-to-all: slots to the devices of their experts
    COMBINE = "combine"  # all-to-all: results back


ADJOINT = {
    StepOp.GATE: StepOp.GATE,
    StepOp.EXPERTS: StepOp.EXPERTS,
    StepOp.REDUCE_SHARDS: StepOp.REDUCE_SHARDS,
    **{
        op: other
        for one, two in (
            (StepOp.ORDER, StepOp.RESTORE),
            (StepOp.SPLIT_TOKENS, StepOp.GATHER_TOKENS),
            (StepOp.SPLIT_SLOTS, StepOp.GATHER_SLOTS),
            (StepOp.COPY, StepOp.REDUCE),
            (StepOp.GATHER_SHARDS, StepOp.SCATTER_SHARDS),
            (StepOp.KEEP_SHARD, StepOp.PAD_SHARD),
            (StepOp.GATHER_INPUTS, StepOp.SCATTER_INPUTS),
            (StepOp.KEEP_INPUT, StepOp.PAD_INPUT),
            (StepOp.DUMP, StepOp.SUM),
            (StepOp.DISPATCH, StepOp.COMBINE),
        )
        for op, other in ((one, two), (two, one))
    },
}

COLLECTIVE = {
    StepOp.GATHER_TOKENS: "all_gather",
    StepOp.GATHER_SLOTS: "all_gather",
    StepOp.GATHER_SHARDS: "all_gather",
    StepOp.GATHER_INPUTS: "all_gather",
    StepOp.SCATTER_SHARDS: "reduce_scatter",
    StepOp.SCATTER_INPUTS: "reduce_scatter",
    StepOp.REDUCE: "all_reduce",
    StepOp.REDUCE_SHARDS: "all_reduce",
    StepOp.DISPATCH: "all_to_all",
    StepOp.COMBINE: "all_to_all",
}
"""Collective of each step; steps that are not listed involve one device only."""

IN_CHUNKS = (StepOp.ORDER, StepOp.RESTORE)
"""Steps between these two run chunk by chunk in a layer of degree above 1."""


class Step(NamedTuple):
    """Step that every device runs.

    ``bytes`` is the size of the device's own part, before it is gathered or after it is scattered; for an all-to-all or
    all-reduce, of the whole buffer.
    """

    op: StepOp
    group: str = ""  # kind of group (mp, esp, ep or ep_esp) that takes part; for EXPERTS, that holds them
    bytes: float = 0.0
    flops: float = 0.0
    hidden: bool = False  # True for a gather that overlaps the previous all-to-all (in the backward, the next one)
    rows: float = 0.0  # EXPERTS: number of slots or tokens to compute
    cut: int = 1  # EXPERTS: number of devices that shard each expert
    copies: int = 1  # all-to-all: number of sources whose slots were gathered before

    @property
    def collective(self) -> str | None:
        return COLLECTIVE.get(self.op)


def backward_steps(steps: Iterable[Step]) -> list[Step]:
    """Return the steps of the backward: the adjoints of the forward steps in reverse order; matrix products cost twice."""
    return [step._replace(op=ADJOINT[step.op], flops=2 * step.flops) for step in reversed(list(steps))]
