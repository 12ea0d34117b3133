"""Calibrated costs: seconds from what was measured on a machine, or in a run.

What a profile holds takes the place of what the data sheet promises: blocks are priced by the lines through
what was measured of their kind, messages and reductions on measured links, the update by its own line. What
it lacks is priced as :mod:`engine.cost.roofline` does, and :func:`outside` says which parts of a design that is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import log
from statistics import median

import numpy as np

from engine.cost import flops
from engine.cost.alpha_beta import ring_all_reduce_seconds
from engine.cost.contention import LinkSharing, link_sharing
from engine.cost.costs import Floats, cost_models
from engine.cost.expert_blocks import ExpertBlock, counts, expert_block
from engine.cost.flops import Operator, Work, Workload
from engine.cost.kinds import Kinds
from engine.cost.profile import (
    ActionTime,
    Block,
    BlockKind,
    OpName,
    OptimizerLine,
    Pair,
    Phase,
    Profile,
    Term,
    Timed,
    load_named,
)
from engine.cost.roofline import AllReduce, MeshPrices, RooflineModel, Seconds, norm_seconds, reduce_seconds
from engine.cost.sizes import Sizes, joins_of, workload
from engine.design import Cluster, Design, Device, Link, Mesh
from engine.design.cost import CalibratedCost
from engine.errors import DesignError, InputError, Problem
from engine.program.action import Op
from engine.program.program import Program
from engine.shared_links import Network

FASTEST = 1e24
"""Bytes/s, of a link whose bytes cost nothing that can be measured."""

# ---- the work of a block ----

PHASES: Mapping[Phase, Callable[[Operator], tuple[Work, ...]]] = {
    "forward": lambda each: (each.forward,),
    "input_gradient": lambda each: (each.input_gradient,),
    "weight_gradient": lambda each: (each.weight_gradient,),
    "backward": lambda each: (each.input_gradient, each.weight_gradient),
    "recomputed": lambda each: (each.forward, each.input_gradient, each.weight_gradient),
}
"""What an operator does in each phase."""


def work_of(operators: Iterable[Operator], phase: Phase) -> dict[Term, float]:
    """The terms of a block that its operators make, in a phase."""
    products = attention = moved = 0.0
    for operator in operators:
        for work in PHASES[phase](operator):
            moved += work.bytes
            if operator.name == "attention":
                attention += work.flops
            else:
                products += work.flops
    return {"products": products, "attention": attention, "bytes": moved}


def timed(operators: Iterable[Operator], phase: Phase, blocks: int, seconds: float) -> Timed:
    """A phase of a stage of so many alike blocks, as a profile has it."""
    work = {str(term): blocks * amount for term, amount in work_of(operators, phase).items()}
    return Timed(seconds=seconds, **work)


# ---- prices ----


class MeasuredPrices(MeshPrices):
    """Seconds of the parts of a model on one mesh, by the lines of a profile."""

    def __init__(self, profile: Profile, design: Design, mesh: Mesh, load: Workload) -> None:
        block = expert_block(design, mesh, load)
        super().__init__(design.cluster, mesh, load, block, all_reduce_of(profile))
        self._tp = mesh.tp
        self._slowness = Slowness(profile.actions)
        self._lines = {line.kind: line for line in _blocks(profile, design.training.precision)}

    @property
    def expert_layer(self) -> Seconds:
        if self._block is None or "experts" not in self._lines:
            return super().expert_layer
        return self._block_of("experts", self._block.operators) + _waits(self._block)

    def ends(self, *, first: bool, last: bool) -> Seconds:
        """What their own lines say has what an action costs at all in it, which any other stage has too."""
        if first or last or "layer" not in self._lines:
            return super().ends(first=first, last=last)
        return self._by(self._lines["layer"], {"action": 1.0})

    def stage(self, layers: int, *, first: bool, last: bool, experts: int = 0, joins: int = 0) -> Seconds:
        found = super().stage(layers, first=first, last=last, experts=experts, joins=joins)
        return self._as_in_the_run(found, layers, experts, first=first, last=last)

    def unequal_stage(self, operators: Iterable[Operator], layers: int, *, first: bool, last: bool) -> Seconds:
        found = super().unequal_stage(operators, layers, first=first, last=last)
        return self._as_in_the_run(found, layers, 0, first=first, last=last)

    def _as_in_the_run(self, found: Seconds, layers: int, experts: int, *, first: bool, last: bool) -> Seconds:
        """As many times longer as the nearest stage took in the run that was measured, if one was."""
        if self._lines or not self._slowness.ops:
            return found
        like = ActionTime(
            op="F", layers=layers, experts=experts, first=first, last=last, tp=self._tp, seconds=1.0, roofline_s=1.0
        )
        return _scaled(found, lambda op: self._slowness.of(like.model_copy(update={"op": op})))

    def part(self, operators: Iterable[Operator]) -> Seconds:
        """Without what a block costs at all, which is no operator's."""
        operators = [*operators]
        line = self._lines.get(_kind_of(operators), self._lines.get("layer"))
        return super().part(operators) if line is None else self._priced(line, operators, whole=False)

    def _block_of(self, kind: BlockKind, operators: Iterable[Operator]) -> Seconds:
        operators = [*operators]
        line = self._lines.get(kind, self._lines.get("layer"))
        return super()._block_of(kind, operators) if line is None else self._priced(line, operators, whole=True)

    def _priced(self, line: Block, operators: Sequence[Operator], *, whole: bool) -> Seconds:
        ends = line.kind in ("embedding", "head")  # whose constant is one, of action and block together
        once: dict[Term, float] = {"block": 1.0, "action": float(ends)} if whole else {}
        return self._by(line, once, operators) + self._reductions(operators)

    def _by(self, line: Block, once: Mapping[Term, float], operators: Sequence[Operator] = ()) -> Seconds:
        took = {phase: fit.seconds({**once, **work_of(operators, phase)}) for phase, fit in line.fits.items()}
        return Seconds(
            took["forward"],
            took["input_gradient"],
            took["weight_gradient"],
            took["input_gradient"] + took["weight_gradient"] - took["backward"],
            max(0.0, took["recomputed"] - took["backward"]),
        )


