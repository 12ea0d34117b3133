"""What was measured as a page of text: the aims first, then group by group, then every design."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from meshwave.engine.bench.accuracy import cases, hanayo
from meshwave.engine.bench.accuracy.results import Result, Results
from meshwave.engine.bench.accuracy.summary import APART, MEDIAN_AIM, MEMORY_AIM, TAIL_AIM, Spread, Summary, summary
from meshwave.engine.bench.papers.hanayo_bars import WAVES
from meshwave.engine.bench.papers.hanayo_fit import TRANSFERS, by_data_sheet
from meshwave.engine.units import quantity

WIDTH = 118
HEAD = """\
# How true

`meshwave bench accuracy --out docs/accuracy.json` measures the designs below, some minutes on a machine that has
nothing else to do, and writes this page and its picture from what it measured. A *rehearsal* is a run whose stages
wait for the time that the model gives them, while the messages between its processes are real: it says whether a
program takes as long as it is predicted to, once the prices of its parts are right. A wait ends when it should have
ended, so that a delay of this machine by less than a tenth of an action is made up for by the next wait; what is left
are delays that others had to wait for. A *real run* computes, and is predicted from what was measured of this machine
before. Iterations are medians; the first, which warms up, is left out. Errors are `measured / predicted - 1`: above 0
where it took longer. A run during which the host of a virtual machine gave more than 1% of its cores to others is done
again, up to three times.

Of how links are shared, only rehearsals on *emulated hosts* are evidence: there the kernel's queues share links that are
as slow as drawn. One thing of the model enters even there: no message is handed out before the time that it takes
alone by the model. Rehearsals without emulated hosts are circular for transfers, reductions and the collectives inside
stages: these are held until the model of shared links says that they are complete. Such a rehearsal says whether
orders, dependencies and the machinery of messages are as predicted, and nothing of how links are shared.
"""

WHY_REAL = """\
Real compute on cores that processes share is not as even as a GPU's: two processes halve the memory bandwidth that
each had while blocks were measured alone, gloo copies messages with the same two cores, and whoever else uses the
machine takes from both. A profile made of a run knows all of that as it was then.
"""


def markdown(results: Results) -> str:
    """The whole page; parts of which nothing was measured are left out."""
    sections = [
        HEAD,
        f"Measured on {results.machine}; the last of it on {results.date}.",
        "![Predicted and measured iterations](accuracy.svg)",
        *_aims(results),
        *_limits(results),
        *_real(results),
        *_papers(results),
        *_every(results),
    ]
    return "\n\n".join(_wrapped(section.strip()) for section in sections) + "\n"


def _wrapped(section: str) -> str:
    """A paragraph in lines as long as those of other pages; tables and headings as they are."""
    plain = "\n" not in section and section[0] not in "#|!-"
    return textwrap.fill(section, WIDTH, break_long_words=False, break_on_hyphens=False) if plain else section


def rehearsed(results: Results) -> list[Result]:
    """Those by which rehearsals are judged."""
    return results.of(case.name for case in cases.rehearsals())


def emulated(results: Results) -> list[Result]:
    """Those on emulated hosts, whose links the kernel shares."""
    return results.of(case.name for case in cases.on_hosts())


def real(results: Results) -> list[Result]:
    return results.of(case.name for case in cases.real())


def rows(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; its columns are as wide as they need to be."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


# ---- the aims ----


def _aims(results: Results) -> Iterator[str]:
    waited, shared, computed = rehearsed(results), emulated(results), real(results)
    learned = [each.by_a_run for each in computed if each.learned is not None]
    found = [
        *_told(summary(shared), "rehearsals on emulated hosts"),
        *_told(summary(waited), "rehearsals without hosts"),
        *_told(summary(computed), "real runs, by calibration", aims=False),
        *_told(summary(learned)._replace(memory=None), "real runs, by one run of 1F1B", aims=False),
    ]
    yield rows(("what", "aim", "here"), found)
    head = ("group", "designs", "median", "90th percentile", "worst", "bias")
    if shared:
        yield "Rehearsals on emulated hosts, by what shares links (there the kernel shares them):"
        yield rows(head, _groups(summary(shared)))
    if waited:
        yield "Rehearsals without emulated hosts, by what they stand for (circular for transfers, see above):"
        yield rows(head, _groups(summary(waited)))
    wrong = summary([*shared, *waited, *computed]).ranking.wrong
    if wrong:
        yield "Pairs in the wrong order:\n\n" + "\n".join(f"- {sentence}" for sentence in wrong)


def _told(found: Summary, what: str, *, aims: bool = True) -> Iterator[tuple[str, str, str]]:
    if found.iteration is None:
        return
    of = f"{found.iteration.designs} {what}"
    yield f"iteration time, median error of {of}", f"{MEDIAN_AIM:.0%}" if aims else "", f"{found.iteration.median:.1%}"
    yield "the same, 90th percentile", f"{TAIL_AIM:.0%}" if aims else "", f"{found.iteration.tail:.1%}"
    if found.ranking.pairs:
        words = f"order of two schedules, predicted over {APART:.0%} apart"
        yield words, "all", f"{found.ranking.right} of {found.ranking.pairs} pairs right"
    if found.memory:
        yield "peak memory, worst of a mesh", f"{MEMORY_AIM:.0%}", f"{found.memory.worst:.1%}"
        yield "the same, median", "", f"{found.memory.median:.1%}"


def _groups(found: Summary) -> Iterator[tuple[str, ...]]:
    return ((group, *_spread(spread)) for group, spread in found.groups.items())


def _spread(found: Spread) -> tuple[str, ...]:
    sizes = (f"{value:.1%}" for value in (found.median, found.tail, found.worst))
    return f"{found.designs}", *sizes, f"{found.bias:+.1%}"


# ---- what limits them ----

LIMITS = """\
## What limits a rehearsal

