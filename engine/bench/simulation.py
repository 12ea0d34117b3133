"""Benchmarks of lowering and simulation."""

from __future__ import annotations

import numpy as np

from meshwave.engine.bench.measuring import median_s
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program

Figures = dict[str, float]
SIZES = (("1f1b", 64, 512), ("1f1b", 128, 1024), ("hanayo", 128, 1024))


def measure_simulation() -> Figures:
    """Measure the time to order, lower, verify and simulate large pipelines."""
    figures: Figures = {}
    for name, ranks, microbatches in SIZES:
        figures |= _measure_pipeline(name, ranks, microbatches)
    return figures


def _measure_pipeline(name: str, ranks: int, microbatches: int) -> Figures:
    from meshwave.engine.lowering.transfers import add_transfers
    from meshwave.engine.lowering.updates import add_updates
    from meshwave.engine.program.simulation import simulate
    from meshwave.engine.program.verification import computation_problems, verify
    from meshwave.engine.schedules import Pipe, schedules

    def lower() -> Program:
        compute = schedules[name]().program(Pipe(ranks, microbatches))
        computation_problems(compute, microbatches)
        program = add_updates(add_transfers(compute), (1,) * ranks)
        verify(program)
        return program

    program = lower()
    seconds = np.select([program.op == Op.F, program.op == Op.B], [1.0, 2.0])
    size = f"{name} {ranks} x {microbatches}"
    return {
        f"{size}: computations": int(program.is_compute.sum()),
        f"{size}: generate, verify and simulate_s": median_s(lambda: simulate(lower(), seconds)),
        f"{size}: another cost_s": median_s(lambda: simulate(program, 2 * seconds)),
    }


SHARED = ((8, 32, 4), (64, 512, 8), (128, 1024, 8), (128, 1024, 64))
"""Meshes, microbatches and devices per node; the last entry alternates its meshes between two nodes."""


def measure_contention() -> Figures:
    """Measure the time to price and simulate pipelines with shared NICs, and without contention."""
    figures: Figures = {}
    for meshes, microbatches, per_node in SHARED:
        figures |= _measure_shared_links(meshes, microbatches, per_node)
    return figures


def _measure_shared_links(meshes: int, microbatches: int, per_node: int) -> Figures:
    from meshwave.engine.document import parse_design
    from meshwave.engine.predict.prediction import predict

    nodes = meshes // per_node
    order = [rank % nodes * per_node + rank // nodes if nodes == 2 else rank for rank in range(meshes)]
    document = {
        "format": "meshwave/1",
        "cluster": {
            "nodes": nodes,
            "devices_per_node": per_node,
            "device": {"peak_flops": 6e11, "memory_bytes": 4e9, "memory_bandwidth": 1.2e12},
            "intra_node": {"latency_s": 1e-5, "bandwidth": 1e9},
            "inter_node": {"latency_s": 1e-4, "bandwidth": 2e7},
        },
        "model": {"kind": "gpt", "layers": meshes, "hidden": 256, "heads": 4, "sequence": 128, "vocab": 257},
        "meshes": [{"name": f"m{rank}", "devices": [device]} for rank, device in enumerate(order)],
        "pipeline": {"schedule": "1f1b", "microbatches": microbatches},
        "training": {"micro_batch_size": 4},
    }
    shared, free = (
        parse_design({**document, "cost": {"kind": "roofline", "transfer_model": model}})
        for model in ("shared-links", "latency")
    )
    program = predict(shared).program  # excludes compilation and caches from the measurement
    size = f"{meshes} x {microbatches}, {per_node} devices a node"
    return {
        f"{size}: shared links_s": median_s(lambda: predict(shared, program)),
        f"{size}: free links_s": median_s(lambda: predict(free, program)),
    }
