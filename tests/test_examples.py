"""Every example can be opened and simulated, is valid, and is formatted as the designer writes it.

``engine/runs/test_examples_run.py`` tests that each also runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwave.engine.document import load_design
from meshwave.engine.files import all_examples, examples, published_examples
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.predict.published_examples import published_steps
from meshwave.engine.program.verification import verify

every_example = pytest.mark.parametrize("path", all_examples().values(), ids=list(all_examples()))


def test_there_are_enough_examples() -> None:
    assert len(examples()) >= 8


@pytest.mark.slow
@every_example
def test_every_example_opens_simulates_and_fits(path: Path) -> None:
    prediction = predict(load_design(path))

    assert prediction.numbers["makespan_s"] > 0
    assert 0 <= prediction.numbers["bubble_ratio"] < 1
    assert prediction.numbers["fits"]


@pytest.mark.slow
@every_example
def test_the_program_of_every_example_is_valid(path: Path) -> None:
    assert verify(lower(load_design(path))) == []


@every_example
def test_every_example_is_formatted_as_when_saved(path: Path) -> None:
    """The first save of an example then changes nothing else."""
    assert load_design(path).to_json() == path.read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("path", published_examples().values(), ids=list(published_examples()))
def test_a_published_run_is_compared_with_its_prediction_until_it_is_edited(path: Path) -> None:
    design = load_design(path)
    published = predict(design.model_copy(update={"name": "renamed"})).numbers["published"]
    training = design.training.model_copy(update={"micro_batch_size": 1 + design.training.micro_batch_size})

    assert published["words"] == published_steps()[path.stem].comparison()
    assert published["source"]
    assert predict(design.model_copy(update={"training": training})).numbers["published"] is None


def test_names_of_examples_are_distinct() -> None:
    names = [load_design(path).name for path in all_examples().values()]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("start", "makespan"), [("01", 36), ("02", 60), ("04", 16), ("05", 8), ("07", 11), ("08", 33)])
def test_examples_of_papers_have_the_printed_makespans(start: str, makespan: float) -> None:
    (path,) = (path for name, path in examples().items() if name.startswith(start))

    assert predict(load_design(path)).numbers["makespan_s"] == makespan
