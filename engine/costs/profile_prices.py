"""Prices from a calibration profile: seconds of blocks, messages, collectives and updates by fitted lines.

Costs that are missing from the profile are priced by :mod:`meshwave.engine.costs.models.roofline`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import log
from statistics import median

from meshwave.engine.costs.alpha_beta import CollectivePrice, collective_seconds
from meshwave.engine.costs.expert_blocks import EXPERTS, ExpertBlock, ExpertCounts, expert_blocks
from meshwave.engine.costs.kernels import recomputed_share, recomputes_experts
from meshwave.engine.costs.operators import Operator, Work, Workload
from meshwave.engine.costs.profile import ActionTime, Block, BlockKind, OpName, Pair, Phase, Profile, Term, TimedPhase
from meshwave.engine.costs.sharding import block_collectives
from meshwave.engine.costs.stage_prices import NO_EXPERTS, MeshPrices, Seconds
from meshwave.engine.document import Cluster, Design, Device, Link, Mesh

MAX_RATE = 1e24
"""Maximum rate in bytes/s of links and memory whose fitted seconds per byte are 0."""

# ---- work of a block ----

PHASES: Mapping[Phase, Callable[[Operator], tuple[Work, ...]]] = {
    "forward": lambda each: (each.forward,),
    "input_gradient": lambda each: (each.input_gradient,),
    "weight_gradient": lambda each: (each.weight_gradient,),
    "backward": lambda each: (each.input_gradient, each.weight_gradient),
    "recomputed": lambda each: (each.forward, each.input_gradient, each.weight_gradient),
}
"""Functions that return the work of an operator, by phase."""


def phase_work(operators: Iterable[Operator], phase: Phase) -> dict[Term, float]:
    """Return the amount of each term of a block's fit, summed over its operators, for a phase."""
    products = attention = moved = 0.0
    for operator in operators:
        for work in PHASES[phase](operator):
            moved += work.bytes
            if operator.name == "attention":
                attention += work.flops
            else:
                products += work.flops
    return {"products": products, "attention": attention, "bytes": moved}


def timed_phase(operators: Iterable[Operator], phase: Phase, blocks: int, seconds: float) -> TimedPhase:
    """Return a phase of a stage with ``blocks`` equal blocks, in the format of a profile."""
    work = {str(term): blocks * amount for term, amount in phase_work(operators, phase).items()}
    return TimedPhase(seconds=seconds, **work)


# ---- prices ----


