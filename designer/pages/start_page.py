"""The start page: new designs, the library, runs, examples and lessons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import panel as pn
import param

from meshwave.designer.kit.assets import colour_rule
from meshwave.designer.kit.canvas import Canvas, PlainData, widget
from meshwave.designer.kit.page_setup import hide_token, prepare_page
from meshwave.designer.lessons.pane import lesson_entries
from meshwave.designer.pages.design_page import page
from meshwave.designer.state import file_jobs as files
from meshwave.designer.state.design_card import predicted_card
from meshwave.designer.state.job_processes import JobUpdate, PartialResult
from meshwave.designer.state.jobs import Job, Later, Listener, UpdateHandler, page_callback_scheduler
from meshwave.designer.state.library import LONGEST_RECENT, Library
from meshwave.designer.state.studio import Studio
from meshwave.designer.views.gallery import KINDS
from meshwave.designer.views.topbar import example_entries
from meshwave.engine.document import Design, load_design
from meshwave.engine.document.differences import describe_differences
from meshwave.engine.document.links import read_design_link
from meshwave.engine.errors import escape_unprintable
from meshwave.engine.files import example, examples
from meshwave.engine.findings import Refusal
from meshwave.engine.imports import imports
from meshwave.engine.people.people_file import Role
from meshwave.engine.predict.published_examples import published_steps
from meshwave.engine.units import format_time

SHOWN_RUNS = 8
TOUR = "00-tour"
"""Lesson that a first visit offers above everything else."""
DESIGN_ARGUMENTS = ("draft", "shared", "example", "run", "new", "lesson")
"""Arguments of a link that opens a design."""


class ExampleCards:
    """Cards of the predicted examples by name, and the job that predicts the others, shared by all pages of the process."""

    def __init__(self) -> None:
        self.cards: dict[str, dict[str, Any]] = {}
        self._job: Job | None = None

    def predict_missing(self, later: Later, handle: UpdateHandler) -> Listener | None:
        """Return the page's listener of the job that predicts the examples without a card; None if all have one."""
        missing = [name for name in examples() if name not in self.cards]
        if not missing:
            return None
        if self._job is None or self._job.is_over:
            self._job = Job(partial(make_example_cards, missing), "pictures of examples")
        return self._job.add_listener(later, handle)


_examples = ExampleCards()


def front_page(studio: Studio) -> pn.viewable.Viewable:
    """Build the page at the path ``/``: the start page, unless the server or the link names a design."""
    names_design = any(name in pn.state.session_args for name in DESIGN_ARGUMENTS)
    return start_page(studio) if studio.starts_with_library and not names_design else page(studio)


def start_page(studio: Studio) -> pn.viewable.Viewable:
    """Build the start page."""
    later = page_callback_scheduler(prepare_page())
    shown = StartPage(studio, later, sizing_mode="stretch_both", margin=0)
    pn.state.onload(hide_token)
    pn.state.on_session_destroyed(lambda context: shown.stop_jobs())
    return pn.Column(shown, sizing_mode="stretch_both", margin=0, styles={"height": "100vh", "width": "100vw"})


