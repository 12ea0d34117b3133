"""Expert schedules measured beside their prediction, on a small cluster that is emulated here.

Two nodes of four processes, whose links are shaped, play the schedules that spread their experts over
all of them, and PPMoE beside those, for layers among which the fastest schedule changes. In every
round the collectives are measured, then the speed of computing, then a forward and a backward of
every schedule of every layer: whatever else the machine does meets all of them alike. A time lasts
from the last process that comes to the last that leaves; of the rounds the median counts.

The prediction is that of :func:`meshwave.engine.experts.price` with the lines fitted to those collectives, and with
the speed at which a process computes while all of them do, since they share the machine's cores.
Nothing in it was fitted to a layer. Weights are not updated and gradients not summed over the copies
of a layer: under all schedules that is the same.

Plain expert parallelism is not among them: where experts are not cut it is what ``deepspeed`` does,
step by step, and where they are it cannot run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any, NamedTuple

from meshwave.engine.costs.profile import Profile
from meshwave.engine.experts import Choice, Layer, Line, Links, Rates, backward, expert_schedules, price
from meshwave.engine.runtime.calibration.collective_plan import CollectivePlan
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster, run_in_cluster
from meshwave.engine.runtime.calibration.machine_profile import describe_machine
from meshwave.engine.units import quantity

SPREAD = ("deepspeed", "a2a-allgather", "parm-s1", "parm-s2")
"""They spread their experts over all ranks, and so need the same memory."""
BASELINE, PARM = SPREAD[0], SPREAD[2:]
NAMES = (*SPREAD, "ppmoe")
RANKS, RANKS_PER_NODE = 8, 4
RATES = 40e6, 10e6
"""Bytes/s of a process's link and of a node's uplink: slow enough for two cores to carry with ease, and for
what eight processes compute on them to count for little."""
SIZES = (2**18, 2**19, 2**21)
"""Bytes of the buffers that lines are fitted to, such as the layers send."""
ROUNDS = 5
GAIN = 1.10
"""How many times as fast as the baseline a schedule is predicted to be, where it is held to it."""
CLOSE = 1.05
"""A choice is as good as the best up to this times its seconds."""
GPU_TOKENS = 16
"""Times as many tokens where GPUs send: their links are that much faster and more."""
MIB = 2**20


def _layer(mp: int, esp: int, input_bytes: float, routes: float, hidden: int = 512, ffn_hidden: int = 32) -> Layer:
    """A layer whose input weighs ``input_bytes`` and whose slots hold ``routes`` times as much."""
    top_k = 2 if routes > 1 else 1
    return Layer(
        mp=mp,
        ep=RANKS // esp,
        esp=esp,
        experts=RANKS,
        tokens=int(input_bytes) // (4 * hidden),
        hidden=hidden,
        ffn_hidden=ffn_hidden,
        top_k=top_k,
        capacity_factor=routes / top_k,
    )


LAYERS = (
    _layer(4, 1, 2 * MIB, 1),
    _layer(4, 1, 4 * MIB, 0.5, hidden=1024),
    _layer(4, 1, 1 * MIB, 2, hidden=256, ffn_hidden=64),
    _layer(4, 1, MIB / 2, 4),
    _layer(4, 2, 1 * MIB, 1),
    _layer(4, 4, MIB / 2, 1.25),
    _layer(2, 1, 1 * MIB, 1, hidden=1024),
    _layer(2, 2, MIB / 2, 1.25, ffn_hidden=64),
    _layer(2, 4, MIB / 4, 1, hidden=256),
    _layer(8, 1, 1 * MIB, 2),
    _layer(8, 1, 2 * MIB, 0.5, hidden=1024),
    _layer(8, 2, MIB / 2, 1, hidden=256),
)
"""Experts whole and cut, slots that outweigh the input and slots that do not, tensor-parallel groups
inside a node and over both. Communication outweighs the products: cores are shared here, links are not."""


class Times(NamedTuple):
    """Seconds of a forward, of a backward, and of both."""

    forward: float
    backward: float
    both: float


@dataclass(frozen=True)
class Compared:
    """One layer: what was measured and what was predicted of each schedule."""

    layer: Layer
    choice: Choice  # of parm-auto
    measured: Mapping[str, Times]
    predicted: Mapping[str, Times]

    def gain(self, name: str, times: Mapping[str, Times]) -> float:
        """How many times as fast as the baseline."""
        return times[BASELINE].both / times[name].both

    def fastest(self, times: Mapping[str, Times], names: Iterable[str]) -> str:
        return min(names, key=lambda name: times[name].both)

    def loss(self, name: str, names: Iterable[str]) -> float:
        """How many times as long as the fastest of ``names`` the choice ``name`` took."""
        return self.measured[name].both / self.measured[self.fastest(self.measured, names)].both


@dataclass(frozen=True)
class Bench:
    """All that was measured in one run."""

    profile: Profile
    rates: Rates
    rounds: int
    layers: tuple[Compared, ...]


def bench(
    cluster: ProcessCluster,
    layers: Sequence[Layer],
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda line: None,
) -> Bench:
    """Measure the collectives that the schedules need, the speed of computing, and the layers.

    Raises:
        InputError: this machine cannot emulate links.
        RunError: a process failed, or two schedules disagree about a layer.
    """
    layers = [_on(cluster, layer) for layer in layers]
    layouts = [(layer.mp, layer.esp) for layer in layers]
    plan = CollectivePlan.for_layouts(cluster.ranks, layouts, sizes, {*_collectives(layers)})
    machine = describe_machine(cluster)
    names = [[name for name in NAMES if not next(expert_schedules[name]().problems(layer), None)] for layer in layers]
    arguments = {"layers": [asdict(layer) for layer in layers], "schedules": names, "rounds": rounds}
    function = "meshwave.engine.runtime.benchmarks.expert_layers:measure_expert_layers"
    found = run_in_cluster(function, cluster, {**plan.arguments, **arguments}, say)[0]
    profile = plan.to_profile(cluster, machine, found["collectives"])
    rates = Rates(found["products"], found["moves"], inf)  # products were measured with all that they move
    rows = iter(found["runs"])
    measured = [{name: Times(*next(rows)) for name in of_layer} for of_layer in names]
    compared = [_compared(*each, profile, rates) for each in zip(layers, measured, strict=True)]
    return Bench(profile, rates, rounds, tuple(compared))


def _on(cluster: ProcessCluster, layer: Layer) -> Layer:
    """The layer on the nodes of the cluster."""
    return replace(layer, nodes=cluster.node_by_rank)


def _collectives(layers: Iterable[Layer]) -> Iterator[tuple[str, str]]:
    """What is called over which kinds of group, in either direction."""
    for layer in layers:
        for name in NAMES:
            forward = expert_schedules[name]().steps(layer)
            for step in (*forward, *backward(forward)):
                if step.collective:
                    yield step.collective, step.group


def _compared(layer: Layer, measured: Mapping[str, Times], profile: Profile, rates: Rates) -> Compared:
    fit = {
        name: Line(line["alpha_s"], line["beta_s_per_byte"]) for name, line in profile.fit(layer.mp, layer.esp).items()
    }
    links = Links(Line(), Line(), fit)  # nothing but what was measured
    choice = price("parm-auto", layer, links, rates).choice
    assert choice is not None
    return Compared(layer, choice, measured, {name: _predicted(name, layer, links, rates) for name in measured})


def _predicted(name: str, layer: Layer, links: Links, rates: Rates) -> Times:
    priced = price(name, layer, links, rates)
    ways = priced.seconds(priced.forward), priced.seconds(priced.backward)
    return Times(*ways, sum(ways))


# ---- what it says of the schedules ----


class Verdict(NamedTuple):
    """In how many of the cases that it is about a claim holds, and in which it does not."""

    claim: str
    cases: int
    failing: tuple[str, ...]


def verdicts(found: Bench) -> Iterator[Verdict]:
    """What the model promised of the layers, held against what was measured."""
    promised = [(each, name) for each in found.layers for name in PARM if each.gain(name, each.predicted) > GAIN]
    yield Verdict(
        f"Parm's schedules beat {BASELINE} where the model says by more than {GAIN - 1:.0%}",
        len(promised),
        tuple(f"{_named(each.layer)}: {name}" for each, name in promised if each.gain(name, each.measured) <= 1),
    )
    for claim, names, choose in (
        ("parm-auto chose the faster of S1 and S2", PARM, _chosen),
        ("the model's fastest of all that spread their experts was so", SPREAD, _fastest),
    ):
        losses = [(each, choose(each), each.loss(choose(each), names)) for each in found.layers]
        failing = (
            f"{_named(each.layer)}: {name}, {loss - 1:.0%} slower" for each, name, loss in losses if loss > CLOSE
        )
        yield Verdict(f"{claim}, or within {CLOSE - 1:.0%} of it", len(losses), tuple(failing))


def _chosen(each: Compared) -> str:
    return each.choice.name


def _fastest(each: Compared) -> str:
    return each.fastest(each.predicted, SPREAD)


def _named(layer: Layer) -> str:
    routes = layer.top_k * (layer.capacity_factor or 1)
    return (
        f"mp {layer.mp}, ep {layer.ep}, esp {layer.esp}; {layer.tokens:,} tokens of {layer.hidden}, experts of "
        f"{layer.ffn_hidden}, top {layer.top_k} with room for {routes:.3g}"
    )


def figures(found: Bench) -> dict[str, Any]:
    """All of it as plain data, seconds as measured and as predicted."""
    return {
        "network": found.profile.machine.network,
        "rounds": found.rounds,
        "load_before": found.profile.machine.load_before,
        "flops": found.rates.flops,
        "memory_bytes_per_s": found.rates.memory,
        "collectives": [each.model_dump(mode="json", exclude_none=True) for each in found.profile.collectives],
        "layers": [_layer_figures(each) for each in found.layers],
        "verdicts": [verdict._asdict() for verdict in verdicts(found)],
    }


def _layer_figures(each: Compared) -> dict[str, Any]:
    return {
        "name": _named(each.layer),
        "input_bytes": each.layer.input_bytes,
        "slots_bytes": each.layer.slots_bytes,
        "chosen": each.choice.name,
        "reason": each.choice.reason,
        "schedules": {
            name: {
                "measured_s": measured._asdict(),
                "predicted_s": each.predicted[name]._asdict(),
                "ratio": measured.both / each.predicted[name].both,
                "gain": each.gain(name, each.measured),
                "predicted_gain": each.gain(name, each.predicted),
            }
            for name, measured in each.measured.items()
        },
    }


def to_text(found: Mapping[str, Any]) -> list[str]:
    """The lines in which a terminal shows :func:`figures`."""
    speed, moves = quantity(found["flops"], "FLOP/s"), quantity(found["memory_bytes_per_s"], "B/s")
    lines = [
        f"  {found['network']}",
        f"  medians of {found['rounds']} rounds of a forward and a backward; all processes at once reach {speed} and "
        f"move {moves} each",
    ]
    for each in found["layers"]:
        sizes = f"X = {quantity(each['input_bytes'], 'B')}, D = {quantity(each['slots_bytes'], 'B')}"
        lines += ["", f"  {each['name']}; {sizes}", f"  parm-auto: {each['reason']}"]
        lines.append(f"  {'':<16}{'measured':>10}{'predicted':>11}{'ratio':>8}{'gain':>9}{'predicted':>11}")
        lines += [_row(name, schedule) for name, schedule in each["schedules"].items()]
    for verdict in found["verdicts"]:
        held = verdict["cases"] - len(verdict["failing"])
        lines += ["", f"  {verdict['claim']}: in {held} of {verdict['cases']}"]
        lines += [f"    not so: {case}" for case in verdict["failing"]]
    return lines


def _row(name: str, schedule: Mapping[str, Any]) -> str:
    measured, predicted = schedule["measured_s"]["both"], schedule["predicted_s"]["both"]
    return (
        f"  {name:<16}{quantity(measured, 's'):>10}{quantity(predicted, 's'):>11}{schedule['ratio']:>8.2f}"
        f"{schedule['gain']:>8.2f}x{schedule['predicted_gain']:>10.2f}x"
    )


# ---- the part of the bench ----


def moe(gpus: int = 0, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Two nodes emulated on this machine; with several GPUs those, over NCCL and as one node.

    Raises:
        InputError: this machine cannot emulate links.
        RunError: a process failed.
    """
    if gpus > 1:
        return figures(bench(*on_gpus(gpus), say=say))
    return figures(bench(ProcessCluster(RANKS // RANKS_PER_NODE, RANKS_PER_NODE, *RATES), LAYERS, say=say))


def on_gpus(gpus: int) -> tuple[ProcessCluster, list[Layer]]:
    """As many of them as divide among groups, and the layers that fit on these, enlarged."""
    ranks = min(RANKS, 1 << gpus.bit_length() - 1)
    fitting = (layer for layer in LAYERS if max(layer.mp, layer.esp) <= ranks)
    larger = [replace(layer, ep=ranks // layer.esp, tokens=layer.tokens * GPU_TOKENS) for layer in fitting]
    return ProcessCluster(1, ranks, uses_gpus=True), larger
