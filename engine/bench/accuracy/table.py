"""Accuracy page in Markdown: target values, then groups, then every design."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from meshwave.engine.bench.accuracy import cases, hanayo, host_cases
from meshwave.engine.bench.accuracy.results import Result, Results
from meshwave.engine.bench.accuracy.summary import (
    LEAST_DIFFERENCE,
    MEDIAN_AIM,
    MEMORY_AIM,
    TAIL_AIM,
    ErrorStatistics,
    Summary,
    summarize,
)
from meshwave.engine.bench.markdown import WIDTH, markdown_table, wrap_section
from meshwave.engine.bench.papers.hanayo_bars import WAVES
from meshwave.engine.bench.papers.hanayo_fit import TRANSFERS, data_sheet_ratio
from meshwave.engine.units import quantity

HEAD = """\
# Accuracy

This page compares predictions with measurements. `meshwave bench accuracy --out docs/accuracy.json` measures the designs below,
which takes some minutes on an idle machine, and writes this page and its picture.

A *dry run* executes the program of a design with real processes and messages, and waits the modelled time instead of
computing. It tests whether a program takes as long as predicted if the durations of its actions are right. Each wait ends
at its scheduled time, so that a delay of the machine of less than a tenth of an action is compensated by the next wait; the
remaining error consists of delays for which other processes had to wait. A *measured run* computes, and its prediction uses
a calibration of this machine.

Step times are medians; the first step is a warm-up and excluded. Errors are `measured / predicted - 1`: positive if the run
took longer. A run during which the host of a virtual machine gave more than 1% of its cores to others (steal time) is
repeated, up to three times.

[Published training runs](published.md) compares predictions with what others measured on GPUs. It lists all runs by source and device,
what is assumed, and the largest errors with their reasons.

