"""Set-up shared by all pages of the designer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn
from bokeh.document import Document

from meshwave.designer.kit.assets import HEAD, read_static


def prepare_page() -> Document:
    """Set the style sheet and the template of the page that is being built, and return its document."""
    pn.config.raw_css = [read_static("kit/page.css")]
    document = pn.state.curdoc
    assert document is not None, "a page can be created only inside a Panel session"
    document.template = HEAD  # type: ignore[assignment]  # Bokeh takes the text of a template too
    request = getattr(document.session_context, "request", None)
    document.template_variables["signed_in_as"] = getattr(request, "signed_in_as", "")
    return document


def call_periodically(call: Callable[[], Any], interval_ms: int) -> None:
    """Call a function at intervals while the page is shown.

    It is called first when the page has been loaded, since Panel drops changes that happen while a browser loads it. The
    callback is Bokeh's, since Panel's own takes five times as long as a refresh.
    """
    document = pn.state.curdoc
    assert document is not None, "a page can be created only inside a Panel session"

    def begin() -> None:
        document.add_periodic_callback(call, interval_ms)

    pn.state.onload(begin)


def page_argument(name: str) -> str:
    """Return an argument of the page's URL; empty if the URL lacks it."""
    return str(pn.state.session_args.get(name, [b""])[0].decode("ascii", "ignore"))


def hide_token() -> None:
    """Remove the token, and all other arguments, from the tab's link."""
    if pn.state.location is not None:
        pn.state.location.search = ""
