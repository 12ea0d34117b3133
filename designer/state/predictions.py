"""Predictions shared by the tabs of a server: cached, computed in the server if small, or by jobs."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from meshwave.designer.state.design_edits import LARGEST_BY_HAND
from meshwave.designer.state.job_processes import Done
from meshwave.designer.state.jobs import Job, Later, Listener, UpdateHandler
from meshwave.engine.document import Design
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Problem, problems_of
from meshwave.engine.lowering.schedule_prices import priced_pipe
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.progress import report_progress

SMALL_WORK = 70_000
"""Work (:func:`estimate_work`) up to which the server computes a prediction itself; it blocks other tabs for 0.3 s."""
DEVICE_WORK = 32
"""Number of computations of a step that take as long as pricing the links of one device."""
RANK_STAGES = 6
"""Number of pairs of a rank and a stage that take as long as one computation of a step."""
LARGEST_STEP = 500_000
"""Largest number of computations of a step on the page: 5 s and 600 MB in a job, then 0.3 s to draw."""
KEPT_ROWS_LIMIT = 1_000_000
"""Largest number of rows of all cached programs; a row takes at most 140 bytes."""

Outcome = tuple[list[Problem], Prediction | None]


class Predictions:
    """A cache of the latest predictions by meaning of their designs, and the jobs that compute others."""

    def __init__(self) -> None:
        self._cache: OrderedDict[bytes, Prediction] = OrderedDict()
        self._jobs: WeakValueDictionary[bytes, Job] = WeakValueDictionary()

    def predict_now(self, design: Design, *, wait: bool) -> Outcome | None:
        """Return the outcome of a design if it is cached, invalid or small, or with ``wait``; else None."""
        found = [*page_limit_problems(design)] or problems(design)
        if any(problem.severity == "error" for problem in found):
            return found, None
        try:
            key = _meaning_digest(design)
            prediction = self._find_cached(key, design)
            if prediction is None and (wait or is_small_prediction(design)):
                prediction = predict(design)
        except InputError as error:
            return list(problems_of(error)), None
        if prediction is None:
            return None
        self._store(key, prediction)
        return [*found, *prediction.warnings], prediction

    def request(self, design: Design, later: Later, handle: UpdateHandler) -> Listener:
        """Predict a design by a job; designs with the same meaning share a job.

        ``handle`` receives progress and finally an :data:`Outcome`.
        """
        key = _meaning_digest(design)
        job = self._jobs.get(key)
        if job is None or job.is_over:
            job = self._jobs[key] = Job(
                partial(compute_prediction, design), f"prediction of {design.name}", keeps_process=True
            )
        return job.add_listener(
            later,
            lambda update: handle(
                Done(self._cache_result(key, design, update.value)) if isinstance(update, Done) else update
            ),
        )

    def _cache_result(self, key: bytes, design: Design, result: ComputedPrediction) -> Outcome:
        """Cache the result of a job and return it as the outcome of ``design``."""
        if result.prediction is None:
            return result.problems, None
        if result.searched is not None:
            design.pipeline.remember(priced_pipe(design), result.searched)
        prediction = result.prediction.replace_design(design)
        self._store(key, prediction)
        return [*problems(design), *prediction.warnings], prediction

    def _find_cached(self, key: bytes, design: Design) -> Prediction | None:
        known = self._cache.get(key)
        return known if known is None or known.design is design else known.replace_design(design)

    def _store(self, key: bytes, prediction: Prediction) -> None:
        self._cache[key] = prediction
        self._cache.move_to_end(key)
        while len(self._cache) > 1 and sum(len(each.program) for each in self._cache.values()) > KEPT_ROWS_LIMIT:
            self._cache.popitem(last=False)


def compute_outcome(design: Design) -> Outcome:
    """Return the outcome of a design, computed now and not cached."""
    outcome = Predictions().predict_now(design, wait=True)
    assert outcome is not None, "predict_now(wait=True) always returns an outcome"
    return outcome


class ComputedPrediction(NamedTuple):
    """Result of a job that computes a prediction."""

    problems: list[Problem]
    prediction: Prediction | None
    searched: Any  # result of the search for an order; None if the schedule needs no search


def compute_prediction(design: Design) -> ComputedPrediction:
    """Predict a design and compute the cached properties that the page shows."""
    try:
        prediction = predict(design)
    except InputError as error:
        return ComputedPrediction(list(problems_of(error)), None, None)
    report_progress(0.9, "computing metrics")
    for each in _PRECOMPUTED:
        getattr(prediction, each)
    return ComputedPrediction([], prediction, design.pipeline.search_result(priced_pipe(design)))


_PRECOMPUTED = ("memory_curves", "warnings")
"""Cached properties of a prediction that a job computes, since the timeline needs them; the numbers follow it."""


def _meaning_digest(design: Design) -> bytes:
    """Return a digest of the document without its name, and of the external data of its costs."""
    meaning = design.model_dump_json(exclude={"name"}) + design.cost.external_data()
    return blake2b(meaning.encode(), digest_size=16).digest()


def page_limit_problems(design: Design) -> list[Problem]:
    """Return a problem if the step is too large for the page. The check is fast for any document."""
    drawn = design.pipeline.actions is not None
    computations, most = count_computations(design), LARGEST_BY_HAND if drawn else LARGEST_STEP
    if computations <= most:
        return []
    params = {"subject": "an order" if drawn else "a step", "computations": computations, "limit": most}
    return [Problem("pipeline.actions" if drawn else "pipeline.microbatches", "page_limit", params)]


def count_computations(design: Design) -> int:
    """Return the number of forwards and backwards of a step; for a custom order, the number of its actions."""
    if design.pipeline.actions is not None:
        return sum(map(len, design.pipeline.actions))
    return 0 if design.pipeline.schedule == "custom" else 2 * design.stages * design.pipeline.microbatches


def estimate_work(design: Design) -> int:
    """Estimate the work of a prediction, in units of one computation of a step."""
    devices = sum(len(mesh.devices) for mesh in design.meshes)
    return count_computations(design) + DEVICE_WORK * devices + design.ranks * design.stages // RANK_STAGES


def is_small_prediction(design: Design) -> bool:
    """Return whether the server computes a prediction itself instead of by a job."""
    return estimate_work(design) <= SMALL_WORK and design.pipeline.is_known(priced_pipe(design))