class MeasuredPrices(MeshPrices):
    """Seconds of the parts of a model on one mesh, by the fitted lines of a profile."""

    def __init__(self, profile: Profile, design: Design, mesh: Mesh, load: Workload) -> None:
        experts = expert_blocks(design, mesh, load)
        collective = measured_collective(profile)
        super().__init__(design.cluster, mesh, load, experts, collective, block_collectives(design, mesh, collective))
        self._tp = mesh.tp
        self._slowness = Slowness(profile.actions)
        self._lines = {line.kind: line for line in block_lines(profile, design.training.product_precision)}

    def _expert_layer_seconds(self, block: ExpertBlock) -> Seconds:
        if "experts" not in self._lines:
            return super()._expert_layer_seconds(block)
        waits = _exchange_waits(block)
        again = waits.forward if recomputes_experts(self._load.kernels.recomputes) else 0.0
        return (
            self._block_seconds("experts", block.operators) + waits + Seconds(input_gradient=again, input_waits=again)
        )

    def ends(self, *, first: bool, last: bool) -> Seconds:
        """Return the seconds of the embedding for the first stage, and of head and loss for the last stage.

        Their fits include the constant cost of an action; a stage without embedding and head adds the constant of the
        layer's fit.
        """
        if first or last or "layer" not in self._lines:
            return super().ends(first=first, last=last)
        return self._fitted_seconds(self._lines["layer"], {"action": 1.0})

    def stage(
        self, layers: int, *, first: bool, last: bool, experts: ExpertCounts = NO_EXPERTS, joins: int = 0
    ) -> Seconds:
        """Return the seconds of a stage; for a profile of a run, scaled by the measured slowness of a similar stage."""
        found = super().stage(layers, first=first, last=last, experts=experts, joins=joins)
        return self._scale_to_run(found, layers, sum(experts.values()), first=first, last=last)

    def unequal_stage(self, operators: Iterable[Operator], layers: int, *, first: bool, last: bool) -> Seconds:
        """Return the seconds of a stage of unequal layers, scaled as in :meth:`stage`."""
        found = super().unequal_stage(operators, layers, first=first, last=last)
        return self._scale_to_run(found, layers, 0, first=first, last=last)

    def _scale_to_run(self, found: Seconds, layers: int, experts: int, *, first: bool, last: bool) -> Seconds:
        """Scale the seconds of a stage by the measured slowness of the most similar stage of a run, if any."""
        if self._lines or not self._slowness.ops:
            return found
        like = ActionTime(
            op="F", layers=layers, experts=experts, first=first, last=last, tp=self._tp, seconds=1.0, roofline_s=1.0
        )

        def slowness(op: OpName, *, recomputed: bool = False) -> float:
            return self._slowness.of(like.model_copy(update={"op": op, "recomputed": recomputed}))

        again = found.again * slowness("F")  # unless the run shows what a second forward adds to a backward
        if self._slowness.recomputes:
            op: OpName = "B" if "B" in self._slowness.ops else "I"
            part = found.backward if op == "B" else found.input_gradient
            again = max(0.0, (found.again + part) * slowness(op, recomputed=True) - part * slowness(op))
        return _scale_seconds(found, slowness)._replace(again=again)

    def part(self, operators: Iterable[Operator]) -> Seconds:
        """Return the seconds of operators without the constant cost of a block."""
        operators = [*operators]
        line = self._lines.get(_block_kind(operators), self._lines.get("layer"))
        return super().part(operators) if line is None else self._fitted_price(line, operators, whole=False)

    def _block_seconds(self, kind: BlockKind, operators: Iterable[Operator]) -> Seconds:
        operators = [*operators]
        line = self._lines.get(kind, self._lines.get("layer"))
        return (
            super()._block_seconds(kind, operators) if line is None else self._fitted_price(line, operators, whole=True)
        )

    def _fitted_price(self, line: Block, operators: Sequence[Operator], *, whole: bool) -> Seconds:
        ends = line.kind in ("embedding", "head")  # one constant of these fits covers both action and block
        once: dict[Term, float] = {"block": 1.0, "action": float(ends)} if whole else {}
        found = self._fitted_seconds(line, once, operators)
        return found + self._reduction_seconds(operators) + self._recomputed_seconds(line, operators, found.again)

    def _recomputed_seconds(self, line: Block, operators: Sequence[Operator], again: float) -> Seconds:
        """Return the seconds in which a backward runs recomputed operators; ``again`` is the time to run all of them."""
        part = self._load.kernels.recomputes
        if part is None:
            return Seconds()
        forward = [line.fits["forward"].seconds(phase_work([each], "forward")) for each in operators]
        shares = [
            float(recomputes_experts(part)) if each.name == EXPERTS else recomputed_share(each, part)
            for each in operators
        ]
        computed = sum(share * seconds for share, seconds in zip(shares, forward, strict=True))
        waits = sum(
            share * self._reduction_seconds([each]).forward for share, each in zip(shares, operators, strict=True)
        )
        computed = again * computed / sum(forward) if computed else 0.0
        return Seconds(input_gradient=computed + waits, input_waits=waits)

    def _fitted_seconds(self, line: Block, once: Mapping[Term, float], operators: Sequence[Operator] = ()) -> Seconds:
        took = {phase: fit.seconds({**once, **phase_work(operators, phase)}) for phase, fit in line.fits.items()}
        return Seconds(
            took["forward"],
            took["input_gradient"],
            took["weight_gradient"],
            took["input_gradient"] + took["weight_gradient"] - took["backward"],
            max(0.0, took["recomputed"] - took["backward"]),
        )


def _block_kind(operators: Sequence[Operator]) -> BlockKind:
    """Return the kind of block that the operators belong to."""
    names = {operator.name for operator in operators}
    kinds: dict[str, BlockKind] = {"embedding": "embedding", "logits": "head", "skip projection": "joining"}
    return next((kind for name, kind in kinds.items() if name in names), "layer")


def _exchange_waits(block: ExpertBlock) -> Seconds:
    """Return the seconds for which a layer with experts waits for its messages."""
    forward, backward, hidden = block.forward_waits_s, block.input_waits_s, block.hidden_s
    return Seconds(forward, backward, 0.0, hidden, forward, forward, backward, hidden)


def block_lines(profile: Profile, precision: str) -> list[Block]:
    """Return the fits for a precision, or for another precision if this one was not measured."""
    known = {block.precision for block in profile.blocks}
    chosen = precision if precision in known else min(known, default=precision)
    return [block for block in profile.blocks if block.precision == chosen]


# ---- links and reductions ----


def measured_design(design: Design, profile: Profile) -> Design:
    """Return the design with the measured rates of device and links in its cluster section."""
    cluster, lines = design.cluster, {line.pair: line for line in profile.links}

    def link(pair: Pair, drawn: Link) -> Link:
        line = lines.get(pair)
        return (
            drawn if line is None else Link(latency_s=line.alpha_s, bandwidth=_limited_rate(1.0, line.beta_s_per_byte))
        )

    update = {
        "device": _measured_device(design, profile),
        "intra_node": link("same_node", cluster.intra_node),
        "inter_node": link("across_nodes", cluster.inter_node),
    }
    return design.model_copy(update={"cluster": cluster.model_copy(update=update)})


