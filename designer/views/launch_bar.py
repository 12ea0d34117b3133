"""The launch buttons; the Python side of ``static/panels/launch.js``."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import param

from meshwave.designer.kit.canvas import Canvas, widget
from meshwave.designer.kit.defects import defect_text
from meshwave.designer.state.background_calls import call_in_background
from meshwave.designer.state.jobs import Later
from meshwave.engine.errors import MeshwaveError

T = TypeVar("T")


@widget("panels/launch.js", "kit/shell.css")
class LaunchBar(Canvas):
    """Buttons that launch the open design or start a dry run, and the status of the run."""

    launchable = param.Dict(default={"allowed": False, "label": "Launch", "reason": ""})
    rehearsable = param.Dict(default={"allowed": False, "reason": ""})
    notice = param.String(default="", doc="Reason why the last gesture was refused or failed.")
    places = param.List(
        default=[], doc="Name and title of each target, and True if its cluster can be used in the design."
    )
    place = param.String(default="", doc="Name of the selected target.")
    drawing = param.String(default="", doc="Name of the target whose cluster is being measured for the design.")
    activity = param.String(default="", doc="What the launch target is being asked to do, such as to cancel the run.")
    status = param.Dict(
        default={}, doc="Status of the run: True if it is running, the completed fraction of the steps, and a sentence."
    )

    def __init__(
        self,
        launch: Callable[[str | None], Any],
        rehearse: Callable[[str | None], Any],
        cancel: Callable[[], Any],
        choose: Callable[[str], Any],
        draw: Callable[[], Any],
        later: Later | None = None,
        **params: Any,
    ) -> None:
        """Create the bar; ``later`` schedules a callback in the event loop of the page."""
        super().__init__(**params)
        self._later = later
        self._launch, self._rehearse, self._cancel = launch, rehearse, cancel
        self._choose, self._draw = choose, draw

    def focus_button(self) -> None:
        """Focus the launch button."""
        self._send_msg({"type": "focus"})

    def _on_launch(self, key: str = "") -> None:
        self._call_and_show_refusal(partial(self._launch, key or None))

    def _on_rehearse(self, key: str = "") -> None:
        self._call_and_show_refusal(partial(self._rehearse, key or None))

    def _call_and_show_refusal(self, act: Callable[[], Any]) -> None:
        """Call a function, and show the reason if it is refused or fails."""
        self.notice = ""
        try:
            act()
        except MeshwaveError as error:
            self.notice = str(error)
        except Exception as error:
            self.notice = defect_text(error)
            raise

    def call_target(self, activity: str, work: Callable[[], T], then: Callable[[T], object]) -> None:
        """Call ``work``, which may wait for a launch target, in a thread; then call ``then`` with its result.

        The page shows the activity meanwhile, and a refusal afterwards.
        """
        self.activity = activity
        call_in_background(
            work, self._later, lambda done: self._call_and_show_refusal(partial(self._end_call, done, then))
        )

    def _end_call(self, done: Future[T], then: Callable[[T], object]) -> None:
        self.activity = ""
        then(done.result())

    def _on_choose(self, place: str) -> None:
        self._call_and_show_refusal(partial(self._choose, place))

    def _on_draw(self) -> None:
        self._call_and_show_refusal(self._draw)

    def _on_cancel(self) -> None:
        self._call_and_show_refusal(self._cancel)