Only dry runs on *emulated hosts* are evidence of how links are shared: there, the kernel's queues share links that are as slow as
those of the design. The queue of a process's link holds whole messages there, so that its messages to other hosts leave one after
another; the predictions assume that ([decision 9](decisions/0009-shared-links.md)). One part of the model applies even there: no
message is delivered earlier than the model predicts for it alone. Other dry runs are circular for transfers, reductions and
collectives inside stages, which wait until the modelled links have delivered them. They test orders, dependencies and the
handling of messages, but not the sharing of links.
"""

TRAINING_NOTE = """\
On cores that processes share, compute varies more than on a GPU: two processes halve the memory bandwidth that each had while
its blocks were measured alone, gloo copies messages with the same two cores, and other work on the machine takes from both.
A profile of a run includes these effects as they were during that run.
"""


def markdown_page(results: Results) -> str:
    """Return the whole page; sections without measurements are omitted."""
    sections = [
        HEAD,
        f"Measured on {_machines(results)}; last updated on {results.date}.",
        "![Predicted and measured step times](accuracy.svg)",
        *_missed_aims(results),
        *_limits_section(results),
        *_training_section(results),
        *_hanayo_section(results),
        *_dry_runs_section(results),
    ]
    return "\n\n".join(wrap_section(section.strip()) for section in sections) + "\n"


def dry_run_results(results: Results) -> list[Result]:
    """Return the dry runs without emulated hosts."""
    return results.select(cases.dry_run_cases())


def host_results(results: Results) -> list[Result]:
    """Return the dry runs on emulated hosts, whose links the kernel shares."""
    return results.select(host_cases.host_cases())


def training_results(results: Results) -> list[Result]:
    """Return the training runs."""
    return results.select(cases.training_cases())


def _machines(results: Results) -> str:
    """Return the machine of most results; then each other machine with its groups, or its designs of a shared group."""
    found: dict[str, list[Result]] = {}
    for each in results.results:
        found.setdefault(each.machine or results.machine, []).append(each)
    most, *others = sorted(found, key=lambda machine: -len(found[machine])) or [results.machine]
    shared = {each.group for each in found.get(most, ())}
    parts = (
        (other, dict.fromkeys(f"*{each.case if each.group in shared else each.group}*" for each in found[other]))
        for other in others
    )
    return "".join([most, *(f"; on {other}: {', '.join(names)}" for other, names in parts)])


# ---- target values ----


def _missed_aims(results: Results) -> Iterator[str]:
    waited, shared, computed = dry_run_results(results), host_results(results), training_results(results)
    from_run = summarize([each.predicted_from_run for each in computed if each.learned is not None])
    found = [
        *_summary_rows(summarize(shared), "dry runs on emulated hosts"),
        *_summary_rows(summarize(waited), "dry runs without hosts"),
        *_summary_rows(summarize(computed), "measured runs, predicted by calibration", has_aims=False),
        *_summary_rows(from_run._replace(memory=None), "measured runs, predicted from one run of 1F1B", has_aims=False),
    ]
    yield markdown_table(("quantity", "target", "measured"), found)
    head = ("group", "designs", "median", "90th percentile", "worst", "bias")
    if shared:
        yield "Dry runs on emulated hosts, where the kernel shares the links, by kind of traffic:"
        yield markdown_table(head, _group_rows(summarize(shared)))
    if waited:
        yield "Dry runs without emulated hosts (circular for transfers, see above), by group:"
        yield markdown_table(head, _group_rows(summarize(waited)))
    wrong = summarize([*shared, *waited, *computed]).ranking.wrong
    if wrong:
        yield "Pairs of schedules that were predicted in the wrong order:\n\n" + "\n".join(
            f"- {sentence}" for sentence in wrong
        )


def _summary_rows(found: Summary, runs: str, *, has_aims: bool = True) -> Iterator[tuple[str, str, str]]:
    if found.iteration is None:
        return
    median_aim, tail_aim = (f"{MEDIAN_AIM:.0%}", f"{TAIL_AIM:.0%}") if has_aims else ("", "")
    yield f"step time, median error of {found.iteration.designs} {runs}", median_aim, f"{found.iteration.median:.1%}"
    yield "step time, 90th percentile of the error", tail_aim, f"{found.iteration.tail:.1%}"
    if found.ranking.pairs:
        words = f"order of two schedules whose predictions differ by more than {LEAST_DIFFERENCE:.0%}"
        yield words, "all", f"{found.ranking.right} of {found.ranking.pairs} pairs correct"
    if found.memory:
        yield "peak memory, largest error of a mesh", f"{MEMORY_AIM:.0%}", f"{found.memory.worst:.1%}"
        yield "peak memory, median error", "", f"{found.memory.median:.1%}"


def _group_rows(found: Summary) -> Iterator[tuple[str, ...]]:
    return ((group, *_statistics_cells(statistics)) for group, statistics in found.groups.items())


def _statistics_cells(found: ErrorStatistics) -> tuple[str, ...]:
    sizes = (f"{value:.1%}" for value in (found.median, found.tail, found.worst))
    return f"{found.designs}", *sizes, f"{found.bias:+.1%}"


# ---- limits of dry runs ----

LIMITS = """\
## What limits a dry run