def _measured_device(design: Design, profile: Profile) -> Device:
    """Return the device of the design, or of the profiled run if there is one, with its measured rates."""
    device = profile.reference or design.cluster.device
    own = {"name": "measured device", "memory_bytes": design.cluster.device.memory_bytes}
    rate = matrix_rate(profile, design.training.product_precision)
    known = {} if rate is None else {"peak_flops": rate, "efficiency": 1.0}
    copied = next((line for line in profile.links if line.pair == "same_device"), None)
    moved = (
        {} if copied is None else {"memory_bandwidth": _limited_rate(2.0, copied.beta_s_per_byte)}
    )  # bytes read and written
    return device.model_copy(update={**own, **known, **moved})


def _limited_rate(amount: float, seconds: float) -> float:
    return min(MAX_RATE, max(1.0, amount / seconds)) if seconds else MAX_RATE


def matrix_rate(profile: Profile, precision: str) -> float | None:
    """Return the measured rate of large matrix products in FLOP/s; None if it was not measured."""
    return next((each.flops for each in profile.matrix if each.precision == precision), None)


def measured_collective(profile: Profile) -> CollectivePrice:
    """Return a function that prices a collective by all-reduces of equal groups, and others by their links."""
    lines = {
        (each.size, each.size > profile.machine.ranks_per_node): each
        for each in profile.collectives
        if each.collective == "all_reduce" and each.group in ("mp", "esp", "ep_esp")
    }

    def seconds(cluster: Cluster, groups: Sequence[Sequence[int]], size: float, rounds: int = 2) -> float:
        return max((group_seconds(cluster, group, groups, size, rounds) for group in groups), default=0.0)

    def group_seconds(
        cluster: Cluster, group: Sequence[int], groups: Sequence[Sequence[int]], size: float, rounds: int
    ) -> float:
        if len(group) < 2:
            return 0.0
        line = lines.get((len(group), len({cluster.node_of(device) for device in group}) > 1))
        if line is None:
            return collective_seconds(cluster, groups, size, rounds)
        return line.seconds(size) * rounds / 2

    return seconds


# ---- actions of a run ----


class Slowness:
    """Ratio of measured to roofline seconds of the most similar action of a run."""

    def __init__(self, actions: Sequence[ActionTime]) -> None:
        found: dict[ActionTime, list[float]] = defaultdict(list)
        for each in actions:
            found[each.model_copy(update={"seconds": 1.0, "roofline_s": 1.0})].append(each.seconds / each.roofline_s)
        self._of = {kind: median(ratios) for kind, ratios in found.items()}
        self.ops = {kind.op for kind in self._of}
        self.recomputes = any(kind.recomputed for kind in self._of)
        self.of = cache(self._ratio_of_nearest)  # most stages of a pipeline are equal

    def _ratio_of_nearest(self, like: ActionTime) -> float:
        """Return the ratio of the most similar action; 1 if the run had none.

        If a run had no split backward, its halves use the full backward, and vice versa.
        """
        others = {"B": ("I", "W"), "I": ("B",), "W": ("B",)}.get(like.op, ())
        ops = (like.op,) if like.op in self.ops else others
        near = {kind: ratio for kind, ratio in self._of.items() if kind.op in ops}
        least = min((action_distance(kind, like) for kind in near), default=0.0)
        return median([ratio for kind, ratio in near.items() if action_distance(kind, like) <= least] or [1.0])


def action_distance(one: ActionTime, other: ActionTime) -> float:
    """Return the dissimilarity of two actions; differences in embedding, head or experts weigh most."""
    ends = (one.first != other.first) + (one.last != other.last)
    kinds = (one.experts > 0) != (other.experts > 0)
    sizes = ((one.layers, other.layers), (one.experts, other.experts), (one.tp, other.tp))
    return (
        8.0 * ends
        + 4.0 * kinds
        + 2.0 * (one.recomputed != other.recomputed)
        + sum(abs(log((mine + 1) / (theirs + 1))) for mine, theirs in sizes)
    )


def _scale_seconds(seconds: Seconds, slowness: Callable[[OpName], float]) -> Seconds:
    forward, first, second = (seconds.forward, seconds.input_gradient, seconds.weight_gradient)
    first, second = first * slowness("I"), second * slowness("W")
    whole = seconds.backward * slowness("B")
    return Seconds(
        forward * slowness("F"),
        first,
        second,
        first + second - whole,
        seconds.again,
        seconds.forward_waits * slowness("F"),
        seconds.input_waits * slowness("I"),
        seconds.input_waits * slowness("I") - seconds.backward_waits * slowness("B"),
        seconds.unshard,
        seconds.gather,
        seconds.scatter,
    )
