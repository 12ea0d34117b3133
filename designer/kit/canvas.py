"""What the canvases have in common: gestures in, edits or refusals out."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

import param
from bokeh.settings import settings
from panel.custom import JSComponent

from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.exports.pictures.palette import MESHES
from meshwave.engine.findings import DesignError, FindingError

T = TypeVar("T")

settings.perform_error_diagnostics = False
"""Panel asks Bokeh's models for names that they lack, and Bokeh looks for similar ones: a sixth of an edit's time."""

Edit = Callable[[str, Any, str], None]
"""``on_edit(path, value, label)``: one gesture, one edit, one step of undo."""


class PlainData(str):
    """Plain data as the JSON text in which it travels, for ``plainData()`` in ``static/kit/widget.js``.

    Panel and Bokeh visit every part of a list or a dict many times, which takes most of the time of an edit.
    """

    data: Any

    def __new__(cls, data: Any) -> Self:
        made = super().__new__(cls, json.dumps(data, separators=(",", ":")))
        made.data = data
        return made


class Canvas(JSComponent):
    """A widget that draws plain data and sends gestures; Python decides what they mean.

    A gesture is a message ``{"type": NAME, ...}`` that goes to the method ``_on_NAME`` named in
    ``_gestures``. Whatever comes of it, the widget gets an answer: new data by parameters, then
    ``{"type": "answered", "refused": sentence or None}``.
    """

    palette = param.List(default=list(MESHES), item_type=str, doc="Colours of meshes, reused in turn.")

    _gestures: ClassVar[tuple[str, ...]] = ()

    __abstract = True

    def __init__(self, on_edit: Edit | None = None, **params: Any) -> None:
        super().__init__(**params)  # type: ignore[no-untyped-call]
        self._on_edit = on_edit

    def _edit(self, path: str, value: Any, label: str) -> None:
        """Hand an edit to the app, which may raise InputError and so refuse it."""
        if self._on_edit is not None:
            self._on_edit(path, value, label)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message to the page."""
        self._send_msg(dict(message))

    def _handle_msg(self, message: Mapping[str, Any]) -> None:
        name = str(message.get("type", "")).replace("-", "_")
        if name not in self._gestures:
            return
        refused = None
        try:
            getattr(self, f"_on_{name}")(message)
        except MeshwaveError as error:
            refused = short_message(error)
        except Exception as error:  # a defect of ours: the page must not fall silent
            traceback.print_exc()
            refused = f"That went wrong inside Meshwave ({error!r}); nothing was changed. The terminal says more."
        self._send_msg({"type": "answered", "gesture": name, "refused": refused})


def value_of(gesture: Mapping[str, Any], key: str, read: Callable[[Any], T]) -> T:
    """Return a value of a gesture, read as what it should be.

    Raises:
        InputError: it is missing or something else; the page that sent it is of another version, or none of ours.
    """
    try:
        return read(gesture[key])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the page sent a gesture whose {key!r} cannot be read; reload the page") from error


def whole_numbers(values: Any) -> list[int]:
    """Read a list of whole numbers for :func:`value_of`."""
    return [int(value) for value in values]


def plain_text(value: Any) -> str:
    """Read text, or a number as text, for :func:`value_of`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    return str(value)


def short_message(error: MeshwaveError) -> str:
    """Return the message for a cursor: of the first problem only, since the problems panel lists them all."""
    if isinstance(error, FindingError):
        return error.problem.message
    if not isinstance(error, DesignError) or not error.problems:
        return str(error)
    more = len(error.problems) - 1
    return error.problems[0].message + (f" (and {more} more)" if more else "")


class Overlay(Canvas):
    """Each opening has a number, and the page tells which one it closed.

    So whoever closes it and opens it again at once finds it open, whichever message comes first.
    """

    shown = param.Boolean(default=False, doc="Whether the overlay is open.")
    opening = param.Integer(default=0, doc="How often it was opened.")

    __abstract = True

    def _open(self) -> None:
        self.param.update(shown=True, opening=self.opening + 1)

    def _on_close(self, gesture: Mapping[str, Any]) -> None:
        if gesture.get("opening", self.opening) == self.opening:
            self._close()

    def _close(self) -> None:
        self.shown = False