1F1B on four meshes with eight microbatches and unit costs, where a forward waits 20 ms unless stated otherwise; each row makes
one condition harder. A dry run stretches the time of its design until its shortest actions are long enough. The remaining
error is what a process does besides waiting: waking up, starting the next action, and copying the bytes of a message. If the
machine cannot transport a message in the time of its link, the dry run makes it smaller and says so: it then takes as long as
intended, but is not as large."""


def _limits_section(results: Results) -> Iterator[str]:
    found = results.select(cases.limit_cases())
    if not found:
        return
    yield LIMITS
    lines = (
        (
            each.tags["limit"],
            each.tags["value"],
            f"{each.error:+.1%}",
            quantity(_delay_s(each), "s"),
            _share_cell(each.others),
            _message_size(each),
        )
        for each in found
    )
    yield markdown_table(("condition", "", "error", "delay per step of the longest path", "load", "messages"), lines)
    free = [_delay_s(each) for each in found if each.tags["limit"] != "message"]
    if free:
        yield (
            f"If transfers are free, each step of the longest path is delayed by {quantity(min(free), 's')} to "
            f"{quantity(max(free), 's')}, independent of its length, so that the error is the share of that delay. If "
            "transfers take time, the delay of the receiver passes while the message is on its way, and little remains."
        )


AS_DESIGNED = "as designed"


def _message_size(result: Result) -> str:
    """Return the size of the largest message as text, if it differs from the design; otherwise empty."""
    sent, modelled = result.message_bytes, result.modelled_message_bytes
    if sent is None or modelled is None or sent >= modelled:
        return AS_DESIGNED
    return f"at most {quantity(sent, 'B')} instead of {quantity(modelled, 'B')} per process"


def _delay_s(result: Result) -> float:
    """Return the delay of a step, in seconds per computation of its longest path.

    The longest path of 1F1B has ``2 (ranks + microbatches - 1)`` computations.
    """
    delay_s = (result.measured - result.predicted) * (result.scale or 1.0)
    return delay_s / (2 * (result.meshes + cases.MICROBATCHES - 1))


# ---- training runs ----


def _training_section(results: Results) -> Iterator[str]:
    found = training_results(results)
    if not found:
        return
    yield "## Measured runs"
    yield TRAINING_NOTE
    lines = (
        (
            each.case.removeprefix("real, "),
            quantity(each.predicted, "s"),
            quantity(each.measured, "s"),
            f"{each.error:+.1%}",
            "" if each.learned is None else f"{each.predicted_from_run.error:+.1%}",
            f"{each.spread / each.measured:.0%}",
            _memory_text(each),
            each.said,
        )
        for each in found
    )
    yield markdown_table(
        ("design", "predicted", "measured", "error", "by a run", "spread", "memory", "largest cause"), lines
    )
    yield (
        "*by a run*: the error if the prediction uses a run of 1F1B on the same two stages instead of the calibration. "
        "*spread*: slowest minus fastest step. *memory*: predicted / measured - 1 of the peak of each mesh. *largest "
        "cause*: how much of the difference in step time it explains; above 100% if other causes compensate a part."
    )


def _memory_text(result: Result) -> str:
    return ", ".join(f"{error:+.1%}" for error in result.memory_errors) or "not measured"


# ---- the Hanayo paper ----

PAPERS = """\
## The Hanayo paper on this machine

{first}

