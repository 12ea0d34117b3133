"""PPMoE's convergence experiment at small scale: loss against steps and time, for models trained on this machine.

PPMoE (arXiv:2304.11414) shows that its model converges like its backbone. Here four processes on two emulated nodes
train the same model from the same seed on the same batches in several layouts: PPMoE (a pipeline over the nodes,
experts in the tensor-parallel group of a node), and its baseline, expert parallelism over all processes, which sends
tokens once, or once for each tensor-parallel device. They also train the dense backbone.

All runs compute in fp64, in which the losses of all layouts of one model agree to the last digits; in fp32, rounding
sometimes routes a token to another expert. Times depend on the emulated links and on this machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from meshwave.engine.bench.measuring import run_to_end, temporary_launcher
from meshwave.engine.document import Design, parse_design
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Hosts, Launcher, Options
from meshwave.engine.runs.emulation.network import missing_requirement
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.units import quantity

Say = Callable[[str], None]

TITLES: Mapping[str, str] = {
    "ppmoe": "PPMoE",
    "once": "expert parallel, tokens sent once",
    "resent": "expert parallel, tokens sent tp times",
    "backbone": "dense backbone",
}
"""Titles of the runs, by name."""
BASELINES = ("once", "resent")
NODES, PER_NODE = 2, 2
INTRA_BYTES_PER_S, INTER_BYTES_PER_S = 4e8, 5e6
"""Link rates of the emulated network, slow enough between nodes to matter with four processes on two cores."""
WARM_UP = 1
"""Number of steps that step times exclude."""
PRINTED_STEPS = 8
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Size:
    """Size of the model, and length of the training."""

    layers: int = 4
    hidden: int = 64
    sequence: int = 64
    experts: int = 8
    micro_batch: int = 4
    microbatches: int = 4
    """Number of microbatches per step, over all data-parallel replicas."""
    steps: int = 24
    lr: float = 3e-3
    seed: int = 0


def convergence_design(name: str, size: Size) -> Design:
    """Return the design of a run in :data:`TITLES`.

    Every second layer has experts (top-1, capacity factor 1.25). All designs use the same batches, and the same number
    of tokens per call of the gate.
    """
    in_pipeline = name in ("ppmoe", "backbone")
    schedule = {"ppmoe": "ppmoe", "once": "a2a-allgather", "resent": "expert-parallel"}.get(name)
    devices = [list(range(node * PER_NODE, (node + 1) * PER_NODE)) for node in range(NODES)]
    pipeline = [
        {"name": f"node {node}", "devices": each, "axes": {"dp": 1, "tp": PER_NODE}}
        for node, each in enumerate(devices)
    ]
    one_mesh = [{"name": "all", "devices": [*range(NODES * PER_NODE)], "axes": {"dp": NODES, "tp": PER_NODE}}]
    link = {"latency_s": 1e-4}
    moe = {"experts": size.experts, "top_k": 1, "capacity_factor": 1.25, "every": 2, "aux_loss": 0.01}
    return parse_design(
        {
            "format": "meshwave/1",
            "name": TITLES[name],
            "cluster": {
                "nodes": NODES,
                "devices_per_node": PER_NODE,
                "device": {"peak_flops": 6e10, "memory_bytes": 4e9, "memory_bandwidth": 1.2e10, "efficiency": 0.5},
                "intra_node": {**link, "bandwidth": INTRA_BYTES_PER_S},
                "inter_node": {**link, "bandwidth": INTER_BYTES_PER_S},
            },
            "model": {
                "kind": "gpt",
                "layers": size.layers,
                "hidden": size.hidden,
                "heads": 4,
                "sequence": size.sequence,
                "vocab": 256,
                "moe": moe if schedule else None,
            },
            "meshes": pipeline if in_pipeline else one_mesh,
            "pipeline": {"schedule": "1f1b", "microbatches": size.microbatches // (1 if in_pipeline else NODES)},
            "experts": {"schedule": schedule, "ep": NODES * PER_NODE} if schedule else {},
            "training": {
                "micro_batch_size": size.micro_batch,
                "steps": size.steps,
                "lr": size.lr,
                "seed": size.seed,
                "precision": "fp64",
            },
        }
    )


def compare_convergence(
    size: Size | None = None, names: Sequence[str] = tuple(TITLES), say: Say = lambda line: None
) -> dict[str, Any]:
    """Train the named runs one after the other, and return their losses and times.

    If this machine cannot emulate nodes, losses are the same but times are meaningless.

    Raises:
        RunError: a run failed, or exceeded the time limit.
    """
    size, lacking = size or Size(), missing_requirement()
    hosts = Hosts(nodes=NODES, intra_bandwidth=INTRA_BYTES_PER_S, inter_bandwidth=INTER_BYTES_PER_S)
    options = Options(hosts=None if lacking else hosts)
    runs = {}
    with temporary_launcher() as launcher:
        for name in names:
            say(f"training {TITLES[name]}, {size.steps} steps")
            runs[name] = _train_steps(launcher, convergence_design(name, size), options)
    target = max(run["losses"][-1] for run in runs.values())
    for run in runs.values():
        run["seconds_to_target"] = _seconds_to_loss(target, run)
    network = (
        f"nodes are not emulated: {lacking}"
        if lacking
        else f"{hosts.description}, {quantity(INTRA_BYTES_PER_S, 'B/s')} inside"
    )
    return {
        "network": network,
        "steps": size.steps,
        "seed": size.seed,
        "target_loss": target,
        "runs": runs,
        "largest_difference": dict(_largest_loss_differences(runs)),
    }


def _train_steps(launcher: Launcher, design: Design, options: Options) -> dict[str, Any]:
    """Train a design; return the loss of every step, and the seconds from the start to the end of each."""
    prediction = predict(design)
    rows = run_to_end(launcher, specify_run(prediction, options), design.name, TIMEOUT_S).metrics()
    seconds = [row["seconds"] for row in rows]
    return {
        "title": design.name,
        "losses": [row["loss"] for row in rows],
        "seconds": list(accumulate(seconds)),
        "step_s": statistics.median(seconds[WARM_UP:] or seconds),
        "step_quartiles_s": _quartiles(seconds[WARM_UP:] or seconds),
        "predicted_step_s": prediction.timeline.makespan,
    }


def _quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [values[0], values[0]]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return [first, third]


def _seconds_to_loss(target: float, run: Mapping[str, Any]) -> float:
    """Return the training time in seconds until a step has a loss of at most ``target``."""
    return next(float(second) for loss, second in zip(run["losses"], run["seconds"], strict=True) if loss <= target)


def _largest_loss_differences(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield each baseline of PPMoE with the largest difference between their losses at a step."""
    for name in BASELINES:
        if name in runs and "ppmoe" in runs:
            pairs = zip(runs["ppmoe"]["losses"], runs[name]["losses"], strict=True)
            yield name, max(abs(one - other) for one, other in pairs)


