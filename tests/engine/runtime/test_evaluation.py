"""The loss on held-out data is that of one process, and training is the same with evaluations and without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.runs.recording import read_clocks
from meshwave.engine.runs.recording.layer_steps import _read_layer_steps
from meshwave.engine.runs.training_windows import DataPart, Text
from tests.engine.runtime.equality import Document, assert_equal, reference

EVALUATED = [
    ({"schedule": "1f1b", "microbatches": 4}, {"pp": 2, "dp": 2, "tp": 2}, {}),
    ({"schedule": "chimera", "microbatches": 4}, {"pp": 2, "dp": 2}, {}),
    ({"schedule": "hanayo", "waves": 2, "microbatches": 4, "recompute": "full"}, {"pp": 2}, {}),
    ({"schedule": "dualpipe", "microbatches": 8}, {"pp": 2}, {"moe": {"experts": 4, "capacity_factor": None}}),
    ({"schedule": "zb-h1", "microbatches": 4}, {"pp": 2, "dp": 2, "sharding": "parameters"}, {}),
    ({"schedule": "gpipe", "microbatches": 2}, {"pp": 2, "precision": "fp32"}, {"kind": "bert"}),
]


@pytest.mark.parametrize(("pipeline", "axes", "model"), EVALUATED)
def test_the_loss_on_held_out_data_is_that_of_one_process(
    pipeline: Document, axes: Document, model: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    layers = 8 if pipeline["schedule"] == "hanayo" else 4
    document = draw(pipeline, layers=layers, steps=3, eval_every=2, eval_batches=2, eval_share=0.25, **axes)
    document["model"] |= model
    expected = reference(document)

    assert len(expected.evaluations) == 2  # after the second step and after the last one
    assert_equal(crew.train(document), expected, axes.get("precision", "fp64"))


def test_training_does_not_see_held_out_data(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes(bytes(range(100)))
    rng = np.random.Generator(np.random.Philox(0))
    training, held_out = (Text(path, 10, DataPart(0.3, is_held_out)) for is_held_out in (False, True))

    seen = {int(byte) for _ in range(200) for byte in training.draw_window(rng)}
    held = {int(byte) for _ in range(200) for byte in held_out.draw_window(rng)}

    assert (seen, held) == ({*range(70)}, {*range(70, 100)})


def test_a_run_writes_the_loss_on_held_out_data(
    write_run: Callable[..., Path], draw: Callable[..., Document], crew: Any
) -> None:
    document = draw({"schedule": "1f1b", "microbatches": 2}, steps=4, eval_every=3)
    document["model"]["moe"] = {"experts": 4, "every": 2}
    document["experts"] = {"schedule": "expert-parallel"}
    folder = write_run(document)

    assert crew.run_workers(folder, 2) == [0, 0]

    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert ["eval_loss" in row for row in rows] == [False, False, True, True]
    assert 4 < rows[-1]["eval_loss"] < 7
    _, layer_steps = _read_layer_steps(folder / "steps-0.bin", read_clocks(folder))
    _, counts = np.unique(layer_steps["step"], return_counts=True)
    assert len(counts) == 4 and len({*counts.tolist()}) == 1, "an evaluation is not part of a recorded step"


def test_an_evaluation_with_batched_messages_is_refused(draw: Callable[..., Document]) -> None:
    document = draw({"schedule": "1f1b", "microbatches": 2}, eval_every=1)
    document["transfer"] = {"batched": True}
    (problem,) = run_problems(parse_design(document))

    assert (problem.where, problem.code) == ("training.eval_every", "batched_evaluation")
