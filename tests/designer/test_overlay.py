"""Overlays, which the page closes and Python opens, whichever message arrives first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshwave.designer.kit.canvas import Overlay
from meshwave.designer.pages.transfer_page import BoundaryTransfers
from meshwave.designer.state.design_session import Session
from meshwave.designer.views.design_comparison import Comparison
from meshwave.designer.views.expert_schedules import ExpertSchedules
from meshwave.designer.views.gallery import Gallery
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.program.action import Action, Op

Opened = tuple[Overlay, Callable[[], None]]


def crossing(session: Session) -> Opened:
    crossings = BoundaryTransfers(session)
    return crossings.view, lambda: crossings.open(session.prediction, 0, Action(Op.SEND_F, 0, 0))


def opened_by_itself(kind: type[Gallery | Comparison | ExpertSchedules]) -> Callable[[Session], Opened]:
    def make(session: Session) -> Opened:
        overlay = kind(session)
        return overlay, overlay.open

    return make


OVERLAYS = {
    "gallery": opened_by_itself(Gallery),
    "comparison": opened_by_itself(Comparison),
    "expert schedules": opened_by_itself(ExpertSchedules),
    "transfer": crossing,
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_close_message_of_an_earlier_opening_is_ignored(name: str) -> None:
    overlay, open_it = OVERLAYS[name](Session(load_design(example("14-tensor-parallel"))))
    assert not overlay.shown
    open_it()
    first = overlay.opening

    open_it()  # by a key that overtook what the page says of the first
    assert overlay.opening > first, "the page, which closed it, hears that it is open again"
    overlay._handle_msg({"type": "close", "opening": first})
    assert overlay.shown

    overlay._handle_msg({"type": "close", "opening": overlay.opening})
    assert not overlay.shown
    if isinstance(overlay, Gallery):
        overlay.stop_jobs()
