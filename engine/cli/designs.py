"""Commands for designs: ``check``, ``program``, ``simulate``, ``compare``, ``import``, ``export`` and others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwave.engine.cli.output import print_json, print_note, print_result, with_progress, write_output
from meshwave.engine.errors import InputError, shorten
from meshwave.engine.findings import DesignError, Problem, Refusal
from meshwave.engine.messages import render
from meshwave.engine.units import format_energy, format_number, format_ranges, percent, percent_change, quantity

if TYPE_CHECKING:
    from meshwave.engine.document import Design
    from meshwave.engine.imports import Trace
    from meshwave.engine.predict.prediction import Prediction
    from meshwave.engine.predict.questions import Slowdown


def load(name: str, *, draft: bool = False) -> Any:
    """Load the design of a file or an example."""
    from meshwave.engine.document import load_design
    from meshwave.engine.files import find_design

    return load_design(find_design(name), draft=draft)


@contextmanager
def naming_design(name: str) -> Iterator[None]:
    """Name the design in its errors, for commands that read several files."""
    try:
        yield
    except DesignError as error:
        raise DesignError(each.replace(where=f"{name}: {each.where}".rstrip(": ")) for each in error.problems) from None


def check(options: argparse.Namespace) -> int:
    """Print the problems of designs, one per line; return 2 if any is an error."""
    found = {name: _find_problems(name, options) for name in dict.fromkeys(options.designs)}
    several = len(found) > 1
    if options.json:
        rows = [(name, problem.to_json()) for name, problems in found.items() for problem in problems]
        print_json({"problems": [{"design": name, **row} if several else row for name, row in rows]})
    else:
        for name, problems in found.items():
            for line in [line for problem in problems for line in _problem_lines(problem)] or ["no problems"]:
                print(f"{name}: {line}" if several else line)
    wrong = any(problem.severity == "error" for problems in found.values() for problem in problems)
    return 2 if wrong else 0


def _problem_lines(problem: Problem) -> list[str]:
    """Return a problem and its fixes as lines of text."""
    return [str(problem), *(f"  fix: {fix.label}" for fix in problem.fixes)]


def _find_problems(name: str, options: argparse.Namespace) -> list[Problem]:
    """Return all problems of a design, including warnings."""
    from meshwave.engine.predict.prediction import check_design

    try:
        try:
            return check_design(load(name, draft=True))
        except DesignError:  # invalid sections: report their problems with those of the other sections
            return check_design(load(name))
    except DesignError as error:
        return list(error.problems)
    except InputError as error:  # the file does not exist
        if not options.json and len(options.designs) == 1:
            raise
        return [Problem("", "file", {"reason": str(error)})]


@with_progress
def print_program(options: argparse.Namespace) -> int:
    """Print the program of a design, or of one rank."""
    from meshwave.engine.exports import exports
    from meshwave.engine.lowering.lower import lower
    from meshwave.engine.predict.prediction import predict
    from meshwave.engine.program.program import format_program
    from meshwave.engine.program.program_file import to_json

    design = load(options.design)
    lowered = lower(design)
    ranks = range(lowered.ranks)
    if options.rank is not None:
        if options.rank not in ranks:
            raise Refusal("unknown_rank", {"rank": options.rank, "last": lowered.ranks - 1}, "--rank")
        ranks = range(options.rank, options.rank + 1)
    if options.format == "json":
        data = dict(to_json(lowered))
        if options.rank is not None:
            data.update(compute=[data["compute"][options.rank]], actions=[data["actions"][options.rank]])
        print_json(data)
    elif options.format in exports:
        lines = exports[options.format].to_bytes(predict(design)).decode().splitlines()
        print("\n".join(lines[rank] for rank in ranks))
    else:
        text = format_program(lowered)
        for rank in ranks:
            print(f"rank {rank}: {' '.join(text[rank])}" if options.rank is None else " ".join(text[rank]))
    return 0


@with_progress
def simulate(options: argparse.Namespace) -> int:
    """Print the metrics of a design's prediction."""
    from meshwave.engine.exports import exports
    from meshwave.engine.predict.prediction import predict

    prediction = predict(load(options.design))
    if options.trace:
        write_output(options.trace, exports["perfetto"].to_bytes(prediction))
        print_note(f"wrote {options.trace}; open it at ui.perfetto.dev")
    numbers = _prediction_metrics(prediction)
    slowdown = _read_slowdown(options)
    if slowdown is not None:
        from meshwave.engine.predict.questions import slow_step

        numbers["slowdown"] = slow_step(prediction, slowdown).as_data()
    return print_result(options, numbers, _to_lines)


