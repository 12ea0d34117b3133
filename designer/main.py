"""The command ``meshwave``: opens the designer; every other command is the engine's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from engine import bench, cli
from engine.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] == "bench":
        from designer.bench import page

        bench.PARTS["page"] = page
    if given and given[0] != "serve":
        return cli.main(given)
    options = _parser().parse_args(given[1:])
    try:
        from designer.server import serve  # Panel takes most of a second to import

        return serve(options.design, port=options.port, home=options.home, show=not options.no_browser)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="meshwave serve", description="Open the designer in a browser.")
    parser.add_argument("design", nargs="?", help="a design's file, or the name of an example")
    parser.add_argument("--port", type=int, help="default: 5006, or the next free one")
    parser.add_argument("--home", help="the folder of drafts and runs; default: $MESHWAVE_HOME or the user's data folder")
    parser.add_argument("--no-browser", action="store_true", help="only print the link")
    return parser


if __name__ == "__main__":
    sys.exit(main())
