"""The widget: all numbers and choices of the open design, with their problems beside them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import param

from meshwave.designer.forms.changes import change
from meshwave.designer.forms.fields import Field, fields
from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Canvas, PlainData, plain_text, value_of
from meshwave.designer.state.design_session import Session
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem


def field_of(where: str, paths: Collection[str]) -> str | None:
    """The field that a problem's place belongs to: itself, or the nearest one that holds it."""
    holding = [path for path in paths if where == path or where.startswith((f"{path}.", f"{path}["))]
    return max(holding, key=len, default=None)


def at_fields(problems: Sequence[Problem], paths: Collection[str]) -> dict[str, list[dict[str, str]]]:
    """The problems of each field that has any."""
    found: dict[str, list[dict[str, str]]] = {}
    for problem in problems:
        path = field_of(problem.where, paths)
        if path is not None:
            found.setdefault(path, []).append({"severity": problem.severity, "message": problem.message})
    return found


class Form(Canvas):
    """All numbers and choices of the open design, section by section; each change is one edit."""

    sections = param.String(default=PlainData([]), doc="See fields().")
    problems = param.Dict(default={}, doc="Path of a field to the problems shown at it.")
    turned = param.Integer(default=0, doc="Changes when another design is put in place: what was refused is forgotten.")

    _esm = module("panels/form.js")
    _stylesheets: ClassVar = [
        read_static("kit/canvas.css"),
        read_static("kit/shell.css"),
        read_static("panels/form.css"),
    ]
    _gestures = ("change", "act")

    def __init__(self, session: Session, on_measured: Callable[[], None] = lambda: None, **params: Any) -> None:
        """``on_measured`` opens what was measured, beside the choice of a model of cost."""
        super().__init__(session.edit, **params)
        self._session, self._on_measured = session, on_measured
        session.param.watch(lambda *_: self.look(), ["design", "problems"])
        session.param.watch(lambda *_: self.param.update(turned=session.opened + session.turned), ["opened", "turned"])
        self.look()

    def holds(self, path: str) -> bool:
        """Whether there is a field for a problem's place."""
        return field_of(path, self._by_path) is not None

    def focus_field(self, path: str) -> bool:
        """Bring the field of a problem's place into view and give it the keyboard; False if there is none."""
        field = field_of(path, self._by_path)
        if field is not None:
            self._send_msg({"type": "focus", "path": field})
        return field is not None

    def look(self) -> None:
        """Show the design as it is and what can be chosen now, as when a profile has come."""
        sections = fields(self._session.design)
        self._by_path = {field["path"]: field for section in sections for field in section["fields"]}
        self.param.update(sections=PlainData(sections), problems=at_fields(self._session.problems, self._by_path))

    def _on_act(self, gesture: Mapping[str, Any]) -> None:
        self._on_measured()

    def _on_change(self, gesture: Mapping[str, Any]) -> None:
        """Make the edit, or say at the field why not."""
        path = value_of(gesture, "path", plain_text)
        refused: str | None = "this went wrong; the terminal that started the designer says why"
        try:
            self._change(path, gesture.get("value"))
            refused = None
        except DesignError as error:
            refused = _refusal(error, path)
        except InputError as error:
            refused = str(error)
        finally:
            self._send_msg({"type": "changed", "path": path, "refused": refused})

    def _change(self, path: str, given: Any) -> None:
        field = self._by_path.get(path)
        if field is None:
            raise InputError("the design has changed and this field is gone")
        self._edit(*change(self._session.design, field, given))

    _by_path: Mapping[str, Field] = {}


def _refusal(error: DesignError, path: str) -> str:
    """Why an edit was refused, without the place where the words are shown anyway."""
    return "; ".join(problem.message if problem.where == path else str(problem) for problem in error.problems)