def _read_slowdown(options: argparse.Namespace) -> Slowdown | None:
    """Return the slowdown given on the command line; None if none is given.

    Raises:
        Refusal: an option cannot be read.
    """
    if not (options.slow_device or options.slow_link or options.jitter):
        return None
    from meshwave.engine.predict.questions import Slowdown

    devices, links = {}, {}
    for option, text in [
        *(("slow-device", each) for each in options.slow_device),
        *(("slow-link", each) for each in options.slow_link),
    ]:
        place, _, factor = text.rpartition("=")
        try:
            if option == "slow-device":
                devices[int(place)] = float(factor)
            else:
                one, _, other = place.partition(":")
                links[one, other] = float(factor)
        except ValueError:
            raise Refusal("unreadable_slowdown", {"value": text}, f"--{option}") from None
    return Slowdown(devices, links, options.jitter)


def _prediction_metrics(prediction: Prediction) -> dict[str, Any]:
    """Return the metrics with the memory of all devices, and all warnings, including those of the document."""
    from meshwave.engine.costs import join_equal_devices
    from meshwave.engine.document.problems import problems

    warnings = [*problems(prediction.design), *prediction.warnings]
    held = [group.as_data() for group in join_equal_devices(prediction.device_memory)]
    return {**prediction.numbers, "device_memory": held, "warnings": [str(problem) for problem in warnings]}


def _expense_text(texts: Mapping[str, str]) -> str:
    return f"{texts['step']} a step, {texts['million_tokens']} a million tokens, {texts['training']} for all steps"


