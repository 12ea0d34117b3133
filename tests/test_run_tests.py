"""Failed tests run once more, alone; the report names those that pass then."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "run_tests.py"
FLAKY = """
from pathlib import Path

def test_passes():
    pass

def test_fails_once(been_here=Path(__file__).with_name("been_here")):
    was_here = been_here.exists()
    been_here.touch()
    assert was_here
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RECORD", tmp_path / ".pytest_cache/v/cache/lastfailed")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return module


@pytest.mark.slow
def test_a_test_that_passes_alone_is_reported_as_flaky(
    script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_it.py").write_text(FLAKY)

    assert script.main(["-q"]) == 0
    assert "flaky: test_it.py::test_fails_once failed, and passed when it ran alone" in capfd.readouterr().out


@pytest.mark.slow
def test_a_test_that_fails_twice_fails(script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_it.py").write_text("def test_wrong():\n    assert False\n")

    assert script.main(["-q"]) == 1
    assert "flaky" not in capfd.readouterr().out


@pytest.mark.slow
def test_a_passing_test_runs_once(script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_it.py").write_text("def test_right():\n    pass\n")

    assert script.main(["-q"]) == 0
    assert "once more" not in capfd.readouterr().out
