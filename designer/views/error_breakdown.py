"""The Error breakdown tab: causes of the difference between the measured and the predicted step."""

from __future__ import annotations

from typing import Any, ClassVar

import param

from meshwave.designer.kit.canvas import Canvas, widget
from meshwave.designer.views._view import FILL, View, views
from meshwave.designer.views.followed_runs import FollowedRuns, mirror_params
from meshwave.designer.views.runs import followed_runs


@widget("panels/breakdown.js", "panels/dock.css")
class ErrorBreakdown(Canvas):
    """Widget that compares the shown run with its prediction; the Python side of ``static/panels/breakdown.js``."""

    comparison = param.Dict(default={}, doc="Comparison of the shown run with its prediction.")
    outcomes = param.List(default=[], doc="Prediction errors of the runs of the same design.")

    def __init__(self, followed: FollowedRuns, **params: Any) -> None:
        super().__init__(**params)
        mirror_params(followed, self, "comparison", "outcomes")


@views.register("error")
class ErrorView(View):
    """Measured and predicted times of the shown run, and the causes of their differences."""

    title: ClassVar = "Error breakdown"
    place: ClassVar = "bottom"
    order: ClassVar = 2

    def make_pane(self) -> ErrorBreakdown:
        """Build the comparison."""
        return ErrorBreakdown(followed_runs(self.page), **FILL)