def _evidence_lines(evidence: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield lines on the source of the constants of a prediction, and on similar published runs."""
    if evidence is None:
        return
    yield f"constants      of {evidence['device']}, from published measurements"
    if interval := evidence["interval_s"]:
        low, high = (quantity(end, "s") for end in interval)
        yield f"likely         {low} to {high}, the error range of 80% of similar published runs with their source left out of the fit"
    yield from (f"similar run    {run['words']}" for run in evidence["like_runs"])


def _to_lines(numbers: Mapping[str, Any]) -> list[str]:
    time = "s" if numbers["unit"] == "s" else ""
    lines = [
        f"iteration      {quantity(numbers['makespan_s'], time) if time else format(numbers['makespan_s'], 'g') + ' units'}",
        f"bubble         {percent(numbers['bubble_ratio'])}   (within the span of each mesh: {percent(numbers['span_bubble_ratio'])})",
    ]
    if time:
        lines += [
            f"throughput     {numbers['samples_per_s']:.4g} sequences/s, {quantity(numbers['tokens_per_s'], 'tokens/s')}",
            f"MFU            {percent(numbers['mfu'])}",
        ]
    if expense := numbers["price"]:
        lines.append(f"price          {_expense_text({key: format_number(value) for key, value in expense.items()})}")
    if expense := numbers["energy_j"]:
        lines.append(f"energy         {_expense_text({key: format_energy(value) for key, value in expense.items()})}")
    if numbers["bounds"]:
        lines.append(f"limit          {numbers['bounds']['words']}")
    if "slowdown" in numbers:
        from meshwave.engine.predict.questions import SlowStep

        lines.append(f"slowed down    {SlowStep(**numbers['slowdown']).description(numbers['unit'])}")
    if published := numbers["published"]:
        lines.append(f"published      {published['words']} ({published['source']})")
    lines += _evidence_lines(numbers["evidence"])
    if any(lost := numbers["dropped"] or ()):
        lines.append(f"dropped        {percent(sum(lost) / len(lost))} of token assignments at this load")
    if moves := numbers["expert_moves"]:
        lines.append(
            f"expert moves   up to {quantity(moves['largest_s'], 's')} after {moves['every_steps']} steps, "
            f"{percent(moves['largest_share'])} of their time, not included in the iteration"
        )
    fits = "fits" if numbers["fits"] else "DOES NOT FIT"
    peak, capacity = quantity(max(numbers["peak_memory_bytes"]), "B"), quantity(numbers["capacity_bytes"], "B")
    exposed, inside = numbers["mean_exposed_communication_s"], numbers["mean_inside_communication_s"]
    waits = f"{quantity(exposed, time)}{'' if time else ' units'} of communication, mean over the meshes"
    lines += [
        f"exposed        {waits}{f'; + {quantity(inside, time)} inside blocks' if inside else ''}",
        f"peak memory    {peak} of {capacity} per device: {fits}",
    ]
    heads = {"busy_s": "busy", "idle_s": "idle", "exposed_communication_s": "exposed"}
    columns = {**heads, "inside_communication_s": "inside"} if inside else heads
    lines.append(f"mesh           {''.join(f'{head:<10}' for head in columns.values())}in flight  memory")
    for rank, name in enumerate(numbers["meshes"]):
        times = "".join(f"{quantity(numbers[key][rank], time):<10}" for key in columns)
        memory = quantity(numbers["peak_memory_bytes"][rank], "B")
        lines.append(f"{name[:14]:<15}{times}{numbers['peak_inflight'][rank]:<11.4g}{memory}")
    lines += _device_memory_lines(numbers["device_memory"])
    return [*lines, *numbers["findings"], *numbers["warnings"]]


def _device_memory_lines(groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table with the peak memory of a device by category, a line for each group of equal devices."""
    titles = {kind: "workspace" if kind == "working" else kind for kind in groups[0]["memory_bytes"]}
    yield f"{'devices':<15}{''.join(f'{title:<13}' for title in titles.values())}meshes"
    for group in groups:
        first, *others = group["meshes"]
        meshes = f"{first} and {len(others)} more" if len(others) > 1 else " and ".join((first, *others))
        sizes = "".join(f"{quantity(group['memory_bytes'][kind], 'B'):<13}" for kind in titles)
        yield f"{shorten(format_ranges(group['devices']), 14):<15}{sizes}{meshes}"


def _comparable_numbers(prediction: Prediction) -> dict[str, Any]:
    """Return the metrics of a design; if its costs are in units, without rates per second."""
    numbers = _prediction_metrics(prediction)
    return numbers if numbers["unit"] == "s" else {**numbers, "samples_per_s": None, "tokens_per_s": None}


@with_progress
def compare(options: argparse.Namespace) -> int:
    """Print the metrics of designs side by side."""
    from meshwave.engine.document.differences import describe_differences
    from meshwave.engine.predict.prediction import predict

    predictions = []
    for name in options.designs:
        with naming_design(name):
            predictions.append(predict(load(name)))
    changed = [describe_differences(predictions[0].design, prediction.design) for prediction in predictions]
    if options.json:
        rows = zip(predictions, changed, strict=True)
        print_json({"designs": [{**_comparable_numbers(each), "differences": change} for each, change in rows]})
        return 0
    first = predictions[0].numbers
    wide = max(len("design"), *(len(prediction.design.name) for prediction in predictions)) + 2
    print(f"{'design':<{wide}}{'iteration':>12}{'':>9}{'bubble':>9}{'seq/s':>11}{'memory':>11}")
    for prediction in predictions:
        n = prediction.numbers
        same = n["unit"] == first["unit"]
        change = percent_change(n["makespan_s"] / first["makespan_s"] - 1) if same and first["makespan_s"] else ""
        iteration = quantity(n["makespan_s"], "s") if n["unit"] == "s" else f"{n['makespan_s']:g} units"
        memory = quantity(max(n["peak_memory_bytes"]), "B")
        rate = f"{n['samples_per_s']:.4g}" if n["unit"] == "s" else "-"
        print(f"{n['name']:<{wide}}{iteration:>12}{change:>9}{percent(n['bubble_ratio']):>9}{rate:>11}{memory:>11}")
    for prediction, lines in zip(predictions[1:], changed[1:], strict=True):
        print(f"\n{prediction.design.name}, compared with the first")
        print("\n".join(f"  {line}" for line in lines or ["no differences"]))
    return 0


@with_progress
def import_file(options: argparse.Namespace) -> int:
    """Convert a file of another tool to a design, and write the design."""
    from meshwave.engine.imports import load_import, load_trace, split_name, traces

    into, form = None, getattr(options, "from") or ""
    if options.into:
        with naming_design(options.into):
            into = load(options.into)
    is_named = split_name(options.file[0])[1] and not form  # a trace has no name
    trace = load_trace(options.file, form if form in traces else "") if form in ("", *traces) and not is_named else None
    if trace is not None:
        return _add_trace_run(into, trace)
    if len(options.file) > 1:
        raise Refusal("several_files", {}, "FILE")
    design, notes = load_import(options.file[0], into, form)
    write_output(options.out, design.to_json().encode())
    for note in notes:
        print_note(note.message)
    return 0


def _add_trace_run(design: Design | None, trace: Trace) -> int:
    """Add a trace as a run of a design, and print the comparison with its prediction."""
    from meshwave.engine.cli.launch import compare_if_possible, run_lines
    from meshwave.engine.predict.prediction import predict
    from meshwave.engine.runs import Record, Run
    from meshwave.engine.runs.imported_trace import add_trace_run

    if design is None:
        raise Refusal("trace_without_design", {}, "--into")
    with closing(Record()) as record:
        run = Run(record, add_trace_run(record, predict(design), trace).id)
        print("\n".join([f"run {run.id}: {design.name}", *run_lines(run, compare_if_possible(run))]))
    return 0


@with_progress
def export(options: argparse.Namespace) -> int:
    """Write a design in another format."""
    from meshwave.engine.exports import exports
    from meshwave.engine.predict.prediction import predict

    form, prediction = exports[options.to], predict(load(options.design))
    content = form.to_bytes(prediction)
    if options.out is None and b"\0" in content and sys.stdout.isatty():
        raise Refusal("binary_to_terminal", {"format": options.to}, "--out")
    write_output(options.out, content)
    for part in form.omissions(prediction):
        print_note(f"not in the file: {part}")
    return 0


def print_schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema of a design."""
    from meshwave.engine.document import Design

    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Design.model_json_schema()})
    return 0


def print_examples(options: argparse.Namespace) -> int:
    """List the examples, print one of them, or copy all of them into a folder."""
    from meshwave.engine import files
    from meshwave.engine.document import load_design
    from meshwave.engine.predict.published_examples import published_steps

    if options.name:
        sys.stdout.write(files.example(options.name).read_text("utf-8"))
    elif options.to:
        _copy_examples(Path(options.to))
    else:
        titles = {name: load_design(path).name for name, path in files.all_examples().items()}
        notes = {name: f" ({step.comparison()})" for name, step in published_steps().items()}
        return print_result(
            options,
            titles,
            lambda titles: (f"{name:<24}{title}{notes.get(name, '')}" for name, title in titles.items()),
        )
    return 0


def _copy_examples(folder: Path) -> None:
    """Copy all examples into a folder; files that exist there and differ are kept and named."""
    from meshwave.engine.files import all_examples

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal("folder_not_made", {"folder": str(folder), "reason": error.strerror}, "--to") from None
    contents = {folder / path.name: path.read_bytes() for path in all_examples().values()}
    kept = [path for path, content in contents.items() if _differs(path, content)]
    for path in contents.keys() - kept:
        write_output(str(path), contents[path])
    print_note(f"copied {len(contents) - len(kept)} examples to {folder}")
    for path in kept:
        print_note(render("kept_file", {"file": str(path)}))


def _differs(path: Path, content: bytes) -> bool:
    """Return True if a file exists and its content is another one, or cannot be read."""
    try:
        return path.read_bytes() != content
    except FileNotFoundError:
        return False
    except OSError:
        return True
