"""Failed tests run once more, alone; the report names those that pass then. An internal error does not end the run."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "run_tests.py"
PLUGIN = Path("tests/resume.py")
FLAKY = """
from pathlib import Path

def test_passes():
    pass

def test_fails_once(been_here=Path(__file__).with_name("been_here")):
    was_here = been_here.exists()
    been_here.touch()
    assert was_here
"""

BROKEN_PLUGIN = """
from pathlib import Path

def pytest_runtest_logstart(nodeid, been_here=Path(__file__).with_name("error")):
    if nodeid.endswith("test_second") and not been_here.exists():
        been_here.touch()
        raise OSError("a plugin failed")
"""
THREE = """
from pathlib import Path

RUNS = Path(__file__).with_name("runs")

def test_first():
    RUNS.write_text(RUNS.read_text() + "1" if RUNS.exists() else "1")

def test_second():
    RUNS.write_text(RUNS.read_text() + "2")

def test_third():
    RUNS.write_text(RUNS.read_text() + "3")
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / PLUGIN).parent.mkdir()
    shutil.copy(ROOT / PLUGIN, tmp_path / PLUGIN)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "CACHE", tmp_path / ".pytest_cache/v")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # each of the many runs would import Hypothesis
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
    assert "flaky: " not in capfd.readouterr().out


@pytest.mark.slow
def test_a_passing_test_runs_once(script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_it.py").write_text("def test_right():\n    pass\n")

    assert script.main(["-q"]) == 0
    assert "once more" not in capfd.readouterr().out


@pytest.mark.slow
def test_tests_that_had_not_finished_before_an_internal_error_run_afterwards(
    script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conftest.py").write_text(BROKEN_PLUGIN)
    (tmp_path / "test_it.py").write_text(THREE)

    assert script.main(["-q", "-p", "xdist.plugin", "-n", "1"]) == 0
    # Before the worker is ended, it may go on with the tests that it has received; their reports come too late to count.
    assert (tmp_path / "runs").read_text() in ("123", "1223", "12323")
    flaky = capfd.readouterr().out.partition("flaky: an internal error ended the first run of the tests\n")[2]
    assert "OSError: a plugin failed" in flaky


@pytest.mark.slow
def test_a_test_that_failed_before_an_internal_error_is_repeated(
    script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conftest.py").write_text(BROKEN_PLUGIN)
    (tmp_path / "test_it.py").write_text("def test_first():\n    assert False\n\ndef test_second():\n    pass\n")

    assert script.main(["-q"]) == 1
    assert "running 1 failed tests once more, alone" in capfd.readouterr().out


@pytest.mark.slow
def test_a_second_internal_error_fails(script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "conftest.py").write_text(BROKEN_PLUGIN.replace("and not been_here.exists()", ""))
    (tmp_path / "test_it.py").write_text(THREE)

    assert script.main(["-q"]) == script.INTERNAL_ERROR
    assert "flaky: " not in capfd.readouterr().out
