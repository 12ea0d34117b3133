"""The command line: ``meshwave check | program | simulate | run | runs | compare | import | export | ...``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from meshwave import __version__
from meshwave.engine.cli.designs import (
    _check,
    _compare,
    _examples,
    _export,
    _import,
    _load,
    _program,
    _schema,
    _simulate,
)
from meshwave.engine.cli.experts import _moe
from meshwave.engine.cli.output import Command, _print_json
from meshwave.engine.cli.transfers import _reshard
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.terminal import escaped_output


def _serve_elsewhere(options: argparse.Namespace) -> int:
    raise InputError("the designer is not part of the engine; start it with: meshwave serve")


def main(arguments: Sequence[str] | None = None, serve: Command = _serve_elsewhere) -> int:
    """Run one command; returns its exit status: 0 done, 1 the run failed, 2 the input is wrong.

    ``serve`` is the command that the engine does not have: it opens the designer.
    """
    with escaped_output():
        return _status(parser(serve).parse_args(arguments))


def _status(options: argparse.Namespace) -> int:
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
    run.formatter_class = _NamesMembers
    run.add_argument(
        "--on", "--launcher", dest="launcher", metavar="LAUNCHER", help=_NamesMembers.LAUNCHERS + "; default: local"
    )
    run.add_argument("--data", metavar="FILE", help="a text to train on")
    run.add_argument(
        "--rehearse", action="store_true", help="wait the modelled time instead of computing; messages are real"
    )
    run.add_argument(
        "--scale", type=float, metavar="X", help="stretch the modelled time X times; default: as it stays true here"
    )
    run.add_argument(
        "--checkpoint-every",
        metavar="N|TIME",
        help="write a checkpoint every N steps, or every so often, such as 10min",
    )
    run.add_argument("--keep-checkpoints", type=int, metavar="K", help="the newest checkpoints to keep; default: 2")
    run.add_argument(
        "--resume", metavar="RUN", help="start from the newest checkpoint of a run, also of another design"
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

    schedule = _command(commands, "import", "read a design or a schedule from the file of another tool", _import)
    schedule.formatter_class = _NamesMembers
    schedule.add_argument("file", metavar="FILE", help="a file of one of the formats")
    schedule.add_argument("--from", metavar="FORMAT", help=_NamesMembers.IMPORTS + "; default: by its name and content")
    schedule.add_argument("--into", metavar="DESIGN", help="the design that lends cluster, model and the rest")
    schedule.add_argument("--out", "-o", metavar="FILE", help="default: standard output")

    export = _command(commands, "export", "write a design in another form", _export)
    _design(export)
    export.formatter_class = _NamesMembers
    export.add_argument("--to", required=True, metavar="FORM", help=_NamesMembers.EXPORTS)
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
    bench.add_argument("parts", nargs="*", help="only these parts; default: all but accuracy, rehearsal and soak")
    bench.add_argument("--only", metavar="WORD,...", help="of accuracy and rehearsal: designs named so; or: missing")
    bench.add_argument("--out", "-o", metavar="FILE", help="of these: keep results there, a page and picture beside")
    bench.add_argument("--minutes", type=float, metavar="M", help="of soak: how long it goes on; default: 5")
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


class _NamesMembers(argparse.HelpFormatter):
    """Names the members of a registry, which are looked up only where somebody asks for help."""

    EXPORTS = "one of the exports"
    IMPORTS = "one of the imports"
    LAUNCHERS = "one of the launchers"
    _REGISTRIES: Mapping[str, str] = {
        EXPORTS: "meshwave.engine.exports:exports",
        IMPORTS: "meshwave.engine.imports:imports",
        LAUNCHERS: "meshwave.engine.runs.launchers:launchers",
    }

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        for words, registry in self._REGISTRIES.items():
            if words in text:
                return text.replace(words, ", ".join(resolve_name(registry)))
        return action.help

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)  # a name is typed in one piece


def _doctor(options: argparse.Namespace) -> int:
    from meshwave.engine.cli import doctor

    findings = doctor.examine_machine()
    if options.json:
        _print_json(doctor.to_json(findings))
    else:
        print(doctor.to_text(findings))
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from meshwave.engine.cli.calibrate import command

    return command(options)


def _bench(options: argparse.Namespace) -> int:
    from meshwave.engine.bench import speed as bench

    figures = bench.run(
        options.parts,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        only=[word for word in (options.only or "").split(",") if word],
        out=Path(options.out) if options.out else None,
        minutes=options.minutes,
    )
    if options.json:
        _print_json(figures)
    else:
        print(bench.to_text(figures))
    return 0


def _run(options: argparse.Namespace) -> int:
    from meshwave.engine.cli.launch import run

    return run(_load(options.design), options)


def _runs(options: argparse.Namespace) -> int:
    from meshwave.engine.cli.runs import runs

    return runs(options)


if __name__ == "__main__":
    sys.exit(main())
