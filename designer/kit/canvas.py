"""Base classes of the widgets, which draw plain data and turn gestures of the user into edits."""

from __future__ import annotations

import json
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from inspect import Parameter, signature
from math import isfinite
from types import UnionType
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import panel as pn
import param
from bokeh.document import Document
from bokeh.settings import settings
from bokeh.util.warnings import BokehUserWarning
from panel.custom import JSComponent

from meshwave.designer.kit.assets import module_code, style_sheets
from meshwave.designer.kit.defects import defect_text
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.exports.pictures.palette import MESHES
from meshwave.engine.findings import DesignError, FindingError, Refusal

T = TypeVar("T")
W = TypeVar("W", bound=JSComponent)

warnings.filterwarnings("ignore", "reference already known", BokehUserWarning)
"""A browser sends a copy of each model that was added after the page was loaded, with its first message."""

settings.perform_error_diagnostics = False
"""Disabled, because Panel looks up missing attributes often: the search for similar names takes 1/6 of an edit's
time.
"""

last_activity_s: WeakKeyDictionary[Document, float] = WeakKeyDictionary()
"""Unix time at which a person last used the pointer or the keyboard on each page; the page reports it within 10 s."""

Edit = Callable[[str, Any, str], None]
"""Callback ``on_edit(path, value, label)``; each gesture calls it once and is one undo step."""


class PlainData(str):
    """JSON text of plain data, parsed by ``plainData()`` of ``static/kit/widget.js``.

    Panel and Bokeh visit every part of a list or a dict several times, which would take most of the time of an edit.
    """

    data: Any

    def __new__(cls, data: Any) -> Self:
        """Serialize ``data`` and keep it as an attribute."""
        made = super().__new__(cls, json.dumps(data, separators=(",", ":")))
        made.data = data
        return made


def widget(module: str, *sheets: str, rules: str = "") -> Callable[[type[W]], type[W]]:
    """Return a decorator that sets the module of a widget and its style sheets.

    Args:
        module: the module of ``static/``, such as ``panels/memory.js``; its style sheet is ``panels/memory.css``.
        sheets: style sheets of ``static/`` that it shares with other widgets.
        rules: further CSS rules.
    """

    def decorate(kind: type[W]) -> type[W]:
        kind._esm = module_code(module)
        kind._stylesheets = [*style_sheets(*sheets, f"{module.removesuffix('.js')}.css"), *([rules] if rules else [])]
        return kind

    return decorate


class Canvas(JSComponent):
    """Base class of the widgets that draw plain data and report gestures.

    A gesture is a message ``{"type": NAME, ...}``. It is handled by the method ``_on_NAME``, whose parameters are the
    values of the message that it reads; see :func:`read_arguments`. The widget receives changed data as parameters, and
    the message ``{"type": "answered", "refused": text or None}`` in any case. The message ``{"type": "active"}`` says
    that a person uses the page.
    """

    palette = param.List(default=list(MESHES), item_type=str, doc="Colours of meshes, used cyclically.")

    _handlers: ClassVar[Mapping[str, Callable[..., None]]] = {}

    __abstract = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = {name.removeprefix("_on_"): made for name, made in vars(cls).items() if name.startswith("_on_")}
        cls._handlers = {**cls._handlers, **own}

    def __init__(self, on_edit: Edit | None = None, **params: Any) -> None:
        super().__init__(**params)  # type: ignore[no-untyped-call]
        self._on_edit = on_edit

    def _edit(self, path: str, value: Any, label: str) -> None:
        """Apply an edit to the open document; raises InputError if it is refused."""
        if self._on_edit is not None:
            self._on_edit(path, value, label)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the page."""
        self._send_msg(dict(message))

    def send_after_changes(self, message: Mapping[str, Any]) -> None:
        """Send a message to the page after changes of parameters that are due in the event loop.

        An answer that overtook them would make the page draw the old values again.
        """
        document = pn.state.curdoc
        if document is None or not self._models:  # no page shows the widget
            self.send(message)
        else:
            document.add_next_tick_callback(partial(self.send, message))

    def _handle_msg(self, message: Mapping[str, Any]) -> None:
        name = str(message.get("type", "")).replace("-", "_")
        if name == "active" and pn.state.curdoc is not None:
            last_activity_s[pn.state.curdoc] = time.time()
        handler = self._handlers.get(name)
        if handler is None:
            return
        refused = None
        try:
            handler(self, **read_arguments(handler, message))
        except MeshwaveError as error:
            refused = short_message(error)
        except Exception as error:  # an internal error must not leave the widget waiting
            traceback.print_exc()
            refused = defect_text(error)
        self.send_after_changes({"type": "answered", "gesture": name, "refused": refused})


def read_arguments(handler: Callable[..., Any], gesture: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a gesture that the parameters of its handler name.

    The annotation of a parameter says how its value is read: ``int``, ``float``, ``bool``, ``str``, ``list[int]``, or the
    function in ``Annotated``. A parameter with a default may be missing. ``gesture`` is the whole message.

    Raises:
        InputError: a value is missing or invalid.
    """
    values = {**gesture, "gesture": gesture}
    return {
        name: read_value(values, name, read) if default is Parameter.empty or values.get(name) is not None else default
        for name, read, default in _parameters(handler)
    }


