"""The transfers of the open design, one at a time, laid over its page."""

from __future__ import annotations

import json

import numpy as np
import panel as pn

from meshwave.designer.canvases.transfer import TransferView
from meshwave.designer.kit.assets import HEAD, read_static
from meshwave.designer.state import transfer_links as edits
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.jobs import Later, page_later
from meshwave.designer.state.transfer_session import TransferSession
from meshwave.engine.document import Design
from meshwave.engine.document.transfer_document import TransferSpec, parse_transfer
from meshwave.engine.errors import InputError
from meshwave.engine.predict.boundaries import boundary_transfer_spec
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import WORDS, Action

NAMES = {"axes": ["dp", "tp"], "dims": ["seq", "tokens", "hidden"]}
"""Of the meshes at a boundary and of the tensor that crosses it."""


class Crossings:
    """Opens the transfer behind an arrow of the timeline: what crosses, by the plan of the design. What is
    tried there changes nothing but the picture, until its strategy and ordering are taken."""

    def __init__(self, session: Session) -> None:
        self._session = session
        nothing = parse_transfer(json.dumps(edits.make_transfer([1], [1], [1], ("R", "R"))))
        self.view = TransferView(
            TransferSession(nothing, later=session.later),
            on_take=self._take,
            mode="over",
            shown=False,
            shows="played",  # as its arrow is drawn
        )
        session.param.watch(lambda *_: self._tell_design(), "design")
        self._tell_design()

    def open(self, prediction: Prediction, rank: int, action: Action) -> None:
        """Show what mesh ``rank`` sends by ``action``.

        Raises:
            InputError: it sends nothing so.
        """
        design, (peer, tensors) = prediction.design, message(prediction, rank, action)
        spec = boundary_transfer_spec(design, rank, peer, tensors)
        self.view.bench.open(spec, design.transfer.strategy, design.transfer.ordering)
        self.view.open(title(design, rank, peer, action), "device" if is_by_device(design, spec) else "host", NAMES)

    def _tell_design(self) -> None:
        has = self._session.design.transfer
        self.view.design_has = [has.strategy, has.ordering]

    def _take(self, strategy: str, ordering: str) -> None:
        kept = self._session.design.transfer.model_dump(exclude_defaults=True)
        section = {**kept, "strategy": strategy, "ordering": ordering}
        self._session.edit("transfer", section, f"transfers: {strategy}, {ordering}")


def message(prediction: Prediction, rank: int, action: Action) -> tuple[int, int]:
    """The mesh that gets what an action of a mesh sends, and how many tensors that are.

    Raises:
        InputError: there is no such action.
    """
    program = prediction.program
    found = (program.rank == rank) & (program.op == action.op) & (program.stage == action.stage)
    rows = np.flatnonzero(found & (program.microbatch == action.microbatch) & (program.other == action.other))
    if not len(rows):
        raise InputError(f"there is no {action} on this mesh any more")
    return int(program.peer[rows[0]]), int(program.tensors[rows[0]])


def title(design: Design, rank: int, peer: int, action: Action) -> str:
    """What crosses, in words."""
    what = WORDS[action.op.name].capitalize()
    names = design.meshes[rank].name, design.meshes[peer].name
    stages = f"stage {action.stage}" if action.other < 0 else f"stage {action.stage} to stage {action.other}"
    return f"{what} of microbatch {action.microbatch}, {stages}: mesh {names[0]} to mesh {names[1]}"


def is_by_device(design: Design, spec: TransferSpec) -> bool:
    """Whether the hosts of a crossing are devices, each with a port of its own."""
    sides = (spec.source, spec.destination)
    return design.cluster.devices_per_node > 1 and all(side.hosts == side.ranks for side in sides)


FIRST_CASE = "rows"


def lab_page() -> pn.viewable.Viewable:
    """One tab. What it shows stands in its link, so that a reload or a friend finds the same."""
    pn.config.raw_css = [read_static("kit/page.css")]
    document = pn.state.curdoc
    assert document is not None, "a page is made for a session"
    document.template = HEAD  # type: ignore[assignment]  # Bokeh takes the text of a template too
    return pn.Column(
        lab(page_later(document)),
        sizing_mode="stretch_both",
        margin=0,
        styles={"height": "100vh", "width": "100vw"},
    )


def lab(later: Later | None = None) -> TransferView:
    """The lab with its first transfer."""
    _, first = edits.starting_transfers()[FIRST_CASE]
    return TransferView(
        TransferSession(parse_transfer(json.dumps(first)), later=later), sizing_mode="stretch_both", margin=0
    )