@widget("start/start.js", "kit/shell.css", rules=colour_rule(".mw-start", {f"op-{op.lower()}": op for op in KINDS}))
class StartPage(Canvas):
    """Widget with new designs, the designs of the library, the latest runs, examples and lessons.

    Files are read by the browser. A design that is added to the library is opened by its link.
    """

    designs = param.String(default=PlainData([]), doc="Cards of the library, the latest edit first.")
    recent = param.String(default=PlainData([]), doc="What was opened last: designs, examples, runs and lessons.")
    runs = param.String(default=PlainData([]), doc="The latest runs.")
    examples = param.String(
        default=PlainData([]), doc="Cards of the examples; a card gets its picture when its prediction is done."
    )
    published = param.String(default=PlainData([]), constant=True, doc="Examples that are published training runs.")
    lessons = param.String(default=PlainData([]), doc="Entries of the list of lessons.")
    tour = param.String(default="", doc="Name of the guided tour for a first visit; empty for later ones.")
    suffixes = param.List(default=[], item_type=str, doc="Suffixes of the files of other tools that can be opened.")
    largest = param.Integer(default=files.LARGEST_FILE_BYTES, constant=True, doc="Largest size of a file in bytes.")
    longest_name = param.Integer(
        default=files.LONGEST_NAME, constant=True, doc="Largest number of characters of a name."
    )

    def __init__(self, studio: Studio, later: Later, **params: Any) -> None:
        published = [
            {"id": name, "name": step.name, "compared": step.comparison(), "source": step.source}
            for name, step in published_steps().items()
        ]
        suffixes = [suffix for form in imports.values() for suffix in form.suffixes]
        super().__init__(suffixes=suffixes, published=PlainData(published), **params)
        self._studio, self._library = studio, studio.library
        self._update_lists()
        self._show_examples()
        self._listener = _examples.predict_missing(later, self._receive_update)

    def stop_jobs(self) -> None:
        """Stop waiting for the pictures of examples."""
        if self._listener is not None:
            self._listener.stop()

    # ---- lists ----

    def _update_lists(self) -> None:
        self._studio.save_cards()
        designs = [{**card, "when": format_time(card["edited_s"])} for card in self._library.cards()]
        runs = [
            {
                "id": run.id,
                "name": run.name,
                "state": str(run.state),
                "when": format_time(run.created_s),
                "steps": run.steps,
            }
            for run in self._studio.record.entries(SHOWN_RUNS)
        ]
        lessons = list(lesson_entries(self._studio.course))
        is_first_visit = not designs and any(each["name"] == TOUR and not each["state"] for each in lessons)
        titles = {
            "draft": {card["id"]: card["name"] for card in designs},
            "run": {run.id: run.name for run in self._studio.record.entries()},
            "lesson": {lesson["name"]: lesson["title"] for lesson in lessons},
            "example": _example_titles(),
        }
        self.param.update(
            designs=PlainData(designs),
            runs=PlainData(runs),
            lessons=PlainData(lessons),
            tour=TOUR if is_first_visit else "",
            recent=PlainData(list(_recent_entries(self._library, titles))),
        )

    def _show_examples(self) -> None:
        titles = _example_titles()
        self.examples = PlainData(
            [{"id": name, "name": titles[name], **_examples.cards.get(name, {})} for name in examples()]
        )

    def _receive_update(self, update: JobUpdate) -> None:
        if isinstance(update, PartialResult):
            _examples.cards.update(update.value)
        self._show_examples()  # also those that other pages have received

    # ---- designs ----

    def _on_refresh(self) -> None:
        self._update_lists()

    def _on_rename(self, design: str, name: str) -> None:
        self._editable_library.rename(self._closed_design(design), files.design_name(name))
        self._update_lists()

    def _on_duplicate(self, design: str) -> None:
        self._editable_library.duplicate(design)
        self._update_lists()

    def _on_delete(self, design: str) -> None:
        library, design = self._editable_library, self._closed_design(design)
        if link := self._studio.shared.link(library, design):
            self._studio.shared.end_link(link)
        library.delete(design)
        self._update_lists()

    def _on_restore(self, design: str) -> None:
        self._editable_library.restore(design)
        self._update_lists()

    def _on_tag(self, design: str, tags: str) -> None:
        self._editable_library.tag(design, tags.split(","))
        self._update_lists()

    @property
    def _editable_library(self) -> Library:
        """The library, for a change.

        Raises:
            Refusal: the role of the person does not allow it.
        """
        self._studio.user.check(Role.DESIGNER, "save")
        return self._library

    def _closed_design(self, design: str) -> str:
        """Return the ID of a design after checking that no tab shows it.

        Raises:
            InputError: a tab shows the design.
        """
        if self._studio.is_open(design):
            raise Refusal("design_open_elsewhere")
        return design

    def _on_compare(self, design: str, other: str) -> None:
        one, another = self._library.read(design), self._library.read(other)
        title = f"{one.name} → {another.name}"
        self._send_msg({"type": "differences", "title": title, "lines": describe_differences(one, another)})

    # ---- files and links ----

    def _on_open(self, file: str, text: Any = None) -> None:
        file = escape_unprintable(file)
        into = load_design(next(iter(examples().values())))
        found = files.open_file(file, text, into, self.longest_name)
        if found.design is None:
            raise Refusal("file_not_opened", {"source": file, "reason": found.problems[0].message, "others": 0})
        self._go_to(found.design)

    def _on_open_link(self, link: str) -> None:
        self._go_to(read_design_link(link))

    def _go_to(self, design: Design) -> None:
        self._send_msg({"type": "go", "design": self._editable_library.add(design)})

    def _on_download(self, design: str) -> None:
        read = self._library.read(design)
        content = {"mime": "application/json", "content": read.to_json().encode()}
        self._send_msg({"type": "download", "name": f"{files.file_name(read.name)}.json", **content})


def _recent_entries(library: Library, titles: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the recently opened items that still exist; ``titles`` has their titles by kind and name."""
    known = [each for each in library.recent() if each["name"] in titles.get(each["kind"], ())]
    for each in known[:LONGEST_RECENT]:
        kind, name = each["kind"], each["name"]
        yield {"kind": kind, "name": name, "title": titles[kind][name], "when": format_time(each["opened_s"])}


def _example_titles() -> dict[str, str]:
    """Return the titles of the examples by name."""
    return {entry["name"]: entry["title"] for entry in example_entries()}


def make_example_cards(names: list[str]) -> Iterator[dict[str, dict[str, Any]]]:
    """Predict the examples one after another and yield the card of each."""
    for name in names:
        yield {name: predicted_card(load_design(example(name)))}
