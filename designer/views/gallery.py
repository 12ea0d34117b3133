"""The gallery: every schedule for the open design side by side, to look at and to choose from.

Judging them takes from milliseconds to many seconds, so that a job does it; the page gets each as it is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import panel as pn
import param

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Overlay, plain_text, value_of
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.jobs import Done, Failed, Job, Listener, News, PartialResult, page_later
from meshwave.designer.views import gallery_cards
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.exports.pictures.palette import OPS
from meshwave.engine.lowering.schedule_prices import priced_pipe
from meshwave.engine.predict.gallery import Variant, apply_variant
from meshwave.engine.program.action import WORDS, Op

KINDS = {op.name: WORDS[op.name] for op in Op if op.is_compute}


def _op_colours() -> str:
    colours = [f"--op-{op.lower()}: light-dark({OPS['light'][op]}, {OPS['dark'][op]});" for op in KINDS]
    return f".mw-gallery {{ {' '.join(colours)} }}"


class Gallery(Overlay):
    """An overlay that shows every variant of every schedule for the open design.

    What is found travels as messages, since a picture is sent once: ``reset`` with what the design
    is, then ``found`` with cards and what is to be said of all so far, and ``done``.
    """

    pinned = param.List(default=[], item_type=str, doc="Keys of the cards that are pinned, to compare with.")
    words = param.Dict(default=KINDS, constant=True, doc="What each kind of computation is called.")

    _esm = module("panels/gallery.js")
    _stylesheets: ClassVar = [
        read_static("kit/canvas.css"), read_static("kit/shell.css"), read_static("panels/gallery.css"), _op_colours(),
    ]  # fmt: skip
    _gestures = ("close", "choose", "pin")

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self._session = session
        self._judged: Design | None = None
        self._job: Listener | None = None
        self._variants: dict[str, Variant] = {}
        self._pins: dict[str, Design] = {}  # by the key of the card
        document = pn.state.curdoc
        self._later = page_later(document)
        session.param.watch(lambda *_: self._follow(), "design")
        session.param.watch(lambda *_: self._mark_pins(), "pinned")

    def open(self) -> None:
        """Show the gallery of the design as it stands."""
        self._open()
        self._follow()

    def stop(self) -> None:
        """End a job that goes on, as when the tab is gone."""
        if self._job is not None:
            self._job.stop()
            self._job = self._judged = None

    def _follow(self) -> None:
        """Judge anew where the open design is not what was judged."""
        design = self._session.design
        if not self.shown or self._judged is design:
            return
        self.stop()
        self._pins, self._variants = {}, {}
        self._mark_pins()
        self._send_msg({"type": "reset", "about": gallery_cards.about(design)})
        self._judged = design
        self._job = Job(partial(gallery_cards.judged, design)).listen(self._later, self._hear)

    def _hear(self, news: News) -> None:
        if isinstance(news, PartialResult):
            found: gallery_cards.Cards = news.value
            self._variants |= {variant.key: variant for variant in found.variants}
            for design, result in found.searched:
                design.pipeline.remember(priced_pipe(design), result)
            self._send_msg(found.message)
        elif isinstance(news, Done | Failed):
            self._job = None
            if isinstance(news, Failed):
                words = f"The gallery is not complete: {news.words}."
                self._send_msg({"type": "answered", "gesture": "search", "refused": words})
            self._send_msg({"type": "done"})

    # one method a gesture

    def _close(self) -> None:
        """A job that has not come to its end is given up: the machine needs the time for edits."""
        super()._close()
        self.stop()

    def _on_choose(self, gesture: Mapping[str, Any]) -> None:
        variant = self._variant(gesture)
        self._close()  # first: what is open follows every edit
        if variant.is_present:
            return
        try:
            self._session.edit("pipeline", dict(variant.pipeline), f"schedule {variant.title}")
        except InputError:
            self.open()
            raise

    def _on_pin(self, gesture: Mapping[str, Any]) -> None:
        variant = self._variant(gesture)
        design = apply_variant(self._session.design, variant).model_copy(update={"name": variant.title})
        self._pins[variant.key] = design
        self._session.pin_design(design)

    def _mark_pins(self) -> None:
        pinned = [prediction.design for prediction in self._session.pinned]
        self.pinned = [key for key, design in self._pins.items() if design in pinned]

    def _variant(self, gesture: Mapping[str, Any]) -> Variant:
        found = self._variants.get(value_of(gesture, "key", plain_text))
        if found is None:
            raise InputError("this card is of an earlier design; choose again")
        return found
