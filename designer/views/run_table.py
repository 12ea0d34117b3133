"""The Runs tab: all runs in a table; the Python side of ``static/panels/run_table.js``."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import param

from meshwave.designer.kit.canvas import Canvas, PlainData, widget
from meshwave.designer.state.background_calls import call_in_background
from meshwave.designer.state.file_jobs import SMALL_FILE_BYTES, file_name
from meshwave.designer.state.launches import Launches
from meshwave.designer.views._view import FILL, View, views
from meshwave.designer.views.followed_runs import FollowedRuns, mirror_params
from meshwave.designer.views.runs import RunsPanel, runs_panel
from meshwave.engine.exports.perfetto import trace_events
from meshwave.engine.findings import Refusal
from meshwave.engine.runs import Entry, Run, loss_text, silence_text
from meshwave.engine.runs.annotations import Annotations, read_annotations, write_annotations
from meshwave.engine.runs.archives import SUFFIX, delete_run, export_run
from meshwave.engine.runs.checkpoints import WEIGHTS_FILE, complete_checkpoints, trained_steps
from meshwave.engine.runs.final_weights import save_final_weights
from meshwave.engine.runs.launchers import remove_from_hosts
from meshwave.engine.runs.recording import read_recording
from meshwave.engine.runs.run_comparison import Outcome, read_outcome, short_error_text
from meshwave.engine.units import duration, format_count, format_time, quantity

LISTED_RUNS = 500
LARGEST_DOWNLOAD_BYTES = 200_000_000


class Cell(NamedTuple):
    """A cell of the table: its text and its sort key; rows whose key is None come last."""

    text: str
    value: float | str | None


class ReadRun(NamedTuple):
    """The contents of a run's files that its row shows."""

    last: Mapping[str, Any] | None  # row of the metrics
    outcome: Outcome | None
    annotations: Annotations
    is_resumable: bool
    has_weights: bool


