"""The command ``meshwave``, with ``serve`` and the benchmarks of the page added to the commands of the engine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshwave.engine.bench import speed as bench
from meshwave.engine.cli import main as cli
from meshwave.engine.files import expand_user

if TYPE_CHECKING:
    from meshwave.designer.server.site import Place


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; without arguments, open the designer."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["serve"]
    if words[0] == "bench":
        from meshwave.designer.bench.learners import bench_learners
        from meshwave.designer.bench.page import bench_page
        from meshwave.designer.bench.sessions import bench_sessions
        from meshwave.designer.bench.soak import bench_soak

        bench.PARTS |= {"page": bench_page, "sessions": bench_sessions}
        bench.TIMED_PARTS |= {"soak": bench_soak, "learners": bench_learners}
    return cli.main(words, serve=_serve, serve_workshop=_serve_workshop)


def _serve(options: argparse.Namespace) -> int:
    if options.home:
        os.environ["MESHWAVE_HOME"] = str(expand_user(options.home).absolute())
    if options.people is not None:
        from meshwave.designer.server.people import serve_people

        return serve_people(options.people, options.design, place=_place(options), show=not options.no_browser)
    from meshwave.designer.server.serve import serve  # imported here since importing Panel takes most of a second

    return serve(options.design, place=_place(options), show=not options.no_browser)


def _serve_workshop(options: argparse.Namespace) -> int:
    from meshwave.designer.server.workshop import serve_workshop

    return serve_workshop(options.plan, place=_place(options), show=not options.no_browser)


def _place(options: argparse.Namespace) -> Place:
    from meshwave.designer.server.site import Place, parse_site

    proxy = parse_site(options.url) if options.url else None
    return Place(options.address, options.port, options.certificate, options.key, proxy)


if __name__ == "__main__":
    sys.exit(main())
