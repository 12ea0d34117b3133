"""The command line: ``meshwave check | program | simulate | run | runs | compare | import | export | ...``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshwave.engine.errors import InputError
from meshwave.engine.predict.transfer_comparison import _count
from meshwave.engine.units import quantity

if TYPE_CHECKING:
    pass
from meshwave.engine.cli.output import _looked_into, _print, _telling


@_telling
def _reshard(options: argparse.Namespace) -> int:
    from meshwave.engine.document import parse_design
    from meshwave.engine.document.transfer_document import parse_transfers
    from meshwave.engine.predict.transfer_comparison import boundary_answer, transfer_answer

    content, is_design = _looked_into(options.transfer)
    if is_design:
        found = boundary_answer(parse_design(content), options.boundary or "")
    elif options.boundary is not None:
        raise InputError("--boundary is one of a design; a transfer alone says itself from where to where it goes")
    else:
        found = transfer_answer(parse_transfers(content))
    return _print(options, found, to_text)


SHOWN_TASKS = 12


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
