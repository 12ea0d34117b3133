"""The parser of the command ``meshwave``."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from meshwave import __version__
from meshwave.engine.cli import designs
from meshwave.engine.cli.experts import compare_expert_schedules
from meshwave.engine.cli.output import Command
from meshwave.engine.cli.transfers import compare_transfer_plans
from meshwave.engine.findings import Refusal


def refuse_to_serve(options: argparse.Namespace) -> int:
    """Refuse to open the designer, which the engine does not import."""
    raise Refusal("designer_not_in_engine")


def parser(serve: Command = refuse_to_serve, serve_workshop: Command = refuse_to_serve) -> argparse.ArgumentParser:
    """Return the parser of all commands; each command sets ``command`` to its function."""
    top = argparse.ArgumentParser(
        prog="meshwave",
        description="Design, predict and run distributed training schedules. Without a command, open the designer.",
    )
    top.add_argument("--version", action="version", version=f"meshwave {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    _add_serve(commands, serve)
    _add_workshop(commands, serve_workshop)
    _add_people(commands)
    _add_design_commands(commands)
    _add_run_commands(commands)
    _add_target_commands(commands)
    _add_file_commands(commands)
    _add_stand_alone_commands(commands)
    _add_machine_commands(commands)
    return top


URL_HELP = "address at which a reverse proxy on this machine serves the page, such as https://host/proxy/5006/"


def _add_serve(commands: Any, serve: Command) -> None:
    designer = _command(commands, "serve", "open the designer in a browser", serve)
    designer.add_argument("design", nargs="?", help="file of a design, or name of an example")
    designer.add_argument(
        "--people", type=Path, metavar="FILE", help="serve several people: TOML file with names, roles and tokens"
    )
    _add_server_options(designer)


def _add_workshop(commands: Any, serve: Command) -> None:
    parser = _command(commands, "workshop", "serve a course to a class", _imported("workshop:workshop"))
    parser.set_defaults(serve=serve)
    parser.add_argument("plan", metavar="COURSE.toml", type=Path, help="plan of the workshop")
    _add_server_options(parser)
    parser.add_argument("--results", action="store_true", help="print the results instead of serving")
    _add_json(parser)
    parser.add_argument("--reset", action="store_true", help="delete all data of the learners, and exit")


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="default: 5006, or the next free port")
    parser.add_argument("--address", default="127.0.0.1", help="address of this machine that people open")
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="TLS certificate, required for addresses other than loopback"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="key of the TLS certificate")
    parser.add_argument("--url", metavar="URL", help=URL_HELP)
    parser.add_argument("--home", help="data folder of designs and runs; default: $MESHWAVE_HOME or that of the system")
    parser.add_argument("--no-browser", action="store_true", help="only print the link")


def _add_people(commands: Any) -> None:
    people = _command(commands, "people", "give people access to a server", _imported("people:add_person_entry"))
    actions = people.add_subparsers(metavar="ACTION", required=True)
    help = "make the token of a person, and the entry for the file of serve --people"
    add = actions.add_parser("add", help=help, description=_sentence(help))
    add.add_argument("name", help="name to sign in with")
    add.add_argument("--role", required=True, choices=("viewer", "designer", "launcher", "admin"))
    add.add_argument(
        "--file", type=Path, metavar="FILE", help="append the entry to this file; default: print it on standard output"
    )


def _add_design_commands(commands: Any) -> None:
    check = _command(commands, "check", "list the problems of designs, one per line", designs.check)
    check.add_argument("designs", nargs="+", metavar="DESIGN", help="file of a design, or name of an example")
    _add_json(check)

    program = _command(commands, "program", "print the ordered actions of every rank", designs.print_program)
    _add_design(program)
    program.add_argument("--format", choices=("text", "json", "torch-csv", "torch-csv-comms"), default="text")
    program.add_argument("--rank", type=int, help="print only this rank")

    simulate = _command(commands, "simulate", "predict step time, bubble and memory of a design", designs.simulate)
    _add_design(simulate)
    _add_json(simulate)
    simulate.add_argument("--trace", metavar="FILE", help="also write a trace that opens in Perfetto")
    simulate.add_argument(
        "--slow-device",
        action="append",
        default=[],
        metavar="DEVICE=X",
        help="simulate a device that takes X times as long",
    )
    simulate.add_argument(
        "--slow-link",
        action="append",
        default=[],
        metavar="A:B=X",
        help="simulate messages between two meshes that take X times as long",
    )
    simulate.add_argument(
        "--jitter",
        type=float,
        default=0.0,
        metavar="CV",
        help="simulate computations that vary by this fraction of their mean",
    )

    compare = _command(commands, "compare", "compare the predictions of designs", designs.compare)
    compare.add_argument("designs", nargs="+", metavar="DESIGN")
    _add_json(compare)


def _add_run_commands(commands: Any) -> None:
    run = _command(commands, "run", "run a design as real training on this machine", _imported("launch:run"))
    run.formatter_class = _MemberNamesFormatter
    _add_design(run)
    run.add_argument("--steps", type=int, help="optimizer steps; default: the design's, at most 8 in a dry run")
    launchers = _MemberNamesFormatter.LAUNCHERS
    run.add_argument(
        "--on",
        "--launcher",
        dest="launcher",
        metavar="TARGET",
        help=f"a launch target (meshwave targets), or {launchers}; default: local",
    )
    run.add_argument("--data", metavar="FILE", help="text file to train on")
    run.add_argument(
        "--rehearse",
        action="store_true",
        help="dry run: wait for the modelled time instead of computing; messages are real",
    )
    run.add_argument(
        "--scale",
        type=float,
        metavar="X",
        help="time-dilation factor; default: the smallest at which waits are accurate on this machine",
    )
    run.add_argument(
        "--checkpoint-every",
        metavar="N|TIME",
        help="write a checkpoint every N steps, or every so often, such as 10min",
    )
    run.add_argument(
        "--keep-checkpoints", type=int, metavar="K", help="number of newest checkpoints to keep; default: 2"
    )
    run.add_argument(
        "--resume", metavar="RUN", help="start from the newest checkpoint of a run, which may be of another design"
    )
    run.add_argument(
        "--init",
        metavar="PATH",
        help="start from the weights of a Hugging Face checkpoint: a folder, a safetensors file or its index",
    )
    run.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="restart a failed run up to N times from its newest checkpoint; default: 0",
    )
    run.add_argument(
        "--hang-timeout",
        metavar="TIME",
        help="end the run and report the cause if no process completes an action for this time; default: 5min",
    )
    run.add_argument("--hosts", type=int, metavar="N", help="distribute the processes over N emulated hosts")
    run.add_argument(
        "--inter-bandwidth",
        type=float,
        metavar="B",
        help="bandwidth between the hosts in bytes/s; default: the design's",
    )
    run.add_argument(
        "--intra-bandwidth",
        type=float,
        metavar="B",
        help="bandwidth of each process's link in bytes/s; default: the design's",
    )
    _add_json(run)

    sweep = _command(commands, "sweep", "run several designs; on Slurm, as one job array", _imported("launch:sweep"))
    sweep.add_argument("designs", nargs="+", metavar="DESIGN")
    sweep.add_argument("--steps", type=int, help="optimizer steps; default: those of each design")
    sweep.add_argument("--on", dest="launcher", metavar="TARGET", help="launch target; default: local")
    _add_json(sweep)

    runs = _command(
        commands, "runs", "list, show, follow, resume, export or delete runs", _imported("runs:manage_runs")
    )
    _add_json(runs)
    actions = runs.add_subparsers(metavar="ACTION", dest="action")
    for name, help in RUN_ACTIONS.items():
        action = actions.add_parser(name, help=help, description=_sentence(help))
        _add_json(action, default=argparse.SUPPRESS)  # --json may also precede the action
        if name == "import":
            action.add_argument("file", metavar="FILE", help="file that runs export has written")
        elif name not in ("list", "rebuild"):
            nargs = None if name == "delete" else "?"
            default = "" if name == "delete" else "; default: the newest"
            action.add_argument("run", nargs=nargs, help=f"id of the run, or the start of the id{default}")
        if name == "export":
            action.add_argument(
                "--to",
                choices=("archive", "perfetto", "tensorboard"),
                default="archive",
                help="the whole run, a Chrome trace of its median step, or its curves for TensorBoard; default: archive",
            )
            action.add_argument(
                "--out",
                "-o",
                metavar="FILE",
                help="a folder for tensorboard; default: the id of the run, in the current folder",
            )
        if name == "weights":
            action.add_argument(
                "--hugging-face",
                metavar="FOLDER",
                required=True,
                help="write config.json and safetensors that transformers loads",
            )
        if name == "resume":
            action.add_argument("--steps", type=int, help="total number of optimizer steps; default: that of the run")
            action.add_argument(
                "--on", dest="launcher", metavar="TARGET", help="launch target; default: that of the run"
            )
    runs.set_defaults(action="list")


def _add_target_commands(commands: Any) -> None:
    targets = _command(commands, "targets", "list launch targets", _imported("targets:manage_targets"))
    _add_json(targets)
    actions = targets.add_subparsers(metavar="ACTION", dest="action")
    for name, help in TARGET_ACTIONS.items():
        action = actions.add_parser(name, help=help, description=_sentence(help))
        _add_json(action, default=argparse.SUPPRESS)
        if name != "list":
            action.add_argument("target", help="name of a launch target")
            action.add_argument(
                "--nodes",
                type=int,
                metavar="N",
                help="number of nodes to check; default: 2, or 1 if the target has only one",
            )
            action.add_argument(
                "--devices", type=int, metavar="D", help="devices per node; default: those of the target"
            )
            action.add_argument("--design", metavar="DESIGN", help="compare the links with those of a design")
    targets.set_defaults(action="list")


def _add_file_commands(commands: Any) -> None:
    design = _command(
        commands, "import", "read a design or a schedule from a file of another tool", designs.import_file
    )
    design.formatter_class = _MemberNamesFormatter
    design.add_argument("file", metavar="FILE", nargs="+", help="file in one of the formats, or the files of a trace")
    formats = _MemberNamesFormatter.IMPORTS
    design.add_argument("--from", metavar="FORMAT", help=f"{formats}; default: detected from name and content")
    design.add_argument(
        "--into", metavar="DESIGN", help="design from which cluster, model and other sections are taken"
    )
    design.add_argument("--out", "-o", metavar="FILE", help="default: standard output")

    export = _command(commands, "export", "write a design in another format", designs.export)
    export.formatter_class = _MemberNamesFormatter
    _add_design(export)
    export.add_argument("--to", required=True, metavar="FORMAT", help=_MemberNamesFormatter.EXPORTS)
    export.add_argument("--out", "-o", metavar="FILE", help="default: standard output")

    _command(commands, "schema", "print the JSON Schema of a design", designs.print_schema)
    examples = _command(commands, "examples", "list the example designs", designs.print_examples)
    examples.add_argument("name", nargs="?", help="print this example")
    examples.add_argument("--to", metavar="FOLDER", help="copy all examples into a folder")
    _add_json(examples)

    hardware = _command(
        commands,
        "hardware",
        "list known devices and clusters with the sources of their numbers",
        _imported("hardware:list_hardware"),
    )
    hardware.add_argument("name", nargs="?", help="print the cluster section of this cluster")
    _add_json(hardware)

    models = _command(
        commands, "models", "list published models with the sources of their sizes", _imported("models:list_models")
    )
    models.add_argument("name", nargs="?", help="print the model section of this model")
    _add_json(models)

    lessons = _command(
        commands, "lessons", "list the lessons, or check them", _imported("lessons:list_or_check_lessons")
    )
    lessons.add_argument(
        "--check",
        nargs="?",
        const="",
        metavar="NAME",
        help="check this lesson, or all: right answers must pass, wrong ones must fail",
    )
    _add_json(lessons)


def _add_stand_alone_commands(commands: Any) -> None:
    reshard = _command(
        commands, "reshard", "compare plans for a transfer between two meshes and shardings", compare_transfer_plans
    )
    reshard.add_argument(
        "transfer",
        metavar="SPEC.json|DESIGN",
        help="document of format meshwave-transfer/1, or a design with --boundary",
    )
    reshard.add_argument(
        "--boundary", metavar="A:B", help="for a design: the transfer from mesh A to mesh B, by name or number"
    )
    _add_json(reshard)

    moe = _command(commands, "moe", "compare the schedules of an expert layer", compare_expert_schedules)
    moe.add_argument(
        "layer",
        metavar="SPEC.json|DESIGN",
        help="document of format meshwave-expert-layer/1, or a design with experts",
    )
    moe.add_argument(
        "--mesh", metavar="MESH", help="for a design: mesh by name or number; default: the first with experts"
    )
    _add_json(moe)


def _add_machine_commands(commands: Any) -> None:
    _add_json(
        _command(commands, "doctor", "check the requirements of Meshwave on this machine", _imported("doctor:doctor"))
    )

    calibrate = _command(
        commands,
        "calibrate",
        "measure the costs of this machine for calibrated designs",
        _imported("calibrate:calibrate"),
    )
    calibrate.add_argument(
        "--parts", metavar="PART,...", help="parts to measure: blocks, links, collectives, contention; default: all"
    )
    calibrate.add_argument("--on", metavar="TARGET", help="measure a node of a launch target, and its links to another")
    calibrate.add_argument("--name", help="name of the profile; default: the name of the target, or this-machine")
    calibrate.add_argument("--out", "-o", metavar="PROFILE", help="write the profile to this file instead")
    calibrate.add_argument(
        "--precision", metavar="P,...", help="precisions of blocks; default: fp32, on GPUs also bf16"
    )
    calibrate.add_argument("--experts", action="store_true", help="also measure layers with experts")
    calibrate.add_argument("--seconds", type=float, default=90, help="seconds to measure blocks; default: 90")
    calibrate.add_argument("--ranks", type=int, default=8, help="number of processes; default: 8")
    calibrate.add_argument(
        "--ranks-per-node",
        type=int,
        metavar="G",
        help="processes per node; default: all, or half of them with emulated nodes",
    )
    calibrate.add_argument(
        "--mp", metavar="N,...", help="sizes of the tensor-parallel groups; default: the size of a node"
    )
    calibrate.add_argument(
        "--esp", metavar="N,...", help="sizes of the groups that share an expert; default: the size of a node"
    )
    calibrate.add_argument("--sizes", metavar="BYTES,...", help="buffer sizes in bytes; default: 4 KiB to 4 MiB")
    calibrate.add_argument(
        "--rounds", type=int, default=7, help="number of repetitions, whose median is used; default: 7"
    )
    calibrate.add_argument(
        "--shaped",
        metavar="INTRA,INTER",
        help="emulate nodes: bandwidth of a process's link and of a node's uplink, in bytes/s",
    )
    calibrate.add_argument("--profile", metavar="PROFILE", help="read an existing profile instead of measuring")
    calibrate.add_argument(
        "--fit", action="store_true", help="print the fit section for meshwave moe, for the first mp and esp"
    )
    _add_json(calibrate)

    bench = _command(commands, "bench", "measure the speed of Meshwave on this machine", _imported("bench:bench"))
    bench.add_argument(
        "parts",
        nargs="*",
        help="benchmarks to run, or published: predictions against published training runs; default: all except "
        "accuracy, rehearsal and soak",
    )
    bench.add_argument(
        "--only", metavar="WORD,...", help="accuracy and rehearsal: designs whose name contains a word; or: missing"
    )
    bench.add_argument(
        "--out",
        "-o",
        metavar="FILE",
        help="accuracy, rehearsal and published: write results to FILE, with a report and a figure next to it; "
        "launch: append a line for each killed run to FILE, and go on after the lines that it has",
    )
    bench.add_argument(
        "--runs",
        metavar="FILE",
        help="published: JSON file of training runs; default: the runs that come with Meshwave",
    )
    bench.add_argument("--on", metavar="TARGET", help="launch: launch target to measure; default: local")
    bench.add_argument("--kills", type=int, metavar="N", help="launch: kill a process of N runs at random moments")
    bench.add_argument("--minutes", type=float, metavar="M", help="soak: duration in minutes; default: 5")
    _add_json(bench)


def _command(commands: Any, name: str, help: str, command: Command) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(name, help=help, description=_sentence(help))
    added.set_defaults(command=command)
    return added


def _imported(name: str) -> Command:
    """Return the command ``module:function`` of this package; its module is imported only when the command runs.

    Such modules have slow imports.
    """
    return lambda options: int(resolve_name(f"meshwave.engine.cli.{name}")(options))


def _sentence(help: str) -> str:
    return f"{help[:1].upper()}{help[1:]}."


def _add_design(command: argparse.ArgumentParser) -> None:
    command.add_argument("design", metavar="DESIGN", help="file of a design, or name of an example")


def _add_json(command: argparse.ArgumentParser, default: Any = False) -> None:
    command.add_argument("--json", action="store_true", default=default, help="one JSON object on standard output")


RUN_ACTIONS = {
    "list": "list all runs, latest first",
    "show": "show the result of a run and the error of its prediction",
    "logs": "print the logs of the processes of a run",
    "follow": "print each step of a run until the run ends",
    "cancel": "cancel a run",
    "resume": "continue from the newest checkpoint of a run",
    "export": "write a run as one file",
    "weights": "write the weights that a run ended with for other programs",
    "import": "import a run that was exported elsewhere",
    "delete": "delete a run and its folder",
    "rebuild": "enter all run folders that the run database lacks",
    "profile": "save the measurements of a run as a calibration profile",
}


TARGET_ACTIONS = {
    "list": "list launch targets",
    "check": "run a short job that checks a launch target",
    "draw": "print the cluster section of a design as a launch target reports it",
}


class _MemberNamesFormatter(argparse.HelpFormatter):
    """Help formatter that lists the members of a registry, which is imported only when help is printed."""

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
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)  # do not split names
