"""Run folders and the run database, read by ``meshwave runs`` and the page."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random

from meshwave.designer.state.design_session import Session
from meshwave.designer.state.launches import Launches
from meshwave.designer.views.run_log import RunLog
from meshwave.designer.views.run_table import RunTable
from meshwave.designer.views.runs import RunsPanel
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Record
from tests.engine.runs.recorded import record, record_inside
from tests.fuzz.mutate import damage_document, mutate_bytes, written
from tests.fuzz.oracle import Act, Complaint, about_command, about_text, run_cli
from tests.fuzz.target import Target, envelope

SHOWN = "02-two-waves"
"""Design of the run, which is small so that its folder is read quickly."""
EVENTS = '{"event": "started", "device": "CPU"}\n{"event": "note", "words": "a note"}\n'


class RunFolders(Target):
    """One run. An input is a JSON object of files by their paths in the home folder; each byte is a character."""

    entrance = 1

    def seeds(self) -> Iterator[bytes]:
        yield from (json.dumps(make()).encode() for make in (recorded_files, _measured_answers))

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        files, other = (json.loads(chance.choice(seeds)) for _ in range(2))
        for _ in range(chance.choice((1, 1, 2, 3))):
            name = chance.choice([name for name in files if not name.endswith(".sqlite") or chance.random() < 0.3])
            content = files[name].encode("latin-1")
            match chance.randrange(12):
                case 0:
                    del files[name]
                    continue
                case 1 | 2:
                    content = mutate_bytes(chance, content)
                case 3:
                    content = other.get(name, "").encode("latin-1")
                case _:
                    content = _with_damaged_line(chance, content)
            files[name] = content.decode("latin-1")
        return json.dumps(files).encode()

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        with envelope():
            files = json.loads(path.read_bytes())
            _write_home({name: content.encode("latin-1") for name, content in files.items()})
        yield "runs list", lambda: about_command("runs", "list")
        for arguments in (
            ("list", "--json"),
            ("show",),
            ("show", "--json"),
            ("logs",),
            ("logs", "--json"),
            ("profile",),
        ):
            yield f"runs {' '.join(arguments)}", partial(about_command, "runs", *arguments)
        yield "page", _on_the_page


def _with_damaged_line(chance: Random, content: bytes) -> bytes:
    """Damage the JSON of a file: one line, the first line of a recording, or the whole file."""
    lines = content.split(b"\n")
    at = 0 if b"\0" in content else chance.randrange(len(lines))
    for first, last in ((at, at + 1), (0, len(lines))):
        try:
            document = json.loads(b"\n".join(lines[first:last]))
        except (ValueError, RecursionError):  # damaged before
            continue
        lines[first:last] = [written(chance, damage_document(chance, document, document))]
        return b"\n".join(lines)
    return mutate_bytes(chance, content)


# ---- a home folder ----


def _write_runs() -> Path:
    return Path(os.environ["MESHWAVE_HOME"])


def _write_home(files: Mapping[str, bytes]) -> None:
    shutil.rmtree(_write_runs(), ignore_errors=True)
    for name, content in files.items():
        place = (_write_runs() / name).resolve()
        if not place.is_relative_to(_write_runs().resolve()):
            raise ValueError(f"{name} lies outside the home folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def _read_home(home: Path) -> dict[str, str]:
    return {
        str(path.relative_to(home)): path.read_bytes().decode("latin-1")
        for path in sorted(home.rglob("*"))
        if path.is_file()
    }


@cache
def recorded_files() -> dict[str, str]:
    """Return the files of a dry run in threads of this process."""
    before = os.environ.get("MESHWAVE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MESHWAVE_HOME"] = folder
        try:
            ended = run_cli("run", SHOWN, "--rehearse", "--launcher", "threads", "--steps", "2", "--scale", "0.002")
            assert ended.status == 0, ended.err
            return _read_home(Path(folder))
        finally:
            os.environ.pop("MESHWAVE_HOME") if before is None else os.environ.update(MESHWAVE_HOME=before)


@cache
def _measured_answers() -> dict[str, str]:
    """Return the files of the same run as if it had trained: losses, notes, and spans with layers of blocks."""
    prediction = predict(load_design(example(SHOWN)))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, content in recorded_files().items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_bytes(content.encode("latin-1"))
        (run,) = (home / "runs").iterdir()
        (run / "options.json").unlink()
        record(run, prediction, prediction.costs.seconds)
        record_inside(run, prediction, 0.1 * prediction.costs.seconds)
        rows = [{"step": step, "seconds": 1.5, "loss": 5.0 - step, "tokens_per_s": 2e3} for step in range(3)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run / "events-0.jsonl").write_text(EVENTS)
        (run / "routing-0.json").write_text('{"1": [3, 1, 2, 2]}\n')
        clock = {"same_host": False, "seen": [[10**12, 500, 2000], [2 * 10**12, 600, 2000]]}
        (run / "clocks.json").write_text(json.dumps({"format": "meshwave-clocks/1", "processes": [clock] * 4}))
        return _read_home(home)


# ---- the page ----


def _on_the_page() -> Iterator[Complaint]:
    store = Record()
    launches = Launches(store)
    try:
        panel = RunsPanel(Session(load_design(example(SHOWN))), launches)
        table, log = RunTable(panel.followed, launches, panel.resume), RunLog(panel.followed)
        for entry in store.entries():
            table._handle_msg({"type": "show", "run": entry.id})
            panel._handle_msg({"type": "use_measured"})
            panel.refresh()
        cells = (cell.text for row in table.rows.data for cell in row["cells"].values())  # type: ignore[attr-defined]
        texts = (text for _, text in log.lines.data)  # type: ignore[attr-defined]
        for words in (panel.bar.notice, *texts, *cells):
            yield from about_text(words) if words.strip() else ()
    finally:
        launches.close()
        store.close()


TARGET = RunFolders()
