"""The Loss tab: loss and step time of the shown run, and of the runs that are compared with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

import numpy as np
import panel as pn
from bokeh.core.properties import value
from bokeh.models import DataRange1d
from bokeh.models.annotations import LabelSet, Legend, LegendItem
from bokeh.models.renderers import GlyphRenderer
from bokeh.models.sources import ColumnDataSource
from bokeh.models.tools import HoverTool
from bokeh.plotting import figure, row
from panel.viewable import Viewable

from meshwave.designer.views._view import FILL, View, views
from meshwave.designer.views.run_data import RunCurves
from meshwave.designer.views.runs import followed_runs

COLOURS: Final = {
    "light": ("#3d4fc4", "#b8232f", "#1a7f4b", "#8f5b00", "#7b3fb0", "#0f7389", "#a3316f", "#5d6470"),
    "dark": ("#93a0ff", "#ff8087", "#5fd39a", "#f0b45a", "#cf9bff", "#62d0e6", "#ff8fc4", "#aeb5c2"),
}
"""Colours of the runs, each with a contrast of at least 4.5 to the page; the shown run has the first colour."""
INK: Final = {
    "light": ("#1b1d22", "#616773", "#e2e5ea", "#ffffff"),
    "dark": ("#e9eaed", "#9aa0ac", "#2b2e35", "#16171b"),
}
"""Colours of text, axes, grid and background by theme."""

EMPTY: Final = "<p>No run is shown. Launch the design, or choose a run in the Runs tab.</p>"


LONGEST_NAME: Final = 22


def _short_name(name: str) -> str:
    """Return the name of a run for the legend, with its time: ``Small GPT on two …, 10:55:19``."""
    design, separator, time = name.rpartition(", ")
    return f"{design[: LONGEST_NAME - 2].rstrip()} …{separator}{time}" if len(design) > LONGEST_NAME else name


class CurvePlot:
    """Curves of several runs over their steps."""

    def __init__(self, label: str, field: str) -> None:
        """Create an empty plot; ``field`` is the field of RunCurves that it shows."""
        self._value = field
        self._names: list[str] = []
        self.source = ColumnDataSource({"x": [], "y": [], "name": [], "colour": []})
        self.figure = figure(
            x_axis_label="Step", y_axis_label=label, tools="pan,wheel_zoom,box_zoom,reset", active_drag="box_zoom",
            sizing_mode="stretch_both", min_height=200, min_width=320, toolbar_location="above", output_backend="canvas",
        )  # fmt: skip
        if field == "seconds":
            self.figure.y_range = DataRange1d(start=0)
        self.figure.toolbar.logo = None
        self.figure.toolbar.autohide = True
        self._lines: GlyphRenderer[Any] = self.figure.multi_line(
            "x", "y", color="colour", line_width=2, source=self.source
        )
        self.points = ColumnDataSource({"x": [], "y": [], "name": [], "colour": []})
        self._evaluations: GlyphRenderer[Any] = self.figure.scatter(
            "x", "y", color="colour", marker="diamond", size=9, source=self.points
        )
        self.attempts = ColumnDataSource({"x": [], "text": [], "name": [], "colour": []})
        self.figure.vspan("x", line_color="colour", line_dash="dashed", source=self.attempts)
        labels = LabelSet(x="x", y=value(3), y_units="screen", x_offset=4, text="text", text_color="colour")
        labels.update(source=self.attempts, text_font_size="12px")
        self.figure.add_layout(labels)
        self._legend = Legend(items=[], orientation="vertical", label_text_font_size="12px", margin=2)
        self.figure.add_layout(self._legend, "above")
        self.figure.add_tools(
            HoverTool(renderers=[self._lines], tooltips=[("run", "@name"), ("step", "$x{0}"), (label, "$y{0.000}")]),
            HoverTool(
                renderers=[self._evaluations],
                tooltips=[("run", "@name"), ("step", "@x"), ("held-out loss", "@y{0.000}")],
            ),
        )

    def draw(self, curves: list[RunCurves], theme: str, *, names_curves: bool = True) -> bool:
        """Draw the curves of runs in the colours of a theme.

        The legend is shown if ``names_curves`` and there are several curves.
        """
        drawn = [each for each in curves if len(getattr(each, self._value)) > 1 and each.unit == curves[0].unit]
        self.source.data = {
            "x": [np.linspace(1, each.steps, len(getattr(each, self._value))) for each in drawn],
            "y": [np.array(getattr(each, self._value), float) for each in drawn],
            "name": [each.name for each in drawn],
            "colour": [COLOURS[theme][curves.index(each)] for each in drawn],
        }
        self._draw_evaluations([(each, COLOURS[theme][curves.index(each)]) for each in drawn])
        marks = [(each, step, number) for each in drawn for number, step in enumerate(each.attempts, 2)]
        self.attempts.data = {
            "x": [step for _, step, _ in marks],
            "text": [f"attempt {number}" for _, _, number in marks],
            "name": [each.name for each, _, _ in marks],
            "colour": [COLOURS[theme][curves.index(each)] for each, _, _ in marks],
        }
        names = [each.name for each in drawn]
        if names != self._names:
            self._names = names
            self._legend.items = [
                LegendItem(label=_short_name(name), renderers=[self._lines], index=place)
                for place, name in enumerate(names)
            ]
        self._legend.visible = len(drawn) > 1 and names_curves
        return self._legend.visible

    def _draw_evaluations(self, curves: list[tuple[RunCurves, str]]) -> None:
        """Draw a point for each evaluation of the runs, in their colours, if this is the plot of losses."""
        shown = curves if self._value == "losses" else []
        points = [(*point, each.name, colour) for each, colour in shown for point in each.evaluations]
        columns = zip(*points, strict=True) if points else ((), (), (), ())
        self.points.data = {
            key: list(column) for key, column in zip(("x", "y", "name", "colour"), columns, strict=True)
        }

    def paint(self, theme: str) -> None:
        """Use the colours of a theme."""
        text, axis, grid, surface = INK[theme]
        self.figure.background_fill_color = self.figure.border_fill_color = self.figure.outline_line_color = None
        for each in self.figure.axis:
            each.update(axis_label_text_color=text, major_label_text_color=text, axis_line_color=axis)
            each.update(major_tick_line_color=axis, minor_tick_line_color=None, axis_label_text_font_size="13px")
            each.update(major_label_text_font_size="12px", axis_label_text_font_style="normal")
        self.figure.grid.grid_line_color = grid
        self._legend.update(label_text_color=text, border_line_color=grid, background_fill_color=surface)


def draw_plots(plots: Iterable[CurvePlot], curves: list[RunCurves], theme: str) -> None:
    """Draw the curves of runs in plots; the first plot with several curves has the legend."""
    is_named = False
    for plot in plots:
        is_named |= plot.draw(curves, theme, names_curves=not is_named)


@views.register("loss")
class LossView(View):
    """Loss and step time over the steps of the shown run, and of the runs that are compared with it.

    Diamonds are losses on held-out data. A dashed line is the first step of an attempt that resumed from a checkpoint.
    """

    title: ClassVar = "Loss"
    place: ClassVar = "bottom"
    order: ClassVar = 1

    def make_pane(self) -> Viewable:
        """Build both plots on a common axis of steps."""
        self._followed = followed_runs(self.page)
        self._plots = [CurvePlot("Loss", "losses"), CurvePlot("Step time", "seconds")]
        for plot in self._plots[1:]:
            plot.figure.x_range = self._plots[0].figure.x_range
        self._theme = "light"
        self._empty = pn.pane.HTML(EMPTY)  # type: ignore[no-untyped-call]
        wrap = [":host { flex-wrap: wrap; }"]  # in a narrow window, one plot is below the other
        both = row(*[plot.figure for plot in self._plots], sizing_mode="stretch_both", stylesheets=wrap)
        plots = pn.pane.Bokeh(both, **FILL)  # type: ignore[no-untyped-call]
        self._followed.param.watch(lambda *_: self._draw(), "curves")
        self.page.watch_theme(self._paint)
        return pn.Column(self._empty, plots, **FILL)

    def _paint(self, theme: str) -> None:
        self._theme = theme
        with pn.io.unlocked():  # Panel may call without the lock of the document that Bokeh's models need
            for plot in self._plots:
                plot.paint(theme)
            self._draw_curves()

    def _draw(self) -> None:
        with pn.io.unlocked():
            self._draw_curves()

    def _draw_curves(self) -> None:
        curves = self._followed.curves
        self._empty.visible = not curves
        draw_plots(self._plots, curves, self._theme)
        if curves:
            self._plots[1].figure.yaxis.axis_label = f"Step time ({curves[0].unit})"
