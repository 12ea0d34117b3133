"""``meshwave run --checkpoint-every`` and ``--resume``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from meshwave.engine.cli import main as cli
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Options, Record, Run, State
from meshwave.engine.runs.checkpoints import Checkpoints, complete_checkpoints
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.launchers.local import LocalLauncher
from tests.engine.runs.play import draw, wait_until

DESIGN, SAME_MODEL = "01-first-wave", "02-two-waves"


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of four steps with two checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHWAVE_HOME", str(tmp_path_factory.mktemp("home")))
        assert cli.main(["run", DESIGN, "--steps", "4", "--checkpoint-every", "2"]) == 0
        record = Record()
        yield Run(record, record.entries(1)[0].id)


@pytest.mark.torch
def test_a_run_ends_with_checkpoints_and_its_weights(first_run: Run) -> None:
    assert [folder.name for folder in complete_checkpoints(first_run.folder)] == ["step-000000002", "step-000000004"]
    weights = load_file(first_run.folder / "weights.safetensors")
    assert sum(array.size for array in weights.values()) > 0
    assert not any(name.startswith("weights/") for name in weights)
    events = map(json.loads, (first_run.folder / "events-0.jsonl").read_text().splitlines())
    assert [event["steps"] for event in events if event["event"] == "checkpoint"] == [2, 4]


@pytest.mark.torch
@pytest.mark.parametrize("name", [pytest.param(DESIGN, marks=pytest.mark.nightly), SAME_MODEL])
def test_a_run_continues_from_the_checkpoint_of_another(
    first_run: Run, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = first_run.metrics()[-1]["loss"]

    assert cli.main(["run", name, "--steps", "6", "--resume", first_run.id, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in found["metrics"]] == [4, 5]
    assert abs(found["metrics"][0]["loss"] - before) < 0.5


@pytest.mark.torch
def test_checkpoints_are_written_in_intervals_of_time(trainer: LocalLauncher) -> None:
    spec = specify_run(predict(draw(steps=2000)), Options(checkpoints=Checkpoints(every_s=0.2, keep=100)))
    run = trainer.submit(spec)

    try:  # left alone, the run would slow all later tests
        assert wait_until(lambda: 2 < len(complete_checkpoints(run.folder)) < run.progress.done)
    finally:
        run.cancel()
    assert run.wait(timeout_s=30) is State.CANCELLED


@pytest.mark.torch
def test_a_run_that_cannot_be_resumed_is_refused(
    first_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = load_design(example(DESIGN)).model_dump(mode="json")
    document["model"]["hidden"] *= 2
    document["training"] |= {"optimizer": "sgd"}
    (tmp_path / "other.json").write_text(json.dumps(document))

    assert cli.main(["run", str(tmp_path / "other.json"), "--steps", "3", "--resume", first_run.id]) == 2

    told = capsys.readouterr().err
    assert "model.hidden: " in told
    assert "training.optimizer: " in told
    assert f"run {first_run.id} has already trained 4 steps; set training.steps above 4" in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--checkpoint-every", "often"], "use a number of steps, such as 50, or a time, such as 10min"),
        (["--checkpoint-every", "0"], "use a number of steps"),
        (["--checkpoint-every", "1.5"], "use a number of steps"),
        (["--keep-checkpoints", "3"], "add --checkpoint-every"),
        (["--checkpoint-every", "5", "--keep-checkpoints", "0"], "keep at least one checkpoint"),
        (["--checkpoint-every", "5", "--rehearse"], "a dry run has no training state"),
    ],
)
def test_inconsistent_options_are_refused(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", DESIGN, *options]) == 2
    assert told in capsys.readouterr().err