@widget("panels/run_table.js", "kit/shell.css", "panels/dock.css")
class RunTable(Canvas):
    """Table of all runs with their results, tags and notes, and the possible actions on each run."""

    rows = param.String(default=PlainData([]), doc="Cells and possible actions of each run.")
    compared = param.List(default=[], item_type=str, doc="IDs of the runs that are compared with the shown one.")
    shown = param.String(default="", doc="ID of the shown run.")

    def __init__(
        self,
        followed: FollowedRuns,
        launches: Launches,
        resume: Callable[[str], None],
        show_timeline: Callable[[], None] = lambda: None,
        count_comments: Callable[[], Mapping[str, int]] = dict,
        **params: Any,
    ) -> None:
        """Create the table.

        Args:
            followed: the runs.
            launches: the launchers, which know the names of people.
            resume: launches a run again, from its newest checkpoint.
            show_timeline: shows the timeline.
            count_comments: returns the numbers of comments on runs, by the ID of the run.
            **params: parameters of the widget.
        """
        super().__init__(**params)
        self._show_timeline, self._count_comments = show_timeline, count_comments
        self._launches = launches
        self._followed, self._record, self._resume = followed, followed.record, resume
        self._read: dict[
            str, tuple[int, ReadRun]
        ] = {}  # files of finished runs, with the modification time of the run folder
        mirror_params(followed, self, "compared")
        followed.param.watch(lambda *_: self._draw(), ["entries", "run", "comparison", "outcomes"])
        followed.session.param.watch(lambda *_: self._draw(), "comments")
        self._draw()

    def _draw(self) -> None:
        shown, names = self._followed.shown, self._launches.names()
        comments = self._count_comments()
        rows = PlainData(
            [
                self._row_data(entry, names.get(entry.person), comments.get(entry.id, 0))
                for entry in self._record.entries(LISTED_RUNS)
            ]
        )
        self.param.update(rows=rows, shown=shown.run.id if shown else "")

    def _row_data(self, entry: Entry, person: str | None, comments: int) -> dict[str, Any]:
        """Return the cells of a run by column, and its possible actions; ``person`` is the learner who launched it."""
        read = self._read_files(entry)
        last, outcome, known = read.last, read.outcome, read.annotations
        done = int(last["step"]) + 1 if last else 0
        loss = last.get("loss") if last else None
        seconds = outcome.measured_s if outcome else last["seconds"] if last else None
        unit = outcome.unit if outcome else last.get("unit", "s") if last else "s"
        error = outcome.error if outcome else None
        name = f"{person}: {entry.name}" if person else entry.name
        if comments:
            name = f"{name} ({format_count(comments, 'comment')})"
        cells = {
            "name": Cell(name, name.casefold()),
            "state": Cell(entry.state, entry.state),
            "kind": Cell(entry.manner or "training", entry.manner),
            "steps": Cell(
                ", ".join(filter(None, (f"{done} of {entry.steps}", silence_text(entry, reason=False)))), done
            ),
            "loss": Cell(loss_text(loss) if last and "loss" in last else "", loss),
            "time": Cell("" if seconds is None else duration(seconds, unit), seconds),
            "error": Cell("" if error is None else short_error_text(error), error),
            "launched": Cell(format_time(entry.created_s), entry.created_s),
        }
        kept = {"tags": list(known.tags), "note": known.note, "over": entry.state.is_over}
        return {
            "id": entry.id, "cells": cells, **kept, "resumable": read.is_resumable, "has_weights": read.has_weights,
        }  # fmt: skip

    def _read_files(self, entry: Entry) -> ReadRun:
        """Read the files of a run; the files of a finished run are read again only after one was added or replaced."""
        folder = self._record.folder(entry.id)
        changed_ns = folder.stat().st_mtime_ns if folder.exists() else 0
        known_ns, known = self._read.get(entry.id, (None, None))
        if known is not None and known_ns == changed_ns:
            return known
        found = ReadRun(
            Run(self._record, entry.id).latest_metrics(),
            read_outcome(entry, folder),
            read_annotations(folder),
            entry.state.is_over
            and any(trained_steps(each) < entry.steps for each in complete_checkpoints(folder)[-1:]),
            (folder / WEIGHTS_FILE).exists(),
        )
        if entry.state.is_over:
            self._read[entry.id] = changed_ns, found
        return found

    def _own_entry(self, run: str) -> Entry:
        """Return a run that a gesture changes.

        Raises:
            Refusal: the page is read-only, or somebody else launched the run.
        """
        self._followed.session.check_editable()
        entry = self._record.get(run)
        self._launches.check_ownership(entry)
        return entry

    # ---- gestures ----

    def _on_show(self, run: str, timeline: bool = False) -> None:
        self._followed.open(run)
        if timeline:
            self._show_timeline()

    def _on_compare(self, run: str, on: bool = False) -> None:
        self._followed.compare(self._record.get(run).id, on=on)

    def _on_annotate(self, run: str, tags: str, note: str) -> None:
        entry = self._own_entry(run)
        write_annotations(self._record.folder(entry.id), tags.split(","), note)
        self._read.pop(entry.id, None)
        self._draw()

    def _on_resume(self, run: str) -> None:
        self._resume(self._record.get(run).id)

    def _on_delete(self, run: str) -> None:
        entry = self._own_entry(run)
        has_started = delete_run(self._record, entry)
        self._followed.stop_following(entry.id)
        if has_started:
            later = self._followed.session.later
            call_in_background(partial(remove_from_hosts, self._record, entry), later, self._report_removal)

    def _report_removal(self, removal: Future[None]) -> None:
        """Show the reason if a host may still have the folder of a deleted run."""
        if error := removal.exception():
            self._followed.session.notice = str(error)

    def _on_export(self, run: str, to: str = "") -> None:
        entry = self._record.get(run)
        if to == "perfetto":
            content = json.dumps(trace_events(read_recording(self._record.folder(entry.id)).timeline())).encode()
            self._download(f"{file_name(entry.name)}-{entry.id}.trace.json", "application/json", content)
            return
        if to == "weights":
            self._export_weights(entry)
            return
        with tempfile.TemporaryDirectory() as folder:
            file = export_run(self._record, entry, Path(folder) / (entry.id + SUFFIX))
            size = file.stat().st_size
            if size > LARGEST_DOWNLOAD_BYTES:
                limit = quantity(LARGEST_DOWNLOAD_BYTES, "B")
                raise Refusal(
                    "run_too_large_to_download", {"run": entry.id, "size": quantity(size, "B"), "limit": limit}
                )
            self._download(file.name, "application/gzip", file.read_bytes())

    def _export_weights(self, entry: Entry) -> None:
        """Download the final weights of a run as a checkpoint of Hugging Face."""
        folder = self._record.folder(entry.id)
        size = (folder / WEIGHTS_FILE).stat().st_size if (folder / WEIGHTS_FILE).exists() else 0
        if size > LARGEST_DOWNLOAD_BYTES:
            limit = quantity(LARGEST_DOWNLOAD_BYTES, "B")
            raise Refusal(
                "weights_too_large_to_download", {"run": entry.id, "size": quantity(size, "B"), "limit": limit}
            )
        name = f"{file_name(entry.name)}-{entry.id}"
        self._followed.session.files.process(
            f"Writing the weights of {entry.name} …",
            partial(archive_weights, folder, name),
            partial(self._download, f"{name}.tar", "application/x-tar"),
            at_once=size <= SMALL_FILE_BYTES,
        )

    def _download(self, name: str, mime: str, content: bytes) -> None:
        self.send({"type": "download", "name": name, "mime": mime, "content": content})


def archive_weights(run_folder: Path, name: str) -> bytes:
    """Return a tar archive of the folder ``name`` with the final weights of a run, for transformers."""
    with tempfile.TemporaryDirectory() as folder:
        save_final_weights(run_folder, Path(folder, "out", name))
        return Path(shutil.make_archive(str(Path(folder, "weights")), "tar", Path(folder, "out"))).read_bytes()


@views.register("runs")
class RunsView(View):
    """All runs: their results, tags and notes; compare, resume, export or delete them."""

    title: ClassVar = "Runs"
    place: ClassVar = "bottom"
    order: ClassVar = 5

    def make_pane(self) -> RunTable:
        """Build the table."""
        panel: RunsPanel = runs_panel(self.page)
        timeline = partial(self.page.show_view, "timeline")
        return RunTable(panel.followed, panel.launches, panel.resume, timeline, self._count_comments, **FILL)

    def _count_comments(self) -> Mapping[str, int]:
        """Return the numbers of comments on runs that are not resolved."""
        comments = self.page.tab.readable_comments() if self.page.tab is not None else []
        return Counter(each.target.name for each in comments if each.target.kind == "run" and not each.is_resolved)
