"""Checkpoints: a run resumes bitwise equal, and on another layout of the same model with an equal loss."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.runs.checkpoints import complete_checkpoints, link_checkpoint, read_checkpoint, skipped_checkpoints
from meshwave.engine.runtime.execution.checkpoint import Loaded, file_sha256, load_newest_checkpoint
from tests.engine.runtime.equality import case_name, reference, thin_out

Document = dict[str, Any]
Outcomes = list[dict[str, Any]]

MOE = {"experts": 4, "top_k": 2, "capacity_factor": None, "every": 2, "aux_loss": 0.05, "z_loss": 0.01}
BALANCED = {"score": "sigmoid", "bias_correction": True, "bias_update_rate": 0.05}
"""A router with a state of its own: a bias of each expert, updated from the load of each step."""


@pytest.fixture
def train(crew: Any) -> Callable[..., Outcomes]:
    """Return a function that trains a design in a folder up to step ``until``.

    It resumes from the newest checkpoint, if there is one, and writes checkpoints of the steps ``saved``.
    """

    def train(document: Document, folder: Path, until: int, saved: Sequence[int] = (), **more: Any) -> Outcomes:
        folder.mkdir(exist_ok=True)
        size = sum(len(mesh.devices) for mesh in parse_design(document).meshes)
        argument = {"document": document, "folder": str(folder), "until": until, "saved": saved, **more}
        found: Outcomes = crew.call("tests.engine.runtime.checkpoint_works:train", size, argument)
        broken = [outcome for outcome in found if not isinstance(outcome, dict)]
        assert not broken, broken
        return found

    return train


def assert_same_bits(one: Outcomes, other: Outcomes) -> None:
    for before, after in zip(one, other, strict=True):
        for name, weight in before["parameters"].items():
            np.testing.assert_array_equal(weight, after["parameters"][name], err_msg=name)


INTERRUPTED = [
    (pipeline, axes, interrupted)
    for interrupted in (1, 3)
    for pipeline, axes in (
        ({"schedule": "1f1b", "microbatches": 4}, {"dp": 2, "tp": 1}),
        ({"schedule": "hanayo", "waves": 2, "microbatches": 4}, {"dp": 1, "tp": 2}),
        ({"schedule": "chimera", "microbatches": 4}, {"dp": 1, "tp": 1}),
    )
]


@pytest.mark.parametrize(("pipeline", "axes", "interrupted"), thin_out(4, INTERRUPTED), ids=case_name)
def test_an_interrupted_run_resumes_bitwise_equal(
    pipeline: Document, axes: dict[str, int], interrupted: int, train: Any, draw: Any, tmp_path: Path
) -> None:
    document = draw(pipeline, layers=9, steps=5, clip_norm=0.5, **axes)
    whole = train(document, tmp_path / "whole", 5)

    before = train(document, tmp_path / "cut", interrupted, saved=[interrupted])
    after = train(document, tmp_path / "cut", 5)

    assert after[0]["first"] == interrupted
    assert before[0]["losses"] + after[0]["losses"] == whole[0]["losses"]
    assert_same_bits(after, whole)


LAYOUTS = {
    "1f1b": {"pipeline": {"schedule": "1f1b", "microbatches": 4}, "pp": 2, "dp": 1, "tp": 1},
    "hanayo": {"pipeline": {"schedule": "hanayo", "waves": 1, "microbatches": 4}, "pp": 2, "dp": 1, "tp": 1},
    "tp": {"pipeline": {"schedule": "zb-h1", "microbatches": 4}, "pp": 2, "dp": 1, "tp": 2},
    "three uneven cuts": {"pipeline": {"schedule": "gpipe", "microbatches": 4}, "pp": 1, "dp": 1, "tp": 3},
    "dp": {"pipeline": {"schedule": "chimera", "microbatches": 2}, "pp": 2, "dp": 2, "tp": 1},
    "sharded": {
        "pipeline": {"schedule": "1f1b", "microbatches": 2},
        "pp": 1,
        "dp": 2,
        "tp": 2,
        "sharding": "parameters",
    },
    "sharded states": {
        "pipeline": {"schedule": "gpipe", "microbatches": 2},
        "pp": 1,
        "dp": 2,
        "tp": 1,
        "sharding": "optimizer",
    },
    "context": {"pipeline": {"schedule": "zb-h1", "microbatches": 4}, "pp": 2, "cp": 2},
    "sharded context": {
        "pipeline": {"schedule": "gpipe", "microbatches": 4},
        "pp": 1,
        "cp": 2,
        "sharding": "parameters",
    },
    "one": {"pipeline": {"schedule": "gpipe", "microbatches": 4}, "pp": 1, "dp": 1, "tp": 1},
}
PAIRS = [
    ("1f1b", "hanayo"),
    ("hanayo", "tp"),
    ("tp", "three uneven cuts"),
    ("three uneven cuts", "dp"),
    ("dp", "1f1b"),
    ("tp", "one"),
    ("three uneven cuts", "sharded states"),
    ("sharded states", "tp"),
    ("sharded", "sharded states"),
    ("tp", "sharded context"),
    ("sharded context", "context"),
]


def laid_out(draw: Any, layout: Document, **others: Any) -> Document:
    document: Document = draw(**layout, **{"layers": 5, "steps": 4, **others})
    document["model"] |= {"hidden": 12, "heads": 6, "ffn": 30}
    return document


INTERRUPTED_PAIRS = [(first, second, 1 + number // 2 % 3) for number, (first, second) in enumerate(PAIRS)]


@pytest.mark.parametrize(("first", "second", "steps"), thin_out(4, INTERRUPTED_PAIRS))
def test_a_run_resumes_under_another_layout(
    first: str, second: str, steps: int, train: Any, draw: Any, tmp_path: Path
) -> None:
    documents = [laid_out(draw, LAYOUTS[name]) for name in (first, second)]
    rows = [parse_design(document).sequences_per_step for document in documents]
    assert rows[0] == rows[1], "both take the same sequences in a step"
    train(documents[0], tmp_path, steps, saved=[steps])
    after = train(documents[1], tmp_path, 4)

    whole = reference({**documents[0], "training": {**documents[0]["training"], "sharding": "none"}})
    np.testing.assert_allclose(after[0]["losses"], whole.losses[steps:], rtol=1e-9)


@pytest.mark.nightly
def test_experts_and_a_tied_head_resume_under_another_placement_with_sharded_state(
    train: Any, draw: Any, tmp_path: Path
) -> None:
    documents = []
    for experts, sharding in (
        ({"schedule": "parm-s1", "ep": 2, "esp": 2}, "parameters"),
        ({"schedule": "ppmoe", "ep": 2, "esp": 1}, "optimizer"),
    ):
        document = draw({"schedule": "1f1b", "microbatches": 4}, pp=1, dp=2, tp=2, steps=4, sharding=sharding)
        document["model"] |= {"kind": "transformer", "moe": {**MOE, **BALANCED}, "tied_embeddings": True}
        document["experts"] = experts
        documents.append(document)
    whole = train(documents[0], tmp_path / "whole", 4)

    train(documents[0], tmp_path / "cut", 2, saved=[2])
    after = train(documents[1], tmp_path / "cut", 4)

    np.testing.assert_allclose(after[0]["losses"], whole[0]["losses"][2:], rtol=1e-6)


@pytest.mark.parametrize("sharding", thin_out(2, ["optimizer", "none"]))
def test_a_run_whose_experts_moved_resumes_where_the_design_places_them(
    sharding: str, train: Any, draw: Any, tmp_path: Path
) -> None:
    document = draw({"schedule": "1f1b", "microbatches": 4}, pp=1, dp=4, steps=4, sharding=sharding)
    document["model"] |= {"kind": "transformer", "moe": {**MOE, **BALANCED}}
    document["experts"] = {"schedule": "expert-parallel", "ep": 2, "rebalance_steps": 1, "rebalance_threshold": 1.0}
    whole = train(document, tmp_path / "whole", 4)

    train(document, tmp_path / "cut", 2, saved=[2])
    after = train(document, tmp_path / "cut", 4)

    np.testing.assert_allclose(after[0]["losses"], whole[0]["losses"][2:], rtol=1e-6)


def test_a_run_resumes_in_another_precision(train: Any, draw: Any, tmp_path: Path) -> None:
    fine, coarse = (laid_out(draw, LAYOUTS["1f1b"], precision=precision) for precision in ("fp64", "fp32"))
    whole = train(fine, tmp_path / "whole", 4)

    train(fine, tmp_path / "cut", 2, saved=[2])
    after = train(coarse, tmp_path / "cut", 4)

    np.testing.assert_allclose(after[0]["losses"], whole[0]["losses"][2:], rtol=2e-5)


def test_the_newest_checkpoints_are_kept_and_each_names_its_files(train: Any, draw: Any, tmp_path: Path) -> None:
    train(laid_out(draw, LAYOUTS["1f1b"]), tmp_path, 4, saved=[1, 2, 3, 4], keep=2)

    found = complete_checkpoints(tmp_path)
    assert [folder.name for folder in found] == ["step-000000003", "step-000000004"]
    manifest = read_checkpoint(found[-1])
    assert manifest.steps == 4
    assert manifest.files.keys() == {path.name for path in found[-1].iterdir()} - {"checkpoint.json"}
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))


def test_training_resumes_from_the_newest_intact_checkpoint_and_writes_the_damaged_one_again(
    train: Any, draw: Any, tmp_path: Path
) -> None:
    document = laid_out(draw, LAYOUTS["1f1b"])
    whole = train(document, tmp_path, 3, saved=[1, 2, 3], keep=3)
    *_, second, third = complete_checkpoints(tmp_path)
    flip_bit(next(second.glob("__1_*")))
    next(third.glob("__0_*")).unlink()

    after = train(document, tmp_path, 3, saved=[2, 3], keep=3)

    assert [process["first"] for process in after] == [1, 1]
    assert after[0]["losses"] == whole[0]["losses"][1:]
    assert skipped_checkpoints(tmp_path) == [second.name, third.name]
    for folder in (second, third):
        files = read_checkpoint(folder).files
        assert {name: file_sha256(folder / name) for name in files} == files


def test_training_does_not_start_again_if_all_checkpoints_are_damaged(
    crew: Any, train: Any, draw: Any, tmp_path: Path
) -> None:
    document = laid_out(draw, LAYOUTS["1f1b"])
    train(document, tmp_path, 1, saved=[1])
    [only] = complete_checkpoints(tmp_path)
    flip_bit(next(only.glob("__1_*")))

    argument = {"document": document, "folder": str(tmp_path), "until": 2, "saved": []}
    found = crew.call("tests.engine.runtime.checkpoint_works:train", 2, argument)

    assert all("no checkpoint of the run is intact (1 damaged; __1_" in str(outcome) for outcome in found)
    assert complete_checkpoints(tmp_path) == [only]


def flip_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_run_without_checkpoints_imports_nothing_that_reads_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The import takes several times as long as two steps of a small model."""
    monkeypatch.setitem(sys.modules, "torch.distributed.checkpoint.filesystem", None)  # its import fails

    assert load_newest_checkpoint(tmp_path, {}) == Loaded()


def test_a_checkpoint_is_copied_to_another_run(train: Any, draw: Any, tmp_path: Path) -> None:
    document = laid_out(draw, LAYOUTS["1f1b"])
    train(document, tmp_path / "first", 2, saved=[2])

    assert link_checkpoint(tmp_path / "first", tmp_path / "second").steps == 2
    assert train(document, tmp_path / "second", 4)[0]["first"] == 2
