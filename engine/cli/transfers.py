"""``meshwave reshard``: comparison of plans for a transfer between two meshes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from meshwave.engine.cli.output import print_result, read_input, with_progress
from meshwave.engine.findings import Refusal
from meshwave.engine.messages import fill_template
from meshwave.engine.units import quantity

MOST_TASKS = 12
"""Maximum number of unit tasks or tensors that are listed."""


@with_progress
def compare_transfer_plans(options: argparse.Namespace) -> int:
    """Print a comparison of transfer plans, for a design or a transfer document."""
    from meshwave.engine.document import parse_design
    from meshwave.engine.document.transfer_document import parse_transfers
    from meshwave.engine.predict.transfer_comparison import boundary_comparison_json, transfer_comparison_json

    content, is_design = read_input(options.transfer)
    if is_design:
        found = boundary_comparison_json(parse_design(content), options.boundary or "")
    elif options.boundary is not None:
        raise Refusal("boundary_of_transfer")
    else:
        found = transfer_comparison_json(parse_transfers(content))
    return print_result(options, found, to_text)


def to_text(found: dict[str, Any]) -> list[str]:
    """Format a comparison of plans as lines of text."""
    plans = found["plans"]
    lines = [_boundary_line(found)] if "boundary" in found else []
    lines += _tensor_lines(found) if "tensors" in found else _task_lines(found)
    orderings = list(dict.fromkeys(plan["ordering"] for plan in plans))
    best = min((plan["makespan_s"] for plan in plans), default=0.0)
    lines += ["", f"{'strategy':<18}" + "".join(f"{name:>15}" for name in orderings)]
    for strategy in dict.fromkeys(plan["strategy"] for plan in plans):
        row = [plan for plan in plans if plan["strategy"] == strategy]
        cells = [f"{quantity(plan['makespan_s'], 's')}{'*' if plan['optimal'] else ' '}" for plan in row]
        lines.append(f"{strategy:<18}" + "".join(f"{cell:>15}" for cell in cells))
    estimated = next(plan for plan in plans if plan["makespan_s"] == best)
    simulated = min(plans, key=lambda plan: plan["simulated_s"])
    return [
        *lines,
        "",
        "* no order of this strategy is shorter; a unit task occupies its NICs for its whole duration",
        f"fastest, planner's estimate: {_plan_text(estimated)}, {quantity(best, 's')}",
        f"fastest, simulated with shared links: {_plan_text(simulated)}, {quantity(simulated['simulated_s'], 's')}",
    ]


def _task_lines(found: Mapping[str, Any]) -> list[str]:
    tasks = found["unit_tasks"]
    lines = [f"{quantity(found['bytes'], 'B')} in {_unit_tasks(tasks)}"]
    for number, task in enumerate(tasks[:MOST_TASKS]):
        box = " ".join(f"{start}:{stop}" for start, stop in task["box"]) or "all"
        lines.append(f"  task {number}: [{box}] {quantity(task['bytes'], 'B')} {_route_text(task)}")
    if len(tasks) > MOST_TASKS:
        lines.append(f"  and {len(tasks) - MOST_TASKS} more")
    return lines


def _tensor_lines(found: Mapping[str, Any]) -> list[str]:
    tensors = found["tensors"]
    tasks = [task for tensor in tensors for task in tensor["unit_tasks"]]
    lines = [
        f"{quantity(found['bytes'], 'B')} in {fill_template('{count} {count:plural|tensor|tensors}', count=len(tensors))}, {_unit_tasks(tasks)}"
    ]
    for tensor in tensors[:MOST_TASKS]:
        size = quantity(tensor["bytes"], "B")
        lines.append(f"  {tensor['name']}: {size} in {_unit_tasks(tensor['unit_tasks'])}")
    if len(tensors) > MOST_TASKS:
        lines.append(f"  and {len(tensors) - MOST_TASKS} more")
    return lines


def _unit_tasks(tasks: Sequence[Any]) -> str:
    return fill_template("{count} unit {count:plural|task|tasks}", count=len(tasks))


def _boundary_line(found: Mapping[str, Any]) -> str:
    source, destination = found["boundary"]
    size = " x ".join(map(str, found["spec"]["tensor"]["shape"]))
    return f"one microbatch of {found['design']} from mesh {source} to mesh {destination}: {size} numbers"


def _plan_text(plan: Mapping[str, Any]) -> str:
    return f"{plan['strategy']} with {plan['ordering']}"


def _route_text(task: Mapping[str, Any]) -> str:
    """Return a text on the senders and receivers of a unit task, and the ranks that keep its slice."""
    kept = task.get("keepers", [])
    source = f"from {_rank_list_text(task['senders'])}"
    if "addends" in task:
        source = "sum of " + " or of ".join(_rank_list_text(group) for group in task["addends"])
    stays = f"{'' if task['receivers'] or 'addends' not in task else f'{source} '}stays on {_rank_list_text(kept)}"
    routes = (
        (f"{source} to {_rank_list_text(task['receivers'])}", task["receivers"]),
        (stays, kept),
    )
    return "; ".join(text for text, ranks in routes if ranks)


def _rank_list_text(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