def _kind_of(operators: Sequence[Operator]) -> BlockKind:
    """Of which kind of block they are a part."""
    names = {operator.name for operator in operators}
    kinds: dict[str, BlockKind] = {"embedding": "embedding", "logits": "head", "skip projection": "joining"}
    return next((kind for name, kind in kinds.items() if name in names), "layer")


def _waits(block: ExpertBlock) -> Seconds:
    """What the messages of a layer with experts add to what it computes."""
    forward, backward, hidden = block.forward_waits_s, block.input_waits_s, block.hidden_s
    return Seconds(forward, backward, 0.0, hidden, forward, forward, backward, hidden)


def _blocks(profile: Profile, precision: str) -> list[Block]:
    """Those of a precision, or of another that was measured where none of this was."""
    known = {block.precision for block in profile.blocks}
    chosen = precision if precision in known else min(known, default=precision)
    return [block for block in profile.blocks if block.precision == chosen]


# ---- links and reductions ----


def measured(design: Design, profile: Profile) -> Design:
    """The same on a cluster whose device and links are as fast as they were measured."""
    cluster, lines = design.cluster, {line.pair: line for line in profile.links}

    def link(pair: Pair, drawn: Link) -> Link:
        line = lines.get(pair)
        return drawn if line is None else Link(latency_s=line.alpha_s, bandwidth=_rate(1.0, line.beta_s_per_byte))

    update = {
        "device": _device(design, profile),
        "intra_node": link("same_node", cluster.intra_node),
        "inter_node": link("across_nodes", cluster.inter_node),
    }
    return design.model_copy(update={"cluster": cluster.model_copy(update=update)})


def _device(design: Design, profile: Profile) -> Device:
    """As it was measured, or as the roofline seconds of a run's actions are told of."""
    device = profile.reference or design.cluster.device
    own = {"name": design.cluster.device.name, "memory_bytes": design.cluster.device.memory_bytes}
    rate = matrix_rate(profile, design.training.precision)
    known = {} if rate is None else {"peak_flops": rate, "efficiency": 1.0}
    copied = next((line for line in profile.links if line.pair == "same_device"), None)
    moved = {} if copied is None else {"memory_bandwidth": _rate(2.0, copied.beta_s_per_byte)}  # read and written
    return device.model_copy(update={**own, **known, **moved})


def _rate(amount: float, seconds: float) -> float:
    return min(FASTEST, max(1.0, amount / seconds)) if seconds else FASTEST


def matrix_rate(profile: Profile, precision: str) -> float | None:
    """FLOP/s of large matrix products on the device; none where it was not measured."""
    return next((each.flops for each in profile.matrix if each.precision == precision), None)


