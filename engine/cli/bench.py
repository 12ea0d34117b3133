"""The command ``bench``: benchmarks of this machine, of a launch target, and against published training runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshwave.engine.bench import speed
from meshwave.engine.cli.output import print_result
from meshwave.engine.findings import Refusal


def bench(options: argparse.Namespace) -> int:
    """Run benchmarks, print their figures and return the exit status."""
    if options.parts == ["published"]:
        return _bench_published(options)
    if options.on or options.kills is not None:
        return _bench_target(options)
    if options.runs is not None:
        raise Refusal("runs_option", where="--runs")
    figures = speed.run_benchmarks(
        options.parts,
        say=speed.print_progress,
        only=[word for word in (options.only or "").split(",") if word],
        out=Path(options.out) if options.out else None,
        minutes=options.minutes,
    )
    return print_result(options, figures, speed.to_text)


def _bench_target(options: argparse.Namespace) -> int:
    """Measure a launch target."""
    from meshwave.engine.bench.launch_figures import measure_target

    if options.parts != ["launch"]:
        raise Refusal("launch_option", where="--on" if options.on else "--kills")
    name = options.on or "local"
    file = Path(options.out) if options.out else None
    figures = measure_target(name, options.kills or 0, lambda line: speed.print_progress(f"{name}: {line}"), file)
    return print_result(options, {name: figures}, speed.to_text)


def _bench_published(options: argparse.Namespace) -> int:
    from meshwave.engine.bench.published import command

    path = None if options.runs is None else Path(options.runs)
    figures = command.compare_published_runs(path, say=speed.print_progress)
    if options.out:
        command.write_results(figures, Path(options.out))
    return print_result(options, figures, command.to_text)
