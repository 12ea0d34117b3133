"""The page: its pieces, where they lie, and how they hear of each other."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import panel as pn

from designer.canvases._canvas import read_static
from designer.canvases.cluster import ClusterCanvas
from designer.canvases.wave import WaveCanvas
from designer.forms import Form
from designer.session import Session
from designer.views.numbers import Numbers
from designer.views.problems import Problems
from designer.views.runs import LOOK_EVERY_S, RunsPanel
from designer.views.timeline import Layer, TimelineChart
from designer.views.topbar import TopBar
from engine.design import Design, load_design, parse_design, save_design
from engine.errors import MeshwaveError
from engine.launch import Record, launchers, reconcile
from engine.predict import Prediction
from engine.resources import home

_DRAFT = re.compile(r"[0-9a-f]{12}")


class Studio:
    """What all tabs of one designer share: the launcher, the record of runs, and drafts on disk."""

    def __init__(self, first: Design) -> None:
        self._first = first
        self._drafts = home() / "drafts"
        self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.record = Record()
        reconcile(self.record)
        self.launcher = launchers["local"](self.record)
        self.launcher.warm()

    def open(self, draft: str) -> Design:
        """The design that a tab had open before it was reloaded, else the first one."""
        path = self._path(draft)
        try:
            return parse_design(path.read_bytes(), draft=True) if path.exists() else self._first
        except (MeshwaveError, OSError):
            return self._first

    def keep(self, draft: str, design: Design) -> None:
        """Write a draft, so that neither a reload nor a crash loses it."""
        save_design(design, self._path(draft))

    def _path(self, draft: str) -> Path:
        return self._drafts / f"{draft}.json"

    def close(self) -> None:
        self.launcher.close()
        self.record.close()


def page(studio: Studio) -> pn.viewable.Viewable:
    """One tab."""
    draft = _draft_id()
    session = Session(studio.open(draft))
    session.param.watch(lambda event: studio.keep(draft, event.new), "design")
    widgets = Widgets(session, studio)
    pn.state.add_periodic_callback(widgets.runs.look, period=int(LOOK_EVERY_S * 1000))
    return widgets.layout()


def _draft_id() -> str:
    """The tab's draft by its link; a new tab gets a new one, and with it a link without the token."""
    given = pn.state.session_args.get("draft", [b""])[0].decode("ascii", "ignore")
    if _DRAFT.fullmatch(given):
        return given
    fresh = secrets.token_hex(6)
    if pn.state.location is not None:
        pn.state.location.search = f"?draft={fresh}"
    return fresh


class Widgets:
    """The pieces of one tab, bound to its session."""

    def __init__(self, session: Session, studio: Studio) -> None:
        self.session = session
        fill = {"sizing_mode": "stretch_both"}
        self.topbar = TopBar(session, exporters=EXPORTERS, **fill)
        self.numbers = Numbers(session, **fill)
        self.cluster = ClusterCanvas(on_edit=session.edit, **fill)
        self.wave = WaveCanvas(on_edit=session.edit, **fill)
        self.timeline = TimelineChart(**fill)
        self.form = Form(session, **fill)
        self.problems = Problems(session, on_focus=self._focus, **fill)
        self.runs = RunsPanel(session, studio.launcher, studio.record, **fill)
        session.param.watch(lambda _: self._show_design(), ["design", "prediction", "problems"])
        session.param.watch(lambda _: self._show_timeline(), ["prediction", "problems", "pinned", "measured"])
        self._show_design()
        self._show_timeline()
