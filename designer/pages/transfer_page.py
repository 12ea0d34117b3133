"""Pages of the transfer lab: the transfer of a boundary as an overlay, and the lab as a page of its own."""

from __future__ import annotations

import json

import numpy as np
import panel as pn

from meshwave.designer.canvases.transfer import TransferView
from meshwave.designer.kit.page_setup import prepare_page
from meshwave.designer.state import transfer_links
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.jobs import Later, page_callback_scheduler
from meshwave.designer.state.transfer_session import TransferSession
from meshwave.engine.document import Design
from meshwave.engine.document.transfer_document import TransferSpec, parse_transfer
from meshwave.engine.findings import Refusal
from meshwave.engine.predict.boundaries import boundary_transfer_spec
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import WORDS, Action

NAMES = {"axes": ["dp", "tp"], "dims": ["seq", "tokens", "hidden"]}
"""Names of the mesh axes and tensor dims at a boundary."""


class BoundaryTransfers:
    """The overlay that shows the transfer behind an arrow of the timeline.

    Changes in the overlay do not affect the design, until the user applies the strategy and ordering to it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        nothing = parse_transfer(json.dumps(transfer_links.make_transfer([1], [1], [1], ("R", "R"))))
        self.view = TransferView(
            TransferSession(nothing, later=session.later),
            on_take=self._use_plan,
            mode="over",
            shown=False,
            shows="simulated",  # the arrow of the timeline is simulated, too
        )
        session.param.watch(lambda *_: self._update_design(), "design")
        self._update_design()

    def open(self, prediction: Prediction, rank: int, action: Action) -> None:
        """Show the transfer that mesh ``rank`` sends by ``action``.

        Raises:
            InputError: the mesh has no such action.
        """
        design, (peer, tensors) = prediction.design, find_receiver(prediction, rank, action)
        spec = boundary_transfer_spec(design, rank, peer, tensors)
        self.view.session.open(spec, design.transfer.strategy, design.transfer.ordering)
        self.view.open(
            boundary_title(design, rank, peer, action), "device" if has_device_ports(design, spec) else "host", NAMES
        )

    def _update_design(self) -> None:
        has = self._session.design.transfer
        self.view.design_has = [has.strategy, has.ordering]

    def _use_plan(self, strategy: str, ordering: str) -> None:
        kept = self._session.design.transfer.model_dump(exclude_defaults=True)
        section = {**kept, "strategy": strategy, "ordering": ordering}
        self._session.edit("transfer", section, f"transfers: {strategy}, {ordering}")


def find_receiver(prediction: Prediction, rank: int, action: Action) -> tuple[int, int]:
    """Return the mesh that receives the message of an action, and the number of tensors in the message.

    Raises:
        InputError: the mesh has no such action.
    """
    program = prediction.program
    found = (program.rank == rank) & (program.op == action.op) & (program.stage == action.stage)
    rows = np.flatnonzero(found & (program.microbatch == action.microbatch) & (program.other == action.other))
    if not len(rows):
        raise Refusal("outdated_action", {"action": str(action)})
    return int(program.peer[rows[0]]), int(program.tensors[rows[0]])


def boundary_title(design: Design, rank: int, peer: int, action: Action) -> str:
    """Return the title of a transfer between two meshes."""
    what = WORDS[action.op.name].capitalize()
    names = design.meshes[rank].name, design.meshes[peer].name
    stages = f"stage {action.stage}" if action.other < 0 else f"stage {action.stage} to stage {action.other}"
    return f"{what} of microbatch {action.microbatch}, {stages}: mesh {names[0]} to mesh {names[1]}"


def has_device_ports(design: Design, spec: TransferSpec) -> bool:
    """Return whether the hosts of a transfer represent devices, each with its own port."""
    sides = (spec.source, spec.destination)
    return design.cluster.devices_per_node > 1 and all(side.hosts == side.ranks for side in sides)


FIRST_CASE = "rows"


def lab_page() -> pn.viewable.Viewable:
    """Return the transfer lab as a page; its link contains the transfer, so that it can be reloaded and shared."""
    lab = make_lab(page_callback_scheduler(prepare_page()))
    pn.state.onload(lab.begin)
    pn.state.on_session_destroyed(lambda context: lab.stop_jobs())
    return pn.Column(
        lab,
        sizing_mode="stretch_both",
        margin=0,
        styles={"height": "100vh", "width": "100vw"},
    )


def make_lab(later: Later | None = None) -> TransferView:
    """Return the transfer lab with the transfer that it shows first."""
    _, first = transfer_links.starting_transfers()[FIRST_CASE]
    return TransferView(
        TransferSession(parse_transfer(json.dumps(first)), later=later), sizing_mode="stretch_both", margin=0
    )
