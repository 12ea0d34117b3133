"""The form widget: all settings of the open design, with their problems."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import param

from meshwave.designer.forms.changes import make_edit
from meshwave.designer.forms.fields import Field, form_sections
from meshwave.designer.kit.canvas import Canvas, PlainData, widget
from meshwave.designer.state.design_edits import fix_edit
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.problem_units import in_unit
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem, Refusal


def find_field(where: str, paths: Collection[str]) -> str | None:
    """Return the path of the field for a problem's location: the same or the nearest enclosing path, if there is one."""
    holding = [path for path in paths if where == path or where.startswith((f"{path}.", f"{path}["))]
    return max(holding, key=len, default=None)


def problems_by_path(problems: Sequence[Problem], paths: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the problems of each field that has any, with the labels of their fixes."""
    found: dict[str, list[dict[str, Any]]] = {}
    for problem in problems:
        path = find_field(problem.where, paths)
        if path is not None:
            fixes = [fix.label for fix in problem.fixes]
            shown = {"severity": problem.severity, "message": problem.message, "fixes": fixes}
            found.setdefault(path, []).append({**shown, "where": problem.where, "code": problem.code})
    return found


@widget("panels/form.js", "kit/shell.css")
class Form(Canvas):
    """Form with all settings of the open design by section; each change is one edit."""

    sections = param.String(
        default=PlainData([]), doc="Sections of the form with their fields, as form_sections() returns them."
    )
    problems = param.Dict(default={}, doc="Problems by path of the field that shows them.")
    turned = param.Integer(
        default=0, doc="Counter of documents that were opened; refused inputs are cleared when it changes."
    )

    def __init__(self, session: Session, on_profiles: Callable[[], None] = lambda: None, **params: Any) -> None:
        """Create the form; ``on_profiles`` opens the calibration profiles."""
        super().__init__(session.edit, **params)
        self._session, self._on_profiles = session, on_profiles
        session.watch_later(self.refresh, ["design", "problems"])
        session.param.watch(lambda *_: self.param.update(turned=session.opened + session.turned), ["opened", "turned"])
        self.refresh()

    def has_field(self, path: str) -> bool:
        """Return whether the form has a field for a problem's location."""
        return find_field(path, self._by_path) is not None

    def focus_field(self, path: str) -> bool:
        """Scroll to the field of a problem's location and focus it; return False if there is none."""
        field = find_field(path, self._by_path)
        if field is not None:
            self._send_msg({"type": "focus", "path": field})
        return field is not None

    def refresh(self) -> None:
        """Show the current design and the current choices, for example after a new profile."""
        sections = form_sections(self._session.design)
        self._by_path = {field["path"]: field for section in sections for field in section["fields"]}
        self.param.update(
            sections=PlainData(sections), problems=problems_by_path(self._session.problems, self._by_path)
        )

    def _on_open_profiles(self) -> None:
        self._on_profiles()

    def _on_fix(self, where: str, code: str, fix: str) -> None:
        """Apply a fix of a problem that is shown at a field."""
        problem = next((each for each in self._session.problems if (each.where, each.code) == (where, code)), None)
        self._edit(*fix_edit(self._session.design, problem, fix))

    def _on_change(self, path: str, value: Any = None) -> None:
        """Apply an input, or show the reason for a refusal at its field."""
        refused: str | None = "internal error in Meshwave; the terminal shows the traceback"
        try:
            self._apply_input(path, value)
            refused = None
        except DesignError as error:
            refused = _refusal_text(error, path, self._by_path[path]["unit"])
        except InputError as error:
            refused = str(error)
        finally:
            self.send_after_changes({"type": "changed", "path": path, "refused": refused})

    def _apply_input(self, path: str, given: Any) -> None:
        field = self._by_path.get(path)
        if field is None:
            raise Refusal("outdated_field")
        self._edit(*make_edit(self._session.design, field, given))

    _by_path: Mapping[str, Field] = {}


def _refusal_text(error: DesignError, path: str, unit: str) -> str:
    """Return the reason why an edit was refused, in the unit of the field and without repeating its path."""
    return "; ".join(
        in_unit(problem, unit).message if problem.where == path else str(problem) for problem in error.problems
    )
