"""Readers of a run folder with damaged files: they return, or name the damaged file in a message."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.document import load_design
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Action, Op
from meshwave.engine.run_files import RunFolderError
from meshwave.engine.runs import Hosts, Options, Record, Run, State
from meshwave.engine.runs.accuracy import compare
from meshwave.engine.runs.dry_run import Rehearsal
from meshwave.engine.runs.emulation.hosts import host_topology, read_executed_bundle
from meshwave.engine.runs.emulation.topology import FILE as NETWORK
from meshwave.engine.runs.emulation.topology import read_topology
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.outcome import Exit, judge, success_verdict, to_json
from meshwave.engine.runs.recording import (
    SPAN,
    ClockOffset,
    Clocks,
    MeasuredMemory,
    ProcessClock,
    read_layer_steps,
    read_recording,
    read_routing,
    write_clocks,
    write_routing,
)
from meshwave.engine.runs.run import LONGEST_LOG_LINE, Progress, read_result
from meshwave.engine.runs.run_comparison import (
    compare_run,
    comparison_lines,
    design_history,
    outcomes_json,
    read_outcome,
)
from meshwave.engine.runs.run_folder import write_bundle
from tests.engine.runs.recorded import record, record_inside

REPR = re.compile(r"Error\(|Exception|<class|object at 0x|Traceback|\[Errno|\bNone\b|validation error|set_int_max|\n")
STRANGE: list[Any] = [None, True, -1, 0, 3.5, 1e300, -(2**70), 10**4000, "", "x", "\x1b[31m", [], {}, [[]], {"": 0}]


def write_run(folder: Path) -> None:
    """Write a finished run with every file that a folder can have."""
    design = load_design(example("17-experts-on-two-cores"))
    options = Options(hosts=Hosts(nodes=2, intra_bandwidth=1e8, inter_bandwidth=1e7), rehearse=Rehearsal(scale=2.0))
    spec = specify_run(predict(design), options)
    bundle = write_bundle(spec, folder)
    (folder / NETWORK).write_text(host_topology(spec.design, design, spec.options).to_json())
    seconds = bundle.prediction.costs.seconds
    record(folder, bundle.prediction, seconds, scale=2.0)
    record_inside(folder, bundle.prediction, np.zeros_like(seconds))
    write_clocks(folder, Clocks((ProcessClock(), ProcessClock(False, (ClockOffset(5, 7, 9), ClockOffset(50, 7, 9))))))
    MeasuredMemory(step=1, peak_bytes=1e6, by_category={"weights": 1e6}, how="counted").write(folder, 0)
    write_routing(folder, 0, {1: [1.0, 2.0], 3: [3.0, 0.0]})
    rows = [{"time": 1.0, "event": "started", "device": "CPU", "note": "computes"}]
    rows += [{"time": 2.0 + step, "event": "step", "step": step} for step in range(3)]
    metrics = [{"step": step, "loss": 5.0, "grad_norm": 1.0, "seconds": 0.1, "tokens_per_s": 9.0} for step in range(3)]
    for name, lines in (("events-0.jsonl", rows), ("metrics.jsonl", metrics)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    error = {"process": 0, "rank": 0, "time": 1.0, "error": "it broke", "action": "0F0", "traceback": ""}
    (folder / "error-0.json").write_text(json.dumps(error))
    (folder / "result.json").write_text(json.dumps(to_json("run", success_verdict(Progress(2, 2)), design, [])))
    (folder / "rank-0.log").write_text("step 1\nstep 2\n")
    compared = {"format": "meshwave-compared/1", "cost": "roofline", "unit": "s", "predicted_s": 1.0, "measured_s": 2.0}
    (folder / "compared.json").write_text(json.dumps({**compared, "error": 1.0, "memory_error": None, "cause": ""}))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine") / "run"
    write_run(folder)
    return folder


# ---- damage ----


def damage(folder: Path, random: Random) -> str:
    files = (path for path in folder.iterdir() if path.suffix != ".log" and path.stat().st_size)  # may be truncated
    path = random.choice(sorted(files))
    content = path.read_bytes()
    ways: list[Callable[[bytes, Random], bytes]] = [truncate, overwrite_bytes, insert_bytes]
    if path.suffix == ".bin":
        ways += [with_strange_header, with_strange_spans, with_strange_spans]
    else:
        ways += [with_strange_value] * 4 + [nested_deeply]
    way = random.choice(ways)
    path.write_bytes(way(content, random))
    return f"{way.__name__} {path.name}"


def truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))]


def overwrite_bytes(content: bytes, random: Random) -> bytes:
    found = bytearray(content)
    for _ in range(random.choice([1, 20])):
        found[random.randrange(len(found))] = random.randrange(256)
    return bytes(found)


def insert_bytes(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content))
    return content[:at] + random.randbytes(random.choice([1, 100])) + content[at:]


def nested_deeply(content: bytes, random: Random) -> bytes:
    return b"[" * 200_000


def with_strange_value(content: bytes, random: Random) -> bytes:
    """Return a file in which one value of the document, or of one of its lines, is changed or missing."""
    lines = content.split(b"\n") if content.count(b"\n{") else [content]
    number = random.randrange(len(lines))
    try:
        document = json.loads(lines[number])
    except (ValueError, RecursionError):  # it is damaged already
        return content
    lines[number] = encode_changed(changed_document(document, random))
    return b"\n".join(lines)


def with_strange_header(content: bytes, random: Random) -> bytes:
    header, _, body = content.partition(b"\n")
    return with_strange_value(header, random) + b"\n" + body


def encode_changed(document: Any) -> bytes:
    return json.dumps(document).replace(f'"{10**19}"', "9" * 5000).encode()


def changed_document(document: Any, random: Random) -> Any:
    holder, place = random.choice([*places(document)])
    what = random.choice([*STRANGE[:7], str(10**19), *STRANGE[8:]])  # json.dumps refuses thousands of digits
    if random.random() < 0.2:
        del holder[place]
    else:
        holder[place] = what
    return document


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    for place in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, place
        yield from places(node[place])


def with_strange_spans(content: bytes, random: Random) -> bytes:
    header, _, body = content.partition(b"\n")
    spans = np.frombuffer(body, SPAN, len(body) // SPAN.itemsize).copy()
    column = random.choice(SPAN.names or ())
    limits = np.iinfo(SPAN[column])
    values = [limits.min, limits.max, -1, 0, 7, limits.max // 2]
    rows = slice(None) if random.random() < 0.3 else random.randrange(len(spans))
    spans[column][rows] = random.choice(values)
    return header + b"\n" + spans.tobytes()


# ---- readers ----


def read_all(folder: Path, there: Record, run: Run) -> None:
    """Run all readers of a finished run one after the other; each may refuse the folder."""
    calls: list[Callable[[], Any]] = [
        lambda: comparison_lines(compare(read_executed_bundle(folder).prediction, read_recording(folder))),
        lambda: json.dumps(compare(read_executed_bundle(folder).prediction, read_recording(folder)).to_json()),
        lambda: compare_run(run, read_executed_bundle(folder)),
        lambda: read_recording(folder).timeline().exposed_communication,
        lambda: read_recording(folder).seconds,
        lambda: [read_layer_steps(folder, [0], Action(Op.F, stage, 0)) for stage in range(4)],
        lambda: read_routing(folder),
        lambda: read_topology(folder),
        lambda: judge(folder, load_design(example("17-experts-on-two-cores")), [Exit(0, 1, False, 2.0)],
                      was_cancelled=False, progress=Progress(0, 2)),
        lambda: read_result(folder),
        lambda: [run.notes(), run.metrics(), run.latest_metrics(), run.log(), run.progress, run.first_step_s, run.result()],
        lambda: read_outcome(run.entry, folder),
        lambda: outcomes_json(design_history(there, run.entry)),
    ]  # fmt: skip
    for call in calls:
        refusal = refusal_of(call)
        assert not REPR.search(refusal), refusal


def refusal_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RunError, InputError) as error:
        return str(error)
    return ""


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
@pytest.mark.filterwarnings("error")
def test_a_damaged_file_gives_a_message_or_is_skipped(seed: int, pristine: Path) -> None:
    home = pristine.parent / "home"
    shutil.rmtree(home, ignore_errors=True)
    random, there = Random(seed), Record(home)
    entry, _ = there.submit(name="it", launcher="local", handle={}, digest="0", processes=2, steps=3)
    there.change_state(entry.id, State.RUNNING)
    there.change_state(entry.id, State.SUCCEEDED)
    shutil.copytree(pristine, there.folder(entry.id))
    done = [damage(there.folder(entry.id), random) for _ in range(random.choice([1, 1, 3]))]

    try:
        read_all(there.folder(entry.id), there, Run(there, entry.id))
    except BaseException:
        print(f"after {', '.join(done)}")
        raise
    finally:
        there.close()


def test_a_long_line_of_a_log_is_shortened(tmp_path: Path) -> None:
    """Each control character becomes six characters."""
    with closing(Record(tmp_path)) as there:
        entry, _ = there.submit(name="it", launcher="local", handle={}, digest="0", processes=1, steps=1)
        folder = there.folder(entry.id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank-0.log").write_text("\0" * LONGEST_LOG_LINE + "\nstep 1\n")
        long, short = Run(there, entry.id).log()

    assert len(long.text) == LONGEST_LOG_LINE and long.text.endswith("...")
    assert short.text == "step 1"


def test_complete_files_are_read(pristine: Path, tmp_path: Path) -> None:
    """Without this check, the previous test would prove nothing."""
    found = compare(read_executed_bundle(pristine).prediction, read_recording(pristine))

    assert found.iteration.steps == 2
    assert found.by_layer
    assert read_routing(pristine) == {1: (1 / 3, 2 / 3), 3: (1.0, 0.0)}
    assert read_topology(pristine) is not None
    assert read_result(pristine) is not None


def test_spans_of_another_program_are_refused(pristine: Path, tmp_path: Path) -> None:
    shutil.copytree(pristine, tmp_path / "run")
    for path in (tmp_path / "run").glob("spans-*.bin"):
        first, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(first)
        spans = np.frombuffer(body, SPAN).reshape(-1, header["rows"])[:, :-1]
        header.update(rows=spans.shape[1], fused=[], others=[])
        path.write_bytes(json.dumps(header).encode() + b"\n" + spans.tobytes())

    with pytest.raises(RunFolderError, match="do not belong to its program; launch the design again"):
        compare(read_executed_bundle(tmp_path / "run").prediction, read_recording(tmp_path / "run"))
