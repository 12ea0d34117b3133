"""The widget of the transfer lab: both shardings of a tensor, its unit tasks and the timeline of the links."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import param

from meshwave.designer.kit.canvas import Overlay, widget
from meshwave.designer.kit.traffic import traffic_data
from meshwave.designer.state import transfer_edits as edits
from meshwave.designer.state import transfer_fields, transfer_links
from meshwave.designer.state.job_processes import Done, Failed, JobUpdate, PartialResult
from meshwave.designer.state.jobs import Job, Listener, run_now
from meshwave.designer.state.problem_units import in_unit
from meshwave.designer.state.transfer_plans import compare_rows
from meshwave.designer.state.transfer_session import TransferSession
from meshwave.engine.document.transfer_document import TransferSpec
from meshwave.engine.errors import escape_unprintable
from meshwave.engine.findings import DesignError, Problem, Refusal, unknown_member_params
from meshwave.engine.resharding import MAX_SIMULATED_MESSAGES, orderings, plan_traffic, strategies
from meshwave.engine.units import quantity

LARGEST_FILE_BYTES = 1_000_000  # read in 0.2 s; meshes of 4,096 devices take a tenth of it
KEPT_TABLES = 8
PLANNING = "Planning this transfer; the previous one is shown meanwhile."
NOT_SIMULATED = (
    f"The plan has more than {MAX_SIMULATED_MESSAGES:,} messages, too many to simulate one by one: the timeline and the time are "
    "the planner's estimate."
)


@widget("transfer/transfer.js", "kit/shell.css", "kit/traffic.css")
class TransferView(Overlay):
    """Widget that edits a transfer, as a page of its own or as an overlay of the designer's page.

    ``host_word`` is the noun for the owner of a lane: a host, or a device with its own port.
    """

    mode: Any = param.Selector(default="page", objects=["page", "over"], constant=True)
    shown = param.Boolean(default=True, doc="True while it is open, as an overlay of another page.")
    title = param.String(default="Transfer lab")
    host_word = param.String(default="host")
    names = param.Dict(
        default={}, doc="Names of the mesh axes and tensor dims at a stage boundary; empty for other transfers."
    )
    packed = param.String(default="", doc="JSON of the drawing, which is much faster to send than its parts.")
    shows: Any = param.Selector(
        default="planned",
        objects=list(transfer_fields.SHOWN),
        doc="Timeline of the links that is drawn: planned or simulated.",
    )
    play = param.String(
        default="",
        doc="JSON of the simulated messages and of the number of their drawing; empty if they are not shown.",
    )
    stale = param.Boolean(default=False, doc="True if the drawing is outdated: it shows an earlier document.")
    fields = param.Dict(default={}, doc="Text of each field of the form.")
    troubles = param.Dict(default={}, doc="Problems by field or sharding spec; other problems under the empty key.")
    table = param.Dict(default={"rows": [], "done": False}, doc="Computed plans of all strategies and orderings.")
    history = param.List(default=["", ""], doc="Labels of the edits that undo and redo apply to; empty for none.")
    fragment = param.String(default="", doc="Fragment of a link to this transfer; empty if it would be too long.")
    design_has = param.List(default=[], doc="Strategy and ordering of the open design, if there is one.")
    form = param.List(default=[], doc="Path, label and help of each field.")
    strategies = param.List(default=[], doc="Name, title and help.")
    orderings = param.List(default=[], doc="Name, title and help.")
    cases = param.List(default=[], doc="Name and title of the predefined transfers.")
    largest = param.Integer(default=LARGEST_FILE_BYTES, constant=True, doc="Largest size of a file in bytes.")

    def __init__(
        self, session: TransferSession, on_take: Callable[[str, str], None] | None = None, **params: Any
    ) -> None:
        """Create the view; ``on_take`` is called with the strategy and ordering that the user applies to the design."""
        super().__init__(
            form=[
                {"path": field.path, "label": field.label, "help": field.help}
                for field in transfer_fields.FIELDS.values()
            ],
            strategies=_member_entries(strategies),
            orderings=_member_entries(orderings),
            cases=[{"name": name, "title": title} for name, (title, _) in transfer_links.starting_transfers().items()],
            **params,
        )
        self.session = session
        self._taken = on_take
        self._later = session.later or run_now
        self._job: Listener | None = None
        self._number = 0
        self.picture: dict[str, Any] = {}  # see TransferDrawing.to_data(); with its number and sizes in words
        self._asked: TransferSpec | None = None
        self._tables: dict[TransferSpec, list[dict[str, Any]]] = {}
        session.param.watch(lambda *_: self._draw_if_shown(), ["state", "problems", "drawing", "history"])
        self._is_live = session.later is None or self.mode == "over"  # a page is loaded before its overlays open
        self._draw_if_shown()

    def begin(self) -> None:
        """Start jobs once the page is loaded; their results can reach it only then."""
        self._is_live = True
        if self.shown:
            self._update_table()

    def stop_jobs(self) -> None:
        """Stop all jobs of a closed page."""
        self.session.stop_jobs()
        self._end_plans()

    def _end_plans(self) -> None:
        if self._job is not None:
            self._job.stop()

    def open(self, title: str, host_word: str, names: Mapping[str, list[str]]) -> None:
        """Open the overlay with the session's transfer under a title."""
        self.param.update(title=title, host_word=host_word, names=dict(names))
        self._draw()  # before opening, so that the previous transfer is never visible
        self._open()

    def _draw_if_shown(self) -> None:
        if self.shown:
            self._draw()

    def _draw(self) -> None:
        session = self.session
        changes: dict[str, Any] = {
            "stale": session.is_stale,
            "fields": transfer_fields.field_texts(session.state.document),
            "troubles": problems_by_field(session.problems) or ({"": PLANNING} if session.is_planning else {}),
            "history": list(session.history),
        }
        if session.drawing is not None and not session.is_stale:
            self._number += 1
            self.picture = self._drawing_data()
            changes["packed"] = json.dumps(self.picture, separators=(",", ":"))
            changes |= {
                "play": self._simulated_messages(),
                "fragment": transfer_links.link_fragment(*session.state, shows=self.shows),
            }
        self.param.update(**changes)
        self._update_table()

    def _drawing_data(self) -> dict[str, Any]:
        data = self.session.drawing.to_data()
        for each in data["tasks"]:
            each["size"] = quantity(each["bytes"], "B")
        item = self.session.drawing.spec.tensor.item_bytes
        for side in transfer_fields.SIDES:
            for box in data[side]["boxes"]:
                box["size"] = quantity(box["elements"] * item, "B")
        times = {name: quantity(data[f"{name}_s"], "s") for name in ("makespan", "simulated", "bound")}
        unsimulated = NOT_SIMULATED if self.session.drawing.simulation.messages is None else ""
        return {
            **data,
            **times,
            "size": quantity(data["bytes"], "B"),
            "number": self._number,
            "unsimulated": unsimulated,
        }

    def _simulated_messages(self) -> str:
        if self.shows != "simulated" or not self.picture or self.picture["unsimulated"]:
            return ""
        return json.dumps({**self.session.drawing.simulation_data(), "number": self._number}, separators=(",", ":"))

    # ---- the table of all plans, computed by a job ----

    def _update_table(self) -> None:
        drawing = self.session.drawing
        if self._is_live and drawing is not None and drawing.spec != self._asked:
            self._start_comparison(drawing.spec)

    def _start_comparison(self, spec: TransferSpec) -> None:
        self._asked = spec
        if spec in self._tables:
            self.table = {"rows": self._tables[spec], "done": True}
            return
        self.table = {"rows": [], "done": False}
        self._end_plans()
        self._job = Job(partial(compare_rows, spec), "comparison of transfer plans").add_listener(
            self._later, partial(self._receive_rows, spec)
        )

    def _receive_rows(self, spec: TransferSpec, update: JobUpdate) -> None:
        rows = self.table["rows"]
        if isinstance(update, PartialResult):
            self.table = {"rows": [*rows, *update.value], "done": False}
        elif isinstance(update, Done | Failed):  # a failure leaves the rows so far
            self.table = {"rows": rows, "done": True}
            self._tables = {**dict(list(self._tables.items())[1 - KEPT_TABLES :]), spec: rows}

    # ---- gestures ----

    def _on_place(self, side: str, axis: int, at: int, dim: int | None = None) -> None:
        changed = edits.assign_axis(self.session.state.document, side, axis, dim, max(0, at))
        self.session.edit(changed, f"{side}: axis {axis} {'replicates' if dim is None else f'shards dim {dim}'}")

    def _on_set(self, path: str, text: str) -> None:
        label = f"{path} {text}"
        self.session.edit(edits.set_field_text(self.session.state.document, path, text), label[:80])

    def _on_choose(self, strategy: str, ordering: str) -> None:
        self.session.choose(strategy, ordering)

    def _on_look(self, shows: str) -> None:
        if shows not in transfer_fields.SHOWN:
            raise Refusal("unknown_member", unknown_member_params("timeline", shows, transfer_fields.SHOWN))
        self._show_timeline(shows)

    def _show_timeline(self, shows: str) -> None:
        """Show the planned or the simulated timeline of the links."""
        self.shows = shows
        self.play = self._simulated_messages()
        if not self.stale:
            self.fragment = transfer_links.link_fragment(*self.session.state, shows=self.shows)

    def _on_undo(self) -> None:
        self.session.undo()

    def _on_redo(self) -> None:
        self.session.redo()

    def _on_save(self) -> None:
        content = transfer_links.transfer_file(self.session.state.document)
        self.send({"type": "download", "name": "transfer.json", "mime": "application/json", "content": content})

    def _on_open(self, file: str, text: Any = None) -> None:
        if not isinstance(text, str):
            raise Refusal("import_not_text", {"file": "the file"})
        if len(text) > LARGEST_FILE_BYTES:
            raise Refusal("large_upload", {"size": len(text), "maximum": LARGEST_FILE_BYTES})
        file = escape_unprintable(file[:60])
        with _name_source(file):
            self.session.load(text, f"open {file}")

    def _on_case(self, name: str) -> None:
        known = transfer_links.starting_transfers()
        if name not in known:
            raise Refusal("unknown_member", unknown_member_params("example", name, known))
        title, document = known[name]
        self.session.edit(document, f"open {title}")

    def _on_link(self, fragment: str) -> None:
        found = transfer_links.read_link(fragment)
        with _name_source("the link"):
            self.session.load(found.text, "open a link", found.strategy, found.ordering)
        self._show_timeline(found.shows)

    def _on_hops(self, task: int, number: Any = None) -> None:
        """Send the messages of a unit task to the page, if it still shows the same drawing."""
        drawing = self.session.drawing
        if number == self._number and 0 <= task < len(drawing.tasks):
            hops = json.dumps(drawing.hops(task), separators=(",", ":"))
            self.send({"type": "hops", "number": self._number, "task": task, "hops": hops})

    def _on_traffic(self) -> None:
        """Send the bytes that each rank sends to each in the plan that is drawn."""
        drawing = self.session.drawing
        if drawing is not None:
            found = plan_traffic(drawing.plan, drawing.tasks, drawing.spec.lines)
            self.send({"type": "traffic", **traffic_data(found, "Traffic of the plan", "rank", "host")})

    def _on_take(self) -> None:
        if self._taken is not None:
            self._taken(self.session.state.strategy, self.session.state.ordering)


# ---- functions ----


@contextmanager
def _name_source(what: str) -> Iterator[None]:
    """Name the source of a document, such as "the file", in the error about its problems.

    Raises:
        InputError: the document is invalid; the message has its first problem.
    """
    try:
        yield
    except DesignError as error:
        first, *others = error.problems
        raise Refusal("file_not_opened", {"source": what, "reason": str(first), "others": len(others)}) from None


def problems_by_field(problems: Iterable[Problem]) -> dict[str, str]:
    """Return the first problem of each field and sharding spec; problems without a field have an empty key."""
    found: dict[str, str] = {}
    for problem in problems:
        where = problem.where.partition("[")[0]
        field = transfer_fields.FIELDS.get(where)
        if field is not None:
            problem = in_unit(problem, field.unit)
        known = field is not None or where.endswith(".spec")
        found.setdefault(where if known else "", problem.message if known else str(problem))
    return found


def _member_entries(registry: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "title": member.title,
            "help": " ".join(member.help().split("\n\n")[0].replace("``", "").split()),
        }
        for name, member in registry.items()
    ]