def all_reduce_of(profile: Profile) -> AllReduce:
    """The measured all-reduce of groups of that size, inside nodes or across them; the ring of the links elsewhere."""
    lines = {
        (each.size, each.size > profile.machine.ranks_per_node): each
        for each in profile.collectives
        if each.collective == "all_reduce" and each.group in ("mp", "esp", "ep_esp")
    }

    def seconds(cluster: Cluster, groups: Sequence[Sequence[int]], size: float) -> float:
        return max((of_group(cluster, group, groups, size) for group in groups), default=0.0)

    def of_group(cluster: Cluster, group: Sequence[int], groups: Sequence[Sequence[int]], size: float) -> float:
        if len(group) < 2:
            return 0.0
        line = lines.get((len(group), len({cluster.node_of(device) for device in group}) > 1))
        return ring_all_reduce_seconds(cluster, groups, size) if line is None else line.seconds(size)

    return seconds


# ---- a run's actions ----


class Slowness:
    """How many times longer than its roofline an action takes: as the one nearest to it did in a run."""

    def __init__(self, actions: Sequence[ActionTime]) -> None:
        found: dict[ActionTime, list[float]] = defaultdict(list)
        for each in actions:
            found[each.model_copy(update={"seconds": 1.0, "roofline_s": 1.0})].append(each.seconds / each.roofline_s)
        self._of = {kind: median(ratios) for kind, ratios in found.items()}
        self.ops = {kind.op for kind in self._of}
        self.of = cache(self._nearest)  # most stages of a pipeline are alike

    def _nearest(self, like: ActionTime) -> float:
        """1 where the run had no such action; halves of a backward go by whole ones, and these by their halves."""
        others = {"B": ("I", "W"), "I": ("B",), "W": ("B",)}.get(like.op, ())
        ops = (like.op,) if like.op in self.ops else others
        near = {kind: ratio for kind, ratio in self._of.items() if kind.op in ops}
        least = min((distance(kind, like) for kind in near), default=0.0)
        return median([ratio for kind, ratio in near.items() if distance(kind, like) <= least] or [1.0])


def distance(one: ActionTime, other: ActionTime) -> float:
    """How little two actions have in common; what they compute besides layers counts most."""
    ends = (one.first != other.first) + (one.last != other.last)
    kinds = (one.experts > 0) != (other.experts > 0)
    sizes = ((one.layers, other.layers), (one.experts, other.experts), (one.tp, other.tp))
    return 8.0 * ends + 4.0 * kinds + sum(abs(log((mine + 1) / (theirs + 1))) for mine, theirs in sizes)


def _scaled(seconds: Seconds, slowness: Callable[[OpName], float]) -> Seconds:
    forward, first, second = (seconds.forward, seconds.input_gradient, seconds.weight_gradient)
    first, second = first * slowness("I"), second * slowness("W")
    whole = seconds.backward * slowness("B")
    return Seconds(
        forward * slowness("F"),
        first,
        second,
        first + second - whole,
        seconds.again * slowness("F"),
        seconds.forward_waits * slowness("F"),
        seconds.input_waits * slowness("I"),
        seconds.input_waits * slowness("I") - seconds.backward_waits * slowness("B"),
    )


# ---- the model ----


@cost_models.register("calibrated")
class CalibratedModel(RooflineModel):
    """Each block takes what the lines through its kind's measurements say, or what a run measured of the action
    nearest to it; messages take alpha plus bytes times beta of links as they were measured."""

    def prices(self, design: Design) -> list[MeshPrices]:
        return super().prices(measured(design, profile_of(design)))

    def prices_on(self, design: Design, mesh: Mesh) -> MeshPrices:
        return MeasuredPrices(profile_of(design), design, mesh, workload(design, mesh))

    def seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes) -> Floats:
        profile = profile_of(design)
        seconds = super().seconds(measured(design, profile), program, kinds, layers, held)
        slowness = Slowness(profile.actions)
        ends: dict[Op, OpName] = {Op.REDUCE_GRAD: "REDUCE_GRAD", Op.STEP: "STEP"}
        for op, name in ends.items():
            if name in slowness.ops:
                for row in kinds.of(op).tolist():
                    rank = int(kinds.rank[row])
                    stages = [int(kinds.stage[row])] if op == Op.REDUCE_GRAD else program.stages_of(rank)
                    like = _like(name, design, layers, stages, design.meshes[rank].tp)
                    seconds[row] *= slowness.of(like)
        return seconds

    def network(
        self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes, seconds: Floats
    ) -> tuple[Network | None, Floats]:
        return super().network(measured(design, profile_of(design)), program, kinds, layers, held, seconds)

    def measures_collectives(self, design: Design) -> bool:
        return bool(profile_of(design).collectives)

    def link_sharing(self, design: Design) -> LinkSharing:
        return link_sharing(profile_of(design))

    def reduce_seconds(self, design: Design, program: Program, held: Sizes) -> Floats:
        return reduce_seconds(design, program, held, all_reduce_of(profile_of(design)))

    def step_seconds(self, design: Design, program: Program, held: Sizes) -> Floats:
        line = _optimizer(profile_of(design), design)
        if line is None:
            return super().step_seconds(design, program, held)
        return np.array([line.seconds(each) + norm_seconds(design) for each in held.parameters.sum(axis=1)])

    def sizes(self, design: Design, program: Program, layers: tuple[int, ...]) -> Sizes:
        """With the activations that were allocated where the formulas say so many."""
        held = super().sizes(design, program, layers)
        found = {each.kind: each.ratio for each in profile_of(design).memory}
        if not found:
            return held
        ratios = [_kept_ratio(design, layers, stage, found) for stage in range(program.stages)]
        return held._replace(activation_bytes=held.activation_bytes * ratios)

    def peak_flops(self, design: Design) -> float:
        """What large products were measured to reach, where they were."""
        return matrix_rate(profile_of(design), design.training.precision) or super().peak_flops(design)


