"""The parser of the command ``meshwave``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from meshwave import __version__
from meshwave.engine.cli import designs
from meshwave.engine.cli.experts import compare_expert_schedules
from meshwave.engine.cli.output import Command
from meshwave.engine.cli.run_parser import MemberNamesFormatter, add_run_commands, add_target_commands
from meshwave.engine.cli.subparsers import (
    add_command,
    add_design_argument,
    add_json_option,
    imported_command,
    to_sentence,
)
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
    add_run_commands(commands)
    add_target_commands(commands)
    _add_file_commands(commands)
    _add_stand_alone_commands(commands)
    _add_machine_commands(commands)
    return top


URL_HELP = "address at which a reverse proxy on this machine serves the page, such as https://host/proxy/5006/"


def _add_serve(commands: Any, serve: Command) -> None:
    designer = add_command(commands, "serve", "open the designer in a browser", serve)
    designer.add_argument("design", nargs="?", help="file of a design, or name of an example")
    designer.add_argument(
        "--people", type=Path, metavar="FILE", help="serve several people: TOML file with names, roles and tokens"
    )
    _add_server_options(designer)


def _add_workshop(commands: Any, serve: Command) -> None:
    parser = add_command(commands, "workshop", "serve a course to a class", imported_command("workshop:workshop"))
    parser.set_defaults(serve=serve)
    parser.add_argument("plan", metavar="COURSE.toml", type=Path, help="plan of the workshop")
    _add_server_options(parser)
    parser.add_argument("--results", action="store_true", help="print the results instead of serving")
    add_json_option(parser)
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
    people = add_command(
        commands, "people", "give people access to a server", imported_command("people:add_person_entry")
    )
    actions = people.add_subparsers(metavar="ACTION", required=True)
    help = "make the token of a person, and the entry for the file of serve --people"
    add = actions.add_parser("add", help=help, description=to_sentence(help))
    add.add_argument("name", help="name to sign in with")
    add.add_argument("--role", required=True, choices=("viewer", "designer", "launcher", "admin"))
    add.add_argument(
        "--file", type=Path, metavar="FILE", help="append the entry to this file; default: print it on standard output"
    )


def _add_design_commands(commands: Any) -> None:
    check = add_command(commands, "check", "list the problems of designs, one per line", designs.check)
    check.add_argument("designs", nargs="+", metavar="DESIGN", help="file of a design, or name of an example")
    add_json_option(check)

    program = add_command(commands, "program", "print the ordered actions of every rank", designs.print_program)
    add_design_argument(program)
    program.add_argument("--format", choices=("text", "json", "torch-csv", "torch-csv-comms"), default="text")
    program.add_argument("--rank", type=int, help="print only this rank")

    simulate = add_command(commands, "simulate", "predict step time, bubble and memory of a design", designs.simulate)
    add_design_argument(simulate)
    add_json_option(simulate)
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

    compare = add_command(commands, "compare", "compare the predictions of designs", designs.compare)
    compare.add_argument("designs", nargs="+", metavar="DESIGN")
    add_json_option(compare)


def _add_file_commands(commands: Any) -> None:
    design = add_command(
        commands, "import", "read a design or a schedule from a file of another tool", designs.import_file
    )
    design.formatter_class = MemberNamesFormatter
    design.add_argument("file", metavar="FILE", nargs="+", help="file in one of the formats, or the files of a trace")
    formats = MemberNamesFormatter.IMPORTS
    design.add_argument("--from", metavar="FORMAT", help=f"{formats}; default: detected from name and content")
    design.add_argument(
        "--into", metavar="DESIGN", help="design from which cluster, model and other sections are taken"
    )
    design.add_argument("--out", "-o", metavar="FILE", help="default: standard output")

    export = add_command(commands, "export", "write a design in another format", designs.export)
    export.formatter_class = MemberNamesFormatter
    add_design_argument(export)
    export.add_argument("--to", required=True, metavar="FORMAT", help=MemberNamesFormatter.EXPORTS)
    export.add_argument("--out", "-o", metavar="FILE", help="default: standard output")

    add_command(commands, "schema", "print the JSON Schema of a design", designs.print_schema)
    examples = add_command(commands, "examples", "list the example designs", designs.print_examples)
    examples.add_argument("name", nargs="?", help="print this example")
    examples.add_argument("--to", metavar="FOLDER", help="copy all examples into a folder; files that differ are kept")
    add_json_option(examples)

    hardware = add_command(
        commands,
        "hardware",
        "list known devices and clusters with the sources of their numbers",
        imported_command("hardware:list_hardware"),
    )
    hardware.add_argument("name", nargs="?", help="print the cluster section of this cluster")
    add_json_option(hardware)

    models = add_command(
        commands,
        "models",
        "list published models with the sources of their sizes",
        imported_command("models:list_models"),
    )
    models.add_argument("name", nargs="?", help="print the model section of this model")
    add_json_option(models)

    lessons = add_command(
        commands, "lessons", "list the lessons, or check them", imported_command("lessons:list_or_check_lessons")
    )
    lessons.add_argument(
        "--check",
        nargs="?",
        const="",
        metavar="NAME",
        help="check this lesson, or all: right answers must pass, wrong ones must fail",
    )
    add_json_option(lessons)


def _add_stand_alone_commands(commands: Any) -> None:
    reshard = add_command(
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
    add_json_option(reshard)

    moe = add_command(commands, "moe", "compare the schedules of an expert layer", compare_expert_schedules)
    moe.add_argument(
        "layer",
        metavar="SPEC.json|DESIGN",
        help="document of format meshwave-expert-layer/1, or a design with experts",
    )
    moe.add_argument(
        "--mesh", metavar="MESH", help="for a design: mesh by name or number; default: the first with experts"
    )
    add_json_option(moe)


def _add_machine_commands(commands: Any) -> None:
    add_json_option(
        add_command(
            commands, "doctor", "check the requirements of Meshwave on this machine", imported_command("doctor:doctor")
        )
    )

    calibrate = add_command(
        commands,
        "calibrate",
        "measure the costs of this machine for calibrated designs",
        imported_command("calibrate:calibrate"),
    )
    calibrate.add_argument(
        "--parts",
        metavar="PART,...",
        help="parts to measure: blocks, links, collectives, contention; a stored profile of the same name keeps its "
        "other parts; default: all",
    )
    calibrate.add_argument("--on", metavar="TARGET", help="measure a node of a launch target, and its links to another")
    calibrate.add_argument("--name", help="name of the profile; default: the name of the target, or this-machine")
    calibrate.add_argument("--out", "-o", metavar="PROFILE", help="write the profile to this file instead")
    calibrate.add_argument(
        "--precision",
        metavar="P,...",
        help="precisions of blocks; a stored profile of the same name keeps its other precisions; default: fp32, on GPUs "
        "also bf16",
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
    add_json_option(calibrate)

    bench = add_command(
        commands, "bench", "measure the speed of Meshwave on this machine", imported_command("bench:bench")
    )
    bench.add_argument(
        "parts",
        nargs="*",
        help="benchmarks to run, or published: predictions against published training runs; default: all except "
        "accuracy, rehearsal, learners and soak",
    )
    bench.add_argument(
        "--only",
        metavar="WORD,...",
        help="accuracy and rehearsal: measure only designs whose name or group contains a word, or missing: only "
        "designs without a result in FILE",
    )
    bench.add_argument(
        "--out",
        "-o",
        metavar="FILE",
        help="accuracy, rehearsal and published: write results to FILE, with a report and a figure next to it; "
        "launch: append a line for each killed run to FILE, and continue after the lines that it already has",
    )
    bench.add_argument(
        "--runs",
        metavar="FILE",
        help="published: JSON file of training runs; default: the runs that come with Meshwave",
    )
    bench.add_argument("--on", metavar="TARGET", help="launch: launch target to measure; default: local")
    bench.add_argument("--kills", type=int, metavar="N", help="launch: kill a process of N runs at random moments")
    bench.add_argument("--minutes", type=float, metavar="M", help="learners and soak: duration in minutes; default: 5")
    add_json_option(bench)
