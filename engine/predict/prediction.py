"""Prediction of a design: its program, costs, timeline and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import (
    Costs,
    DeviceMemory,
    PeakMemory,
    device_memory,
    estimate,
    memory_over_time,
    memory_parts_over_time,
    peak_inflight,
    peak_memory,
    pricing_model,
    wait_seconds,
)
from meshwave.engine.costs.expert_blocks import expert_counts
from meshwave.engine.costs.model_flops import parameter_counts
from meshwave.engine.costs.models.roofline import operator_costs
from meshwave.engine.costs.packed_documents import context_imbalance
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import resolve_expert_layer
from meshwave.engine.document.problems import problems
from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.errors import InputError
from meshwave.engine.experts import dropped_token_share
from meshwave.engine.findings import Problem, problems_of
from meshwave.engine.lowering.lower import lower, lower_and_use
from meshwave.engine.lowering.schedule_prices import search_findings
from meshwave.engine.predict.expenses import find_energy_j, find_price
from meshwave.engine.predict.expert_moves import ExpertMoves, find_expert_moves
from meshwave.engine.predict.link_flows import LinkFlows, find_flows
from meshwave.engine.predict.link_load import Bounds, PortLoad, find_bounds, port_loads
from meshwave.engine.predict.published_examples import find_published_step
from meshwave.engine.predict.similar_runs import Evidence, find_evidence
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.progress import report_progress


@dataclass(frozen=True, eq=False)
class Prediction:
    """Design with its program, costs and simulated timeline, and all metrics derived from them."""

    design: Design
    program: Program
    costs: Costs
    timeline: Timeline

    def replace_design(self, design: Design) -> Prediction:
        """Return the prediction, with its cached results, for a design that differs only in its name."""
        same = copy(self)
        vars(same)["design"] = design
        if "numbers" in vars(same):
            vars(same)["numbers"] = {**self.numbers, "name": design.name}
        return same

    @cached_property
    def memory(self) -> PeakMemory:
        """Peak memory of a device of each mesh in bytes, by category."""
        return peak_memory(self.program, self.costs)

    @cached_property
    def device_memory(self) -> list[DeviceMemory]:
        """Peak memory of every device by category, as groups of equal devices of a mesh."""
        return device_memory(self.design, self.program, self.costs, self.memory)

    @cached_property
    def memory_curves(self) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """For each mesh, times in seconds at which a device's memory changes, and its bytes from these times."""
        return memory_over_time(self.timeline, self.costs)

    @cached_property
    def memory_parts(self) -> list[tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]]:
        """The memory curves with the bytes of each category."""
        return memory_parts_over_time(self.timeline, self.costs)

    @cached_property
    def weight_copies(self) -> NDArray[np.float64]:
        """Number of copies of its share of the model that a device of each mesh holds, ``[meshes]``; 2 for Chimera."""
        held = np.bincount(self.program.placement.ravel(), minlength=self.program.ranks)
        return held * self.program.ranks / self.program.stages

    @cached_property
    def simulated_seconds(self) -> NDArray[np.float64]:
        """Duration of each action in the timeline in seconds, ``[rows]``: its cost and the delays of shared links."""
        seconds = self.costs.seconds.copy()
        if self.costs.network is None:
            return seconds
        rows = self.costs.network.flow_rows
        rows = rows[~self.program.fused[rows]]
        spans = self.program.span_of_row[rows]
        slots = seconds[rows] + np.where(self.program.next_is_fused[rows], np.append(seconds, 0.0)[rows + 1], 0.0)
        seconds[rows] += self.timeline.end[spans] - self.timeline.start[spans] - slots
        return seconds

    @cached_property
    def communication_inside_blocks(self) -> NDArray[np.float64]:
        """Seconds for which the blocks of each mesh wait for expert or tensor-parallel collectives, ``[meshes]``.

        They are part of the computing time, and not of the communication exposed between blocks. Waits during which the
        other action of a slot computes are not counted.
        """
        of_rows = wait_seconds(self.design, self.program, self.costs.layers)
        return self._sum_by_mesh(of_rows) - self.overlap_saved

    @cached_property
    def overlap_saved(self) -> NDArray[np.float64]:
        """Seconds by which shared slots are shorter than the sum of their actions, ``[meshes]``."""
        return self._sum_by_mesh(self.costs.overlap_saved)

    def _sum_by_mesh(self, of_rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.bincount(self.program.rank, of_rows, minlength=self.program.ranks), np.float64)

    @cached_property
    def port_loads(self) -> list[PortLoad]:
        """Load of each port of the cluster in a step; empty if no links are shared."""
        return port_loads(self.program, self.costs, self.timeline.makespan)

    @cached_property
    def lower_bounds(self) -> Bounds | None:
        """Lower bounds of the step time; None for unit costs."""
        return find_bounds(self.program, self.costs, self.timeline, self.port_loads)

    @cached_property
    def evidence(self) -> Evidence | None:
        """Evidence for the prediction: constants of the device, and published runs of similar designs.

        None if there are no constants for the device.
        """
        return find_evidence(self.design)

    def _published_step(self) -> dict[str, Any] | None:
        """Return the published step time if the design is a published example."""
        if self.costs.unit != "s" or (step := find_published_step(self.design)) is None:
            return None
        makespan = self.timeline.makespan
        return {"seconds": step.run.published_s, "source": step.source, "words": step.comparison(makespan)}

    @cached_property
    def link_flows(self) -> LinkFlows | None:
        """Messages and collectives with their ports and times; None if no links are shared."""
        return find_flows(self.program, self.costs, self.timeline)

    @cached_property
    def dropped_by_mesh(self) -> list[float] | None:
        """Expected fraction of token assignments that are dropped, ``[meshes]``; None if no block has experts."""
        if not self.design.model.expert_blocks:
            return None
        (counts,) = expert_counts(self.design, [self.design.model.layers])
        dropped = []
        for mesh in self.design.meshes:
            found = {number: resolve_expert_layer(self.design, mesh, number) for number in counts}
            shares = (counts[number] * dropped_token_share(each.schedule, each.layer) for number, each in found.items())
            dropped.append(sum(shares) / sum(counts.values()))
        return dropped

    @cached_property
    def expert_moves(self) -> ExpertMoves | None:
        """Cost of moves of experts between steps, which is not part of the step time; None if experts do not move."""
        design = operator_costs(self.design).insert_measured_rates(self.design)
        return find_expert_moves(design, self.program, self.costs.layers, self.timeline.makespan)

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """Metrics in SI units that ``meshwave simulate --json`` prints and the page shows; lists are per mesh."""
        timeline, costs, makespan = self.timeline, self.costs, self.timeline.makespan
        busy = timeline.busy
        seconds = costs.unit == "s" and makespan > 0
        parameters, active_parameters = parameter_counts(self.design.model)
        price, energy_j = (find(self.design, makespan, costs.tokens) for find in (find_price, find_energy_j))
        return {
            "name": self.design.name,
            "digest": self.program.digest,
            "unit": costs.unit,
            "makespan_s": makespan,
            "bubble_ratio": timeline.bubble_ratio,
            "span_bubble_ratio": timeline.span_bubble_ratio,
            "samples_per_s": costs.samples / makespan if makespan else 0.0,
            "tokens_per_s": costs.tokens / makespan if makespan else 0.0,
            "mfu": costs.model_flops / (costs.peak_flops * makespan) if seconds else None,
            "price": price._asdict() if price and seconds else None,
            "energy_j": energy_j._asdict() if energy_j and seconds else None,
            "fits": bool(self.memory.fits.all()),
            "capacity_bytes": costs.capacity_bytes,
            "meshes": list(timeline.meshes),
            "parameters": parameters,
            "active_parameters": active_parameters,
            "layers_per_stage": list(costs.layers),
            "busy_s": busy.tolist(),
            "idle_s": (makespan - busy).tolist(),
            "exposed_communication_s": timeline.exposed_communication.tolist(),
            "mean_exposed_communication_s": timeline.mean_exposed_communication,
            "inside_communication_s": self.communication_inside_blocks.tolist() if seconds else None,
            "bounds": self.lower_bounds.as_data() if self.lower_bounds else None,
            "evidence": self.evidence.as_data(makespan) if self.evidence else None,
            "fit_error": self.design.cost.fit_error(),
            "published": self._published_step(),
            "links": [load.as_data() for load in self.port_loads],
            "dropped": self.dropped_by_mesh,
            "expert_moves": self.expert_moves._asdict() if seconds and self.expert_moves else None,
            "overlap_saved_s": self.overlap_saved.tolist(),
            "mean_inside_communication_s": float(self.communication_inside_blocks.mean()) if seconds else None,
            "peak_inflight": peak_inflight(self.program, self.design.pipeline.stages).tolist(),
            "peak_memory_bytes": self.memory.total_bytes.tolist(),
            "memory_bytes": {kind: values.tolist() for kind, values in self.memory.by_category.items()},
            "weight_copies": self.weight_copies.tolist(),
            "findings": list(search_findings(self.design)),
            "warnings": [str(problem) for problem in self.warnings],
        }

    @cached_property
    def warnings(self) -> list[Problem]:
        """Problems that do not prevent the simulation."""
        priced = pricing_model(self.design).warnings(self.design)
        return [*_memory_warnings(self), *priced, *_design_warnings(self.design)]