`meshwave bench rehearsal --out docs/accuracy.json` executes the experiments of the paper's figure of BERT on 8 GPUs (Liu et
al., SC'23) as dry runs. The table lists speed-ups over GPipe with one microbatch per device, as *paper / predicted / dry run*.
D=2 is two data-parallel pipelines on eight processes. With unit costs the reduction of their gradients is free; `meshwave
bench papers` prices it by data sheets. The paper states neither sequence length, precision nor transfer times. Assumed: the
ratio of backward to forward, from the presets of the clusters. Fitted: T_C, in forwards of a device's share of the model.
Neither assumed nor fitted: the orders of the schedules and, given T_C, all bars except those of two, four and eight waves.
Chimera-wave is the paper's baseline, one wave over half of the devices in twice as many pipelines (its figure 5). Interleaved
1F1B has four chunks per device, as many as two waves; the paper shows neither it, nor one wave, nor Chimera with its two
replicas. *gain*: of the best number of waves that the paper shows, over Chimera-wave."""

Place = tuple[str, int]
SpeedUps = dict[str, hanayo.SpeedUp]
"""Speed-ups on one cluster and number of devices, by schedule."""
SHOWN = [f"H-{waves}" for waves in WAVES]


def _hanayo_section(results: Results) -> Iterator[str]:
    known = {case.name for case in hanayo.paper_cases()}
    found = hanayo.measured_speed_ups([result for result in results.results if result.case in known])
    if not found:
        return
    yield PAPERS.format(first=textwrap.fill(hanayo.introduction_text(), WIDTH))
    names = [name for name in hanayo.WHO if name != "GPipe"]
    by_place: dict[Place, SpeedUps] = {}
    for each in found:
        by_place.setdefault((each.cluster, each.ranks), {})[each.who] = each
    lines = (
        (
            _place_cell(*place),
            *_transfer_cells(*place),
            *(_speed_up_cell(own.get(name)) for name in names),
            _gain_cell(own),
        )
        for place, own in by_place.items()
    )
    yield markdown_table(("cluster", "T_C", "by data sheet", *names, "gain"), lines)
    yield _best_waves(by_place)


def _place_cell(cluster: str, ranks: int) -> str:
    name, _, layout = hanayo.place_title(cluster, ranks).partition(" ")
    return f"{name.upper()}, {layout}"


def _transfer_cells(cluster: str, ranks: int) -> tuple[str, str]:
    return f"{TRANSFERS[cluster, ranks]:.4f}", f"{data_sheet_ratio(cluster, ranks):.4f}"


def _speed_up_cell(found: hanayo.SpeedUp | None) -> str:
    if found is None:
        return ""
    paper = "" if found.paper is None else f"{found.paper:.2f}"
    return f"{paper or '–'} / {found.predicted:.2f} / {found.measured:.2f}"


def _gain_cell(found: SpeedUps) -> str:
    """Return the gain of the best number of waves over Chimera-wave: in the paper, predicted, and in dry runs."""
    if not {"Chimera-wave", *SHOWN} <= found.keys():
        return ""
    gains = (
        max(figure(found[name]) for name in SHOWN) / figure(found["Chimera-wave"]) - 1
        for figure in (_paper_figure, lambda each: each.predicted, lambda each: each.measured)
    )
    return " / ".join(f"{gain:.1%}" for gain in gains)


def _best_waves(by_place: Mapping[Place, SpeedUps]) -> str:
    """Return a sentence on the number of cases whose best number of waves is that of the paper."""
    complete = [found for found in by_place.values() if found.keys() >= {*SHOWN}]
    same = [
        max(SHOWN, key=lambda name: found[name].measured) == max(SHOWN, key=lambda name: _paper_figure(found[name]))
        for found in complete
    ]
    return (
        f"The best of two, four and eight waves in dry runs is that of the paper in {sum(same)} of {len(same)} cases."
    )


def _paper_figure(found: hanayo.SpeedUp) -> float:
    return found.paper or 0.0


# ---- all dry runs ----


def _dry_runs_section(results: Results) -> Iterator[str]:
    parts = (
        ("All dry runs on emulated hosts", host_results(results)),
        ("All other dry runs", dry_run_results(results)),
    )
    for title, found in parts:
        if not found:
            continue
        yield f"## {title}"
        yield (
            "*scale*: time dilation, in seconds per second (or unit) of the design. *shortest*: wall time of its shortest "
            "action. *idle*: bubble ratio, predicted and measured. *load*: share of the cores that was busy before "
            f"the run began. {_message_note(found)}"
        )
        if ranges := any(each.ranges for each in found):
            yield RANGE_NOTE
        lines = ((*_dry_run_cells(each), *_range_cells(each)) for each in found)
        yield markdown_table((*DRY_RUN_HEAD, *(["range"] if ranges else [])), lines)


RANGE_NOTE = (
    "*range*: of the predicted step time, relative to the listed one, if each action is up to 1% longer at random. A wide range "
    "means that the order of two messages decides what follows, and that the listed prediction is one of several equally "
    "likely ones; an error outside the range has another cause. *turned* in a name means that the second mesh has its devices "
    "on the two nodes in the opposite order; *divided tokens* means sequence parallelism."
)
DRY_RUN_HEAD = ("design", "processes", "predicted", "measured", "error", "spread", "scale", "shortest", "idle", "load")


def _range_cells(each: Result) -> list[str]:
    return [" to ".join(f"{end / each.predicted - 1:+.1%}" for end in each.ranges)] if each.ranges else []


def _dry_run_cells(each: Result) -> tuple[str, ...]:
    return (
        each.case.removeprefix("hosts, "),
        f"{each.processes}",
        _time_cell(each.predicted, each),
        _time_cell(each.measured, each),
        f"{each.error:+.1%}",
        f"{each.spread / each.measured:.1%}",
        f"{each.scale:.3g}",
        quantity(each.shortest_s, "s"),
        f"{each.predicted_bubble:.1%}, {each.measured_bubble:.1%}",
        _share_cell(each.others),
    )


def _message_note(found: Sequence[Result]) -> str:
    """Return a sentence on the dry runs whose messages were smaller than in the design."""
    smaller = [each.case for each in found if _message_size(each) != AS_DESIGNED]
    if not smaller:
        return "All messages had the size that the design specifies."
    return f"In {len(smaller)} of them messages were smaller than in the design: {'; '.join(smaller)}."


def _time_cell(value: float, result: Result) -> str:
    return quantity(value, "s") if result.unit == "s" else f"{value:.4g} units"


def _share_cell(share: float) -> str:
    return f"{share:.0%}"
