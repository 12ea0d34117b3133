"""The public Python API: what a script or a notebook does with ``import meshwave as mw``."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import meshwave as mw
from meshwave import api
from meshwave.engine.cli import main as cli
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.findings import DesignError

NAME = "02-two-waves"


def test_a_design_is_loaded_by_file_by_name_and_from_a_dictionary(tmp_path: Path) -> None:
    design = mw.example(NAME)
    (tmp_path / "mine.json").write_text(design.to_json())

    assert mw.load(tmp_path / "mine.json") == mw.load(NAME) == mw.load(design.model_dump(mode="json")) == design
    with pytest.raises(InputError, match="no file and no example has this name"):
        mw.load("nowhere.json")
    with pytest.raises(DesignError):
        mw.load({"format": "meshwave/1"})


def test_a_prediction_has_numbers_memory_problems_and_a_picture(tmp_path: Path) -> None:
    found = mw.predict(mw.example(NAME))

    assert 0 < found.numbers["bubble_ratio"] < 1
    assert found.numbers["makespan_s"] == found.timeline.makespan
    assert all(problem.severity == "warning" for problem in found.problems)
    picture = found.plot(theme="dark")
    picture.save(tmp_path / "timeline.svg")
    assert (tmp_path / "timeline.svg").read_text().startswith("<svg")


def test_a_prediction_has_the_warnings_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    name = "16-gpt2-moe"
    found = mw.predict(mw.example(name))
    assert cli.main(["simulate", name, "--json"]) == 0

    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert found.numbers["warnings"] == [*map(str, found.problems)] == warnings
    assert "rounded_capacity" in [problem.code for problem in found.problems]
    assert mw.compare([mw.example(name)]) == [found.numbers]


@pytest.mark.slow
def test_a_sweep_has_the_warnings_of_each_design() -> None:
    design = mw.example("16-gpt2-moe")

    assert [*mw.sweep([design], processes=1)] == [mw.predict(design).numbers]


@pytest.mark.slow
def test_a_timeline_is_a_table() -> None:
    timeline = mw.predict(mw.example(NAME)).timeline

    table = timeline.to_pandas()

    assert len(table) == len(timeline)
    assert set(table["mesh"]) == set(timeline.meshes)
    assert (table["peer"] == "")[table["op"] == "F"].all()
    assert table["end_s"].max() == timeline.makespan


@pytest.mark.slow
def test_a_sweep_yields_the_numbers_of_each_design_in_order() -> None:
    document = mw.example(NAME).model_dump(mode="json")
    pipelines: list[dict[str, Any]] = [{**document["pipeline"], "microbatches": count} for count in (4, 8)]
    designs = [mw.load({**document, "pipeline": pipeline}) for pipeline in pipelines]

    swept = list(mw.sweep(designs, processes=2))

    assert swept == mw.compare(designs)
    assert swept[0]["bubble_ratio"] > swept[1]["bubble_ratio"]


def test_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(api, raise_on_error=True).attempted > 0


def test_importing_meshwave_imports_nothing_heavy() -> None:
    program = "import sys, meshwave; print([name for name in ('numpy', 'torch', 'panel') if name in sys.modules])"

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.torch
@pytest.mark.usefixtures("warm_processes")
def test_a_run_trains_and_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    design = mw.example("01-first-wave")

    with mw.run(design, steps=3) as run:
        assert run.wait(timeout_s=120) == "SUCCEEDED"

    assert [row["step"] for row in run.metrics] == [0, 1, 2]
    assert run.compare(mw.predict(design)).iteration.measured_s > 0
    with pytest.raises(RunError, match="is of another program than the prediction"):
        run.compare(mw.predict(mw.example(NAME)))
