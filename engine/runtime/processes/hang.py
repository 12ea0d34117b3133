"""Diagnosis of a hang: finds the process that delays the others from the position of each process in the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, Op, format_cells, message_key
from meshwave.engine.run_files import Count, NotNegative, RunFile
from meshwave.engine.runtime.communication.flight_recorder import StuckCollective
from meshwave.engine.runtime.communication.process_layout import ProcessLayout

OrderKey = tuple[int, int, int]
"""Step, batch of the evaluation after it (0 during the step), and row, which order the positions of processes."""
Link = tuple[str, dict[str, object]]
"""Code and parameters that describe one process in a chain of waiting processes."""


class Position(RunFile):
    """Position of a process in its program: the schema of ``position-<process>.json``."""

    pid: Count
    host: str
    step: Count
    evaluation_batch: Count = 0
    """Number of the batch of the evaluation after the step, from 1; 0 during the step."""
    row: Count
    """Index of the running action; after the last action of a step, the number of actions."""
    awaited_row: Count | None = None
    """Index of the receive for which the action waits; None if it does not wait."""
    activity: str | None = None
    """Activity of the process between two steps; None during a step."""
    stuck_s: NotNegative = 0.0
    """Time in seconds for which the process has been at this position."""

    @property
    def order_key(self) -> OrderKey:
        """Key of this position. The process of a mesh with the larger key is ahead."""
        return self.order_key_at(self.row)

    def order_key_at(self, row: int) -> OrderKey:
        """Return the key of another action of the same step or evaluation batch."""
        return self.step, self.evaluation_batch, row


@dataclass(frozen=True)
class ObservedProcess:
    """State of a process as observed by another process."""

    position: Position
    silent_s: float | None = None
    """Time in seconds since its last report if it is overdue; None if reports arrive."""
    is_stopped: bool = False
    """True if a signal has stopped the process."""

    def is_behind(self, order_key: OrderKey) -> bool:
        """Return True if the process is silent or has not reached a position of the program."""
        return self.silent_s is not None or self.position.order_key < order_key


@dataclass(frozen=True)
class HangDiagnosis:
    """Diagnosis of a hang: follows the chain of waiting processes to the process that causes the hang."""

    layout: ProcessLayout
    meshes: Sequence[str]
    """Names of the meshes."""
    watched: Mapping[int, ObservedProcess]
    """Observed state of every process, by number."""
    stuck: StuckCollective | None = None
    """The collective that the flight recorder of NCCL shows as the earliest one that does not end."""

    def problem(self, process: int) -> Problem:
        """Return the reason why ``process`` makes no progress; the last link of its chain is the cause."""
        links = [*self._waiting_chain(process), *self._recorded_links()]
        chain = [{"code": code, "params": params} for code, params in links]
        return Problem("", "hang", {"seconds": self.watched[process].position.stuck_s, "chain": chain})

    def _waiting_chain(self, process: int) -> Iterator[Link]:
        seen: set[int] = set()
        while process not in seen:
            seen.add(process)
            watched = self.watched[process]
            if watched.silent_s is not None:
                code = "process_stopped" if watched.is_stopped else "process_silent"
                yield self._chain_link(code, process, seconds=watched.silent_s)
                return
            position = watched.position
            if position.awaited_row is None:
                behind = self._slowest_partner(process)
                yield self._chain_link("process_computes" if behind is None else "process_waits_for_partner", process)
            else:
                behind, sender = self._slowest_sender(process, position.awaited_row)
                code = "message_undelivered" if behind is None else "process_receives"
                yield self._chain_link(code, process, peer=self.meshes[sender])
            if behind is None:
                return
            process = behind
        yield self._chain_link("processes_wait_for_each_other", process)

    def _recorded_links(self) -> Iterator[Link]:
        """Yield the last link of a chain of waiting processes: the unfinished collective that the flight recorder shows."""
        if self.stuck is None:
            return
        process = next(iter(self.stuck.behind), None)
        if process is None:
            yield "collective_not_ended", self.stuck._asdict()
        else:
            mesh = self.meshes[self.layout.rank(process)]
            yield "collective_not_begun", {**self.stuck._asdict(), "process": process, "mesh": mesh}

    def _chain_link(self, code: str, process: int, **params: object) -> Link:
        position = self.watched[process].position
        rank = self.layout.rank(process)
        row = position.row if position.awaited_row is None else position.awaited_row
        common = {"mesh": self.meshes[rank], "process": process, "step": position.step + 1, "seconds": position.stuck_s}
        text = self._action_text(rank, row)
        return code, {**common, "action": f"{text} of the evaluation" if position.evaluation_batch else text, **params}

    def _action_text(self, rank: int, row: int) -> str:
        actions = self._actions[rank]
        return format_cells([actions[row]._replace(fused=0)])[0] if row < len(actions) else "the end"

    @cached_property
    def _actions(self) -> list[list[Action]]:
        program = self.layout.program
        return [program.actions(rank) for rank in range(program.ranks)]

    def _slowest_sender(self, process: int, receive_row: int) -> tuple[int | None, int]:
        """Return the process that has not sent the awaited message, None if all have, and the rank of the senders."""
        receive = self._actions[self.layout.rank(process)][receive_row]
        sender = self._sender_rank(process, receive_row)
        key = message_key(receive)
        send_row = next(
            row
            for row, action in enumerate(self._actions[sender])
            if action.op in (Op.SEND_F, Op.SEND_B) and message_key(action) == key
        )
        order_key = self.watched[process].position.order_key_at(send_row + 1)
        return self._slowest_process(self.layout.mesh(sender), order_key), sender

    def _sender_rank(self, process: int, receive_row: int) -> int:
        program = self.layout.program
        return int(program.peer[program.rows(self.layout.rank(process)).start + receive_row])

    def _slowest_partner(self, process: int) -> int | None:
        """Return the slowest process among those with which the current action communicates; None if none is behind."""
        position, rank = self.watched[process].position, self.layout.rank(process)
        actions = self._actions[rank]
        op = actions[position.row].op if position.row < len(actions) else None
        if op in (Op.STEP, None):  # reductions over all copies of a stage, then the loss of all processes
            ends = {other: len(self._actions[self.layout.rank(other)]) for other in self.watched}
            return self._furthest_behind(
                other
                for other, watched in self.watched.items()
                if other != process and watched.is_behind(position.order_key_at(ends[other] - 1))
            )
        return self._slowest_process(set(self.layout.mesh(rank)) - {process}, position.order_key)

    def _slowest_process(self, processes: Sequence[int] | set[int], order_key: OrderKey) -> int | None:
        """Return a silent process, or the one furthest behind a position; None if all have reached the position."""
        return self._furthest_behind(other for other in processes if self.watched[other].is_behind(order_key))

    def _furthest_behind(self, processes: Iterable[int]) -> int | None:
        def sort_key(process: int) -> tuple[bool, OrderKey]:
            watched = self.watched[process]
            return watched.silent_s is None, watched.position.order_key

        return min(processes, key=sort_key, default=None)
