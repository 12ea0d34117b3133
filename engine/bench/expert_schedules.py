"""Measured and predicted expert schedules on a small emulated cluster.

Two nodes of four processes, with emulated links, execute PPMoE and the schedules that distribute their experts over all
processes. The layers differ in their fastest schedule. Every round measures the collectives, then the speed of
computation, then a forward and a backward of every schedule of every layer, so that other load of the machine affects
all of them equally. A time lasts from the last start to the last end of a process; the median over the rounds is used.

The prediction is that of :func:`meshwave.engine.experts.price` with lines fitted to these collectives, and with the
speed of a process while all others compute too, since they share the cores. Nothing is fitted to a layer. Weight
updates and gradient reductions are excluded, because they are the same for all schedules.

Plain expert parallelism is not included: with whole experts it has the same steps as ``deepspeed``, and with sharded
experts it cannot run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any, NamedTuple

from meshwave.engine.costs.profile import Profile
from meshwave.engine.experts import (
    Choice,
    Layer,
    Line,
    Links,
    Rates,
    backward_steps,
    expert_schedules,
    price_expert_schedule,
)
from meshwave.engine.runtime.calibration.collective_plan import CollectivePlan
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster, run_in_cluster
from meshwave.engine.runtime.calibration.machine_profile import describe_machine
from meshwave.engine.units import quantity

SPREAD = ("deepspeed", "a2a-allgather", "parm-s1", "parm-s2")
"""Schedules that distribute their experts over all ranks, and therefore need the same memory."""
BASELINE, PARM = SPREAD[0], SPREAD[2:]
NAMES = (*SPREAD, "ppmoe")
RANKS, RANKS_PER_NODE = 8, 4
RATES = 40e6, 10e6
"""Rates of a process's link and of a node's uplink in bytes/s.

They are low enough for two cores to carry the messages, and for the computation of eight processes to matter little.
"""
SIZES = (2**18, 2**19, 2**21)
"""Message sizes, in bytes, to which lines are fitted; similar to the messages of the layers."""
ROUNDS = 5
GAIN = 1.10
"""Smallest predicted speed-up over the baseline that a measurement must confirm."""
CLOSE = 1.05
"""Largest ratio to the best time at which a choice counts as correct."""
GPU_TOKENS = 16
"""Factor on the number of tokens on GPUs, whose links are faster."""
MIB = 2**20


def _make_layer(mp: int, esp: int, input_bytes: float, routes: float, hidden: int = 512, ffn_hidden: int = 32) -> Layer:
    """Return a layer with an input of ``input_bytes``, and expert slots of ``routes`` times that size."""
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
    _make_layer(4, 1, 2 * MIB, 1),
    _make_layer(4, 1, 4 * MIB, 0.5, hidden=1024),
    _make_layer(4, 1, 1 * MIB, 2, hidden=256, ffn_hidden=64),
    _make_layer(4, 1, MIB / 2, 4),
    _make_layer(4, 2, 1 * MIB, 1),
    _make_layer(4, 4, MIB / 2, 1.25),
    _make_layer(2, 1, 1 * MIB, 1, hidden=1024),
    _make_layer(2, 2, MIB / 2, 1.25, ffn_hidden=64),
    _make_layer(2, 4, MIB / 4, 1, hidden=256),
    _make_layer(8, 1, 1 * MIB, 2),
    _make_layer(8, 1, 2 * MIB, 0.5, hidden=1024),
    _make_layer(8, 2, MIB / 2, 1, hidden=256),
)
"""Layers with whole and sharded experts, with slots larger and smaller than the input.

