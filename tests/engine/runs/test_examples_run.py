"""Every example runs as real training; examples for large clusters are reduced but keep their stages and experts."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.files import examples
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import State
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.recording import read_recording
from tests.engine.program.matching import match_spans

pytestmark = pytest.mark.torch

STEPS, PATIENCE_S = 2, 120
LARGEST_HIDDEN = 256


def affordable_design(path: Path) -> Design:
    """Return an example that any machine can run: few steps, and one layer per stage, two in models with experts."""
    design = load_design(path)
    document, blocks = design.model_dump(mode="json"), 2 if design.model.moe else 1  # every second has experts
    document["training"]["steps"] = STEPS
    if design.model.hidden > LARGEST_HIDDEN:
        document["model"] |= {"hidden": 64, "heads": 4, "sequence": 16, "vocab": 257}
        document["model"]["layers"] = min(blocks * design.stages, design.model.layers)
    return parse_design(document)


REPEATED = {
    "02-two-waves": "05-hanayo-as-chimera",
    "11-eight-by-32": "08-gpipe-against-1f1b",
    "10-bert-on-tacc": "09-bert-masked",
    "12-searched": "07-drawn-by-hand",
    "15-bert-base-moe": "17-experts-on-two-cores",
    "16-gpt2-moe": "17-experts-on-two-cores",
    "19-wave-of-skips": "18-u-transformer",
    "23-sequence-parallel": "14-tensor-parallel",
}
"""Examples that run in the nightly tests, each with one that trains the same kind of design."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=[pytest.mark.nightly] * (name in REPEATED))
        for name, path in examples().items()
    ],
)
def test_an_example_runs_and_its_timeline_is_overlaid_on_the_prediction(path: Path, trainer: LocalLauncher) -> None:
    prediction = predict(affordable_design(path))

    run = trainer.submit(specify_run(prediction))
    state = run.wait(timeout_s=PATIENCE_S)

    assert state is State.SUCCEEDED, run.reason
    assert len(run.metrics()) == STEPS
    matched, _ = match_spans(prediction.timeline, read_recording(run.folder).timeline())
    assert len(matched) == len(prediction.timeline)
