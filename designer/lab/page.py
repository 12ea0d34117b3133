"""The page of the transfer lab."""

from __future__ import annotations

import json

import panel as pn

from designer.assets import HEAD, read_static
from designer.lab import edits
from designer.lab.bench import Bench
from designer.views.transfer import TransferView
from engine.design.transfer_spec import parse_transfer

FIRST_CASE = "rows"


def lab_page() -> pn.viewable.Viewable:
    """One tab. What it shows stands in its link, so that a reload or a friend finds the same."""
    pn.config.raw_css = [read_static("app.css")]
    document = pn.state.curdoc
    assert document is not None, "a page is made for a session"
    document.template = HEAD
    return pn.Column(lab(), sizing_mode="stretch_both", margin=0, styles={"height": "100vh", "width": "100vw"})


def lab() -> TransferView:
    """The lab with its first transfer."""
    _, first = edits.cases()[FIRST_CASE]
    return TransferView(Bench(parse_transfer(json.dumps(first))), sizing_mode="stretch_both", margin=0)
