"""A transfer drawn: both cuts of the tensor, its unit tasks, the links' timeline; changed by hand and planned anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import panel as pn
import param

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Overlay, plain_text, value_of
from meshwave.designer.state import transfer_edits as edits
from meshwave.designer.state import transfer_fields, transfer_links
from meshwave.designer.state.jobs import Done, Failed, Job, Listener, News, PartialResult, page_later
from meshwave.designer.state.transfer_plans import compare_rows
from meshwave.designer.state.transfer_session import TransferSession
from meshwave.engine.document.transfer_document import TransferSpec
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.resharding import MAX_PLAYED_MESSAGES, orderings, strategies
from meshwave.engine.units import quantity

LARGEST_FILE_BYTES = 1_000_000  # read in 0.2 s; meshes of 4,096 devices take a tenth of it
KEPT_TABLES = 8
PLANNING = "This transfer is being planned; until then the last one is drawn."
UNPLAYED = (
    f"These are more than {MAX_PLAYED_MESSAGES:,} messages, too many to be played one by one: below is the plan, and the time as "
    "played is taken to be the planned one."
)


class TransferView(Overlay):
    """A transfer under work, as a page of its own or laid over the designer's page.

    ``host_word`` names what a lane is of: a host, or a device with a port of its own.
    """

    mode: Any = param.Selector(default="page", objects=["page", "over"], constant=True)
    shown = param.Boolean(default=True, doc="Whether it is open, where it lies over another page.")
    title = param.String(default="Transfer lab")
    host_word = param.String(default="host")
    names = param.Dict(
        default={}, doc="What the axes and dims are called, where they have names: of a boundary's tensor."
    )
    packed = param.String(default="", doc="The picture as JSON, which travels many times faster than its parts would.")
    shows: Any = param.Selector(
        default="planned", objects=list(transfer_fields.SHOWN), doc="Which timeline of the links is drawn."
    )
    play = param.String(
        default="", doc="The messages as they are played and the picture's number, as JSON, where that is shown."
    )
    stale = param.Boolean(default=False, doc="Whether the picture is of an earlier document, since this one is wrong.")
    fields = param.Dict(default={}, doc="What stands in each field of the form.")
    troubles = param.Dict(default={}, doc="What is wrong, by the field or spec where it is; the rest under ''.")
    table = param.Dict(default={"rows": [], "done": False}, doc="Every strategy with every ordering that is planned.")
    history = param.List(default=["", ""], doc="What undo and redo would do; empty for nothing.")
    fragment = param.String(default="", doc="What stands behind the # of a link to this; empty where it is too long.")
    design_has = param.List(default=[], doc="Strategy and ordering of the open design, where there is one.")
    form = param.List(default=[], doc="Path, label and help of each field.")
    strategies = param.List(default=[], doc="Name, title and help.")
    orderings = param.List(default=[], doc="Name, title and help.")
    cases = param.List(default=[], doc="Name and title of transfers to start from.")
    largest = param.Integer(default=LARGEST_FILE_BYTES, constant=True, doc="Bytes that a file may have.")

    _esm = module("transfer/transfer.js")
    _stylesheets: ClassVar = [
        read_static("kit/canvas.css"),
        read_static("kit/shell.css"),
        read_static("transfer/transfer.css"),
    ]
    _gestures = (
        "place",
        "set",
        "choose",
        "look",
        "undo",
        "redo",
        "save",
        "open",
        "case",
        "link",
        "hops",
        "close",
        "take",
    )

    def __init__(
        self, bench: TransferSession, on_take: Callable[[str, str], None] | None = None, **params: Any
    ) -> None:
        """``on_take`` hears of the strategy and ordering that a person takes into the design."""
        super().__init__(
            form=[
                {"path": field.path, "label": field.label, "help": field.help}
                for field in transfer_fields.FIELDS.values()
            ],
            strategies=_members(strategies),
            orderings=_members(orderings),
            cases=[{"name": name, "title": title} for name, (title, _) in transfer_links.starting_transfers().items()],
            **params,
        )
        self.bench = bench
        self._taken = on_take
        document = pn.state.curdoc
        self._later = page_later(document)
        self._job: Listener | None = None
        self._number = 0
        self.picture: dict[str, Any] = {}  # see Drawing.as_data(); with its number and sizes in words
        self._asked: TransferSpec | None = None
        self._tables: dict[TransferSpec, list[dict[str, Any]]] = {}
        bench.param.watch(lambda *_: self._show(), ["state", "problems", "drawing", "history"])
        self._is_live = document is None
        self._show()
        if document is not None:
            pn.state.onload(self._begin)
            pn.state.on_session_destroyed(lambda context: self.end())

    def _begin(self) -> None:
        """The page stands: what a job finds reaches it from now on."""
        self._is_live = True
        if self.shown:
            self._compare_anew()

    def end(self) -> None:
        """The page is gone: nothing goes on for it."""
        self.bench.end()
        self._end_plans()

    def _end_plans(self) -> None:
        if self._job is not None:
            self._job.stop()

    def open(self, title: str, host_word: str, names: Mapping[str, list[str]]) -> None:
        """Show what is on the bench, under another title."""
        self.param.update(title=title, host_word=host_word, names=dict(names))
        self._draw()  # first: nobody sees what was shown before
        self._open()

    def _show(self) -> None:
        if self.shown:
            self._draw()

    def _draw(self) -> None:
        bench = self.bench
        changes: dict[str, Any] = {
            "stale": bench.is_stale,
            "fields": transfer_fields.field_texts(bench.state.document),
            "troubles": by_field(bench.problems) or ({"": PLANNING} if bench.is_planning else {}),
            "history": list(bench.history),
        }
        if bench.drawing is not None and not bench.is_stale:
            self._number += 1
            self.picture = self._picture()
            changes["packed"] = json.dumps(self.picture, separators=(",", ":"))
            changes |= {"play": self._play(), "fragment": transfer_links.link_fragment(*bench.state, shows=self.shows)}
        self.param.update(**changes)
        self._compare_anew()

    def _picture(self) -> dict[str, Any]:
        data = self.bench.drawing.as_data()
        for each in data["tasks"]:
            each["size"] = quantity(each["bytes"], "B")
        item = self.bench.drawing.spec.tensor.item_bytes
        for side in transfer_fields.SIDES:
            for box in data[side]["boxes"]:
                box["size"] = quantity(box["elements"] * item, "B")
        times = {name: quantity(data[f"{name}_s"], "s") for name in ("makespan", "played", "bound")}
        unplayed = UNPLAYED if self.bench.drawing.played.messages is None else ""
        return {**data, **times, "size": quantity(data["bytes"], "B"), "number": self._number, "unplayed": unplayed}

    def _play(self) -> str:
        if self.shows != "played" or not self.picture or self.picture["unplayed"]:
            return ""
        return json.dumps({**self.bench.drawing.play_as_data(), "number": self._number}, separators=(",", ":"))

    # every strategy with every ordering, beside the page

    def _compare_anew(self) -> None:
        drawing = self.bench.drawing
        if self._is_live and drawing is not None and drawing.spec != self._asked:
            self._compare(drawing.spec)

    def _compare(self, spec: TransferSpec) -> None:
        self._asked = spec
        if spec in self._tables:
            self.table = {"rows": self._tables[spec], "done": True}
            return
        self.table = {"rows": [], "done": False}
        self._end_plans()
        self._job = Job(partial(compare_rows, spec)).listen(self._later, partial(self._hear_rows, spec))

    def _hear_rows(self, spec: TransferSpec, news: News) -> None:
        rows = self.table["rows"]
        if isinstance(news, PartialResult):
            self.table = {"rows": [*rows, *news.value], "done": False}
        elif isinstance(news, Done | Failed):  # without plans the picture stays
            self.table = {"rows": rows, "done": True}
            self._tables = {**dict(list(self._tables.items())[1 - KEPT_TABLES :]), spec: rows}

    # one method a gesture

    def _on_place(self, gesture: Mapping[str, Any]) -> None:
        side, axis = value_of(gesture, "side", plain_text), value_of(gesture, "axis", int)
        dim = None if gesture.get("dim") is None else value_of(gesture, "dim", int)
        changed = edits.with_axis(self.bench.state.document, side, axis, dim, max(0, value_of(gesture, "at", int)))
        self.bench.edit(changed, f"{side}: axis {axis} {'replicates' if dim is None else f'cuts dim {dim}'}")

    def _on_set(self, gesture: Mapping[str, Any]) -> None:
        path, text = value_of(gesture, "path", plain_text), value_of(gesture, "text", plain_text)
        label = f"{path} {text}"
        self.bench.edit(edits.with_text(self.bench.state.document, path, text), label[:80])

    def _on_choose(self, gesture: Mapping[str, Any]) -> None:
        self.bench.choose(value_of(gesture, "strategy", plain_text), value_of(gesture, "ordering", plain_text))

    def _on_look(self, gesture: Mapping[str, Any]) -> None:
        shows = value_of(gesture, "shows", plain_text)
        if shows not in transfer_fields.SHOWN:
            raise InputError(f"the links are drawn {' or '.join(transfer_fields.SHOWN)}, not {shows!r}")
        self._look(shows)

    def _look(self, shows: str) -> None:
        """Draw the links as planned, or as played; an earlier document's, where this one is wrong."""
        self.shows = shows
        self.play = self._play()
        if not self.stale:
            self.fragment = transfer_links.link_fragment(*self.bench.state, shows=self.shows)

    def _on_undo(self, gesture: Mapping[str, Any]) -> None:
        self.bench.undo()

    def _on_redo(self, gesture: Mapping[str, Any]) -> None:
        self.bench.redo()

    def _on_save(self, gesture: Mapping[str, Any]) -> None:
        content = transfer_links.transfer_file(self.bench.state.document)
        self.tell({"type": "download", "name": "transfer.json", "mime": "application/json", "content": content})

    def _on_open(self, gesture: Mapping[str, Any]) -> None:
        text = gesture.get("text")
        if not isinstance(text, str) or len(text) > LARGEST_FILE_BYTES:
            raise InputError(f"the page opens text of up to {LARGEST_FILE_BYTES / 1e6:.3g} MB")
        file = value_of(gesture, "file", plain_text)[:60]
        with _told_where(file):
            self.bench.load(text, f"open {file}")

    def _on_case(self, gesture: Mapping[str, Any]) -> None:
        known = transfer_links.starting_transfers()
        name = value_of(gesture, "name", plain_text)
        if name not in known:
            raise InputError(f"there is no case {name!r}")
        title, document = known[name]
        self.bench.edit(document, f"open {title}")

    def _on_link(self, gesture: Mapping[str, Any]) -> None:
        found = transfer_links.read_link(value_of(gesture, "fragment", plain_text))
        with _told_where("the link"):
            self.bench.load(found.text, "open a link", found.strategy, found.ordering)
        self._look(found.shows)

    def _on_hops(self, gesture: Mapping[str, Any]) -> None:
        """Every message behind a unit task, as long as that is what the page shows."""
        drawing, task = self.bench.drawing, value_of(gesture, "task", int)
        if gesture.get("number") == self._number and 0 <= task < len(drawing.tasks):
            hops = json.dumps(drawing.hops(task), separators=(",", ":"))
            self.tell({"type": "hops", "number": self._number, "task": task, "hops": hops})

    def _on_take(self, gesture: Mapping[str, Any]) -> None:
        if self._taken is not None:
            self._taken(self.bench.state.strategy, self.bench.state.ordering)


# ---- plain functions ----


@contextmanager
def _told_where(what: str) -> Iterator[None]:
    """
    Raises:
        InputError: ``what`` holds no sound transfer; with the first place that is wrong, which no field of the page is.
    """
    try:
        yield
    except DesignError as error:
        first, *others = error.problems
        more = f" (and {len(others)} more)" if others else ""
        raise InputError(f"{what} was not opened: {first}{more}") from None


def by_field(problems: Iterable[Problem]) -> dict[str, str]:
    """The first problem of each field and spec; those of no field under ''."""
    found: dict[str, str] = {}
    for problem in problems:
        where = problem.where.partition("[")[0]
        known = where in transfer_fields.FIELDS or where.endswith(".spec")
        found.setdefault(where if known else "", problem.message if known else str(problem))
    return found


def _members(registry: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "title": member.title,
            "help": " ".join(member.help().split("\n\n")[0].replace("``", "").split()),
        }
        for name, member in registry.items()
    ]