def _like(op: OpName, design: Design, layers: Sequence[int], stages: Sequence[int], tp: int) -> ActionTime:
    """An action of some stages, to be looked for among those of a run."""
    experts = counts(design, layers)
    return ActionTime(
        op=op,
        layers=sum(layers[stage] for stage in stages),
        experts=sum(experts[stage] for stage in stages),
        first=0 in stages,
        last=len(layers) - 1 in stages,
        tp=tp,
        seconds=1.0,
        roofline_s=1.0,
    )


def _optimizer(profile: Profile, design: Design) -> OptimizerLine | None:
    """The line of the design's optimizer: of its own precision and clipping, or of others where there is none."""
    training = design.training
    asked = training.precision, training.clip_norm is not None
    known = [line for line in profile.optimizer if line.optimizer == training.optimizer]
    return max(
        known,
        key=lambda line: sum(mine == its for mine, its in zip(asked, (line.precision, line.clipped), strict=True)),
        default=None,
    )


def _kept_ratio(design: Design, layers: Sequence[int], stage: int, ratios: Mapping[BlockKind, float]) -> float:
    """Allocated bytes for one of the formulas', of what a stage keeps; 1 of a model whose blocks are never measured."""
    if not design.model.has_equal_blocks:
        return 1.0
    load = workload(design, design.meshes[0])
    joins, experts = joins_of(design, layers)[stage], counts(design, layers)[stage]
    parts: list[tuple[BlockKind, int, Sequence[Operator]]] = [
        ("layer", layers[stage] - joins - experts, flops.layer(load)),
        ("joining", joins, flops.joining_layer(load)),
        ("experts", experts, flops.layer(load)),
        ("embedding", int(stage == 0), flops.embedding(load)),
        ("head", int(stage == len(layers) - 1), flops.ends(load, first=False, last=True)),
    ]
    said = [(kind, count * sum(each.kept_bytes for each in operators)) for kind, count, operators in parts]
    whole = sum(size for _, size in said)
    return sum(ratios.get(kind, 1.0) * size for kind, size in said) / whole if whole else 1.0


def profile_of(design: Design) -> Profile:
    """The profile that the design names, without its links and collectives where those of the cluster are meant.

    Raises:
        DesignError: it is not kept here, or is none, at its place in the document.
    """
    cost = design.cost
    assert isinstance(cost, CalibratedCost), "a design that is priced by a profile"
    try:
        found = load_named(cost.profile)
    except DesignError as error:
        where = error.problems[0]
        message = f"{cost.profile} is no profile ({where}); measure this machine anew: meshwave calibrate"
        raise DesignError([Problem("cost.profile", "profile_wrong", message)]) from None
    except InputError as error:
        message = f"{str(error).removesuffix('.')}; or use cost kind roofline"
        raise DesignError([Problem("cost.profile", "profile_missing", message)]) from None
    return found if cost.links == "measured" else _without_links(found)


def _without_links(profile: Profile) -> Profile:
    """What it knows of single devices."""
    own = tuple(line for line in profile.links if line.pair == "same_device")
    return profile.model_copy(update={"links": own, "collectives": (), "contention": ()})


# ---- what was not measured ----

BEYOND = 1.25
"""How far from what was measured a size may lie before it is told of."""