def predict(design: Design, program: Program | None = None) -> Prediction:
    """Lower, price and simulate a design; lowering is skipped if its ``program`` is given.

    Raises:
        InputError: the order deadlocks, or the cost model cannot price the design.
    """
    ordered = 0.9 if type(design.pipeline).depends_on_costs else 0.4  # share of the progress that ordering takes
    report_progress(0.0, "ordering actions")

    def price(program: Program) -> tuple[Program, Costs]:
        report_progress(ordered, "pricing actions")
        return program, estimate(design, program)

    program, costs = lower_and_use(design, price) if program is None else price(program)
    report_progress(ordered + (1 - ordered) / 4, "simulating")
    names = tuple(mesh.name for mesh in design.meshes)
    return Prediction(design, program, costs, costs.simulate(program, meshes=names))


def check_design(design: Design) -> list[Problem]:
    """Return every problem of a design or draft: of its sections, of lowering and of pricing, and all warnings."""
    found = problems(design)
    wrong = [problem.where for problem in found if problem.severity == "error"]
    try:
        if not wrong:
            return [*found, *predict(design).warnings]
        if design.pipeline.schedule == "custom" and not any(where.startswith(_ORDER_SECTIONS) for where in wrong):
            lower(design)  # problems of other sections do not hide those of a hand-drawn order
    except InputError as error:
        return [*found, *problems_of(error)]
    return found


