"""A profile with known lines, so that prices can be calculated by hand."""

from typing import Any

from meshwave.engine.costs.contention import CollectiveBesideTransfer, Contention, PairOrder, Ratio
from meshwave.engine.costs.profile import (
    ActionTime,
    Block,
    BlockSample,
    Fit,
    LinkLine,
    Machine,
    OptimizerLine,
    Profile,
    TimedPhase,
)

FORWARD = {"action": 1e-4, "block": 1e-3, "products": 1e-12, "attention": 3e-12, "bytes": 1e-11}
"""Seconds of a forward per unit: each gradient takes the same, a full backward both, a recomputed one all three."""
PHASES = {"forward": 1, "input_gradient": 1, "weight_gradient": 1, "backward": 2, "recomputed": 3}
ONCE = ("action", "block")


def block(kind: str, **sizes: int) -> Block:
    fits = {phase: Fit(per=_constant_rates(kind, times), r2=1.0) for phase, times in PHASES.items()}
    size = {"blocks": 1, "batch": 1, "sequence": 32, "hidden": 64, "ffn_hidden": 256, "heads": 4, "vocab": 300} | sizes
    sample: Any = {**size, "phases": {phase: TimedPhase(seconds=1e-3) for phase in PHASES}}
    return Block(kind=kind, precision="fp32", fits=fits, samples=(BlockSample(**sample),))  # type: ignore[arg-type]


def _constant_rates(kind: str, times: int) -> Any:
    terms = FORWARD if kind not in ("embedding", "head") else {**FORWARD, "block": 0.0}
    return {term: seconds * (times if term in ONCE else 1) for term, seconds in terms.items()}


def example_profile(**sections: Any) -> Profile:
    """Return a profile of a machine with one node; ``sections`` replace its own sections."""
    lines: dict[str, Any] = {
        "machine": Machine(ranks=4, ranks_per_node=4),
        "blocks": tuple(map(block, ("layer", "embedding", "head"))),
        "links": (
            LinkLine(pair="same_node", alpha_s=1e-4, beta_s_per_byte=1e-9, r2=1.0, samples=((1e3, 1e-4),)),
            LinkLine(pair="same_device", alpha_s=1e-6, beta_s_per_byte=1e-10, r2=1.0, samples=((1e3, 1e-6),)),
        ),
        "optimizer": (
            OptimizerLine(
                optimizer="adamw", precision="fp32", clipped=False, alpha_s=1e-3, s_per_parameter=1e-9, r2=1.0,
                samples=((1e6, 2e-3),),
            ),
        ),
    }  # fmt: skip
    return Profile(**(lines | sections))


def profile_of_actions(*actions: dict[str, Any]) -> Profile:
    """Return a profile with the measured actions of a run only."""
    times = (ActionTime(**{"layers": 8, "seconds": 2.0, "roofline_s": 1.0, **each}) for each in actions)
    return example_profile(blocks=(), links=(), optimizer=(), actions=tuple(times))


def contention(pair: Any = "across_nodes", **changes: Any) -> Contention:
    """Return the contention of a link of 25 MB/s that two messages share; ``changes`` replace keys."""
    sections: dict[str, Any] = {
        "shared_rate": Ratio.from_samples([0.9, 1.1, 1.0]),
        "duplex_rate": Ratio.from_samples([0.8]),
        "pair_order": PairOrder.from_samples([(0.1, 0.2), (0.11, 0.2)]),
        "collective_beside_transfer": CollectiveBesideTransfer(
            ranks=4,
            collective_bytes=1e6,
            collective_alone_s=0.2,
            collective_slowdown=Ratio.from_samples([1.5]),
            transfer_slowdown=Ratio.from_samples([2.0]),
        ),
    }
    return Contention(pair=pair, message_bytes=2.5e6, alone_s=0.1, alone_samples_s=(0.1,), **(sections | changes))
