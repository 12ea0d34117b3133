"""Training on a GPU: several processes share a GPU if there are fewer GPUs than processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.document import load_design, parse_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Launcher, Record, Run, State
from meshwave.engine.runs.launchers import launchers, specify_run
from meshwave.engine.runs.recording import read_recording

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

STEPS, PATIENCE_S = 5, 180


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    with closing(Record(tmp_path)) as record, closing(launchers["local"](record)) as launcher:
        yield launcher


def train_to_end(launcher: Launcher, name: str, pipeline: dict[str, Any] | None = None) -> Run:
    document = load_design(example(name)).model_dump(mode="json")
    document["training"]["steps"] = STEPS
    document["pipeline"] = pipeline or document["pipeline"]
    prediction = predict(parse_design(document))
    run = launcher.submit(specify_run(prediction))
    assert run.wait(timeout_s=PATIENCE_S) is State.SUCCEEDED, run.reason
    return run


EXAMPLES = [(name, None) for name in ("05-hanayo-as-chimera", "04-chimera", "06-data-parallel")]
PIPELINES = [
    ("05-hanayo-as-chimera", {"schedule": schedule, "microbatches": 8, "recompute": recompute})
    for schedule, recompute in (("zb-v", "none"), ("dualpipe-v", "none"), ("dualpipe-v", [1, 2]))
]
"""A split backward, forwards and backwards in one slot, and a part of the stages recomputed."""


@pytest.mark.parametrize(("name", "pipeline"), EXAMPLES + PIPELINES, ids=str)
def test_losses_on_a_gpu_equal_those_on_the_cpu(
    name: str, pipeline: dict[str, Any] | None, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = train_to_end(launcher, name, pipeline)
    launcher.close()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with closing(launchers["local"](launcher.record)) as without:
        on_cpu = train_to_end(without, name, pipeline)

    (started,) = (event for event in on_gpu.events() if event["event"] == "started")
    assert started["device"] != "CPU"
    expected = [row["loss"] for row in on_cpu.metrics()]
    assert [row["loss"] for row in on_gpu.metrics()] == pytest.approx(expected, rel=2e-3)


def test_spans_follow_each_other_on_the_gpus_clock(launcher: Launcher) -> None:
    timeline = read_recording(train_to_end(launcher, "05-hanayo-as-chimera").folder).timeline()

    assert (timeline.end >= timeline.start).all()
    for rank in range(timeline.ranks):
        work = timeline.is_work & (timeline.rank == rank)
        order = timeline.start[work].argsort()
        assert (timeline.start[work][order][1:] >= timeline.end[work][order][:-1] - 1e-4).all()
