"""Comparison of transfer plans: the unit tasks of a transfer, and every strategy with every ordering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from meshwave.engine.document import Design
from meshwave.engine.document.transfer_document import TransferListSpec, TransferSpec
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.boundaries import boundary_transfer_spec, find_boundary
from meshwave.engine.resharding import Load, Transfer, UnitTask, candidate_transfers, plan_traffic, unit_tasks


def transfer_comparison_json(spec: TransferSpec | TransferListSpec) -> dict[str, Any]:
    """Return the JSON data that ``meshwave reshard --json`` prints.

    A plan whose strategy splits tensors further lists its own unit tasks.
    """
    slices = _tasks_data(spec, [task for number, load in enumerate(spec.loads) for task in _plain_tasks(load, number)])
    plans = []
    for made in candidate_transfers(spec.loads, spec.lines, spec.chunks):
        own = _tasks_data(spec, made.tasks)
        traffic = plan_traffic(made.plan, made.tasks, made.links).to_json()
        changed = own if own != slices else {}
        times = {"simulated_s": made.simulated_s, "played_s": made.simulated_s}  # under the key of earlier versions too
        plans.append({**_plan_data(made, spec), **changed, **times, "traffic": traffic})
    return {"format": spec.format, "bytes": sum(load.tensor.bytes for load in spec.loads), **slices, "plans": plans}


def _plain_tasks(load: Load, number: int) -> list[UnitTask]:
    found = unit_tasks(load.tensor, *load.source, *load.destination)
    return [replace(task, tensor=number) for task in found]


def _tasks_data(spec: TransferSpec | TransferListSpec, tasks: Sequence[UnitTask]) -> dict[str, Any]:
    """Return the unit tasks as one list, or as one list per tensor if there are several."""
    if isinstance(spec, TransferSpec):
        return {"unit_tasks": [_task_data(task) for task in tasks]}
    of_tensor: list[list[dict[str, Any]]] = [[] for _ in spec.tensors]
    for task in tasks:
        of_tensor[task.tensor].append(_task_data(task))
    return {
        "tensors": [
            {"name": load.name, "bytes": load.tensor.bytes, "unit_tasks": found}
            for load, found in zip(spec.loads, of_tensor, strict=True)
        ]
    }


def _task_data(task: UnitTask) -> dict[str, Any]:
    optional = {"keepers": task.keepers, "addends": task.addends, "rings": task.rings}
    return {
        "box": [list(side) for side in task.box],
        "bytes": task.bytes,
        "senders": list(task.senders),
        "receivers": list(task.receivers),
        **{name: _nested_lists(ranks) for name, ranks in optional.items() if ranks},
    }


def _nested_lists(ranks: Sequence[Any]) -> list[Any]:
    return [list(each) if isinstance(each, tuple) else each for each in ranks]


def boundary_comparison_json(design: Design, wanted: str) -> dict[str, Any]:
    """Return :func:`transfer_comparison_json` for the largest message that crosses boundary ``A:B`` of a design.

    The data includes the stand-alone transfer document of that message.

    Raises:
        InputError: the boundary does not exist.
    """
    source, destination, tensors = find_boundary(design, lower(design), wanted)
    spec = boundary_transfer_spec(design, source, destination, tensors)
    names = [design.meshes[rank].name for rank in (source, destination)]
    return {
        **transfer_comparison_json(spec),
        "design": design.name,
        "boundary": names,
        "spec": spec.model_dump(mode="json"),
    }


def compare_plans(spec: TransferSpec) -> Iterator[dict[str, Any]]:
    """Yield the plan of every strategy with every ordering.

    Each plan has the planner's estimate, the time simulated with shared links, and True if the estimate is optimal.
    """
    for made in candidate_transfers(spec.loads, spec.lines, spec.chunks):
        found = _plan_data(made, spec)
        del found["tasks"]
        yield {**found, "simulated_s": made.simulated_s}


def _plan_data(made: Transfer, spec: TransferSpec | TransferListSpec) -> dict[str, Any]:
    plan = made.plan
    tasks: list[dict[str, Any]] = [task._asdict() for task in plan.tasks]
    if isinstance(spec, TransferListSpec):
        first = [0, *accumulate(Counter(task.tensor for task in made.tasks)[n] for n in range(len(spec.tensors)))]
        for each in tasks:
            each["tensor"] = made.tasks[each["task"]].tensor
            each["task"] -= first[each["tensor"]]
    return {
        "strategy": plan.strategy,
        "ordering": plan.ordering,
        "makespan_s": plan.makespan_s,
        "reduce_s": plan.reduce_s,
        "gather_s": plan.gather_s,
        "bound_s": plan.bound_s,
        "optimal": plan.is_optimal,
        "tasks": tasks,
    }