@cache
def _parameters(handler: Callable[..., Any]) -> list[tuple[str, Callable[[Any], Any], Any]]:
    """Return the name, the reader and the default of each annotated parameter."""
    hints = get_type_hints(handler, include_extras=True)
    parameters = signature(handler).parameters.values()
    return [(each.name, _reader(hints[each.name]), each.default) for each in parameters if each.name in hints]


def _reader(hint: Any) -> Callable[[Any], Any]:
    if get_origin(hint) is Annotated:
        return cast(Callable[[Any], Any], get_args(hint)[1])
    kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    return _READERS.get(kind, kind)


def read_value(gesture: Mapping[str, Any], key: str, read: Callable[[Any], T]) -> T:
    """Return a value of a gesture, converted by ``read``.

    Raises:
        InputError: the value is missing or invalid, for example because the page is of another version.
    """
    try:
        found = read(gesture[key])
        if isinstance(found, float) and not isfinite(found):
            raise ValueError
        return found
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise Refusal("invalid_gesture", {"key": key}) from error


def parse_integers(values: Any) -> list[int]:
    """Convert a list to integers, for :func:`read_value`."""
    return [int(value) for value in values]


def plain_text(value: Any) -> str:
    """Convert text or a finite number to text, for :func:`read_value`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not is_number and not isinstance(value, str):
        raise TypeError
    return str(value)


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    str: plain_text,
    list[int]: parse_integers,
    Any: lambda value: value,
    Mapping[str, Any]: lambda value: value,
}
"""Readers of the types that do not read a value themselves."""


def short_message(error: MeshwaveError) -> str:
    """Return the message to show at the pointer: the first problem only, since the problems tab lists them all."""
    if isinstance(error, FindingError):
        return error.problem.message
    if not isinstance(error, DesignError) or not error.problems:
        return str(error)
    more = len(error.problems) - 1
    return error.problems[0].message + (f" (and {more} more)" if more else "")


class Overlay(Canvas):
    """Base class of the widgets that cover the page while they are open.

    ``opening`` counts how often the overlay was opened. A message that closes the overlay contains this count, so
    that a late message does not close an overlay that was opened again.
    """

    shown = param.Boolean(default=False, doc="True while the overlay is open.")
    opening = param.Integer(default=0, doc="Number of times that it was opened.")

    __abstract = True

    def _open(self) -> None:
        self.param.update(shown=True, opening=self.opening + 1)

    def stop_jobs(self) -> None:
        """Stop all background work of the overlay after the tab is closed."""

    def _on_close(self, opening: int | None = None) -> None:
        if opening in (None, self.opening):
            self._close()

    def _close(self) -> None:
        self.shown = False
