"""The Python examples of the documentation run as they are printed."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshwave.engine.cli.main import main
from tests.engine.runtime.crew_client import Crew

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
DOCUMENT = re.compile(r'^```json\n(\{\s*"format".*?)^```', re.DOTALL | re.MULTILINE)
ALL = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in ALL if BLOCK.search(page.read_text(encoding="utf-8"))]
DOCUMENTS = [(page, found) for page in ALL for found in DOCUMENT.findall(page.read_text(encoding="utf-8"))]
COMMANDS = {"meshwave/1": "simulate", "meshwave-transfer/1": "reshard", "meshwave-expert-layer/1": "moe"}
SCRIPTS = sorted((ROOT / "docs/examples").glob("*.py"))


def run(block: str, name: str, names: dict[str, object]) -> None:
    """Run a code block of a page; a block with prompts must print what the page shows."""
    if ">>>" not in block:
        exec(compile(block, name, "exec"), names)
        return
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(doctest.DocTestParser().get_doctest(block, names, name, name, 0), out=said.append, clear_globs=False)
    assert not said, "".join(said)


@pytest.mark.torch
@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}

    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        run(block, str(page), names)


def test_the_readme_shows_what_its_first_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    shown = (ROOT / "README.md").read_text(encoding="utf-8").split("$ meshwave simulate 02-two-waves\n")[1]

    assert main(["simulate", "02-two-waves"]) == 0

    printed = capsys.readouterr().out.splitlines()
    expected = [line.strip() for line in shown.split("    ...\n")[0].splitlines()]
    assert expected == printed[: len(expected)] and len(expected) > 5


@pytest.mark.torch
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_runs_with_six_processes(script: Path, crew: Crew) -> None:
    printed = crew.run_script(script, 6)

    assert "".join(printed).count("process ") == 2


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_torchrun_runs_a_script_with_six_processes(script: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "6", script]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180, env=environment)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("process ") == 2


@pytest.mark.slow
@pytest.mark.parametrize(("page", "document"), DOCUMENTS, ids=lambda each: getattr(each, "stem", ""))
def test_a_document_of_a_page_is_valid(page: Path, document: str, tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    path.write_text(document, encoding="utf-8")

    assert main([COMMANDS[json.loads(document)["format"]], str(path)]) == 0
