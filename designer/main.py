"""The command ``meshwave``, with ``serve`` and the benchmarks of the page added to the commands of the engine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from meshwave.engine.bench import speed as bench
from meshwave.engine.cli import main as cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; without arguments, open the designer."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["serve"]
    if words[0] == "bench":
        from meshwave.designer.bench.page import bench_page
        from meshwave.designer.bench.sessions import bench_sessions, bench_soak

        bench.PARTS |= {"page": bench_page, "sessions": bench_sessions}
        bench.TIMED_PARTS["soak"] = bench_soak
    return cli.main(words, serve=_serve, serve_workshop=_serve_workshop)


def _serve(options: argparse.Namespace) -> int:
    from meshwave.designer.server.serve import serve  # imported here since importing Panel takes most of a second

    return serve(options.design, port=options.port, home=options.home, url=options.url, show=not options.no_browser)


def _serve_workshop(options: argparse.Namespace) -> int:
    from meshwave.designer.server.workshop import serve_workshop

    return serve_workshop(
        options.plan,
        port=options.port,
        address=options.address,
        certificate=options.certificate,
        key=options.key,
        url=options.url,
        show=not options.no_browser,
    )


if __name__ == "__main__":
    sys.exit(main())
