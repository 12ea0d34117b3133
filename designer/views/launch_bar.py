"""The buttons that run or rehearse the open design: the Python face of ``static/panels/launch.js``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import param

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Canvas, plain_text, value_of
from meshwave.engine.errors import MeshwaveError


class LaunchBar(Canvas):
    """The buttons that run and rehearse the open design, and how the run stands."""

    launchable = param.Dict(default={"allowed": False, "label": "Launch", "reason": ""})
    rehearsable = param.Dict(default={"allowed": False, "reason": ""})
    notice = param.String(default="", doc="Why the last launch or rehearsal did not happen.")
    places = param.List(default=[], doc="Launchers to choose from, with name and title; none where there is one.")
    place = param.String(default="", doc="The name of the chosen launcher.")
    status = param.Dict(default={}, doc="Whether a run is under way, its share of steps done, and words.")

    _esm = module("panels/launch.js")
    _stylesheets: ClassVar = [read_static("kit/canvas.css"), read_static("panels/launch.css")]
    _gestures = ("launch", "rehearse", "cancel", "choose")

    def __init__(
        self,
        launch: Callable[[str | None], Any],
        rehearse: Callable[[str | None], Any],
        cancel: Callable[[], Any],
        choose: Callable[[str], Any],
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self._launch, self._rehearse, self._cancel, self._choose = launch, rehearse, cancel, choose

    def focus_button(self) -> None:
        self._send_msg({"type": "focus"})

    def _on_launch(self, gesture: Mapping[str, Any]) -> None:
        self._start(self._launch, gesture)

    def _on_rehearse(self, gesture: Mapping[str, Any]) -> None:
        self._start(self._rehearse, gesture)

    def _start(self, start: Callable[[str | None], Any], gesture: Mapping[str, Any]) -> None:
        self.notice = ""
        try:
            start(str(gesture.get("key") or "") or None)
        except MeshwaveError as error:
            self.notice = str(error)
        except Exception as error:
            self.notice = f"the launch went wrong inside Meshwave: {error!r}"
            raise

    def _on_choose(self, gesture: Mapping[str, Any]) -> None:
        self._choose(value_of(gesture, "place", plain_text))

    def _on_cancel(self, gesture: Mapping[str, Any]) -> None:
        self._cancel()