Their tensor-parallel groups are inside a node or span both. Communication takes longer than computation, since
processes share cores but not links.
"""


class Times(NamedTuple):
    """Seconds of a forward, of a backward, and of both."""

    forward: float
    backward: float
    both: float


@dataclass(frozen=True)
class ComparedLayer:
    """Measured and predicted times of the schedules of one layer."""

    layer: Layer
    choice: Choice  # the choice of parm-auto
    measured: Mapping[str, Times]
    predicted: Mapping[str, Times]

    def gain(self, name: str, times: Mapping[str, Times]) -> float:
        """Return the speed-up of a schedule over the baseline."""
        return times[BASELINE].both / times[name].both

    def fastest(self, times: Mapping[str, Times], names: Iterable[str]) -> str:
        """Return the fastest of the given schedules."""
        return min(names, key=lambda name: times[name].both)

    def loss(self, name: str, names: Iterable[str]) -> float:
        """Return the measured time of a schedule divided by that of the fastest schedule in ``names``."""
        return self.measured[name].both / self.measured[self.fastest(self.measured, names)].both


@dataclass(frozen=True)
class ExpertMeasurements:
    """Measured collectives, computing speed and layers, with their predictions."""

    profile: Profile
    rates: Rates
    rounds: int
    layers: tuple[ComparedLayer, ...]


def measure_schedules(
    cluster: ProcessCluster,
    layers: Sequence[Layer],
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda line: None,
) -> ExpertMeasurements:
    """Measure the collectives of the schedules, the speed of computation, and the layers.

    Raises:
        InputError: this machine cannot emulate links.
        RunError: a process failed, or two schedules gave different results for a layer.
    """
    layers = [replace(layer, nodes=cluster.node_by_rank) for layer in layers]
    layouts = [(layer.mp, layer.esp) for layer in layers]
    plan = CollectivePlan.for_layouts(cluster.ranks, layouts, sizes, {*_collectives(layers)})
    machine = describe_machine(cluster)
    names = [[name for name in NAMES if not next(expert_schedules[name]().problems(layer), None)] for layer in layers]
    arguments = {"layers": [asdict(layer) for layer in layers], "schedules": names, "rounds": rounds}
    function = "meshwave.engine.runtime.benchmarks.expert_layers:measure_expert_layers"
    found = run_in_cluster(function, cluster, {**plan.arguments, **arguments}, say)[0]
    profile = plan.to_profile(cluster, machine, found["collectives"])
    rates = Rates(found["products"], found["moves"], inf)  # matrix products were measured with all their memory traffic
    rows = iter(found["runs"])
    measured = [{name: Times(*next(rows)) for name in section_of_layer} for section_of_layer in names]
    compared = [_compare_schedules(*each, profile, rates) for each in zip(layers, measured, strict=True)]
    return ExpertMeasurements(profile, rates, rounds, tuple(compared))


def _collectives(layers: Iterable[Layer]) -> Iterator[tuple[str, str]]:
    """Yield the collectives of all schedules and layers, with the kind of their group."""
    for layer in layers:
        for name in NAMES:
            forward = expert_schedules[name]().steps(layer)
            for step in (*forward, *backward_steps(forward)):
                if step.collective:
                    yield step.collective, step.group


def _compare_schedules(layer: Layer, measured: Mapping[str, Times], profile: Profile, rates: Rates) -> ComparedLayer:
    fit = {
        name: Line(line["alpha_s"], line["beta_s_per_byte"]) for name, line in profile.fit(layer.mp, layer.esp).items()
    }
    links = Links(Line(), Line(), fit)  # measured collectives only
    choice = price_expert_schedule("parm-auto", layer, links, rates).choice
    assert choice is not None
    return ComparedLayer(
        layer, choice, measured, {name: _predict_times(name, layer, links, rates) for name in measured}
    )


def _predict_times(name: str, layer: Layer, links: Links, rates: Rates) -> Times:
    priced = price_expert_schedule(name, layer, links, rates)
    directions = priced.seconds(priced.forward), priced.seconds(priced.backward)
    return Times(*directions, sum(directions))


# ---- claims about the schedules ----


class ClaimCheck(NamedTuple):
    """Claim of the model, the number of cases that it covers, and the cases that contradict it."""

    claim: str
    cases: int
    failing: tuple[str, ...]


def check_claims(found: ExpertMeasurements) -> Iterator[ClaimCheck]:
    """Compare the claims of the model with the measurements of the layers."""
    promised = [(each, name) for each in found.layers for name in PARM if each.gain(name, each.predicted) > GAIN]
    yield ClaimCheck(
        f"Parm's schedules are faster than {BASELINE} where the model predicts a gain of more than {GAIN - 1:.0%}",
        len(promised),
        tuple(f"{_layer_name(each.layer)}: {name}" for each, name in promised if each.gain(name, each.measured) <= 1),
    )
    for claim, names, choose in (
        ("parm-auto chose the faster of S1 and S2", PARM, _choice_name),
        (
            "the predicted fastest of all schedules that distribute their experts was the fastest",
            SPREAD,
            _fastest_schedule,
        ),
    ):
        losses = [(each, choose(each), each.loss(choose(each), names)) for each in found.layers]
        failing = (
            f"{_layer_name(each.layer)}: {name}, {loss - 1:.0%} slower" for each, name, loss in losses if loss > CLOSE
        )
        yield ClaimCheck(f"{claim}, or within {CLOSE - 1:.0%} of it", len(losses), tuple(failing))


def _choice_name(each: ComparedLayer) -> str:
    return each.choice.name


def _fastest_schedule(each: ComparedLayer) -> str:
    return each.fastest(each.predicted, SPREAD)


def _layer_name(layer: Layer) -> str:
    routes = layer.top_k * (layer.capacity_factor or 1)
    return (
        f"mp {layer.mp}, ep {layer.ep}, esp {layer.esp}; {layer.tokens:,} tokens of {layer.hidden}, experts of "
        f"{layer.ffn_hidden}, top {layer.top_k} with capacity for {routes:.3g}"
    )


def collect_figures(found: ExpertMeasurements) -> dict[str, Any]:
    """Return the measurements as a JSON object for ``--json``."""
    return {
        "network": found.profile.machine.network,
        "rounds": found.rounds,
        "load_before": found.profile.machine.load_before,
        "flops": found.rates.flops,
        "memory_bytes_per_s": found.rates.memory,
        "collectives": [each.model_dump(mode="json", exclude_none=True) for each in found.profile.collectives],
        "layers": [_layer_figures(each) for each in found.layers],
        "verdicts": [check._asdict() for check in check_claims(found)],
    }


def _layer_figures(each: ComparedLayer) -> dict[str, Any]:
    return {
        "name": _layer_name(each.layer),
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
    """Return the result of :func:`collect_figures` as lines for a terminal."""
    speed, moves = quantity(found["flops"], "FLOP/s"), quantity(found["memory_bytes_per_s"], "B/s")
    lines = [
        f"  {found['network']}",
        f"  medians of {found['rounds']} rounds of a forward and a backward; each process reaches {speed} and "
        f"{moves} while all compute",
    ]
    for each in found["layers"]:
        sizes = f"X = {quantity(each['input_bytes'], 'B')}, D = {quantity(each['slots_bytes'], 'B')}"
        lines += ["", f"  {each['name']}; {sizes}", f"  parm-auto: {each['reason']}"]
        lines.append(f"  {'':<16}{'measured':>10}{'predicted':>11}{'ratio':>8}{'gain':>9}{'predicted':>11}")
        lines += [_table_row(name, schedule) for name, schedule in each["schedules"].items()]
    for verdict in found["verdicts"]:
        correct = verdict["cases"] - len(verdict["failing"])
        lines += ["", f"  {verdict['claim']}: in {correct} of {verdict['cases']} cases"]
        lines += [f"    not in: {case}" for case in verdict["failing"]]
    return lines


def _table_row(name: str, schedule: Mapping[str, Any]) -> str:
    measured, predicted = schedule["measured_s"]["both"], schedule["predicted_s"]["both"]
    return (
        f"  {name:<16}{quantity(measured, 's'):>10}{quantity(predicted, 's'):>11}{schedule['ratio']:>8.2f}"
        f"{schedule['gain']:>8.2f}x{schedule['predicted_gain']:>10.2f}x"
    )


# ---- the benchmark ----


def benchmark_expert_schedules(gpus: int = 0, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Measure expert schedules on two emulated nodes, or with NCCL on several GPUs of one node.

    Raises:
        InputError: this machine cannot emulate links.
        RunError: a process failed.
    """
    if gpus > 1:
        return collect_figures(measure_schedules(*gpu_layers(gpus), say=say))
    return collect_figures(
        measure_schedules(ProcessCluster(RANKS // RANKS_PER_NODE, RANKS_PER_NODE, *RATES), LAYERS, say=say)
    )


def gpu_layers(gpus: int) -> tuple[ProcessCluster, list[Layer]]:
    """Return a cluster whose number of GPUs is a power of two, and enlarged layers for it."""
    ranks = min(RANKS, 1 << gpus.bit_length() - 1)
    fitting = (layer for layer in LAYERS if max(layer.mp, layer.esp) <= ranks)
    larger = [replace(layer, ep=ranks // layer.esp, tokens=layer.tokens * GPU_TOKENS) for layer in fitting]
    return ProcessCluster(1, ranks, uses_gpus=True), larger
