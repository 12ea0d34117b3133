"""The top bar: the design's name, its files, the way back, the theme and the keyboard."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

import param

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Canvas, plain_text, value_of
from meshwave.designer.state._edit import most
from meshwave.designer.state.design_session import Session
from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.errors import DesignError, InputError, Problem, printable
from meshwave.engine.exports import exports
from meshwave.engine.files import example, examples
from meshwave.engine.imports.torch_csv import NO_ROOM, Imported, import_schedule
from meshwave.engine.schedules import schedules

LARGEST_FILE_BYTES = 12_000_000  # the page's socket takes messages of 20 MB
LONGEST_NAME = most(Design, "name")
SHOWN_PROBLEMS = 9  # a schedule tells of eight, and how many more there are
_UNFIT = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')


class Shortcut(NamedTuple):
    """A line of the keyboard help."""

    group: str
    keys: str
    does: str


SHORTCUTS = (
    Shortcut("Design", "Ctrl+Z", "undo"),
    Shortcut("Design", "Ctrl+Shift+Z, Ctrl+Y", "redo"),
    Shortcut("Design", "Ctrl+O", "open a design or a schedule"),
    Shortcut("Design", "Ctrl+S", "save"),
    Shortcut("Design", "P", "pin, to compare; again to unpin"),
    Shortcut("Design", "V", "compare side by side"),
    Shortcut("Design", "G", "gallery of schedules"),
    Shortcut("Design", "X", "experts in place of the cluster, and back"),
    Shortcut("Design", "L", "go to launch"),
    Shortcut("Design", "?", "this help"),
    Shortcut("Fields", "Enter", "take over what is typed"),
    Shortcut("Fields", "Esc", "take it back"),
    Shortcut("Cluster", "Arrows", "from device to device"),
    Shortcut("Cluster", "Shift+Arrows", "select devices"),
    Shortcut("Cluster", "Enter", "draw a mesh over them"),
    Shortcut("Cluster", "F2, Delete", "rename or delete a mesh"),
    Shortcut("Experts", "Space, Arrows, Enter", "pick up, carry, put down"),
    Shortcut("Experts", "R, Delete", "replicate, remove a replica"),
    Shortcut("Experts", "B, Shift+B", "balance, equal blocks"),
    Shortcut("Experts", "+, -", "hotter, cooler"),
    Shortcut("Wave", "Arrows", "from stage to stage, from skip to skip"),
    Shortcut("Wave", "Alt+Left, Alt+Right", "give a layer to a neighbour"),
    Shortcut("Wave", "Alt+Up, Alt+Down", "carry a stage to another mesh"),
    Shortcut("Timeline", "W, S", "zoom in and out"),
    Shortcut("Timeline", "A, D", "move left and right"),
    Shortcut("Timeline", "0", "show the whole step"),
    Shortcut("Timeline", "J, K", "from block to block"),
    Shortcut("Timeline", "Enter, F", "pin a block, go to it"),
    Shortcut("Timeline", "C, T, M", "critical path, transfers, memory"),
    Shortcut("Timeline", "E", "edit the order by hand"),
    Shortcut("Timeline", "?", "all its keys"),
)


class TopBar(Canvas):
    """Name, files, undo and redo, theme and keyboard of a tab. Files come from and go to the
    person's own machine by the browser; the server reads and writes no path for it.

    ``on_launch`` brings the launch button to the front, ``on_gallery`` and ``on_compare`` open an overlay,
    ``on_experts`` turns the cluster's pane to the experts and back.
    """

    name_of_design = param.String(default="")
    history = param.List(default=["", ""], doc="What undo and redo would do; empty for nothing.")
    unsaved = param.Boolean(default=False, doc="Whether the design differs from the file it came from or went to.")
    examples = param.List(default=[], doc="See example_entries().")
    exports = param.List(default=[], doc="Name, title and note of each entry of the export menu.")
    shortcuts = param.List(default=[], doc="Group, keys and what they do.")
    notice = param.String(default="", doc="What a person should know although nothing was refused; empty for nothing.")
    longest_name = param.Integer(default=LONGEST_NAME, constant=True, doc="Letters that a design's name may have.")
    largest = param.Integer(default=LARGEST_FILE_BYTES, constant=True, doc="Bytes that a file may have.")
    theme: Any = param.Selector(default="light", objects=["light", "dark"], doc="What is shown, as the browser tells.")

    _esm = module("panels/topbar.js")
    _stylesheets: ClassVar = [
        read_static("kit/canvas.css"),
        read_static("kit/shell.css"),
        read_static("panels/topbar.css"),
    ]
    _gestures = (
        "rename", "open", "example", "save", "save_as", "export", "undo", "redo", "pin", "launch", "gallery", "compare", "experts",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        *,
        on_launch: Callable[[], Any] | None = None,
        on_gallery: Callable[[], Any] | None = None,
        on_compare: Callable[[], Any] | None = None,
        on_experts: Callable[[], Any] | None = None,
        shortcuts: tuple[Shortcut, ...] = SHORTCUTS,
        **params: Any,
    ) -> None:
        super().__init__(
            examples=[dict(entry) for entry in example_entries()],
            exports=[{"name": name, "title": export.title, "note": export.note} for name, export in exports.items()],
            shortcuts=[shortcut._asdict() for shortcut in shortcuts],
            **params,
        )
        self._session, self._on_launch_button = session, on_launch
        self._open_gallery, self._open_comparison = on_gallery, on_compare
        self._turn_experts = on_experts
        self._saved = session.design
        session.param.watch(lambda *_: self._show(), ["design", "history", "notice"])
        self._show()

    def _show(self) -> None:
        design = self._session.design
        self.param.update(
            name_of_design=design.name,
            history=list(self._session.history),
            unsaved=design is not self._saved and design != self._saved,
            notice=self._session.notice,
        )

    # one method a gesture

    def _on_rename(self, gesture: Mapping[str, Any]) -> None:
        self._call_it(_design_name(value_of(gesture, "name", plain_text)), "rename to {}")

    def _on_open(self, gesture: Mapping[str, Any]) -> None:
        file = printable(value_of(gesture, "file", plain_text))
        try:
            if is_schedule(file):
                self._import(file, read_schedule(gesture.get("text"), file, self._session.design))
            else:
                self._open(read_upload(gesture.get("text")), f"open {file}")
        except DesignError as error:
            self._refuse_file(file, error.problems)
        except InputError as error:
            self._refuse_file(file, [Problem("", "file", str(error))])

    def _on_example(self, gesture: Mapping[str, Any]) -> None:
        design = load_design(example(value_of(gesture, "name", plain_text)))
        self._open(design, f"open the example {design.name}")

    def _on_save(self, gesture: Mapping[str, Any]) -> None:
        design = self._session.design
        self._download(f"{file_name(design.name)}.json", "application/json", design.to_json().encode())
        self._saved = design
        self._show()

    def _on_save_as(self, gesture: Mapping[str, Any]) -> None:
        self._call_it(_design_name(value_of(gesture, "name", plain_text)), "save as {}")
        self._on_save(gesture)

    def _on_export(self, gesture: Mapping[str, Any]) -> None:
        export, prediction = exports[value_of(gesture, "name", plain_text)], self._session.current_prediction("export")
        file = file_name(prediction.design.name) + export.suffix
        self._download(file, export.mime, export.make(prediction))
        if lines := [{"where": "", "message": each} for each in export.left_out(prediction)]:
            self._tell(f"{file} has not all of the design", lines, "notes")

    def _on_undo(self, gesture: Mapping[str, Any]) -> None:
        self._session.undo()

    def _on_redo(self, gesture: Mapping[str, Any]) -> None:
        self._session.redo()

    def _on_pin(self, gesture: Mapping[str, Any]) -> None:
        self._session.pin()

    def _on_launch(self, gesture: Mapping[str, Any]) -> None:
        if self._on_launch_button is not None:
            self._on_launch_button()

    def _on_gallery(self, gesture: Mapping[str, Any]) -> None:
        if self._open_gallery is not None:
            self._open_gallery()

    def _on_compare(self, gesture: Mapping[str, Any]) -> None:
        if self._open_comparison is not None:
            self._open_comparison()

    def _on_experts(self, gesture: Mapping[str, Any]) -> None:
        if self._turn_experts is not None:
            self._turn_experts()

    # what they share

    def _open(self, design: Design, label: str) -> None:
        self._saved = design
        self._session.replace(design, label)
        self._show()

    def _import(self, file: str, imported: Imported) -> None:
        """Put a schedule into the open design; what it is saved as stays, as after any edit."""
        self._session.replace(imported.design, f"import {file}")
        if imported.notes:
            self._tell(f"{file} is open", [{"where": "", "message": note} for note in imported.notes], "notes")

    def _call_it(self, name: str, label: str) -> None:
        if name != self._session.design.name:
            self._session.edit("name", name, label.format(name))

    def _refuse_file(self, file: str, problems: list[Problem] | tuple[Problem, ...]) -> None:
        lines = [{"where": problem.where, "message": problem.message} for problem in problems[:SHOWN_PROBLEMS]]
        more = len(problems) - len(lines)
        if more > 0:
            lines.append({"where": "", "message": f"and {more} more"})
        self._tell(f"{file} was not opened", lines, "trouble")

    def _tell(self, title: str, lines: list[dict[str, str]], kind: str) -> None:
        self._send_msg({"type": kind, "title": title, "lines": lines})

    def _download(self, name: str, mime: str, content: bytes) -> None:
        self._send_msg({"type": "download", "name": name, "mime": mime, "content": content})


# ---- plain functions ----


@cache
def example_entries() -> tuple[Mapping[str, str], ...]:
    """The examples as a menu: the name to open it by, its title, and what is in it in a few words."""
    return tuple(_entry(name, json.loads(path.read_bytes())) for name, path in examples().items())


def _entry(name: str, document: Mapping[str, Any]) -> Mapping[str, str]:
    schedule, meshes = schedules[document["pipeline"]["schedule"]].title, len(document["meshes"])
    return {"name": name, "title": document["name"], "note": f"{schedule}, {meshes} mesh{'es' if meshes > 1 else ''}"}


def read_upload(text: Any) -> Design:
    """A design of the text of a file; one whose parts do not fit each other opens as a draft.

    Raises:
        DesignError: it is no design.
        InputError: it is too large.
    """
    return parse_design(_upload(text), draft=True)


def is_schedule(file: str) -> bool:
    """Whether a file's name is that of a schedule rather than of a design."""
    return file.lower().endswith((".csv", ".tsv"))


