"""Exported schedule files, executed by torch's own runtime in processes over gloo."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.exports import exports
from meshwave.engine.predict.prediction import Prediction, predict
from tests._strategies import Drawn

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[3]
FORMS = {"torch-csv": "compute_only", "torch-csv-comms": "compute_comms"}
OVERLAPPED = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]]
DRAWN = {
    "1f1b": Drawn({"schedule": "1f1b", "microbatches": 4}, 3),
    "interleaved-1f1b": Drawn({"schedule": "interleaved-1f1b", "microbatches": 4, "chunks": 2}, 2),
    "one wave": Drawn({"schedule": "hanayo", "microbatches": 4, "waves": 1}, 3),
    "two waves": Drawn({"schedule": "hanayo", "microbatches": 3, "waves": 2}, 2),
    "zb-h1": Drawn({"schedule": "zb-h1", "microbatches": 4}, 3),
    "zb-v": Drawn({"schedule": "zb-v", "microbatches": 4}, 2),
    "overlapped": Drawn({"schedule": "custom", "microbatches": 2, "actions": OVERLAPPED}, 2),
}
ROUNDING = 1e-12  # of float64, over a handful of layers


class Torch:
    """Client of ``runtime_of_torch.py``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("runtime_of_torch.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )

    def play(self, path: Path, form: str, prediction: Prediction, *, sharded: bool = False) -> Any:
        """Return the largest relative error of a gradient on each rank, or the error message."""
        program = prediction.program
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(
            (str(path), form, program.placement[0].tolist(), program.microbatches, sharded), self._process.stdin
        )
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)

    def end(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()


@pytest.fixture(scope="module")
def torch() -> Iterator[Torch]:
    runtime = Torch()
    yield runtime
    runtime.end()


def is_sound(errors: list[Any]) -> bool:
    assert all(isinstance(error, float) for error in errors), "\n".join(map(str, errors))
    return max(errors) < ROUNDING


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", DRAWN)
def test_gradients_are_those_of_one_process(torch: Torch, tmp_path: Path, name: str, form: str) -> None:
    prediction = predict(DRAWN[name].design())
    path = tmp_path / "schedule.csv"
    path.write_bytes(exports[form].to_bytes(prediction))

    assert is_sound(torch.play(path, FORMS[form], prediction))


@pytest.mark.parametrize("name", ["two waves", "zb-v"])
def test_messages_work_with_fully_sharded_stages(torch: Torch, tmp_path: Path, name: str) -> None:
    """torch requires that a sharded stage is gathered when it computes."""
    prediction = predict(DRAWN[name].design())
    path = tmp_path / "schedule.csv"
    path.write_bytes(exports["torch-csv-comms"].to_bytes(prediction))

    assert is_sound(torch.play(path, "compute_comms", prediction, sharded=True))


def test_torch_does_not_report_a_missing_reduction(torch: Torch, tmp_path: Path) -> None:
    """Without REDUCE_GRAD, gradients are too large by the number of microbatches, so every stage has one."""
    prediction = predict(DRAWN["1f1b"].design())
    path = tmp_path / "schedule.csv"
    path.write_bytes(exports["torch-csv-comms"].to_bytes(prediction).replace(b"1REDUCE_GRAD,", b""))

    errors = torch.play(path, "compute_comms", prediction)

    assert errors[1] == pytest.approx(prediction.program.microbatches - 1)
    assert is_sound([errors[0], errors[2]])
