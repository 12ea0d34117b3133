"""The top bar: the design's name, files, undo, theme and keyboard help."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any

import param

from meshwave.designer.kit.canvas import Canvas, plain_text, widget
from meshwave.designer.kit.shortcuts import SHORTCUTS, Shortcut
from meshwave.designer.state import file_jobs
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.edit_log import EditLog
from meshwave.designer.views._view import views
from meshwave.engine.document import Design, load_design
from meshwave.engine.document.differences import describe_differences
from meshwave.engine.document.links import design_link
from meshwave.engine.errors import InputError, escape_unprintable
from meshwave.engine.exports import exports
from meshwave.engine.exports.pictures.rows import ShownTimeline, whole_step
from meshwave.engine.files import all_examples, example
from meshwave.engine.findings import Problem, Refusal, problems_of
from meshwave.engine.imports import Import, Trace, TraceFormat, imports, traces
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.predict.published_examples import published_steps
from meshwave.engine.schedules import schedules
from meshwave.engine.units import format_count, format_time

SHOWN_PROBLEMS = 9  # an import shows at most eight notes, and the number of the others


def _named_texts(given: Any) -> list[tuple[str, Any]]:
    """Return name and text of each opened file, for :func:`read_value`."""
    found = [(escape_unprintable(plain_text(each["file"])), each.get("text")) for each in given]
    if not found:
        raise ValueError
    return found


NamedTexts = Annotated[list[tuple[str, Any]], _named_texts]


@widget("panels/topbar.js", "kit/shell.css")
class TopBar(Canvas):
    """Widget with the design's name, the file menu, undo and redo, the theme and the keyboard help.

    Files are read and written by the browser; the server opens no path that a page names. ``on_launch`` focuses the
    launch button, ``on_gallery`` and ``on_compare`` open overlays, ``on_experts`` toggles the experts, ``on_view``
    shows a view, ``on_lessons`` opens the list of lessons, and ``on_trace`` adds a trace as a run of the design.
    """

    name_of_design = param.String(default="")
    history = param.List(default=["", ""], doc="Labels of the edits that undo and redo apply to; empty for none.")
    unsaved = param.Boolean(default=False, doc="True if the design has changed since a file was last opened or saved.")
    examples = param.List(default=[], doc="Name, title and note of each example.")
    exports = param.List(default=[], doc="Name, title and note of each entry of the export menu.")
    suffixes = param.List(default=[], item_type=str, doc="Suffixes of the files of other tools that can be opened.")
    shortcuts = param.List(default=[], doc="Group, keys and effect of each shortcut.")
    views = param.List(default=[], doc="Name, title and key of each view; the key may be empty.")
    notice = param.String(default="", doc="Notice to the user that is not about an edit; empty if there is none.")
    versions: Any = param.List(
        default=None,
        allow_None=True,
        doc="Named versions of the design: name, time, and differences; None if the page has no library.",
    )
    longest_name = param.Integer(
        default=file_jobs.LONGEST_NAME, constant=True, doc="Largest number of characters of a name."
    )
    largest = param.Integer(default=file_jobs.LARGEST_FILE_BYTES, constant=True, doc="Largest size of a file in bytes.")
    theme: Any = param.Selector(default="light", objects=["light", "dark"], doc="Theme that the browser shows.")

    def __init__(
        self,
        session: Session,
        *,
        on_launch: Callable[[], Any] | None = None,
        on_gallery: Callable[[], Any] | None = None,
        on_compare: Callable[[], Any] | None = None,
        on_experts: Callable[[], Any] | None = None,
        on_view: Callable[[str], Any] | None = None,
        on_lessons: Callable[[], Any] | None = None,
        on_trace: Callable[[Trace], Any] = lambda trace: None,
        find_shown: Callable[[Prediction], Sequence[ShownTimeline]] = whole_step,
        edit_log: Callable[[], EditLog] | None = None,
        shortcuts: tuple[Shortcut, ...] = SHORTCUTS,
        **params: Any,
    ) -> None:
        super().__init__(
            suffixes=[*_suffixes(imports.values()), *_suffixes(traces.values())],
            examples=[dict(entry) for entry in example_entries()],
            exports=[{"name": name, "title": export.title, "note": export.note} for name, export in exports.items()],
            shortcuts=[shortcut._asdict() for shortcut in (*shortcuts, *_view_shortcuts())],
            views=[
                {"name": "timeline", "title": "Timeline", "key": ""},
                *({"name": name, "title": view.title, "key": view.key} for name, view in views.items()),
            ],
            **params,
        )
        self._session, self._on_launch_button = session, on_launch
        self._open_gallery, self._open_comparison = on_gallery, on_compare
        self._turn_experts, self._turn_to_view = on_experts, on_view
        self._open_lessons = on_lessons
        self._on_trace, self._find_shown = on_trace, find_shown
        self._edit_log = edit_log
        self.versions = None if edit_log is None else []
        self._saved = session.design
        session.watch_later(self._update_bar, ["design", "history", "notice"])
        self._update_bar()

    def _update_bar(self) -> None:
        design = self._session.design
        self.param.update(
            name_of_design=design.name,
            history=list(self._session.history),
            unsaved=design is not self._saved and design != self._saved,
            notice=self._session.notice,
        )

    # ---- gestures ----

    def _on_rename(self, name: str) -> None:
        self._rename_design(file_jobs.design_name(name), "rename to {}")

    def _on_open(self, files: NamedTexts) -> None:
        file = ", ".join(name for name, _ in files)
        work = partial(file_jobs.open_files, files, self._session.design, file_jobs.LONGEST_NAME)
        size = sum(len(text) for _, text in files if isinstance(text, str))
        self._session.files.process(
            f"Reading {file} …", work, partial(self._show_opened, file), at_once=size <= file_jobs.SMALL_FILE_BYTES
        )

    def _show_opened(self, file: str, found: file_jobs.OpenedFile) -> None:
        if found.trace is not None:
            self._add_trace_run(file, found.trace)
        elif found.design is None:
            self._refuse_file(file, found.problems)
        elif found.is_import:
            self._import_design(file, found.design, found.notes)
        else:
            self._open_design(found.design, f"open {file}")

    def _add_trace_run(self, file: str, trace: Trace) -> None:
        try:
            self._on_trace(trace)
        except InputError as error:
            self._refuse_file(file, problems_of(error))
            return
        words = (
            "Its timeline is overlaid on the prediction. To use its times as costs of the design, press “Calibrate from "
            "this run” in the Run tab."
        )
        self._send_list(f"{file} is a run of this design", [{"where": "", "message": words}], "notes")

    def _on_example(self, name: str) -> None:
        design = load_design(example(name))
        self._open_design(design, f"open the example {design.name}")

    def _on_save(self) -> None:
        design = self._session.design
        self._download(f"{file_jobs.file_name(design.name)}.json", "application/json", design.to_json().encode())
        self._saved = design
        self._update_bar()

    def _on_save_as(self, name: str) -> None:
        self._rename_design(file_jobs.design_name(name), "save as {}")
        self._on_save()

    def _on_export(self, name: str) -> None:
        prediction = self._session.current_prediction("export")
        file = file_jobs.file_name(prediction.design.name) + exports[name].suffix
        is_small = len(prediction.program) <= file_jobs.SMALL_ROWS
        work, then = (
            partial(file_jobs.export_prediction, name, prediction, self._find_shown(prediction)),
            partial(self._show_exported, file, exports[name].mime),
        )
        self._session.files.process(f"Writing {file} …", work, then, at_once=is_small)

    def _show_exported(self, file: str, mime: str, found: file_jobs.ExportedFile) -> None:
        self._download(file, mime, found.content)
        if lines := [{"where": "", "message": each} for each in found.left_out]:
            self._send_list(f"Some parts of the design are not in {file}", lines, "notes")

    def _on_link(self) -> None:
        self._send_msg({"type": "link", "fragment": design_link(self._session.design)})

    def _on_undo(self) -> None:
        self._session.undo()

    def _on_redo(self) -> None:
        self._session.redo()

    def _on_pin(self) -> None:
        self._session.pin()

    def _on_launch(self) -> None:
        if self._on_launch_button is not None:
            self._on_launch_button()

    def _on_gallery(self) -> None:
        if self._open_gallery is not None:
            self._open_gallery()

    def _on_compare(self) -> None:
        if self._open_comparison is not None:
            self._open_comparison()

    def _on_experts(self) -> None:
        if self._turn_experts is not None:
            self._turn_experts()

    def _on_view(self, name: str) -> None:
        if self._turn_to_view is not None:
            self._turn_to_view(name)

    def _on_lessons(self) -> None:
        if self._open_lessons is not None:
            self._open_lessons()

    # ---- versions ----

    def _named_versions(self, *, changes: bool = False) -> EditLog:
        if changes:
            self._session.check_editable()
        if self._edit_log is None:
            raise Refusal("no_versions_on_page")
        return self._edit_log()

    def _on_list_versions(self) -> None:
        design = self._session.design
        self.versions = [
            {"name": name, "when": format_time(saved_s), "changes": describe_differences(design, content)}
            for name, saved_s, content in self._named_versions().versions()
        ]

    def _on_add_version(self, name: str) -> None:
        self._named_versions(changes=True).add_version(file_jobs.design_name(name), self._session.design)
        self._on_list_versions()

    def _on_restore_version(self, name: str) -> None:
        for version in self._named_versions().versions():
            if version.name == name:
                self._session.replace(version.design, f"restore version {name}")

    def _on_forget_version(self, name: str) -> None:
        self._named_versions(changes=True).forget_version(name)
        self._on_list_versions()

    # ---- helpers of the gestures ----

    def _open_design(self, design: Design, label: str) -> None:
        self._saved = design
        self._session.open(design, label)
        self._update_bar()

    def _import_design(self, file: str, design: Design, notes: Sequence[Problem]) -> None:
        """Replace the open design by an import; unlike opening a file, this counts as an unsaved edit."""
        self._session.replace(design, f"import {file}")
        if notes:
            self._send_list(f"{file} is open", [{"where": "", "message": note.message} for note in notes], "notes")

    def _rename_design(self, name: str, label: str) -> None:
        if name != self._session.design.name:
            self._session.edit("name", name, label.format(name))

    def _refuse_file(self, file: str, problems: Sequence[Problem]) -> None:
        lines = [_problem_entry(problem) for problem in problems[:SHOWN_PROBLEMS]]
        more = len(problems) - len(lines)
        if more > 0:
            lines.append({"where": "", "message": f"and {more} more"})
        self._send_list(f"{file} was not opened", lines, "trouble")

    def _send_list(self, title: str, lines: list[dict[str, Any]], kind: str) -> None:
        self._send_msg({"type": kind, "title": title, "lines": lines})

    def _download(self, name: str, mime: str, content: bytes) -> None:
        self._send_msg({"type": "download", "name": name, "mime": mime, "content": content})


# ---- functions ----


def _problem_entry(problem: Problem) -> dict[str, Any]:
    """Return a problem of a refused file for the page: its text, its place in the file, and its fixes."""
    params = {key: value for key, value in problem.params.items() if key != "excerpt"}
    return {
        "where": problem.where,
        "message": problem.replace(params=params).message,
        "excerpt": problem.params.get("excerpt", ""),
        "fixes": [fix.label for fix in problem.fixes],
    }


def _suffixes(formats: Iterable[type[Import] | type[TraceFormat]]) -> list[str]:
    return [suffix for each in formats for suffix in each.suffixes]


def _view_shortcuts() -> Iterator[Shortcut]:
    """Yield the shortcuts of the views."""
    for view in views.values():
        if view.key:
            yield Shortcut("Views", view.key.upper(), view.title.lower())


@cache
def example_entries() -> tuple[Mapping[str, str], ...]:
    """Return the name, the title and a short note of each example for the menu."""
    return tuple(_example_entry(name, json.loads(path.read_bytes())) for name, path in all_examples().items())


def _example_entry(name: str, document: Mapping[str, Any]) -> Mapping[str, str]:
    schedule, meshes = schedules[document["pipeline"]["schedule"]].title, len(document["meshes"])
    note = f"{schedule}, {format_count(meshes, 'mesh', 'meshes')}"
    if published := published_steps().get(name):
        note = published.comparison()
    return {"name": name, "title": document["name"], "note": note}
