"""Building blocks of the parsers of commands."""

from __future__ import annotations

import argparse
from pkgutil import resolve_name
from typing import Any

from meshwave.engine.cli.output import Command


def add_command(commands: Any, name: str, help: str, command: Command) -> argparse.ArgumentParser:
    """Add the command ``name`` and return its parser."""
    added: argparse.ArgumentParser = commands.add_parser(name, help=help, description=to_sentence(help))
    added.set_defaults(command=command)
    return added


def imported_command(name: str) -> Command:
    """Return the command ``module:function`` of this package; its module is imported only when the command runs.

    Such modules have slow imports.
    """
    return lambda options: int(resolve_name(f"meshwave.engine.cli.{name}")(options))


def to_sentence(help: str) -> str:
    """Return a help text with a capital and a full stop."""
    return f"{help[:1].upper()}{help[1:]}."


def add_design_argument(command: argparse.ArgumentParser) -> None:
    """Add the argument ``DESIGN``."""
    command.add_argument("design", metavar="DESIGN", help="file of a design, or name of an example")


def add_json_option(command: argparse.ArgumentParser, default: Any = False) -> None:
    """Add the option ``--json``."""
    command.add_argument("--json", action="store_true", default=default, help="one JSON object on standard output")
