"""A timeline on a page of its own, for tests of its drawing and its questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.browser.gestures import wait_for_paint
from tests.designer.timelines import critical, memory, one_f_one_b

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from meshwave.designer.views.timeline import Pin, TimelineChart

SIZE = {"width": 1440, "height": 460}
RECORD_TEXTS = """() => {
    const { prototype } = CanvasRenderingContext2D, fillText = prototype.fillText;
    window.written = [];
    prototype.fillText = function (text, x, y) {
        const right = x + (this.textAlign === "left" ? this.measureText(text).width : 0);
        window.written.push([text, right, this.canvas.clientWidth]);
        return fillText.call(this, text, x, y);
    };
    return () => { prototype.fillText = fillText; };
}"""
"""Script that records the texts on canvases, with their right edges and the width of the canvas."""


class Drawn:
    """A chart on a page of its own, and its debug object."""

    def __init__(
        self,
        page: Page,
        charts: list[TimelineChart],
        pins: list[Pin | None],
        run: Callable[[Callable[[], object]], object] = lambda change: change(),
    ) -> None:
        """``run`` calls a function that changes the chart in the thread of the page; by default, in this thread."""
        self.page, self._charts, self.pins, self._run = page, charts, pins, run

    @property
    def chart(self) -> TimelineChart:
        return self._charts[-1]

    def ask(self, what: str) -> Any:
        return self.page.evaluate(f"window.meshwaveTimeline.{what}")

    def wait_until(self, condition: str) -> None:
        self.page.wait_for_function(f"(chart => {condition})(window.meshwaveTimeline)")

    def show(self, *layers: Any, stale: str = "") -> None:
        self._run(lambda: self.chart.show(layers, stale))
        spans = [len(layer.timeline) for layer in layers]
        self.wait_until(f"String(chart.layers.map(layer => layer.count)) === '{','.join(map(str, spans))}'")
        self.wait_for_paint_of_state()

    def change(self, **parameters: Any) -> None:
        """Set parameters of the chart."""
        self._run(lambda: self.chart.param.update(**parameters))

    def wait_for_paint_of_state(self) -> None:
        """Wait until the requested state is painted."""
        wait_for_paint(self.page)

    @contextmanager
    def record_texts(self) -> Iterator[None]:
        """Record the texts that are painted in a ``with`` block in ``window.written``."""
        restore = self.page.evaluate_handle(RECORD_TEXTS)
        try:
            yield
        finally:
            restore.evaluate("restore => restore()")

    def block(self, rank: int, stage: int, mb: int, op: str = "F", layer: int = 0) -> tuple[float, float]:
        """Return the middle of a block in window coordinates."""
        box = self.ask(f"blockAt({rank}, {stage}, {mb}, '{op}', {layer})")
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    @property
    def tooltip_text(self) -> str:
        self.wait_for_paint_of_state()
        return str(self.page.locator(".mw-timeline-tip").inner_text())

    def press_key(self, key: str) -> None:
        self.page.locator(".mw-timeline-stage").press(key)
        self.wait_for_paint_of_state()


def layer(ranks: int, microbatches: int, label: str = "Open design", **known: Any) -> Any:
    from meshwave.designer.views.timeline_columns import Layer

    timeline = one_f_one_b(ranks, microbatches)
    standing = {
        "memory": memory(timeline),
        "capacity": 80e9,
        "critical": critical(timeline),
        "stages_layers": [4] * ranks,
        "bytes": np.where(timeline.is_transfer, 8e6, 0.0),
    }
    return Layer(timeline, label, **{**standing, **known})
