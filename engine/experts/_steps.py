"""What an expert schedule is made of: steps of every device, each with its adjoint.

A schedule is written forwards only. Every step is a linear map of its tensor or one of the two
parts that compute, so that the backward is the adjoint of each step in reverse order. The cost
model prices these steps, the layer's timeline draws them, and the runtime plays them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class StepOp(StrEnum):
    """What a device does with its tensor. ``n`` is the size of the step's group."""

    GATE = "gate"  # choose the experts of each token
    ORDER = "order"  # tokens [S, M] to slots [E, T, M]
    RESTORE = "restore"  # slots back to tokens, weighted by the gate
    EXPERTS = "experts"  # feed-forward of all rows that arrived

    SPLIT_TOKENS = "split tokens"  # keep the own 1/n of the tokens that the group holds alike
    GATHER_TOKENS = "gather tokens"  # all-gather: the whole group has all of them
    SPLIT_SLOTS = "split slots"  # the same of the slots of each expert
    GATHER_SLOTS = "gather slots"
    COPY = "copy"  # nothing; its adjoint sums what each device of the group found
    REDUCE = "reduce"  # all-reduce of partial sums, the same on all from here on

    GATHER_SHARDS = "gather shards"  # all-gather: the slots of all n devices side by side
    SCATTER_SHARDS = "scatter shards"  # reduce-scatter of partial sums: each gets back its own slots
    REDUCE_SHARDS = "reduce shards"  # all-reduce of partial sums, of which each uses other slots
    KEEP_SHARD = "keep shard"  # the own slots of those side by side
    PAD_SHARD = "pad shard"  # side by side with zeros for the others
    GATHER_INPUTS = "gather inputs"  # all-gather: the tokens of all n devices one after the other
    SCATTER_INPUTS = "scatter inputs"  # reduce-scatter of tokens
    KEEP_INPUT = "keep input"  # the own tokens
    PAD_INPUT = "pad input"  # followed by zeros for the others
    DUMP = "dump"  # n copies, one for each device that holds a cut of the expert
    SUM = "sum"  # add up what those n devices returned

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
"""The collective of a step; steps that are not here stay on their device."""

IN_CHUNKS = (StepOp.ORDER, StepOp.RESTORE)
"""What lies between these two goes chunk by chunk where a layer has a degree above 1."""


class Step(NamedTuple):
    """One step of every device. ``bytes`` is what the device's own part weighs, before it is
    gathered or after it is scattered; of an all-to-all or all-reduce the whole buffer."""

    op: StepOp
    group: str = ""  # mp, esp, ep or ep_esp: who takes part; of EXPERTS, over whom they are spread
    bytes: float = 0.0
    flops: float = 0.0
    hidden: bool = False  # a gather that runs under the all-to-all before it (its split: after it, backwards)
    rows: float = 0.0  # of EXPERTS: slots and tokens that it computes
    cut: int = 1  # of EXPERTS: devices that share each of them
    copies: int = 1  # of an all-to-all: slots of one source side by side, as its shards have gathered them

    @property
    def collective(self) -> str | None:
        return COLLECTIVE.get(self.op)


def backward(steps: Iterable[Step]) -> list[Step]:
    """The steps of the backward: every adjoint, in reverse order; products cost twice."""
    return [step._replace(op=ADJOINT[step.op], flops=2 * step.flops) for step in reversed(list(steps))]
