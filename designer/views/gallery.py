"""The gallery: all schedules for the open design side by side.

Predicting the schedules takes many seconds for large designs, so a job predicts them and the page shows each result
as it arrives.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import param

from meshwave.designer.kit.assets import colour_rule
from meshwave.designer.kit.canvas import Overlay, widget
from meshwave.designer.state import gallery_cards
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.job_processes import Done, Failed, JobUpdate, PartialResult
from meshwave.designer.state.jobs import Job, Listener, run_now
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal
from meshwave.engine.lowering.schedule_prices import priced_pipe
from meshwave.engine.predict.gallery import Variant, apply_variant
from meshwave.engine.program.action import WORDS, Op

KINDS = {op.name: WORDS[op.name] for op in Op if op.is_compute}


@widget(
    "panels/gallery.js", "kit/shell.css", rules=colour_rule(".mw-gallery", {f"op-{op.lower()}": op for op in KINDS})
)
class Gallery(Overlay):
    """An overlay with every variant of every schedule for the open design.

    Results are sent as messages, so that each picture is sent once: ``reset`` with a description of the design,
    ``found`` with cards and notes on all cards so far, and ``done``.
    """

    pinned = param.List(default=[], item_type=str, doc="Keys of the pinned cards.")
    words = param.Dict(default=KINDS, constant=True, doc="Name of each kind of computation.")

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self._session = session
        self._predicted: Design | None = None
        self._job: Listener | None = None
        self._variants: dict[str, Variant] = {}
        self._pins: dict[str, Design] = {}  # by the key of the card
        self._later = session.later or run_now
        session.param.watch(lambda *_: self._predict_variants(), "design")
        session.param.watch(lambda *_: self._mark_pins(), "pinned")

    def open(self) -> None:
        """Show the gallery of the current design."""
        self._open()
        self._predict_variants()

    def stop_jobs(self) -> None:
        """Stop the job of the gallery."""
        if self._job is not None:
            self._job.stop()
            self._job = self._predicted = None

    def _predict_variants(self) -> None:
        """Predict the variants again if the design has changed."""
        design = self._session.design
        if not self.shown or self._predicted is design:
            return
        self.stop_jobs()
        self._pins, self._variants = {}, {}
        self._mark_pins()
        self._send_msg({"type": "reset", "about": gallery_cards.describe_gallery(design)})
        self._predicted = design
        self._job = Job(
            partial(gallery_cards.make_cards, design), f"gallery of schedules for {design.name}"
        ).add_listener(self._later, self._receive_update)

    def _receive_update(self, update: JobUpdate) -> None:
        if isinstance(update, PartialResult):
            found: gallery_cards.Cards = update.value
            self._variants |= {variant.key: variant for variant in found.variants}
            for design, result in found.searched:
                design.pipeline.remember(priced_pipe(design), result)
            self._send_msg(found.message)
        elif isinstance(update, Done | Failed):
            self._job = None
            if isinstance(update, Failed):
                words = f"The gallery is incomplete: {update.reason}."
                self._send_msg({"type": "answered", "gesture": "search", "refused": words})
            self._send_msg({"type": "done"})

    # ---- gestures ----

    def _close(self) -> None:
        """Close the gallery and stop its job, whose processor time edits need."""
        super()._close()
        self.stop_jobs()

    def _on_choose(self, key: str) -> None:
        variant = self._variant(key)
        self._close()  # before the edit, which an open gallery would follow
        if variant.is_present:
            return
        try:
            self._session.edit("pipeline", dict(variant.pipeline), f"schedule {variant.title}")
        except InputError:
            self.open()
            raise

    def _on_pin(self, key: str) -> None:
        variant = self._variant(key)
        design = apply_variant(self._session.design, variant).model_copy(update={"name": variant.title})
        self._pins[variant.key] = design
        self._session.pin_design(design)

    def _mark_pins(self) -> None:
        pinned = [prediction.design for prediction in self._session.pinned]
        self.pinned = [key for key, design in self._pins.items() if design in pinned]

    def _variant(self, key: str) -> Variant:
        found = self._variants.get(key)
        if found is None:
            raise Refusal("outdated_card")
        return found
