"""Predictions that the tabs of a designer share: known ones, small ones computed at once, large ones by jobs."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from meshwave.designer.state.design_edits import LARGEST_BY_HAND
from meshwave.designer.state.jobs import Done, Hear, Job, Later, Listener
from meshwave.engine.document import Design
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.lowering.schedule_prices import priced_pipe
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.progress import tell

SMALL = 70_000
"""Work, see :func:`work_of`, that is done in the page's own turn: it takes as long as 0.3 s, and others wait for it."""
DEVICE_WORK = 32
"""Computations that take as long to price as the links of one device."""
RANK_STAGES = 6
"""Pairs of a rank and a stage that take as long as one computation."""
LARGEST = 500_000
"""Computations of the largest step on the page: 5 s and 600 MB in a job, and then 0.3 s to draw it."""
KEPT_ROWS = 1_000_000
"""Rows of the programs of all predictions that are kept; a row takes 140 bytes."""

Outcome = tuple[list[Problem], Prediction | None]


class Predictions:
    """The latest predictions, by what their designs mean, and those that are being computed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Prediction] = OrderedDict()
        self._jobs: WeakValueDictionary[bytes, Job] = WeakValueDictionary()

    def at_once(self, design: Design, *, wait: bool) -> Outcome | None:
        """Return what follows from a design if it is known, wrong or small, or if the caller would ``wait``; else None."""
        found = [*limits(design)] or problems(design)
        if any(problem.severity == "error" for problem in found):
            return found, None
        try:
            key = _key(design)
            prediction = self._known(key, design)
            if prediction is None and (wait or is_small(design)):
                prediction = predict(design)
        except InputError as error:
            return _refused(error), None
        if prediction is None:
            return None
        self._keep(key, prediction)
        return [*found, *prediction.warnings], prediction

    def request(self, design: Design, later: Later, hear: Hear) -> Listener:
        """Compute what follows from a design beside the page; designs of the same meaning share a job.

        ``hear`` gets an :data:`Outcome` in the end.
        """
        key = _key(design)
        job = self._jobs.get(key)
        if job is None or job.is_over:
            job = self._jobs[key] = Job(partial(computed, design))
        return job.listen(
            later, lambda news: hear(Done(self._take(key, design, news.value)) if isinstance(news, Done) else news)
        )

    def _take(self, key: bytes, design: Design, result: Computed) -> Outcome:
        """Keep the result of a job, and return what follows from a design of that meaning."""
        if result.prediction is None:
            return result.problems, None
        if result.searched is not None:
            design.pipeline.remember(priced_pipe(design), result.searched)
        prediction = result.prediction.with_design(design)
        self._keep(key, prediction)
        return [*problems(design), *prediction.warnings], prediction

    def _known(self, key: bytes, design: Design) -> Prediction | None:
        known = self._kept.get(key)
        return known if known is None or known.design is design else known.with_design(design)

    def _keep(self, key: bytes, prediction: Prediction) -> None:
        self._kept[key] = prediction
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(len(each.program) for each in self._kept.values()) > KEPT_ROWS:
            self._kept.popitem(last=False)


def predicted(design: Design) -> Outcome:
    """Return what follows from a design, computed now and not kept."""
    outcome = Predictions().at_once(design, wait=True)
    assert outcome is not None, "the caller waits"
    return outcome


class Computed(NamedTuple):
    """The result of a job."""

    problems: list[Problem]
    prediction: Prediction | None
    searched: Any  # what was searched for its order, None for nothing


def computed(design: Design) -> Computed:
    """Predict a design, and compute what the page shows of it."""
    try:
        prediction = predict(design)
    except InputError as error:
        return Computed(_refused(error), None, None)
    tell(0.9, "counting")
    for each in _SHOWN:
        getattr(prediction, each)
    return Computed([], prediction, design.pipeline.searched(priced_pipe(design)))


_SHOWN = ("numbers", "memory_curves", "warnings")
"""What is known of a prediction only once somebody asks."""


def _refused(error: InputError) -> list[Problem]:
    return list(error.problems) if isinstance(error, DesignError) else [Problem("", "cost", str(error))]


def _key(design: Design) -> bytes:
    """The meaning of a design: its document without its name, and the data that its costs depend on."""
    meaning = design.model_dump_json(exclude={"name"}) + design.cost.external_data()
    return blake2b(meaning.encode(), digest_size=16).digest()


def limits(design: Design) -> list[Problem]:
    """Return why a step is too large for the page; cheap, whatever the document holds."""
    drawn = design.pipeline.actions is not None
    computations, most = computations_of(design), LARGEST_BY_HAND if drawn else LARGEST
    if computations <= most:
        return []
    step = "an order" if drawn else "a step"
    message = (
        f"{step} of {computations:,} computations is too large for the page, which computes up to {most:,}; "
        "use fewer microbatches or stages, or the command line: meshwave simulate"
    )
    return [Problem("pipeline.actions" if drawn else "pipeline.microbatches", "page_limit", message)]


def computations_of(design: Design) -> int:
    """Return the number of computations of a step, in whole backwards; of a custom order its cells."""
    if design.pipeline.actions is not None:
        return sum(map(len, design.pipeline.actions))
    return 0 if design.pipeline.schedule == "custom" else 2 * design.stages * design.pipeline.microbatches


def work_of(design: Design) -> int:
    """Estimate the work of a prediction, in computations of a step."""
    devices = sum(len(mesh.devices) for mesh in design.meshes)
    return computations_of(design) + DEVICE_WORK * devices + design.ranks * design.stages // RANK_STAGES


def is_small(design: Design) -> bool:
    """Return whether a prediction is computed in the page's own turn."""
    return work_of(design) <= SMALL and design.pipeline.is_known(priced_pipe(design))