# ---- as text ----


def to_text(found: Mapping[str, Any]) -> list[str]:
    """Format the result of :func:`compare_convergence` for a terminal."""
    runs, steps = found["runs"], found["steps"]
    printed = sorted({round(n * (steps - 1) / (PRINTED_STEPS - 1)) for n in range(PRINTED_STEPS)})
    width = max(len(run["title"]) for run in runs.values()) + 2
    lines = [f"  {found['network']}; seed {found['seed']}"]
    lines += ["", f"  {'loss of step':<{width}}" + "".join(f"{step + 1:>9}" for step in printed)]
    lines += [
        f"  {run['title']:<{width}}" + "".join(f"{run['losses'][at]:>9.4f}" for at in printed) for run in runs.values()
    ]
    lines += ["", f"  {'seconds to end of step':<{width}}" + "".join(f"{step + 1:>9}" for step in printed)]
    lines += [
        f"  {run['title']:<{width}}" + "".join(f"{run['seconds'][at]:>9.2f}" for at in printed) for run in runs.values()
    ]
    lines += [""]
    for run in runs.values():
        low, high = (quantity(each, "s") for each in run["step_quartiles_s"])
        lines.append(
            f"  {run['title']:<{width}}step time: median {quantity(run['step_s'], 's')}, IQR {low} - {high} ({steps - WARM_UP} "
            f"steps); {run['seconds_to_target']:.2f} s to a loss of {found['target_loss']:.4f}"
        )
    for name, difference in found["largest_difference"].items():
        lines.append(f"  largest difference in loss between PPMoE and {TITLES[name]}: {difference:.2g}")
    return lines
