"""Measurement of a case: launch the run, wait for its end, and compare it with the prediction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from meshwave.engine.bench.accuracy.cases import GIVES_PROFILE, PROFILE, RUN_PROFILE, USES_PROFILE, Case
from meshwave.engine.bench.accuracy.machine_load import busy_share, steal_share, steal_ticks
from meshwave.engine.bench.accuracy.results import Result
from meshwave.engine.bench.measuring import run_to_end, temporary_launcher
from meshwave.engine.costs.models.calibrated import CalibratedCost
from meshwave.engine.costs.profile_store import load_stored_profile, store_profile
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.runs import Launcher
from meshwave.engine.runs.accuracy import Comparison, compare, run_profile
from meshwave.engine.runs.dry_run import SHORTEST_WAIT_S, Rehearsal, action_durations
from meshwave.engine.runs.emulation.hosts import default_hosts, read_executed_bundle
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.options import PLAIN, Options
from meshwave.engine.runs.recording import read_recording
from meshwave.engine.runs.run_folder import process_count

Say = Callable[[str], None]

STEP_LIMIT_S = 2.0
"""Maximum step time of a dry run in seconds, even if its shortest actions are then too short to be accurate."""
HOST_STEP_S = 4.0
"""Step time of a dry run on emulated hosts in seconds; longer steps use slower links and less CPU."""
STEPS = {"rehearsed": 4, "measured": 6}
"""Training steps by kind of run; the first is a warm-up, and one step of a training run measures memory."""
FRESH_S = 600.0
"""Maximum age, in seconds, of a calibration that is used again."""
CALIBRATION_S = 60.0
"""Time, in seconds, to measure blocks during a calibration."""
TIMEOUT_S = 240.0
JITTER, SAMPLES = 0.01, 20
"""Maximum random relative delay of a computation, and number of simulations with such delays."""
STEAL_LIMIT, TRIES = 0.01, 3
"""Fraction of CPU time taken by the hypervisor above which a run is repeated, and the maximum number of tries."""


class Bench:
    """Measurement of cases one after the other, in temporary folders."""

    def __init__(self, launcher: Launcher, say: Say) -> None:
        self._launcher, self._say = launcher, say
        self._has_run_profile = False

    def measure(self, case: Case) -> Result:
        """Measure a case; repeat it if the hypervisor took CPU time from this machine during the run.

        Raises:
            RunError: the run failed, or exceeded the time limit.
            InputError: the design cannot be run here.
        """
        for _ in range(TRIES):
            since = steal_ticks()
            result = self._measure_once(case)
            if steal_share(since) < STEAL_LIMIT:
                break
        return result

    def _measure_once(self, case: Case) -> Result:
        if case.way == "measured":
            _ensure_calibration(self._say)
        prediction = predict(case.design(STEPS[case.way]))
        scale = (case.scale or case_scale(prediction, case.uses_hosts)) if case.way == "rehearsed" else None
        hosts = default_hosts(prediction.design) if case.uses_hosts else None
        options = Options(rehearse=Rehearsal(scale=scale), hosts=hosts) if scale else PLAIN
        busy = busy_share()
        run = run_to_end(self._launcher, specify_run(prediction, options), case.name, TIMEOUT_S)
        messages = next((event for event in run.events() if "message_bytes" in event), {})
        prediction = read_executed_bundle(run.folder).prediction  # with the links and the documents that the run used
        found = compare(prediction, read_recording(run.folder))
        result = _make_result(case, found, scale, busy, messages)
        if case.uses_hosts:
            result = result.model_copy(update={"ranges": step_time_range(prediction)})
        if GIVES_PROFILE in case.tags:
            store_profile(run_profile(found, case.name), RUN_PROFILE)
            self._has_run_profile = True
        if USES_PROFILE in case.tags and self._has_run_profile:
            result = result.model_copy(update={"learned": _step_time_from_run(prediction.design)})
        return result


@contextmanager
def open_bench(say: Say) -> Iterator[Bench]:
    """Yield a bench on this machine, with a temporary run database."""
    with temporary_launcher() as launcher:
        yield Bench(launcher, say)


def case_scale(prediction: Prediction, uses_hosts: bool = False) -> float:
    """Return the time-dilation factor of a dry run.

    The shortest actions are long enough to be accurate, unless a step would exceed :data:`STEP_LIMIT_S`. On emulated
    hosts a step takes :data:`HOST_STEP_S`.
    """
    shortest, step = action_durations(prediction.program, prediction.costs)
    return HOST_STEP_S / step if uses_hosts else min(SHORTEST_WAIT_S / shortest, STEP_LIMIT_S / step)


def step_time_range(prediction: Prediction) -> tuple[float, float]:
    """Return the shortest and longest step time if each computation takes up to ``JITTER`` longer at random.

    The range is wide if later actions depend on the order of two messages.
    """
    rng, program, costs = np.random.default_rng(0), prediction.program, prediction.costs
    factors = (np.where(program.is_compute, rng.uniform(1, 1 + JITTER, len(program)), 1.0) for _ in range(SAMPLES))
    makespans = [costs.simulate(program, costs.seconds * factor).makespan for factor in factors]
    return min(makespans), max(makespans)


def _step_time_from_run(design: Design) -> float:
    """Return the step time predicted with the profile of a run."""
    cost = CalibratedCost(profile=RUN_PROFILE)
    return predict(design.model_copy(update={"cost": cost})).timeline.makespan


def _ensure_calibration(say: Say) -> None:
    """Calibrate this machine unless the profile of this benchmark is recent.

    Raises:
        RunError: the machine cannot be calibrated.
    """
    from meshwave.engine.runtime.calibration import calibrate_machine
    from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster
    from meshwave.engine.runtime.calibration.machine_profile import CalibrationOptions

    with suppress(InputError):  # the profile is missing, or of another version
        age_s = time.time() - (load_stored_profile(PROFILE).machine.made_s or 0.0)
        if age_s < FRESH_S:
            return
    say("calibrating this machine, to predict training runs")
    options = CalibrationOptions(
        ProcessCluster(1, 2), [(2, 2)], precisions=["fp32"], has_experts=True, blocks_s=CALIBRATION_S, rounds=5
    )
    store_profile(calibrate_machine(options), PROFILE)


def _make_result(
    case: Case, found: Comparison, scale: float | None, busy: float, messages: Mapping[str, Any]
) -> Result:
    prediction, step_seconds = found.prediction, found.recording.seconds
    memory = found.memory
    return Result(
        case=case.name,
        group=case.group,
        way=case.way,
        rivals=case.rivals,
        meshes=prediction.program.ranks,
        processes=process_count(prediction.design),
        unit=prediction.costs.unit,
        scale=scale,
        steps=len(step_seconds),
        predicted=found.iteration.predicted_s,
        measured=found.iteration.measured_s,
        spread=float(np.ptp(step_seconds)),
        shortest_s=action_durations(prediction.program, prediction.costs).shortest * (scale or 1.0),
        predicted_bubble=prediction.timeline.bubble_ratio,
        measured_bubble=found.timeline.bubble_ratio,
        predicted_bytes=tuple(each.predicted_bytes for each in memory),
        measured_bytes=tuple(each.measured_bytes for each in memory),
        others=busy,
        note=messages.get("note", ""),
        message_bytes=messages.get("message_bytes"),
        modelled_message_bytes=messages.get("modelled_message_bytes"),
        said=found.cause.description if found.cause else "",
        tags=dict(case.tags),
    )
