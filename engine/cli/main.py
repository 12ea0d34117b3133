"""Command ``meshwave`` and the exit status of each command."""

from __future__ import annotations

import argparse
import errno
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from meshwave.engine.cli.output import Command, discard_output, escaped_output, print_error, print_note
from meshwave.engine.cli.parser import parser, refuse_to_serve
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.messages import render

WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of a write that are no mistake in the code, such as that of a full disk."""

END_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end a command as Ctrl-C does: of service managers and batch systems, and of a terminal that is closed."""


class Terminated(KeyboardInterrupt):
    """Exception for one of :data:`END_SIGNALS`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def main(
    arguments: Sequence[str] | None = None,
    serve: Command = refuse_to_serve,
    serve_workshop: Command = refuse_to_serve,
) -> int:
    """Run one command and return its exit status: 0 for success, 1 if the run failed, 2 for wrong input.

    ``serve`` and ``serve_workshop`` open the designer, which the engine does not import.
    """
    with escaped_output():
        return _exit_status(parser(serve, serve_workshop), arguments)


def _exit_status(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Run a command and write its output; return the exit status."""
    status = 0
    try:
        status = _command_status(_parse_arguments(parser, arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended (for example head); discard the rest
        discard_output(sys.stdout)
    except OSError as error:
        if error.errno not in WRITE_ERRORS:
            raise
        print_note(render("unwritable_output", {"reason": error.strerror}))
        discard_output(sys.stdout)
        status = 1
    return status


def _parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    try:
        return parser.parse_args(arguments)
    except SystemExit:
        sys.stdout.flush()  # the help, whose reader may have ended
        raise


def _command_status(options: argparse.Namespace) -> int:
    command: Command = options.command
    try:
        with _signals_interrupt():
            return command(options)
    except MeshwaveError as error:
        print_error(error, as_json=getattr(options, "json", False))
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt as error:
        print_note("stopped")
        return 128 + (error.number if isinstance(error, Terminated) else signal.SIGINT)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let :data:`END_SIGNALS` raise :class:`Terminated`, except those that are ignored, as ``nohup`` does with SIGHUP."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return
    heard = [number for number in END_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in heard:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
