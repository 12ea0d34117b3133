"""The parsers of the commands that start, list and change runs, and of launch targets."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from meshwave.engine.cli.subparsers import (
    add_command,
    add_design_argument,
    add_json_option,
    imported_command,
    to_sentence,
)


def add_run_commands(commands: Any) -> None:
    """Add ``run`` and ``runs`` with its actions."""
    run = add_command(commands, "run", "run a design as real training on this machine", imported_command("launch:run"))
    run.formatter_class = MemberNamesFormatter
    add_design_argument(run)
    run.add_argument("--steps", type=int, help="optimizer steps; default: the design's, at most 8 in a dry run")
    launchers = MemberNamesFormatter.LAUNCHERS
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
    add_json_option(run)

    sweep = add_command(
        commands, "sweep", "run several designs; on Slurm, as one job array", imported_command("launch:sweep")
    )
    sweep.add_argument("designs", nargs="+", metavar="DESIGN")
    sweep.add_argument("--steps", type=int, help="optimizer steps; default: those of each design")
    sweep.add_argument("--on", dest="launcher", metavar="TARGET", help="launch target; default: local")
    add_json_option(sweep)

    runs = add_command(
        commands, "runs", "list, show, follow, resume, export or delete runs", imported_command("runs:manage_runs")
    )
    add_json_option(runs)
    actions = runs.add_subparsers(metavar="ACTION", dest="action")
    for name, help in RUN_ACTIONS.items():
        action = actions.add_parser(name, help=help, description=to_sentence(help))
        add_json_option(action, default=argparse.SUPPRESS)  # --json may also precede the action
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


def add_target_commands(commands: Any) -> None:
    """Add ``targets`` with its actions."""
    targets = add_command(commands, "targets", "list launch targets", imported_command("targets:manage_targets"))
    add_json_option(targets)
    actions = targets.add_subparsers(metavar="ACTION", dest="action")
    for name, help in TARGET_ACTIONS.items():
        action = actions.add_parser(name, help=help, description=to_sentence(help))
        add_json_option(action, default=argparse.SUPPRESS)
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


RUN_ACTIONS = {
    "list": "list all runs, latest first",
    "show": "show the result of a run and the error of its prediction",
    "logs": "print the logs of the processes of a run",
    "follow": "print each step of a run until the run ends",
    "cancel": "cancel a run",
    "resume": "continue from the newest checkpoint of a run",
    "export": "write a run as one file",
    "weights": "write the final weights of a run for other programs",
    "import": "import a run that was exported elsewhere",
    "delete": "delete a run and its folder",
    "rebuild": "add all run folders that are missing from the run database",
    "profile": "save the measurements of a run as a calibration profile",
}


TARGET_ACTIONS = {
    "list": "list launch targets",
    "check": "run a short job that checks a launch target",
    "draw": "print the cluster section of a design as a launch target reports it",
}


class MemberNamesFormatter(argparse.HelpFormatter):
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
