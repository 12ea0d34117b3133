"""A transfer alone: its unit tasks, and every strategy with every ordering, side by side."""

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
from meshwave.engine.resharding import Load, Transfer, UnitTask, every_transfer, unit_tasks


def transfer_answer(spec: TransferSpec | TransferListSpec) -> dict[str, Any]:
    """What ``meshwave reshard --json`` prints. A plan whose strategy cuts tensors further has slices of its own."""
    slices = _tasks_data(spec, [task for number, load in enumerate(spec.loads) for task in _plain_tasks(load, number)])
    plans = []
    for made in every_transfer(spec.loads, spec.lines, spec.chunks):
        own = _tasks_data(spec, made.tasks)
        told = _plan_data(made, spec)
        plans.append({**told, **(own if own != slices else {}), "played_s": made.played_s})
    return {"format": spec.format, "bytes": sum(load.tensor.bytes for load in spec.loads), **slices, "plans": plans}


def _plain_tasks(load: Load, number: int) -> list[UnitTask]:
    found = unit_tasks(load.tensor, *load.source, *load.destination)
    return [replace(task, tensor=number) for task in found]


def _tasks_data(spec: TransferSpec | TransferListSpec, tasks: Sequence[UnitTask]) -> dict[str, Any]:
    """Unit tasks: a list, or for each tensor of several a list."""
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
        **{name: _as_lists(ranks) for name, ranks in optional.items() if ranks},
    }


def _as_lists(ranks: Sequence[Any]) -> list[Any]:
    return [list(each) if isinstance(each, tuple) else each for each in ranks]


def boundary_answer(design: Design, wanted: str) -> dict[str, Any]:
    """The same of what crosses between two meshes of a design for one microbatch, ``A:B``, with the document that asks
    about it alone; of messages that differ the largest.

    Raises:
        InputError: nothing crosses there.
    """
    source, destination, tensors = find_boundary(design, lower(design), wanted)
    spec = boundary_transfer_spec(design, source, destination, tensors)
    names = [design.meshes[rank].name for rank in (source, destination)]
    return {**transfer_answer(spec), "design": design.name, "boundary": names, "spec": spec.model_dump(mode="json")}


def compare_plans(spec: TransferSpec) -> Iterator[dict[str, Any]]:
    """Every strategy with every ordering, one after another: how long it takes as it is planned and as it is
    played, and whether the first is the least."""
    for made in every_transfer(spec.loads, spec.lines, spec.chunks):
        found = _plan_data(made, spec)
        del found["tasks"]
        yield {**found, "played_s": made.played_s}


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


def _count(things: Sequence[Any], word: str) -> str:
    return f"{len(things)} {word}{'s' if len(things) != 1 else ''}"
