"""Measuring one design: launched, followed to its end, and held against its prediction."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from meshwave.engine.bench.accuracy.cases import LEARNS, PROFILE, TAUGHT, TEACHES, Case
from meshwave.engine.bench.accuracy.machine_load import others, share_stolen, stolen
from meshwave.engine.bench.accuracy.results import Result
from meshwave.engine.costs.models.calibrated import CalibratedCost
from meshwave.engine.costs.profile_store import load_stored_profile, store_profile
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.runs import Launcher, Record, State
from meshwave.engine.runs.accuracy import Comparison, compare, run_profile
from meshwave.engine.runs.dry_run import SHORTEST_WAIT_S, Rehearsal, action_durations
from meshwave.engine.runs.emulation.hosts import default_hosts, read_executed_bundle
from meshwave.engine.runs.launchers import launchers, specify_run
from meshwave.engine.runs.options import PLAIN, Options
from meshwave.engine.runs.recording import read_recording
from meshwave.engine.runs.run_folder import process_count

Say = Callable[[str], None]

LONGEST_S = 2.0
"""What an iteration of a rehearsal should last at most; where many short computations are in the way of that, they are
shorter than is true."""
LONGEST_ON_HOSTS_S = 4.0
"""The same on emulated hosts, whose links are slower the more time is stretched: what is sent takes the cores less then."""
STEPS = {"rehearsed": 4, "measured": 6}
"""The first warms up; of a real run, one counts memory."""
FRESH_S = 600.0
"""A calibration of this bench that is not older is not made again."""
CALIBRATED_S = 60.0
"""That blocks are measured in."""
PATIENCE_S = 240.0
DELAY, DRAWS = 0.01, 20
"""How much longer a computation may take by chance on a machine that is not idle, and how often that is drawn."""
STOLEN, TRIES = 0.01, 3
"""A run during which the host took more of the cores than this is done again, so often at most."""


class Bench:
    """Runs designs one after the other, in folders that are gone afterwards."""

    def __init__(self, launcher: Launcher, say: Say) -> None:
        self._launcher, self._say = launcher, say
        self._taught = False

    def measure(self, case: Case) -> Result:
        """Measure a design, and again where the host of this machine gave its cores to others meanwhile.

        Raises:
            RunError: the run failed, or was not over in time.
            InputError: the design cannot be run here.
        """
        for _ in range(TRIES):
            since = stolen()
            result = self._measure(case)
            if share_stolen(since) < STOLEN:
                break
        return result

    def _measure(self, case: Case) -> Result:
        if case.way == "measured":
            _calibrated(self._say)
        prediction = predict(case.design(STEPS[case.way]))
        longest = LONGEST_ON_HOSTS_S if case.on_hosts else LONGEST_S
        scale = (case.scale or scale_of(prediction, longest)) if case.way == "rehearsed" else None
        hosts = default_hosts(prediction.design) if case.on_hosts else None
        options = Options(rehearse=Rehearsal(scale=scale), hosts=hosts) if scale else PLAIN
        busy = others()
        run = self._launcher.submit(specify_run(prediction, options))
        state = run.wait(timeout_s=PATIENCE_S)
        if state is not State.SUCCEEDED:
            run.cancel()
            raise RunError(f"{case.name}: {run.reason or f'not over after {PATIENCE_S:.0f} s'}")
        messages = next((event for event in run.events() if "message_bytes" in event), {})
        if case.on_hosts:
            prediction = read_executed_bundle(run.folder).prediction  # for the links that it had
        found = compare(prediction, read_recording(run.folder))
        result = _result(case, found, scale, busy, messages)
        if case.on_hosts:
            result = result.model_copy(update={"ranges": ranges_of(prediction)})
        if TEACHES in case.tags:
            store_profile(run_profile(found, case.name), TAUGHT)
            self._taught = True
        if LEARNS in case.tags and self._taught:
            result = result.model_copy(update={"learned": _by_a_run(prediction.design)})
        return result


@contextmanager
def bench(say: Say) -> Iterator[Bench]:
    """A bench on this machine with a record of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Record(Path(folder))) as record,
        closing(launchers["local"](record)) as launcher,
    ):
        yield Bench(launcher, say)


def scale_of(prediction: Prediction, longest_s: float = LONGEST_S) -> float:
    """Seconds of the clock for each second or unit of a design: its shortest computations last as long as a rehearsal
    is true, unless that makes an iteration longer than ``longest_s``; on emulated hosts just that long."""
    shortest, step = action_durations(prediction.program, prediction.costs)
    return longest_s / step if longest_s > LONGEST_S else min(SHORTEST_WAIT_S / shortest, longest_s / step)


def ranges_of(prediction: Prediction) -> tuple[float, float]:
    """The shortest and the longest iteration where each computation is up to ``DELAY`` longer, by chance: so much may
    depend on which of two messages comes first."""
    rng, program, costs = np.random.default_rng(0), prediction.program, prediction.costs
    took = [
        costs.play(program, costs.seconds * np.where(program.is_compute, rng.uniform(1, 1 + DELAY, len(program)), 1.0))
        for _ in range(DRAWS)
    ]
    return min(each.makespan for each in took), max(each.makespan for each in took)


def _by_a_run(design: Design) -> float:
    """Seconds of an iteration, by what the run took that taught."""
    cost = CalibratedCost(profile=TAUGHT)
    return predict(design.model_copy(update={"cost": cost})).timeline.makespan


def _calibrated(say: Say) -> None:
    """See to the profile that real runs are predicted by.

    Raises:
        RunError: it cannot be measured.
    """
    from meshwave.engine.runtime.calibration import calibrate_machine
    from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster
    from meshwave.engine.runtime.calibration.machine_profile import CalibrationOptions

    with suppress(InputError):  # there is none yet, or one of another version
        age_s = time.time() - (load_stored_profile(PROFILE).machine.made_s or 0.0)
        if age_s < FRESH_S:
            return
    say("calibrating this machine, to predict real runs by")
    options = CalibrationOptions(
        ProcessCluster(1, 2), [(2, 2)], precisions=["fp32"], has_experts=True, blocks_s=CALIBRATED_S, rounds=5
    )
    store_profile(calibrate_machine(options), PROFILE)


def _result(case: Case, found: Comparison, scale: float | None, busy: float, messages: Mapping[str, Any]) -> Result:
    prediction, took = found.prediction, found.recording.seconds
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
        steps=len(took),
        predicted=found.iteration.predicted_s,
        measured=found.iteration.measured_s,
        spread=float(np.ptp(took)),
        shortest_s=action_durations(prediction.program, prediction.costs).shortest * (scale or 1.0),
        predicted_bubble=prediction.timeline.bubble_ratio,
        measured_bubble=found.timeline.bubble_ratio,
        predicted_bytes=tuple(each.predicted_bytes for each in memory),
        measured_bytes=tuple(each.measured_bytes for each in memory),
        others=busy,
        note=messages.get("note", ""),
        message_bytes=messages.get("message_bytes"),
        modelled_message_bytes=messages.get("modelled_message_bytes"),
        said=found.cause.words if found.cause else "",
        tags=dict(case.tags),
    )