def read_schedule(text: Any, file: str, design: Design) -> Imported:
    """The open design with the schedule of a CSV; a design of its own where the cluster is too small for it.

    Raises:
        DesignError: it is no sound schedule.
        InputError: it is too large.
    """
    text, name = _upload(text), file.rpartition(".")[0][:LONGEST_NAME] or "schedule"
    try:
        return import_schedule(text, name, design, draft=True)
    except DesignError as error:
        if not any(problem.code == NO_ROOM for problem in error.problems):
            raise
        made, notes = import_schedule(text, name)
        return Imported(made, (f"{error.problems[0].message}: this is one; undo goes back", *notes))


def _upload(text: Any) -> str:
    """The text of a file that a page sent.

    Raises:
        InputError: it is no text, or too large.
    """
    if not isinstance(text, str):
        raise InputError("the file is not text")
    size = len(text.encode("utf-8", "replace"))
    if size > LARGEST_FILE_BYTES:
        raise InputError(f"it has {size / 1e6:.3g} MB, and the page opens up to {LARGEST_FILE_BYTES / 1e6:.3g} MB")
    return text


def file_name(name: str) -> str:
    """A design's name as a file's, on any system."""
    return " ".join(_UNFIT.sub(" ", name).split())[:100].strip(". ") or "design"


def _design_name(given: Any) -> str:
    name = " ".join(str(given).split())
    if not name:
        raise InputError("a design needs a name")
    if len(name) > LONGEST_NAME:
        raise InputError(f"a design's name has at most {LONGEST_NAME} letters; this has {len(name)}")
    return name