def outside(design: Design, profile: Profile) -> list[Problem]:
    """Warnings of the parts of a design that lie outside of what a profile has measured."""
    computed = _outside_of_blocks(design, profile) if profile.blocks else _outside_of_a_run(design, profile)
    sent = (*_outside_of_links(design, profile), *_outside_of_collectives(design, profile))
    found = (*computed, *(sent if _goes_over_measured_links(design) else ()))
    return [Problem(*each, "warning") for each in found]


def _goes_over_measured_links(design: Design) -> bool:
    """Not where somebody says that the cluster's links are others."""
    return not isinstance(design.cost, CalibratedCost) or design.cost.links == "measured"


Told = tuple[str, str, str]
"""Where, code and message."""


def _outside_of_blocks(design: Design, profile: Profile) -> Iterator[Told]:
    model, training = design.model, design.training
    blocks = {block.kind: block for block in _blocks(profile, training.precision)}
    known = {block.precision for block in profile.blocks}
    if training.precision not in known:
        message = (
            f"the profile has blocks in {' and '.join(sorted(known))} only; {training.precision} is priced as those"
        )
        yield "training.precision", "unmeasured", message
    if not any(line.optimizer == training.optimizer for line in profile.optimizer):
        yield (
            "training.optimizer",
            "unmeasured",
            f"the profile has no {training.optimizer}; its update is priced by bytes",
        )
    if not model.has_equal_blocks:
        message = f"the profile has no blocks of a {model.kind}; their products are priced as those of dense layers"
        yield "model.kind", "unmeasured", message
        return
    wanted: dict[BlockKind, tuple[bool, str, str]] = {
        "experts": (model.moe is not None, "model.moe", "layers with experts"),
        "joining": (bool(model.skips), "model.kind", "layers that skip connections end in"),
    }
    for kind, (asked, where, words) in wanted.items():
        if asked and kind not in blocks:
            yield where, "unmeasured", f"the profile has no {words}; their products are priced as those of dense layers"
    if "layer" in blocks:
        yield from _sizes_outside(design, blocks["layer"])
    if "head" in blocks:
        yield from _size_outside("model.vocab", "vocabulary", model.vocab, blocks["head"].span("vocab"))


def _sizes_outside(design: Design, layers: Block) -> Iterator[Told]:
    model = design.model
    yield from _size_outside("model.hidden", "hidden size", model.hidden, layers.span("hidden"))
    yield from _size_outside("model.sequence", "sequence", model.sequence, layers.span("sequence"))
    tokens = max(workload(design, mesh).tokens for mesh in design.meshes)
    yield from _size_outside("training.micro_batch_size", "microbatch in tokens", tokens, layers.span("tokens"))


def _size_outside(where: str, words: str, size: float, span: tuple[float, float]) -> Iterator[Told]:
    least, most = span
    if not least / BEYOND <= size <= most * BEYOND:
        message = (
            f"a {words} of {size:g} lies outside of what was measured ({least:g} to {most:g}); "
            "its seconds are the line's, drawn further"
        )
        yield where, "unmeasured", message


def _outside_of_a_run(design: Design, profile: Profile) -> Iterator[Told]:
    if not profile.actions:
        yield "cost.profile", "unmeasured", "the profile has no blocks and no run; computations are priced by roofline"
        return
    known = {each.tp for each in profile.actions}
    for number, mesh in enumerate(design.meshes):
        if mesh.tp not in known:
            listed = " and ".join(map(str, sorted(known)))
            yield f"meshes[{number}].axes.tp", "unmeasured", f"the run had tp={listed}; tp={mesh.tp} is priced as that"
            return


def _outside_of_links(design: Design, profile: Profile) -> Iterator[Told]:
    known = {line.pair for line in profile.links}
    nodes = {design.cluster.node_of(device) for mesh in design.meshes for device in mesh.devices}
    if len(nodes) > 1 and "across_nodes" not in known:
        yield "cluster.inter_node", "unmeasured", "no link between nodes was measured; messages there are as drawn"
    if sum(len(mesh.devices) for mesh in design.meshes) > len(nodes) and "same_node" not in known:
        yield "cluster.intra_node", "unmeasured", "no link inside a node was measured; messages there are as drawn"


def _outside_of_collectives(design: Design, profile: Profile) -> Iterator[Told]:
    """Of the cuts of layers, which wait for each other several times a layer; those of copies come once a step."""
    known = {each.size for each in profile.collectives if each.collective == "all_reduce"}
    for number, mesh in enumerate(design.meshes):
        if profile.blocks and mesh.tp > 1 and mesh.tp not in known:
            message = f"no all-reduce of {mesh.tp} devices was measured; it is priced as a ring over the links"
            yield f"meshes[{number}].axes.tp", "unmeasured", message
            return