1F1B on four meshes with eight microbatches in units (a forward waits 20 ms where nothing else is said), made harder
in one way at a time. A rehearsal stretches its design's time until its shortest computations are long enough; what it
gets wrong beyond that is what a process does besides waiting: waking up, turning to the next action, and the cores'
own time for the bytes of a message. Where this machine could not bring a message in the time that its drawn link takes,
the rehearsal makes it smaller and says so: it then takes as long as the drawn one, but is not as large."""


def _limits(results: Results) -> Iterator[str]:
    found = results.of(case.name for case in cases.limits())
    if not found:
        return
    yield LIMITS
    lines = (
        (
            each.tags["limit"],
            each.tags["value"],
            f"{each.error:+.1%}",
            quantity(_late_s(each), "s"),
            _share(each.others),
            _carried(each),
        )
        for each in found
    )
    yield rows(("what", "", "error", "late, for each step of the longest path", "others", "messages"), lines)
    free = [_late_s(each) for each in found if each.tags["limit"] != "message"]
    if free:
        yield (
            f"Where transfers are free, each step of the longest path is {quantity(min(free), 's')} to "
            f"{quantity(max(free), 's')} late, however long it is: the share of it that this makes is the error. Where "
            "transfers take time, the receiver's delay passes while the message is on its way, and little is left."
        )


def _carried(result: Result) -> str:
    """How large messages were: what a run says in brackets where they are not as drawn."""
    return result.note.partition("(")[2].partition(")")[0] or "as drawn"


def _late_s(result: Result) -> float:
    """By how much of the clock an iteration is late, shared over the computations that follow each other: of 1F1B
    ``2 (ranks + microbatches - 1)``."""
    late_s = (result.measured - result.predicted) * (result.scale or 1.0)
    return late_s / (2 * (result.meshes + cases.MICROBATCHES - 1))


# ---- real runs ----


def _real(results: Results) -> Iterator[str]:
    found = real(results)
    if not found:
        return
    yield "## Real runs"
    yield WHY_REAL
    lines = (
        (
            each.case.removeprefix("real, "),
            quantity(each.predicted, "s"),
            quantity(each.measured, "s"),
            f"{each.error:+.1%}",
            "" if each.learned is None else f"{each.by_a_run.error:+.1%}",
            f"{each.spread / each.measured:.0%}",
            _memory(each),
            each.said,
        )
        for each in found
    )
    yield rows(("design", "predicted", "measured", "error", "by a run", "spread", "memory", "the largest error"), lines)
    yield (
        "*by a run*: the error where the design is priced by what the run of 1F1B took on the same two stages, instead of "
        "by calibration. *spread*: from the fastest iteration to the slowest. *memory*: predicted / measured - 1 of the "
        "peak, mesh by mesh."
    )


def _memory(result: Result) -> str:
    return ", ".join(f"{error:+.1%}" for error in result.memory_errors) or "not counted"


# ---- the papers on the machine ----

PAPERS = """\
## The Hanayo paper on this machine

{first}

