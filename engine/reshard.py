"""A transfer alone: its unit tasks, and every strategy with every ordering, side by side."""

from __future__ import annotations

from typing import Any

from engine.design.transfer_spec import TransferSpec
from engine.transfer import Plan, every_plan, unit_tasks
from engine.units import quantity

SHOWN_TASKS = 12


def answer(spec: TransferSpec) -> dict[str, Any]:
    """What ``meshwave reshard --json`` prints."""
    source, destination = spec.source, spec.destination
    tasks = unit_tasks(spec.what, source.mesh, source.spec, destination.mesh, destination.spec)
    return {
        "format": spec.format,
        "bytes": spec.what.bytes,
        "unit_tasks": [
            {
                "box": [list(side) for side in task.box],
                "bytes": task.bytes,
                "senders": list(task.senders),
                "receivers": list(task.receivers),
                **({"keepers": list(task.keepers)} if task.keepers else {}),
            }
            for task in tasks
        ],
        "plans": [_told(plan) for plan in every_plan(tasks, spec.lines, spec.chunks)],
    }


def _told(plan: Plan) -> dict[str, Any]:
    return {
        "strategy": plan.strategy,
        "ordering": plan.ordering,
        "makespan_s": plan.makespan_s,
        "bound_s": plan.bound_s,
        "optimal": plan.is_optimal,
        "tasks": [task._asdict() for task in plan.tasks],
    }


def to_text(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    tasks, plans = found["unit_tasks"], found["plans"]
    lines = [f"{quantity(found['bytes'], 'B')} in {len(tasks)} unit task{'s' if len(tasks) != 1 else ''}"]
    for number, task in enumerate(tasks[:SHOWN_TASKS]):
        box = " ".join(f"{start}:{stop}" for start, stop in task["box"]) or "all"
        lines.append(
            f"  task {number}: [{box}] {quantity(task['bytes'], 'B')} from {_some(task['senders'])} to {_some(task['receivers'])}"
        )
    if len(tasks) > SHOWN_TASKS:
        lines.append(f"  and {len(tasks) - SHOWN_TASKS} more")
    orderings = list(dict.fromkeys(plan["ordering"] for plan in plans))
    best = min((plan["makespan_s"] for plan in plans), default=0.0)
    lines += ["", f"{'strategy':<18}" + "".join(f"{name:>15}" for name in orderings)]
    for strategy in dict.fromkeys(plan["strategy"] for plan in plans):
        row = [plan for plan in plans if plan["strategy"] == strategy]
        cells = [f"{quantity(plan['makespan_s'], 's')}{'*' if plan['optimal'] else ' '}" for plan in row]
        lines.append(f"{strategy:<18}" + "".join(f"{cell:>15}" for cell in cells))
    fastest = next(plan for plan in plans if plan["makespan_s"] == best)
    return [
        *lines,
        "",
        "* no order of this strategy is shorter",
        f"fastest: {fastest['strategy']} with {fastest['ordering']}, {quantity(best, 's')}",
    ]


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "") or "nobody"
