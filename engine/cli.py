"""The command line: ``meshwave check | program | simulate | run | runs | compare | import | export | ...``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import __version__
from engine.errors import DesignError, InputError, MeshwaveError

if TYPE_CHECKING:
    from engine.errors import Problem
    from engine.predict import Prediction

Command = Callable[[argparse.Namespace], int]


SAID_EVERY_S = 2.0


def _telling(command: Command) -> Command:
    """The same, and where an order is searched for long it says on standard error how far that is."""

    @wraps(command)
    def telling(options: argparse.Namespace) -> int:
        from engine.schedules import watched

        said = time.monotonic()

        def say(done: float | None, words: str) -> None:
            nonlocal said
            if done is not None and time.monotonic() - said >= SAID_EVERY_S:
                said = time.monotonic()
                print(f"searching an order: {100 * done:.0f} %, {words}", file=sys.stderr)

        with watched(say):
            return command(options)

    return telling


def _serve_elsewhere(options: argparse.Namespace) -> int:
    raise InputError("the designer is not part of the engine; start it with: meshwave serve")


def main(arguments: Sequence[str] | None = None, serve: Command = _serve_elsewhere) -> int:
    """Run one command; returns its exit status: 0 done, 1 the run failed, 2 the input is wrong.

    ``serve`` is the command that the engine does not have: it opens the designer.
    """
    options = parser(serve).parse_args(arguments)
    command: Command = options.command
    try:
        return command(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except MeshwaveError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output is gone, such as head; what is left to flush goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser(serve: Command = _serve_elsewhere) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="meshwave",
        description="Design, predict and run distributed training schedules. Without a command, the designer opens.",
    )
    top.add_argument("--version", action="version", version=f"meshwave {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    designer = _command(commands, "serve", "open the designer in a browser", serve)
    designer.add_argument("design", nargs="?", help="a design's file, or the name of an example")
    designer.add_argument("--port", type=int, help="default: 5006, or the next free one")
    designer.add_argument(
        "--home", help="the folder of drafts and runs; default: $MESHWAVE_HOME or the user's data folder"
    )
    designer.add_argument("--no-browser", action="store_true", help="only print the link")

    check = _command(commands, "check", "say what is wrong with designs, one line a problem", _check)
    check.add_argument("designs", nargs="+", metavar="DESIGN", help="a design's file, or the name of an example")
    _json(check)

    program = _command(commands, "program", "what every rank does, in order", _program)
    _design(program)
    program.add_argument("--format", choices=("text", "json", "torch-csv", "torch-csv-comms"), default="text")
    program.add_argument("--rank", type=int, help="only this rank")

    simulate = _command(commands, "simulate", "the predicted numbers of a design", _simulate)
    _design(simulate)
    _json(simulate)
    simulate.add_argument("--trace", metavar="FILE", help="also write a trace that opens in Perfetto")

    run = _command(commands, "run", "train exactly this design on this machine", _run)
    _design(run)
    run.add_argument("--steps", type=int, help="optimizer steps, instead of the design's (8 at most of a rehearsal)")
    run.add_argument("--launcher", help="how processes are started; default: local")
    run.add_argument("--data", metavar="FILE", help="a text to train on")
    run.add_argument(
        "--rehearse", action="store_true", help="wait the modelled time instead of computing; messages are real"
    )
    run.add_argument(
        "--scale", type=float, metavar="X", help="stretch the modelled time X times; default: as it stays true here"
    )
    run.add_argument("--hosts", type=int, metavar="N", help="spread the processes over N emulated hosts")
    run.add_argument(
        "--inter-bandwidth", type=float, metavar="B", help="bytes/s between the hosts; default: the design's"
    )
    run.add_argument(
        "--intra-bandwidth", type=float, metavar="B", help="bytes/s of each process's link; default: the design's"
    )
    _json(run)

    runs = _command(commands, "runs", "what ran and what is running", _runs)
    _json(runs)
    actions = runs.add_subparsers(metavar="ACTION", dest="action")
    for name, does in RUNS.items():
        action = actions.add_parser(name, help=does, description=does[:1].upper() + does[1:] + ".")
        _json(action, default=argparse.SUPPRESS)  # may stand before the action too
        if name != "list":
            action.add_argument("run", nargs="?", help="the run's id, or the start of it; default: the newest")
    runs.set_defaults(action="list")

    compare = _command(commands, "compare", "designs side by side", _compare)
    compare.add_argument("designs", nargs="+", metavar="DESIGN")
    _json(compare)

    schedule = _command(commands, "import", "read a schedule of torch, a CSV, into a design", _import)
    schedule.add_argument("file", metavar="FILE.csv", help="a row a rank; with or without messages")
    schedule.add_argument("--into", metavar="DESIGN", help="the design that lends cluster, model and the rest")
    schedule.add_argument("--out", "-o", metavar="FILE", help="default: standard output")

    export = _command(commands, "export", "write a design in another form", _export)
    _design(export)
    export.formatter_class = _NamesForms
    export.add_argument("--to", required=True, metavar="FORM", help=_NamesForms.PLACE)
    export.add_argument("--out", "-o", metavar="FILE", help="default: standard output")

    reshard = _command(
        commands, "reshard", "a transfer alone: two meshes, two shardings, one tensor or several", _reshard
    )
    reshard.add_argument(
        "transfer",
        metavar="SPEC.json|DESIGN",
        help="a document of format meshwave-transfer/1, or a design with --boundary",
    )
    reshard.add_argument(
        "--boundary", metavar="A:B", help="of a design: what mesh A sends to mesh B, by name or number"
    )
    _json(reshard)

    moe = _command(commands, "moe", "an expert layer alone: its schedules side by side", _moe)
    moe.add_argument(
        "layer",
        metavar="SPEC.json|DESIGN",
        help="a document of format meshwave-expert-layer/1, or a design with experts",
    )
    moe.add_argument("--mesh", metavar="MESH", help="of a design, by name or number; default: the first with experts")
    _json(moe)

    _command(commands, "schema", "the JSON Schema of a design", _schema)
    examples = _command(commands, "examples", "the designs that come with Meshwave", _examples)
    examples.add_argument("name", nargs="?", help="print this one")
    examples.add_argument("--to", metavar="FOLDER", help="copy them all into a folder")
    _json(examples)
    doctor = _command(commands, "doctor", "what this machine can do, and what is missing", _doctor)
    _json(doctor)
    calibrate = _command(commands, "calibrate", "measure this machine, for costs that are calibrated", _calibrate)
    calibrate.add_argument(
        "--parts", metavar="PART,...", help="of blocks, links, collectives, contention; default: all"
    )
    calibrate.add_argument(
        "--name", default="this-machine.json", help="keep it so for designs; default: this-machine.json"
    )
    calibrate.add_argument("--out", "-o", metavar="PROFILE", help="write what was measured to this file instead")
    calibrate.add_argument("--precision", metavar="P,...", help="of blocks; default: fp32, on GPUs also bf16")
    calibrate.add_argument("--experts", action="store_true", help="measure layers with experts too")
    calibrate.add_argument("--seconds", type=float, default=90, help="for the blocks; default: 90")
    calibrate.add_argument("--ranks", type=int, default=8, help="processes; default: 8")
    calibrate.add_argument("--ranks-per-node", type=int, metavar="G", help="default: all; shaped: half of them")
    calibrate.add_argument("--mp", metavar="N,...", help="sizes of the tensor-parallel groups; default: a node")
    calibrate.add_argument("--esp", metavar="N,...", help="sizes of the groups that share an expert; default: a node")
    calibrate.add_argument("--sizes", metavar="BYTES,...", help="of the whole buffers; default: 4 KiB to 4 MiB")
    calibrate.add_argument("--rounds", type=int, default=7, help="of which the median counts; default: 7")
    calibrate.add_argument(
        "--shaped", metavar="INTRA,INTER", help="emulate nodes: bytes/s of a process's link and of a node's uplink"
    )
    calibrate.add_argument("--profile", metavar="PROFILE", help="measure nothing: read what was measured before")
    calibrate.add_argument("--fit", action="store_true", help="print the fit of meshwave moe for the first mp and esp")
    _json(calibrate)
    bench = _command(commands, "bench", "measure how fast Meshwave is on this machine", _bench)
    bench.add_argument("parts", nargs="*", help="only these parts; default: all but accuracy and rehearsal")
    bench.add_argument("--only", metavar="WORD,...", help="of accuracy and rehearsal: designs named so; or: missing")
    bench.add_argument("--out", "-o", metavar="FILE", help="of these: keep results there, a page and picture beside")
    _json(bench)
    return top


def _command(commands: Any, name: str, help: str, command: Command) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help[:1].upper() + help[1:] + ".")
    added.set_defaults(command=command)
    return added


def _design(command: argparse.ArgumentParser) -> None:
    command.add_argument("design", metavar="DESIGN", help="a design's file, or the name of an example")


def _json(command: argparse.ArgumentParser, default: Any = False) -> None:
    command.add_argument("--json", action="store_true", default=default, help="one JSON object on standard output")


RUNS = {
    "list": "all runs, the newest first",
    "show": "how a run went, and how near its prediction came",
    "logs": "what the processes of a run said",
    "cancel": "end a run that is under way",
    "profile": "keep what a run measured, for costs that are calibrated",
}
"""What can be done with runs."""


class _NamesForms(argparse.HelpFormatter):
    """Names the forms of an export, which are looked up only where somebody asks for help."""

    PLACE = "one of the forms"

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.help != self.PLACE:
            return action.help
        from engine.export import exports

        return ", ".join(exports)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)  # a name is typed in one piece


def _print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    print(json.dumps(value, indent=2))


def _print(options: argparse.Namespace, found: Any, lines: Callable[[Any], Iterable[str]]) -> int:
    """As JSON where that is asked for, else in words."""
    if options.json:
        _print_json(found)
    else:
        print("\n".join(lines(found)))
    return 0


def _load(name: str, *, draft: bool = False) -> Any:
    from engine.design import load_design
    from engine.resources import find_design

    return load_design(find_design(name), draft=draft)


# ---- one function a command ----


def _check(options: argparse.Namespace) -> int:
    found = {name: _problems(name, options) for name in dict.fromkeys(options.designs)}
    several = len(found) > 1
    if options.json:
        said = [(name, problem._asdict()) for name, problems in found.items() for problem in problems]
        _print_json({"problems": [{"design": name, **problem} if several else problem for name, problem in said]})
    else:
        for name, problems in found.items():
            for line in [*map(str, problems)] or ["no problems"]:
                print(f"{name}: {line}" if several else line)
    wrong = any(problem.severity == "error" for problems in found.values() for problem in problems)
    return 2 if wrong else 0


def _problems(name: str, options: argparse.Namespace) -> list[Problem]:
    """All problems of one design, warnings too."""
    from engine.errors import Problem
    from engine.predict import check

    try:
        try:
            return check(_load(name, draft=True))
        except DesignError:  # parts are unsound: what can be said of the others beside
            return check(_load(name))
    except DesignError as error:
        return list(error.problems)
    except InputError as error:  # no file to look into
        if not options.json and len(options.designs) == 1:
            raise
        return [Problem("", "file", str(error))]


@_telling
def _program(options: argparse.Namespace) -> int:
    from engine.export import exports
    from engine.lowering import lower
    from engine.predict import predict
    from engine.program.program import format_program, to_json

    design = _load(options.design)
    program = lower(design)
    ranks = range(program.ranks)
    if options.rank is not None:
        if options.rank not in ranks:
            raise InputError(f"there is no rank {options.rank}; the design has ranks 0 to {program.ranks - 1}")
        ranks = range(options.rank, options.rank + 1)
    if options.format == "json":
        data = dict(to_json(program))
        if options.rank is not None:
            data.update(compute=[data["compute"][options.rank]], actions=[data["actions"][options.rank]])
        _print_json(data)
    elif options.format in exports:
        lines = exports[options.format].make(predict(design)).decode().splitlines()
        print("\n".join(lines[rank] for rank in ranks))
    else:
        text = format_program(program)
        for rank in ranks:
            print(f"rank {rank}: {' '.join(text[rank])}" if options.rank is None else " ".join(text[rank]))
    return 0


@_telling
def _simulate(options: argparse.Namespace) -> int:
    from engine.export import exports
    from engine.predict import predict

    prediction = predict(_load(options.design))
    if options.trace:
        _write(options.trace, exports["perfetto"].make(prediction))
        print(f"wrote {options.trace}; open it at ui.perfetto.dev", file=sys.stderr)
    return _print(options, _numbers(prediction), _told)


def _numbers(prediction: Prediction) -> dict[str, Any]:
    """The numbers, with all that is unwise: what the document alone shows, too."""
    from engine.design.problems import problems

    unwise = [*problems(prediction.design), *prediction.warnings]
    return {**prediction.numbers, "warnings": [str(problem) for problem in unwise]}


def _told(numbers: Mapping[str, Any]) -> list[str]:
    from engine.units import percent, quantity

    time = "s" if numbers["unit"] == "s" else ""
    lines = [
        f"iteration      {quantity(numbers['makespan_s'], time) if time else format(numbers['makespan_s'], 'g') + ' units'}",
        f"bubble         {numbers['bubble_ratio']:.1%}   (own span of each mesh: {numbers['span_bubble_ratio']:.1%})",
    ]
    if time:
        lines += [
            f"throughput     {numbers['samples_per_s']:.4g} sequences/s, {quantity(numbers['tokens_per_s'], 'tokens/s')}",
            f"MFU            {numbers['mfu']:.1%}",
        ]
    if numbers["bounds"]:
        lines.append(f"limit          {numbers['bounds']['words']}")
    if any(lost := numbers["dropped"] or ()):
        lines.append(f"dropped        {percent(sum(lost) / len(lost))} of the visits to experts at this load")
    fits = "fits" if numbers["fits"] else "DOES NOT FIT"
    peak, capacity = quantity(max(numbers["peak_memory_bytes"]), "B"), quantity(numbers["capacity_bytes"], "B")
    exposed, inside = numbers["mean_exposed_communication_s"], numbers["mean_inside_communication_s"]
    waits = f"{quantity(exposed, time)}{'' if time else ' units'} of communication, the mean over the meshes"
    lines += [
        f"exposed        {waits}{f'; + {quantity(inside, time)} inside blocks' if inside else ''}",
        f"peak memory    {peak} of {capacity} a device: {fits}",
    ]
    heads = {"busy_s": "busy", "idle_s": "idle", "exposed_communication_s": "exposed"}
    columns = {**heads, "inside_communication_s": "inside"} if inside else heads
    lines.append(f"mesh           {''.join(f'{head:<10}' for head in columns.values())}in flight  memory")
    for rank, name in enumerate(numbers["meshes"]):
        times = "".join(f"{quantity(numbers[key][rank], time):<10}" for key in columns)
        memory = quantity(numbers["peak_memory_bytes"][rank], "B")
        lines.append(f"{name[:14]:<15}{times}{numbers['peak_inflight'][rank]:<11.4g}{memory}")
    return [*lines, *numbers["findings"], *numbers["warnings"]]


def _compared(prediction: Prediction) -> dict[str, Any]:
    """The numbers of a design; of unit costs there are none of what is counted by the second."""
    numbers = _numbers(prediction)
    return numbers if numbers["unit"] == "s" else {**numbers, "samples_per_s": None, "tokens_per_s": None}


@_telling
def _compare(options: argparse.Namespace) -> int:
    from engine.comparison import differences
    from engine.predict import predict
    from engine.units import quantity

    predictions = []
    for name in options.designs:
        try:
            predictions.append(predict(_load(name)))
        except DesignError as error:  # of several designs, say which
            raise InputError("\n".join(f"{name}: {problem}" for problem in error.problems)) from None
    changed = [differences(predictions[0].design, prediction.design) for prediction in predictions]
    if options.json:
        told = [{**_compared(each), "differences": change} for each, change in zip(predictions, changed, strict=True)]
        _print_json({"designs": told})
        return 0
    first = predictions[0].numbers
    wide = max(len("design"), *(len(prediction.design.name) for prediction in predictions)) + 2
    print(f"{'design':<{wide}}{'iteration':>12}{'':>9}{'bubble':>9}{'seq/s':>11}{'memory':>11}")
    for prediction in predictions:
        n = prediction.numbers
        same = n["unit"] == first["unit"]
        longer = f"{n['makespan_s'] / first['makespan_s'] - 1:+.1%}" if same and first["makespan_s"] else ""
        iteration = quantity(n["makespan_s"], "s") if n["unit"] == "s" else f"{n['makespan_s']:g} units"
        memory = quantity(max(n["peak_memory_bytes"]), "B")
        rate = f"{n['samples_per_s']:.4g}" if n["unit"] == "s" else "-"
        print(f"{n['name']:<{wide}}{iteration:>12}{longer:>9}{n['bubble_ratio']:>9.1%}{rate:>11}{memory:>11}")
    for prediction, change in zip(predictions[1:], changed[1:], strict=True):
        print(f"\n{prediction.design.name}, against the first")
        print("\n".join(f"  {line}" for line in change or ["the same"]))
    return 0


def _import(options: argparse.Namespace) -> int:
    from engine.schedule_csv import load_schedule

    design, notes = load_schedule(options.file, _load(options.into) if options.into else None)
    _write(options.out, design.to_json().encode())
    for note in notes:
        print(note, file=sys.stderr)
    return 0


@_telling
def _export(options: argparse.Namespace) -> int:
    from engine.export import exports
    from engine.predict import predict

    export, prediction = exports[options.to], predict(_load(options.design))
    content = export.make(prediction)
    if options.out is None and b"\0" in content and sys.stdout.isatty():
        raise InputError(f"{options.to} is no text for a terminal; name a file with --out")
    _write(options.out, content)
    for words in export.left_out(prediction):
        print(f"not in the file: {words}", file=sys.stderr)
    return 0


def _write(name: str | None, content: bytes) -> None:
    if name is None or name == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    from engine.resources import write_whole

    write_whole(name, content)


def _reshard(options: argparse.Namespace) -> int:
    from engine.design import parse_design
    from engine.design.transfer_spec import parse_transfers
    from engine.reshard import answer, answer_of, to_text

    content, is_design = _looked_into(options.transfer)
    if is_design:
        found = answer_of(parse_design(content), options.boundary or "")
    elif options.boundary is not None:
        raise InputError("--boundary is one of a design; a transfer alone says itself from where to where it goes")
    else:
        found = answer(parse_transfers(content))
    return _print(options, found, to_text)


def _looked_into(name: str) -> tuple[bytes, bool]:
    """What is in the file of a document, or in the example of that name, and whether that is a design; read once, for a
    pipe has no second time."""
    from engine.design.document import LARGEST_FILE_BYTES
    from engine.design.reading import read_json
    from engine.resources import find_design, read_whole

    content = read_whole(find_design(name), "document", LARGEST_FILE_BYTES)
    document = read_json(content, "document")
    return content, isinstance(document, Mapping) and str(document.get("format")).startswith("meshwave/")


def _moe(options: argparse.Namespace) -> int:
    from engine.design import parse_design
    from engine.design.expert_layer_spec import parse_expert_layer
    from engine.moe_comparison import answer, answer_of, expert_mesh, to_text

    content, is_design = _looked_into(options.layer)
    if is_design:
        design = parse_design(content)
        found = answer_of(design, expert_mesh(design, options.mesh))
    elif options.mesh is not None:
        raise InputError("--mesh is one of a design; a layer alone lies on the ranks that it says itself")
    else:
        found = answer(parse_expert_layer(content))
    return _print(options, found, to_text)


def _schema(options: argparse.Namespace) -> int:
    from engine.design import Design

    _print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Design.model_json_schema()})
    return 0


def _examples(options: argparse.Namespace) -> int:
    from engine.design import load_design
    from engine.resources import example, examples

    if options.name:
        sys.stdout.write(example(options.name).read_text("utf-8"))
    elif options.to:
        folder = Path(options.to)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None
        for path in examples().values():
            _write(str(folder / path.name), path.read_bytes())
        print(f"copied {len(examples())} examples to {folder}", file=sys.stderr)
    else:
        titles = {name: load_design(path).name for name, path in examples().items()}
        if options.json:
            _print_json(titles)
        else:
            print("\n".join(f"{name:<24}{title}" for name, title in titles.items()))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from engine import doctor

    findings = doctor.doctor()
    if options.json:
        _print_json(doctor.to_json(findings))
    else:
        print(doctor.to_text(findings))
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from engine.runtime.calibration import command

    return command(options)


def _bench(options: argparse.Namespace) -> int:
    from engine import bench

    figures = bench.run(
        options.parts,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        only=[word for word in (options.only or "").split(",") if word],
        out=Path(options.out) if options.out else None,
    )
    if options.json:
        _print_json(figures)
    else:
        print(bench.to_text(figures))
    return 0


def _run(options: argparse.Namespace) -> int:
    from engine.launch.commands import run

    return run(_load(options.design), options)


def _runs(options: argparse.Namespace) -> int:
    from engine.launch.commands import runs

    return runs(options)


if __name__ == "__main__":
    sys.exit(main())