`meshwave bench rehearsal --out docs/accuracy.json` rehearses the experiments of the paper's figure of BERT on 8 GPUs
(Liu et al., SC'23): times faster than GPipe with one microbatch a device, as *paper / predicted / rehearsed*. D=2 is
two data-parallel pipelines on eight processes; in units the reduction of their gradients is free, by data sheets
`meshwave bench papers` prices it. The paper tells neither sequence length nor precision nor how long a transfer takes.
Assumed: a backward is as many forwards as our presets of its clusters make it. Fitted: T_C, in forwards of a device's
share of the model. Neither: the orders of the schedules, and with T_C all bars but those of two, four and eight waves.
Chimera-wave is the paper's baseline, one wave over half of the devices in twice as many pipelines (its figure 5).
Interleaved 1F1B has four chunks a device, as many as two waves; the paper does not show it, nor one wave, nor Chimera
in its two replicas. *gain*: of the best number of waves that the paper shows, over Chimera-wave."""

Place = tuple[str, int]
OfPlace = dict[str, hanayo.SpeedUp]
"""By who it is, on one cluster with so many devices."""
SHOWN = [f"H-{waves}" for waves in WAVES]


def _papers(results: Results) -> Iterator[str]:
    known = {case.name for case in hanayo.cases()}
    found = hanayo.speed_ups([result for result in results.results if result.case in known])
    if not found:
        return
    yield PAPERS.format(first=textwrap.fill(hanayo.said_first(), WIDTH))
    who = [name for name in hanayo.WHO if name != "GPipe"]
    by_place: dict[Place, OfPlace] = {}
    for each in found:
        by_place.setdefault((each.cluster, each.ranks), {})[each.who] = each
    lines = (
        (_place(*place), *_ratios(*place), *(_of_three(of.get(name)) for name in who), _gain(of))
        for place, of in by_place.items()
    )
    yield rows(("cluster", "T_C", "by data sheet", *who, "gain"), lines)
    yield _best(by_place)


def _place(cluster: str, ranks: int) -> str:
    name, _, layout = hanayo.place_of(cluster, ranks).partition(" ")
    return f"{name.upper()}, {layout}"


def _ratios(cluster: str, ranks: int) -> tuple[str, str]:
    return f"{TRANSFERS[cluster, ranks]:.4f}", f"{by_data_sheet(cluster, ranks):.4f}"


def _of_three(found: hanayo.SpeedUp | None) -> str:
    if found is None:
        return ""
    paper = "" if found.paper is None else f"{found.paper:.2f}"
    return f"{paper or '–'} / {found.predicted:.2f} / {found.measured:.2f}"


def _gain(of: OfPlace) -> str:
    """Of the best number of waves over Chimera-wave: in the paper, predicted and rehearsed."""
    if not {"Chimera-wave", *SHOWN} <= of.keys():
        return ""
    gains = (
        max(figure(of[name]) for name in SHOWN) / figure(of["Chimera-wave"]) - 1
        for figure in (_in_paper, lambda each: each.predicted, lambda each: each.measured)
    )
    return " / ".join(f"{gain:.1%}" for gain in gains)


def _best(by_place: Mapping[Place, OfPlace]) -> str:
    """Where the best number of waves is that of the paper."""
    whole = [of for of in by_place.values() if of.keys() >= {*SHOWN}]
    same = [
        max(SHOWN, key=lambda name: of[name].measured) == max(SHOWN, key=lambda name: _in_paper(of[name]))
        for of in whole
    ]
    return f"The best of two, four and eight waves in rehearsal is that of the paper on {sum(same)} of {len(same)}."


def _in_paper(found: hanayo.SpeedUp) -> float:
    return found.paper or 0.0


# ---- everything ----


def _every(results: Results) -> Iterator[str]:
    parts = (("Every rehearsal on emulated hosts", emulated(results)), ("Every rehearsal without", rehearsed(results)))
    for title, found in parts:
        if not found:
            continue
        yield f"## {title}"
        yield (
            "*scale*: seconds of the clock for each second (or unit) of the design. *shortest*: its shortest computation "
            "on the clock. *idle*: predicted and rehearsed. *others*: how much of the cores was busy just before it "
            f"began. {_smaller(found)}"
        )
        ranges = any(each.ranges for each in found)
        if ranges:
            yield RANGES
        yield rows((*EVERY_HEAD, *(["range"] if ranges else [])), ((*_one(each), *_range(each)) for each in found))


RANGES = (
    "*range*: of the predicted iteration, against the one that is printed, where each computation is up to 1% longer by "
    "chance. Where it is wide, which of two messages comes first decides what follows, and the prediction is one of "
    "several that are as likely; an error beyond it has another cause."
)


EVERY_HEAD = ("design", "processes", "predicted", "rehearsed", "error", "spread", "scale", "shortest", "idle", "others")


def _range(each: Result) -> list[str]:
    return [" to ".join(f"{end / each.predicted - 1:+.1%}" for end in each.ranges)] if each.ranges else []


def _one(each: Result) -> tuple[str, ...]:
    return (
        each.case.removeprefix("hosts, "),
        f"{each.processes}",
        _time(each.predicted, each),
        _time(each.measured, each),
        f"{each.error:+.1%}",
        f"{each.spread / each.measured:.1%}",
        f"{each.scale:.3g}",
        quantity(each.shortest_s, "s"),
        f"{each.predicted_bubble:.1%}, {each.measured_bubble:.1%}",
        _share(each.others),
    )


def _smaller(found: Sequence[Result]) -> str:
    """How many rehearsals did not carry messages as large as they are drawn."""
    smaller = [each.case for each in found if _carried(each) != "as drawn"]
    if not smaller:
        return "All messages were as large as drawn."
    return f"In {len(smaller)} of them messages were smaller than drawn: {'; '.join(smaller)}."


def _time(value: float, result: Result) -> str:
    return quantity(value, "s") if result.unit == "s" else f"{value:.4g} units"


def _share(share: float) -> str:
    return f"{share:.0%}"
