"""Reference execution of a program, rank by rank, independent of the graph that ``verify`` uses."""

from __future__ import annotations

from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program

Done = set[tuple[int, Action]]  # (rank, action)


def left_over(program: Program) -> list[list[Action]]:
    """Run every rank in order until no rank can continue, and return the remaining actions of each.

    Receives are posted at once, and their consumers wait for them; sent messages are in flight.
    """
    todo = [program.actions(rank) for rank in range(program.ranks)]
    done: Done = set()
    flying: set[Action] = set()
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(todo):
            while actions and can_run(program, rank, actions[0], done, flying):
                action = actions.pop(0)
                if action.op in (Op.SEND_F, Op.SEND_B):
                    flying.add(other_end(action))
                done.add((rank, action._replace(fused=0)))
                moved = True
    return todo


def can_run(program: Program, rank: int, action: Action, done: Done, flying: set[Action]) -> bool:
    op, stage, mb, *_ = action
    skips = ends(program, action) if op in (Op.F, Op.B, Op.I) else []
    if not all(has_skip(rank, action, end, done, flying) for end in skips):
        return False
    forward = (rank, Action(Op.F, stage, mb)) in done
    backward = any((rank, Action(kind, stage, mb)) in done for kind in (Op.B, Op.I))
    match op:
        case Op.F:
            return stage == 0 or (rank, Action(Op.F, stage - 1, mb)) in done or Action(Op.RECV_F, stage, mb) in flying
        case Op.B | Op.I:
            here = any((rank, Action(kind, stage + 1, mb)) in done for kind in (Op.B, Op.I))
            return forward and (stage == program.stages - 1 or here or Action(Op.RECV_B, stage, mb) in flying)
        case Op.SEND_F:
            return forward
        case Op.W | Op.SEND_B:
            return backward
    return True


def ends(program: Program, action: Action) -> list[int]:
    """Return the stages from which a forward receives skip connections, or a backward their gradients."""
    own = 1 if action.op == Op.F else 0
    return [pair[1 - own] for pair in program.distant_skips if pair[own] == action.stage]


def has_skip(rank: int, action: Action, end: int, done: Done, flying: set[Action]) -> bool:
    """Return True if the tensor that skips from stage ``end`` was produced on this rank, or is in flight to it."""
    op, stage, mb, *_ = action
    makers, receive = ((Op.F,), Op.RECV_F) if op == Op.F else ((Op.B, Op.I), Op.RECV_B)
    return any((rank, Action(kind, end, mb)) in done for kind in makers) or Action(receive, stage, mb, 0, end) in flying


def other_end(send: Action) -> Action:
    """Return the receive of a send."""
    op, stage, mb, _, other = send
    if other >= 0:
        return Action(Op.RECV_F if op == Op.SEND_F else Op.RECV_B, other, mb, 0, stage)
    return Action(Op.RECV_F, stage + 1, mb) if op == Op.SEND_F else Action(Op.RECV_B, stage - 1, mb)


def inputs(program: Program, action: Action) -> set[Action]:
    """Return the computations that must run before another, for any kind of backward."""
    op, stage, mb, *_ = action
    split = Action(Op.I, stage, mb) in {made for rank in range(program.ranks) for made in program.actions(rank)}
    back = Op.I if split else Op.B
    if op == Op.F:
        return {Action(Op.F, stage - 1, mb)} if stage else set()
    if op == Op.W:
        return {Action(Op.I, stage, mb)}
    below = {Action(back, stage + 1, mb)} if stage + 1 < program.stages else set()
    return {Action(Op.F, stage, mb)} | below
