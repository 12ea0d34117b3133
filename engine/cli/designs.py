"""The command line: ``meshwave check | program | simulate | run | runs | compare | import | export | ...``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError

if TYPE_CHECKING:
    from meshwave.engine.findings import Problem
    from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.cli.output import _print, _print_json, _telling, _write


def _load(name: str, *, draft: bool = False) -> Any:
    from meshwave.engine.document import load_design
    from meshwave.engine.files import find_design

    return load_design(find_design(name), draft=draft)


# ---- one function a command ----


def _check(options: argparse.Namespace) -> int:
    found = {name: _problems(name, options) for name in dict.fromkeys(options.designs)}
    several = len(found) > 1
    if options.json:
        said = [(name, problem.to_json()) for name, problems in found.items() for problem in problems]
        _print_json({"problems": [{"design": name, **problem} if several else problem for name, problem in said]})
    else:
        for name, problems in found.items():
            for line in [*map(str, problems)] or ["no problems"]:
                print(f"{name}: {line}" if several else line)
    wrong = any(problem.severity == "error" for problems in found.values() for problem in problems)
    return 2 if wrong else 0


def _problems(name: str, options: argparse.Namespace) -> list[Problem]:
    """All problems of one design, warnings too."""
    from meshwave.engine.findings import Problem
    from meshwave.engine.predict.prediction import check_design

    try:
        try:
            return check_design(_load(name, draft=True))
        except DesignError:  # parts are unsound: what can be said of the others beside
            return check_design(_load(name))
    except DesignError as error:
        return list(error.problems)
    except InputError as error:  # no file to look into
        if not options.json and len(options.designs) == 1:
            raise
        return [Problem("", "file", str(error))]


@_telling
def _program(options: argparse.Namespace) -> int:
    from meshwave.engine.exports import exports
    from meshwave.engine.lowering.lower import lower
    from meshwave.engine.predict.prediction import predict
    from meshwave.engine.program.program import format_program, to_json

    design = _load(options.design)
    program = lower(design)
    ranks = range(program.ranks)
    if options.rank is not None:
        if options.rank not in ranks:
            raise InputError(f"there is no rank {options.rank}; the design has ranks 0 to {program.ranks - 1}")
        ranks = range(options.rank, options.rank + 1)
    if options.format == "json":
        data = dict(to_json(program))
        if options.rank is not None:
            data.update(compute=[data["compute"][options.rank]], actions=[data["actions"][options.rank]])
        _print_json(data)
    elif options.format in exports:
        lines = exports[options.format].make(predict(design)).decode().splitlines()
        print("\n".join(lines[rank] for rank in ranks))
    else:
        text = format_program(program)
        for rank in ranks:
            print(f"rank {rank}: {' '.join(text[rank])}" if options.rank is None else " ".join(text[rank]))
    return 0


@_telling
def _simulate(options: argparse.Namespace) -> int:
    from meshwave.engine.exports import exports
    from meshwave.engine.predict.prediction import predict

    prediction = predict(_load(options.design))
    if options.trace:
        _write(options.trace, exports["perfetto"].make(prediction))
        print(f"wrote {options.trace}; open it at ui.perfetto.dev", file=sys.stderr)
    return _print(options, _numbers(prediction), _told)


def _numbers(prediction: Prediction) -> dict[str, Any]:
    """The numbers, with all that is unwise: what the document alone shows, too."""
    from meshwave.engine.document.problems import problems

    unwise = [*problems(prediction.design), *prediction.warnings]
    return {**prediction.numbers, "warnings": [str(problem) for problem in unwise]}


def _told(numbers: Mapping[str, Any]) -> list[str]:
    from meshwave.engine.units import percent, quantity

    time = "s" if numbers["unit"] == "s" else ""
    lines = [
        f"iteration      {quantity(numbers['makespan_s'], time) if time else format(numbers['makespan_s'], 'g') + ' units'}",
        f"bubble         {numbers['bubble_ratio']:.1%}   (own span of each mesh: {numbers['span_bubble_ratio']:.1%})",
    ]
    if time:
        lines += [
            f"throughput     {numbers['samples_per_s']:.4g} sequences/s, {quantity(numbers['tokens_per_s'], 'tokens/s')}",
            f"MFU            {numbers['mfu']:.1%}",
        ]
    if numbers["bounds"]:
        lines.append(f"limit          {numbers['bounds']['words']}")
    if any(lost := numbers["dropped"] or ()):
        lines.append(f"dropped        {percent(sum(lost) / len(lost))} of the visits to experts at this load")
    fits = "fits" if numbers["fits"] else "DOES NOT FIT"
    peak, capacity = quantity(max(numbers["peak_memory_bytes"]), "B"), quantity(numbers["capacity_bytes"], "B")
    exposed, inside = numbers["mean_exposed_communication_s"], numbers["mean_inside_communication_s"]
    waits = f"{quantity(exposed, time)}{'' if time else ' units'} of communication, the mean over the meshes"
    lines += [
        f"exposed        {waits}{f'; + {quantity(inside, time)} inside blocks' if inside else ''}",
        f"peak memory    {peak} of {capacity} a device: {fits}",
    ]
    heads = {"busy_s": "busy", "idle_s": "idle", "exposed_communication_s": "exposed"}
    columns = {**heads, "inside_communication_s": "inside"} if inside else heads
    lines.append(f"mesh           {''.join(f'{head:<10}' for head in columns.values())}in flight  memory")
    for rank, name in enumerate(numbers["meshes"]):
        times = "".join(f"{quantity(numbers[key][rank], time):<10}" for key in columns)
        memory = quantity(numbers["peak_memory_bytes"][rank], "B")
        lines.append(f"{name[:14]:<15}{times}{numbers['peak_inflight'][rank]:<11.4g}{memory}")
    return [*lines, *numbers["findings"], *numbers["warnings"]]


def _compared(prediction: Prediction) -> dict[str, Any]:
    """The numbers of a design; of unit costs there are none of what is counted by the second."""
    numbers = _numbers(prediction)
    return numbers if numbers["unit"] == "s" else {**numbers, "samples_per_s": None, "tokens_per_s": None}


@_telling
def _compare(options: argparse.Namespace) -> int:
    from meshwave.engine.document.differences import differences
    from meshwave.engine.predict.prediction import predict
    from meshwave.engine.units import quantity

    predictions = []
    for name in options.designs:
        try:
            predictions.append(predict(_load(name)))
        except DesignError as error:  # of several designs, say which
            raise InputError("\n".join(f"{name}: {problem}" for problem in error.problems)) from None
    changed = [differences(predictions[0].design, prediction.design) for prediction in predictions]
    if options.json:
        told = [{**_compared(each), "differences": change} for each, change in zip(predictions, changed, strict=True)]
        _print_json({"designs": told})
        return 0
    first = predictions[0].numbers
    wide = max(len("design"), *(len(prediction.design.name) for prediction in predictions)) + 2
    print(f"{'design':<{wide}}{'iteration':>12}{'':>9}{'bubble':>9}{'seq/s':>11}{'memory':>11}")
    for prediction in predictions:
        n = prediction.numbers
        same = n["unit"] == first["unit"]
        longer = f"{n['makespan_s'] / first['makespan_s'] - 1:+.1%}" if same and first["makespan_s"] else ""
        iteration = quantity(n["makespan_s"], "s") if n["unit"] == "s" else f"{n['makespan_s']:g} units"
        memory = quantity(max(n["peak_memory_bytes"]), "B")
        rate = f"{n['samples_per_s']:.4g}" if n["unit"] == "s" else "-"
        print(f"{n['name']:<{wide}}{iteration:>12}{longer:>9}{n['bubble_ratio']:>9.1%}{rate:>11}{memory:>11}")
    for prediction, change in zip(predictions[1:], changed[1:], strict=True):
        print(f"\n{prediction.design.name}, against the first")
        print("\n".join(f"  {line}" for line in change or ["the same"]))
    return 0


@_telling
def _import(options: argparse.Namespace) -> int:
    from meshwave.engine.imports import load_import

    into = _load(options.into) if options.into else None
    design, notes = load_import(options.file, into, getattr(options, "from") or "")
    _write(options.out, design.to_json().encode())
    for note in notes:
        print(note.message, file=sys.stderr)
    return 0


@_telling
def _export(options: argparse.Namespace) -> int:
    from meshwave.engine.exports import exports
    from meshwave.engine.predict.prediction import predict

    export, prediction = exports[options.to], predict(_load(options.design))
    content = export.make(prediction)
    if options.out is None and b"\0" in content and sys.stdout.isatty():
        raise InputError(f"{options.to} is no text for a terminal; name a file with --out")
    _write(options.out, content)
    for words in export.left_out(prediction):
        print(f"not in the file: {words}", file=sys.stderr)
    return 0


def _schema(options: argparse.Namespace) -> int:
    from meshwave.engine.document import Design

    _print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Design.model_json_schema()})
    return 0


def _examples(options: argparse.Namespace) -> int:
    from meshwave.engine.document import load_design
    from meshwave.engine.files import example, examples

    if options.name:
        sys.stdout.write(example(options.name).read_text("utf-8"))
    elif options.to:
        folder = Path(options.to)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None
        for path in examples().values():
            _write(str(folder / path.name), path.read_bytes())
        print(f"copied {len(examples())} examples to {folder}", file=sys.stderr)
    else:
        titles = {name: load_design(path).name for name, path in examples().items()}
        if options.json:
            _print_json(titles)
        else:
            print("\n".join(f"{name:<24}{title}" for name, title in titles.items()))
    return 0