_ORDER_SECTIONS = ("pipeline", "model", "meshes")
"""Sections of the document on which a hand-drawn order depends."""


def _memory_warnings(prediction: Prediction) -> Iterator[Problem]:
    memory, design = prediction.memory, prediction.design
    for rank in np.flatnonzero(~memory.fits).tolist():
        largest = max(memory.by_category, key=lambda kind: memory.by_category[kind][rank])
        total, capacity, most = memory.total_bytes[rank], memory.capacity_bytes, memory.by_category[largest][rank]
        params = {
            "mesh": design.meshes[rank].name,
            "needed_bytes": float(total),
            "capacity_bytes": float(capacity),
            "category": largest,
            "category_bytes": float(most),
            "remedies": _memory_remedies(design, largest),
        }
        yield Problem(f"meshes[{rank}]", "memory", params, "warning")


def _memory_remedies(design: Design, category: str) -> list[str]:
    """Return remedies that reduce one category of memory and that the design does not use yet."""
    smaller_micro_batch = ["smaller_micro_batch"] * (design.training.micro_batch_size > 1)
    return {
        "weights": ["more_meshes", "larger_tp"],
        "gradients": ["more_meshes", "larger_tp"],
        "optimizer": ["more_meshes", "larger_tp", *(["sgd"] * (design.training.optimizer != "sgd"))],
        "activations": [
            *smaller_micro_batch,
            *(["1f1b"] * (design.pipeline.schedule == "gpipe")),
            *(["recompute"] * (design.pipeline.recompute != "full")),
            "more_meshes",
        ],
        "working": smaller_micro_batch or ["larger_tp"],
    }[category]


NOTABLE_IMBALANCE = 1.1
"""Attention of the slowest context-parallel device, relative to the mean, above which there is a warning."""


def _design_warnings(design: Design) -> Iterator[Problem]:
    used = {device for mesh in design.meshes for device in mesh.devices}
    idle = design.cluster.devices - len(used)
    if idle:
        yield Problem("meshes", "unused_devices", {"idle": idle, "devices": design.cluster.devices}, "warning")
    imbalance, number = max((context_imbalance(design, mesh), number) for number, mesh in enumerate(design.meshes))
    if imbalance > NOTABLE_IMBALANCE:
        params = {"mesh": design.meshes[number].name, "ratio": imbalance}
        yield Problem(f"meshes[{number}].axes.cp", "context_imbalance", params, "warning")
    yield from (problem.replace(severity="warning") for problem in run_problems(design))
