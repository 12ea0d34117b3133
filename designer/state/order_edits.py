"""Drawing an order by hand in the timeline: what the page asks while a block is moved, and what a drop changes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from meshwave.designer.kit.canvas import value_of
from meshwave.designer.state import design_edits as edits
from meshwave.designer.state.design_session import COMPUTING_PROBLEM, Session
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.findings import DesignError, FindingError, Problem, Refusal
from meshwave.engine.lowering.lower import order
from meshwave.engine.lowering.program_problems import name_meshes
from meshwave.engine.messages import render
from meshwave.engine.messages.program import MESSAGES as PROGRAM_MESSAGES
from meshwave.engine.predict.order_consequences import OrderOutcome, find_consequences, simulate_order
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program import order_edits
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.deadlock import Wait
from meshwave.engine.program.deadlock_repair import repair
from meshwave.engine.program.order_difference import compare_orders
from meshwave.engine.program.order_repetition import find_repetitions, repeat_blocks
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.program.verification import computation_problems
from meshwave.engine.schedules import schedules
from meshwave.engine.units import duration

Message = Mapping[str, Any]
Send = Callable[[dict[str, Any]], None]
TYPE = "order"  # of the messages between the timeline and its drawing
SAME = 5e-3  # per cent: a change that is none


class Drawing:
    """The edit mode of one tab's timeline.

    The page sends ``{"type": "order", "do": NAME, ...}`` and is answered in kind: ``state`` is how
    things stand after every change, ``preview`` what an edit would do, ``done`` what one did. Blocks
    are named by ``[op, stage, microbatch]``, so that what the page shows may be older than the order.
    """

    def __init__(self, session: Session, send: Send) -> None:
        self._session, self._send = session, send
        self._is_on = self._tells_differences = False
        self._now: OrderOutcome | None = None
        session.param.watch(lambda *_: self._changed(), ["design", "prediction"])

    def handle(self, message: Message) -> None:
        """Do what the page asks; what is refused is said, and a defect of ours too."""
        number = message.get("number")
        try:
            value_of(message, "do", self._does.__getitem__)(self, message)
        except MeshwaveError as error:
            self._send({"type": TYPE, "told": "refused", "number": number, "words": self._text(error)})
        except Exception as error:
            traceback.print_exc()
            words = f"That went wrong inside Meshwave ({error!r}); nothing was changed. The terminal says more."
            self._send({"type": TYPE, "told": "refused", "number": number, "words": words})

    # ---- how things stand ----

    def _changed(self) -> None:
        self._now = None
        if self._is_on:
            self._tell_state()

    def _turn(self, message: Message) -> None:
        self._is_on = bool(message.get("on"))
        self._tells_differences &= self._is_on
        if self._is_on:
            self._tell_state()

    def _differences(self, message: Message) -> None:
        self._tells_differences = bool(message.get("on"))
        self._tell_state()

    def _tell_state(self) -> None:
        try:
            told = self._state()
        except MeshwaveError as error:
            told = {"refused": self._text(error)}
        self._send({"type": TYPE, "told": "state", **told})

    def _text(self, error: MeshwaveError) -> str:
        """Return what is wrong, with the names of meshes."""
        match error:
            case FindingError():
                return self._message(error.problem)
            case DesignError():
                return "\n".join(map(self._message, error.problems))
        return str(error)

    def _message(self, problem: Problem) -> str:
        return name_meshes(problem, [mesh.name for mesh in self._session.design.meshes]).message

    def _state(self) -> dict[str, Any]:
        design, now = self._session.design, self._played()
        start = start_of(self._session)
        told: dict[str, Any] = {
            "refused": self._unfit(now),
            "schedule": _title(design),
            "is_custom": _is_custom(design),
            "start": _title(start),
            "fault": "" if now.timeline is not None else self._message(now.problems[0]),
            "ring": _cycle(now.cycle),
        }
        if self._tells_differences:
            told["difference"] = self._difference(start, now)
        return told

    def _difference(self, start: Design, now: OrderOutcome) -> dict[str, Any]:
        try:
            told = compare_orders(order(start), now.order)
        except InputError as error:  # meshes or microbatches changed meanwhile
            return {"words": str(error), "blocks": [], "changed": []}
        names = [mesh.name for mesh in self._session.design.meshes]
        begun = _title(start) if not _is_custom(start) else "the order you started from"
        changed = [*told.split, *told.joined, *told.overlapped, *told.separated]
        return {
            "words": told.summary(names, begun),
            "blocks": [[*_named(moved.action), moved.places] for moved in told.moved],
            "changed": [_named(action) for action in changed],
        }

    def _unfit(self, now: OrderOutcome) -> str:
        """Return why the order cannot be edited by hand; empty where it can."""
        if now.program is None:
            return render("incomplete_order", {"reason": self._message(now.problems[0])})
        if len(now.order) > edits.LARGEST_BY_HAND:
            return render("order_too_long_to_edit", {"blocks": len(now.order), "most": edits.LARGEST_BY_HAND})
        return ""

    def _played(self) -> OrderOutcome:
        """Return the order of the open design with its simulation, from its prediction if there is one.

        Raises:
            InputError: the design is not that far yet.
        """
        if self._now is None:
            design = self._session.design
            if not self._session.stale:
                known = self._session.prediction
                self._now = OrderOutcome(order(design), known.program, known.costs, known.timeline, [])
            else:
                self._now = _played(design, self._session)
        return self._now

    # ---- edits ----

    def _preview(self, message: Message) -> None:
        """What an edit would do, told as numbers for each block that is shown."""
        now = self._played()
        after, label = edited(now.order, value_of(message, "edit", dict))
        played = simulate_order(self._session.design, after)
        told: dict[str, Any] = {"type": TYPE, "told": "preview", "number": message.get("number"), "label": label}
        if played.timeline is None:
            told |= {"fault": self._message(played.problems[0]), "ring": _cycle(played.cycle)}
        elif now.timeline is None:
            told |= {"mends": True, "makespan": [None, played.timeline.makespan]}
        else:
            told |= self._consequences(now, played)
        self._send(told)

    def _consequences(self, now: OrderOutcome, then: OrderOutcome) -> dict[str, Any]:
        assert now.timeline is not None
        found = find_consequences(now, then)
        delay = found.delay[_shown_blocks(now.timeline)]
        return {**self._changes(now, then), "delay": delay.astype("<f4").tobytes()}

    def _changes(self, now: OrderOutcome, then: OrderOutcome) -> dict[str, Any]:
        """What is different of the whole step."""
        found = find_consequences(now, then)
        before, after = found.peak_bytes
        names = [mesh.name for mesh in self._session.design.meshes]
        return {
            "makespan": list(found.makespan),
            "bubble": list(found.bubble_ratio),
            "later": found.later,
            "earlier": found.earlier,
            "memory": [[names[rank], before[rank], after[rank]] for rank in np.flatnonzero(before != after).tolist()],
        }

    def _commit(self, message: Message) -> None:
        """Make an edit of the document of it: one step of undo, also where the order cannot run yet."""
        after, label = edited(self._played().order, value_of(message, "edit", dict))
        self._draw(after, label, message)

    def _repair(self, message: Message) -> None:
        """Make the order legal again by the smallest change."""
        now = self._played()
        if problems := computation_problems(now.order, self._session.design.pipe.microbatches):
            raise Refusal("incomplete_order_to_repair", {"reason": self._message(problems[0])})
        found = repair(now.order)
        self._draw(found.order, "repair the order", message, found.summary)

    def move_stage(self, stage: int, mesh: int, replica: int) -> None:
        """Give a stage with all its blocks to another mesh; asked by the canvas of the pipeline.

        Raises:
            InputError: it cannot go there, or the order has to be repaired first.
        """
        _, after, label = self._with_stage(stage, mesh, replica)
        self._draw(after, label, {})
        self.end_trial()

    def try_stage(self, stage: int, mesh: int, replica: int) -> tuple[Prediction, Message]:
        """What the step would be with a stage on another mesh, and what that changes; nothing is edited.

        Raises:
            InputError: it cannot go there, or the order has to be repaired first.
        """
        now, after, label = self._with_stage(stage, mesh, replica)
        then = simulate_order(self._session.design, after)
        if then.program is None or then.costs is None or then.timeline is None or now.timeline is None:
            raise DesignError(then.problems[:1])
        delay = -find_consequences(then, now).delay[_shown_blocks(then.timeline)]
        told = {
            **self._changes(now, then),
            "label": label,
            "words": _iteration(now.timeline.makespan, then.timeline.makespan, then.costs.unit),
            "digest": then.timeline.digest,
            "stage": stage,
            "mesh": mesh,
            "delay": delay.astype("<f4").tobytes(),
        }
        return Prediction(self._session.design, then.program, then.costs, then.timeline), told

    def tell_trial(self, told: Message) -> None:
        """Say over the timeline what a trial changes, which it shows in place of the step as it stands."""
        self._send({"type": TYPE, "told": "trial", **told})

    def end_trial(self) -> None:
        self.tell_trial({})

    def _with_stage(self, stage: int, mesh: int, replica: int) -> tuple[OrderOutcome, Program, str]:
        """How things stand, the order with a stage on another mesh, and the words for that.

        Raises:
            InputError: it cannot go there, or the order has to be repaired first.
        """
        now, design = self._played(), self._session.design
        if now.timeline is None:
            raise Refusal("stage_without_times", {"reason": self._message(now.problems[0])})
        after = order_edits.move_stage(now.order, now.timeline, stage, mesh, replica)
        split = int(now.order.fused.sum() - after.fused.sum())
        slots = f"; {split} {'slot is' if split == 1 else 'slots are'} split" if split else ""
        return now, after, f"move stage {stage} to mesh {design.meshes[mesh].name}{slots}"

    def _draw(self, after: Program, label: str, message: Message, words: str = "") -> None:
        design = self._session.design
        if not _is_custom(design):
            title = _title(design)
            words = f"{title} is a custom order now; undo makes it {title} again. {words}".strip()
            label = f"{label}: {title} becomes custom"
        self._session.edit("pipeline", edits.custom_pipeline(design, after), label)
        self._send({"type": TYPE, "told": "done", "number": message.get("number"), "label": label, "words": words})

    _does: Mapping[str, Callable[[Drawing, Message], None]] = {
        "turn": _turn,
        "differences": _differences,
        "preview": _preview,
        "commit": _commit,
        "repair": _repair,
    }


def _iteration(was: float, now: float, unit: str) -> str:
    """``iteration 12 ms → 13 ms (+8.3 %)``"""
    before, after = (duration(time, unit) for time in (was, now))
    change = 100 * (now / was - 1) if was else 0.0
    if abs(change) < SAME:
        return f"iteration stays {after}"
    return f"iteration {before} → {after} ({'+' if change > 0 else '−'}{abs(change):.1f} %)"


def _shown_blocks(timeline: Timeline) -> order_edits.Rows:
    """The spans of the blocks, as the page counts them."""
    blocks = np.flatnonzero((timeline.op != Op.REDUCE_GRAD) & ~timeline.is_transfer)
    return blocks[np.lexsort((timeline.start[blocks], timeline.rank[blocks]))]


def start_of(session: Session) -> Design:
    """The design before its order was drawn by hand: the last one with a schedule, else the first one known."""
    start: Design = session.design
    for design in (session.design, *session.past):
        start = design
        if not _is_custom(design):
            break
    return start


def edited(now: Program, edit: Message) -> tuple[Program, str]:
    """An order after an edit of the page, and the words for it.

    Raises:
        InputError: it is no edit of this order.
    """
    try:
        rows = order_edits.find_rows(now, map(_action, edit["blocks"]))
        return _EDITS[str(edit["kind"])](now, rows, edit)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise Refusal("unreadable_edit") from error


def _move(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    before = edit["before"]
    if before is None:
        end = int(now.offsets[now.rank[rows[0]] + 1])
        return order_edits.move_blocks(now, rows, end), f"move {_said(now, rows)} to the end"
    target = _action(before)
    return order_edits.move_blocks(
        now, rows, int(order_edits.find_rows(now, [target])[0])
    ), f"move {_said(now, rows)} before {target}"


def _shift(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    by = int(edit["by"])
    places = f"{abs(by)} {'place' if abs(by) == 1 else 'places'} {'later' if by > 0 else 'earlier'}"
    return order_edits.shift_blocks(now, rows, by), f"move {_said(now, rows)} {places}"


def _repeat(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    return repeat_blocks(now, rows), f"repeat {_said(now, rows)} for all microbatches"


def _everywhere(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    shifts = find_repetitions(now, rows)
    return repeat_blocks(now, rows, shifts), f"apply {_said(now, rows)} to all repetitions"


def _halves(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    """Split whole backwards; where there is none, join halves."""
    if (now.op[rows] == Op.B).any():
        return order_edits.split_backwards(now, rows), f"split {_said(now, rows)}"
    return order_edits.join_backwards(now, rows), f"join {_said(now, rows)}"


def _slot(now: Program, rows: order_edits.Rows, edit: Message) -> tuple[Program, str]:
    """Split shared slots; without any, put the blocks into one."""
    if now.fused[rows].any():
        return order_edits.split_slots(now, rows), f"split the slot of {_said(now, rows)}"
    return order_edits.join_slots(now, rows), f"put {_said(now, rows)} into one slot"


_EDITS: Mapping[str, Callable[[Program, order_edits.Rows, Message], tuple[Program, str]]] = {
    "move": _move, "shift": _shift, "repeat": _repeat, "everywhere": _everywhere, "halves": _halves, "slot": _slot,
}  # fmt: skip


def _said(now: Program, rows: order_edits.Rows) -> str:
    """Blocks by name: all of a few, else how many."""
    names = [str(now.row(int(row))) for row in rows]
    if len(names) > 3:
        return f"{len(names)} blocks"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _action(name: Iterable[int]) -> Action:
    op, stage, mb = name
    return Action(Op(int(op)), int(stage), int(mb))


def _named(action: Action) -> list[int]:
    return [int(action.op), action.stage, action.microbatch]


def _cycle(cycle: list[Wait]) -> list[dict[str, Any]]:
    return [{"rank": wait.rank, "at": _named(wait.at), "needs": _named(wait.needs)} for wait in cycle]


def _played(design: Design, session: Session) -> OrderOutcome:
    """Return the order of a draft with its simulation."""
    if session.is_computing:
        raise Refusal("no_order_to_edit", {"reason": COMPUTING_PROBLEM.message})
    try:
        now = order(design)
    except InputError as error:
        raise Refusal("no_order_to_edit", {"reason": str(error)}) from None
    other = [problem for problem in session.errors if problem.code not in PROGRAM_MESSAGES]
    if other:
        raise Refusal("no_order_to_edit", {"reason": str(other[0])})
    return simulate_order(design, now, session.errors)


def _is_custom(design: Design) -> bool:
    return _schedule(design) == "custom"


def _schedule(design: Design) -> str:
    section: Any = design.pipeline
    return str(section.schedule)


def _title(design: Design) -> str:
    return schedules[_schedule(design)].title
