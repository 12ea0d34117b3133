"""The command ``meshwave``: opens the designer; every other command is the engine's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from meshwave.engine.bench import speed as bench
from meshwave.engine.cli import main as cli


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments) or ["serve"]
    if given[0] == "bench":
        from meshwave.designer.bench.page import page
        from meshwave.designer.bench.sessions import sessions, soak

        bench.PARTS |= {"page": page, "sessions": sessions}
        bench.TIMED_PARTS["soak"] = soak
    return cli.main(given, serve=_serve)


def _serve(options: argparse.Namespace) -> int:
    from meshwave.designer.server.serve import serve  # Panel takes most of a second to import

    return serve(options.design, port=options.port, home=options.home, show=not options.no_browser)


if __name__ == "__main__":
    sys.exit(main())
