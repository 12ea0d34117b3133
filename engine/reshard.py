"""A transfer alone: its unit tasks, and every strategy with every ordering, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from engine.design import Design
from engine.design.transfer_spec import TransferListSpec, TransferSpec
from engine.lowering import lower
from engine.lowering.crossings import boundary, crossing_spec
from engine.transfer import Load, Transfer, UnitTask, every_transfer, unit_tasks
from engine.units import quantity

SHOWN_TASKS = 12


def answer(spec: TransferSpec | TransferListSpec) -> dict[str, Any]:
    """What ``meshwave reshard --json`` prints. A plan whose strategy cuts tensors further has slices of its own."""
    slices = _slices(spec, [task for number, load in enumerate(spec.loads) for task in _plain_tasks(load, number)])
    plans = []
    for made in every_transfer(spec.loads, spec.lines, spec.chunks):
        own = _slices(spec, made.tasks)
        told = _told(made, spec)
        plans.append({**told, **(own if own != slices else {}), "played_s": made.played_s})
    return {"format": spec.format, "bytes": sum(load.tensor.bytes for load in spec.loads), **slices, "plans": plans}


def _plain_tasks(load: Load, number: int) -> list[UnitTask]:
    found = unit_tasks(load.tensor, *load.source, *load.destination)
    return [replace(task, tensor=number) for task in found]


def _slices(spec: TransferSpec | TransferListSpec, tasks: Sequence[UnitTask]) -> dict[str, Any]:
    """Unit tasks: a list, or for each tensor of several a list."""
    if isinstance(spec, TransferSpec):
        return {"unit_tasks": [_slice(task) for task in tasks]}
    of_tensor: list[list[dict[str, Any]]] = [[] for _ in spec.tensors]
    for task in tasks:
        of_tensor[task.tensor].append(_slice(task))
    return {
        "tensors": [
            {"name": load.name, "bytes": load.tensor.bytes, "unit_tasks": found}
            for load, found in zip(spec.loads, of_tensor, strict=True)
        ]
    }


def _slice(task: UnitTask) -> dict[str, Any]:
    optional = {"keepers": task.keepers, "addends": task.addends, "rings": task.rings}
    return {
        "box": [list(side) for side in task.box],
        "bytes": task.bytes,
        "senders": list(task.senders),
        "receivers": list(task.receivers),
        **{name: _lists(ranks) for name, ranks in optional.items() if ranks},
    }


def _lists(ranks: Sequence[Any]) -> list[Any]:
    return [list(each) if isinstance(each, tuple) else each for each in ranks]


def answer_of(design: Design, wanted: str) -> dict[str, Any]:
    """The same of what crosses between two meshes of a design for one microbatch, ``A:B``, with the document that asks
    about it alone; of messages that differ the largest.

    Raises:
        InputError: nothing crosses there.
    """
    source, destination, tensors = boundary(design, lower(design), wanted)
    spec = crossing_spec(design, source, destination, tensors)
    names = [design.meshes[rank].name for rank in (source, destination)]
    return {**answer(spec), "design": design.name, "boundary": names, "spec": spec.model_dump(mode="json")}


def compared(spec: TransferSpec) -> Iterator[dict[str, Any]]:
    """Every strategy with every ordering, one after another: how long it takes as it is planned and as it is
    played, and whether the first is the least."""
    for made in every_transfer(spec.loads, spec.lines, spec.chunks):
        found = _told(made, spec)
        del found["tasks"]
        yield {**found, "played_s": made.played_s}


def _told(made: Transfer, spec: TransferSpec | TransferListSpec) -> dict[str, Any]:
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


def to_text(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    plans = found["plans"]
    lines = [_of_design(found)] if "boundary" in found else []
    lines += _tensor_lines(found) if "tensors" in found else _task_lines(found)
    orderings = list(dict.fromkeys(plan["ordering"] for plan in plans))
    best = min((plan["makespan_s"] for plan in plans), default=0.0)
    lines += ["", f"{'strategy':<18}" + "".join(f"{name:>15}" for name in orderings)]
    for strategy in dict.fromkeys(plan["strategy"] for plan in plans):
        row = [plan for plan in plans if plan["strategy"] == strategy]
        cells = [f"{quantity(plan['makespan_s'], 's')}{'*' if plan['optimal'] else ' '}" for plan in row]
        lines.append(f"{strategy:<18}" + "".join(f"{cell:>15}" for cell in cells))
    planned = next(plan for plan in plans if plan["makespan_s"] == best)
    played = min(plans, key=lambda plan: plan["played_s"])
    return [
        *lines,
        "",
        "* no order of this strategy is shorter; a unit task holds its NICs as long as it lasts",
        f"fastest as planned: {_plan(planned)}, {quantity(best, 's')}",
        f"fastest message by message, as a run sends them: {_plan(played)}, {quantity(played['played_s'], 's')}",
    ]


def _task_lines(found: Mapping[str, Any]) -> list[str]:
    tasks = found["unit_tasks"]
    lines = [f"{quantity(found['bytes'], 'B')} in {_count(tasks, 'unit task')}"]
    for number, task in enumerate(tasks[:SHOWN_TASKS]):
        box = " ".join(f"{start}:{stop}" for start, stop in task["box"]) or "all"
        lines.append(f"  task {number}: [{box}] {quantity(task['bytes'], 'B')} {_way(task)}")
    if len(tasks) > SHOWN_TASKS:
        lines.append(f"  and {len(tasks) - SHOWN_TASKS} more")
    return lines


def _tensor_lines(found: Mapping[str, Any]) -> list[str]:
    tensors = found["tensors"]
    tasks = [task for tensor in tensors for task in tensor["unit_tasks"]]
    lines = [f"{quantity(found['bytes'], 'B')} in {_count(tensors, 'tensor')}, {_count(tasks, 'unit task')}"]
    for tensor in tensors[:SHOWN_TASKS]:
        size = quantity(tensor["bytes"], "B")
        lines.append(f"  {tensor['name']}: {size} in {_count(tensor['unit_tasks'], 'unit task')}")
    if len(tensors) > SHOWN_TASKS:
        lines.append(f"  and {len(tensors) - SHOWN_TASKS} more")
    return lines


def _count(things: Sequence[Any], word: str) -> str:
    return f"{len(things)} {word}{'s' if len(things) != 1 else ''}"


def _of_design(found: Mapping[str, Any]) -> str:
    source, destination = found["boundary"]
    size = " x ".join(map(str, found["spec"]["tensor"]["shape"]))
    return f"one microbatch of {found['design']} from mesh {source} to mesh {destination}: {size} numbers"


def _plan(plan: Mapping[str, Any]) -> str:
    return f"{plan['strategy']} with {plan['ordering']}"


def _way(task: Mapping[str, Any]) -> str:
    """Whose slice it is, and who gets it; where its owners need it themselves it stays."""
    kept = task.get("keepers", [])
    source = f"from {_some(task['senders'])}"
    if "addends" in task:
        source = "sum of " + " or of ".join(_some(group) for group in task["addends"])
    stays = f"{'' if task['receivers'] or 'addends' not in task else f'{source} '}stays on {_some(kept)}"
    ways = (
        (f"{source} to {_some(task['receivers'])}", task["receivers"]),
        (stays, kept),
    )
    return "; ".join(words for words, ranks in ways if ranks)


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
