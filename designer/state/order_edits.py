"""The edit mode of the timeline: previews while a block is dragged, and edits of the order."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshwave.designer.kit.canvas import read_value
from meshwave.designer.kit.defects import defect_text
from meshwave.designer.state import design_edits as edits
from meshwave.designer.state.design_session import COMPUTING_PROBLEM, Session
from meshwave.designer.state.page_order_edits import Message, apply_page_edit
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.findings import DesignError, FindingError, Problem, Refusal
from meshwave.engine.lowering.lower import order_computations
from meshwave.engine.lowering.program_problems import replace_ranks_by_meshes
from meshwave.engine.messages import render
from meshwave.engine.messages.program import MESSAGES as PROGRAM_MESSAGES
from meshwave.engine.predict.order_consequences import OrderOutcome, find_consequences, simulate_order
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program import order_edits
from meshwave.engine.program.action import Action
from meshwave.engine.program.deadlock import Wait
from meshwave.engine.program.deadlock_repair import repair
from meshwave.engine.program.order_difference import compare_orders
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.program.verification import computation_problems
from meshwave.engine.schedules import schedules
from meshwave.engine.units import duration, percent_change

Send = Callable[[dict[str, Any]], None]
TYPE = "order"  # type of the messages between the page and the editor
UNCHANGED_WITHIN = 5e-4  # smallest relative change of the step time that is shown


class OrderEditor:
    """The edit mode of one tab's timeline.

    The page sends ``{"type": "order", "do": NAME, ...}`` and receives messages of the same type: ``state`` after every
    change, ``preview`` with the consequences of an edit, ``done`` after an edit. Blocks are identified by ``[op,
    stage, microbatch]``, so a message remains valid if the order has changed since the page drew it.
    """

    def __init__(self, session: Session, send: Send) -> None:
        self._session, self._send = session, send
        self.on_mode: Callable[[bool], None] = lambda is_on: None  # called when the mode is switched on or off
        self._is_on = self._shows_differences = False
        self._outcome: OrderOutcome | None = None
        session.param.watch(lambda *_: self._reset(), ["design", "prediction"])

    def handle(self, message: Message) -> None:
        """Handle a request of the page; a refusal or an internal error is sent back."""
        number = message.get("number")
        try:
            read_value(message, "do", self._HANDLERS.__getitem__)(self, message)
        except MeshwaveError as error:
            self._send({"type": TYPE, "told": "refused", "number": number, "words": self._error_text(error)})
        except Exception as error:
            traceback.print_exc()
            self._send({"type": TYPE, "told": "refused", "number": number, "words": defect_text(error)})

    # ---- state ----

    def _reset(self) -> None:
        self._outcome = None
        if self._is_on:
            self._send_state()

    def _switch_mode(self, message: Message) -> None:
        self._is_on = bool(message.get("on"))
        self.on_mode(self._is_on)
        self._shows_differences &= self._is_on
        if self._is_on:
            self._send_state()

    def _toggle_differences(self, message: Message) -> None:
        self._shows_differences = bool(message.get("on"))
        self._send_state()

    def _send_state(self) -> None:
        try:
            answer = self._state_data()
        except MeshwaveError as error:
            answer = {"refused": self._error_text(error)}
        self._send({"type": TYPE, "told": "state", **answer})

    def _error_text(self, error: MeshwaveError) -> str:
        """Return the message of an error, with the names of meshes."""
        match error:
            case FindingError():
                return self._problem_text(error.problem)
            case DesignError():
                return "\n".join(map(self._problem_text, error.problems))
        return str(error)

    def _problem_text(self, problem: Problem) -> str:
        return replace_ranks_by_meshes(problem, [mesh.name for mesh in self._session.design.meshes]).message

    def _state_data(self) -> dict[str, Any]:
        design, now = self._session.design, self._current_outcome()
        start = starting_design(self._session)
        answer: dict[str, Any] = {
            "refused": self._edit_refusal(now),
            "schedule": _schedule_title(design),
            "is_custom": _is_custom(design),
            "start": _schedule_title(start),
            "fault": "" if now.timeline is not None else self._problem_text(now.problems[0]),
            "ring": _cycle_data(now.cycle),
        }
        if self._shows_differences:
            answer["difference"] = self._difference_data(start, now)
        return answer

    def _difference_data(self, start: Design, now: OrderOutcome) -> dict[str, Any]:
        try:
            answer = compare_orders(order_computations(start), now.order)
        except InputError as error:  # the number of meshes or microbatches has changed
            return {"words": str(error), "blocks": [], "changed": []}
        names = [mesh.name for mesh in self._session.design.meshes]
        start_name = _schedule_title(start) if not _is_custom(start) else "the initial order"
        changed = [*answer.split, *answer.joined, *answer.overlapped, *answer.separated]
        return {
            "words": answer.summary(names, start_name),
            "blocks": [[*_block_key(moved.action), moved.places] for moved in answer.moved],
            "changed": [_block_key(action) for action in changed],
        }

    def _edit_refusal(self, now: OrderOutcome) -> str:
        """Return the reason why the order cannot be edited by hand; empty if it can."""
        if now.program is None:
            return render("incomplete_order", {"reason": self._problem_text(now.problems[0])})
        if len(now.order) > edits.LARGEST_BY_HAND:
            return render("order_too_long_to_edit", {"blocks": len(now.order), "most": edits.LARGEST_BY_HAND})
        return ""

    def _current_outcome(self) -> OrderOutcome:
        """Return the order of the open design and its simulation, from its prediction if there is one.

        Raises:
            InputError: the design has no order yet.
        """
        if self._outcome is None:
            design = self._session.design
            if not self._session.is_stale:
                known = self._session.prediction
                self._outcome = OrderOutcome(order_computations(design), known.program, known.costs, known.timeline, [])
            else:
                self._outcome = _simulate_draft(design, self._session)
        return self._outcome

    # ---- edits ----

    def _preview(self, message: Message) -> None:
        """Send the consequences of an edit, with the delay of each block that is shown."""
        now = self._current_outcome()
        after, label = apply_page_edit(now.order, read_value(message, "edit", dict))
        simulated = simulate_order(self._session.design, after)
        answer: dict[str, Any] = {"type": TYPE, "told": "preview", "number": message.get("number"), "label": label}
        if simulated.timeline is None:
            answer |= {"fault": self._problem_text(simulated.problems[0]), "ring": _cycle_data(simulated.cycle)}
        elif now.timeline is None:
            answer |= {"mends": True, "makespan": [None, simulated.timeline.makespan]}
        else:
            answer |= self._consequences(now, simulated)
        self._send(answer)

    def _consequences(self, now: OrderOutcome, then: OrderOutcome) -> dict[str, Any]:
        assert now.timeline is not None
        found = find_consequences(now, then)
        delay = found.delay[_shown_blocks(now.timeline)]
        return {**self._compare_outcomes(now, then), "delay": delay.astype("<f4").tobytes()}

    def _compare_outcomes(self, now: OrderOutcome, then: OrderOutcome) -> dict[str, Any]:
        """Return the differences between two simulations of the step."""
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
        """Apply an edit to the document as one undo step, even if the new order cannot run."""
        after, label = apply_page_edit(self._current_outcome().order, read_value(message, "edit", dict))
        self._replace_order(after, label, message)

    def _repair(self, message: Message) -> None:
        """Remove deadlocks from the order with the smallest change."""
        now = self._current_outcome()
        if problems := computation_problems(now.order, self._session.design.pipe.microbatches):
            raise Refusal("incomplete_order_to_repair", {"reason": self._problem_text(problems[0])})
        found = repair(now.order)
        self._replace_order(found.order, "repair the order", message, found.summary)

    def move_stage(self, stage: int, mesh: int, replica: int) -> None:
        """Move a stage with all its blocks to another mesh, for the wave canvas.

        Raises:
            InputError: the stage cannot be moved there, or the order has to be repaired first.
        """
        _, after, label = self._plan_stage_move(stage, mesh, replica)
        self._replace_order(after, label, {})
        self.end_trial()

    def try_stage(self, stage: int, mesh: int, replica: int) -> tuple[Prediction, Message]:
        """Predict the step with a stage on another mesh and return the changes, without editing the design.

        Raises:
            InputError: the stage cannot be moved there, or the order has to be repaired first.
        """
        now, after, label = self._plan_stage_move(stage, mesh, replica)
        then = simulate_order(self._session.design, after)
        if then.program is None or then.costs is None or then.timeline is None or now.timeline is None:
            raise DesignError(then.problems[:1])
        delay = -find_consequences(then, now).delay[_shown_blocks(then.timeline)]
        answer = {
            **self._compare_outcomes(now, then),
            "label": label,
            "words": _describe_step_time(now.timeline.makespan, then.timeline.makespan, then.costs.unit),
            "digest": then.timeline.digest,
            "stage": stage,
            "mesh": mesh,
            "delay": delay.astype("<f4").tobytes(),
        }
        return Prediction(self._session.design, then.program, then.costs, then.timeline), answer

    def show_trial(self, answer: Message) -> None:
        """Show the changes of a trial above the timeline."""
        self._send({"type": TYPE, "told": "trial", **answer})

    def end_trial(self) -> None:
        """Remove the changes of a trial from the page."""
        self.show_trial({})

    def _plan_stage_move(self, stage: int, mesh: int, replica: int) -> tuple[OrderOutcome, Program, str]:
        """Return the current outcome, the order with a stage on another mesh, and the label of that edit.

        Raises:
            InputError: the stage cannot be moved there, or the order has to be repaired first.
        """
        now, design = self._current_outcome(), self._session.design
        if now.timeline is None:
            raise Refusal("stage_without_times", {"reason": self._problem_text(now.problems[0])})
        after = order_edits.move_stage(now.order, now.timeline, stage, mesh, replica)
        split = int(now.order.fused.sum() - after.fused.sum())
        slots = f"; {split} {'slot is' if split == 1 else 'slots are'} split" if split else ""
        return now, after, f"move stage {stage} to mesh {design.meshes[mesh].name}{slots}"

    def _replace_order(self, after: Program, label: str, message: Message, words: str = "") -> None:
        design = self._session.design
        if not _is_custom(design):
            title = _schedule_title(design)
            words = f"The schedule is now custom; undo restores {title}. {words}".strip()
            label = f"{label}: {title} becomes custom"
        self._session.edit("pipeline", edits.custom_pipeline(design, after), label)
        self._send({"type": TYPE, "told": "done", "number": message.get("number"), "label": label, "words": words})

    _HANDLERS: Mapping[str, Callable[[OrderEditor, Message], None]] = {
        "turn": _switch_mode,
        "differences": _toggle_differences,
        "preview": _preview,
        "commit": _commit,
        "repair": _repair,
    }


def _describe_step_time(was: float, now: float, unit: str) -> str:
    """Return a change of the step time such as ``step time 12 ms → 13 ms (+8.3%)``."""
    before, after = (duration(time, unit) for time in (was, now))
    change = now / was - 1 if was else 0.0
    if abs(change) < UNCHANGED_WITHIN:
        return f"step time unchanged: {after}"
    return f"step time {before} → {after} ({percent_change(change)})"


def _shown_blocks(timeline: Timeline) -> order_edits.Rows:
    """Return the timeline rows of the blocks, ordered as the page numbers the blocks."""
    blocks = np.flatnonzero(timeline.is_work)
    return blocks[np.lexsort((timeline.start[blocks], timeline.rank[blocks]))]


def starting_design(session: Session) -> Design:
    """Return the latest design in the undo history whose schedule is not custom, else the oldest design."""
    start: Design = session.design
    for design in (session.design, *session.past_designs):
        start = design
        if not _is_custom(design):
            break
    return start


def _block_key(action: Action) -> list[int]:
    return [int(action.op), action.stage, action.microbatch]


def _cycle_data(cycle: list[Wait]) -> list[dict[str, Any]]:
    return [{"rank": wait.rank, "at": _block_key(wait.at), "needs": _block_key(wait.needs)} for wait in cycle]


def _simulate_draft(design: Design, session: Session) -> OrderOutcome:
    """Return the order of a draft with its simulation."""
    if session.is_computing:
        raise Refusal("no_order_to_edit", {"reason": COMPUTING_PROBLEM.message})
    other = [problem for problem in session.errors if problem.code not in PROGRAM_MESSAGES]
    if other:  # its schedule may not support its meshes
        raise Refusal("no_order_to_edit", {"reason": str(other[0])})
    try:
        now = order_computations(design)
    except InputError as error:
        raise Refusal("no_order_to_edit", {"reason": str(error)}) from None
    return simulate_order(design, now, session.errors)


def _is_custom(design: Design) -> bool:
    return _schedule(design) == "custom"


def _schedule(design: Design) -> str:
    section: Any = design.pipeline
    return str(section.schedule)


def _schedule_title(design: Design) -> str:
    return schedules[_schedule(design)].title
