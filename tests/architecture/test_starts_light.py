"""Checks in new interpreters of what works without torch and Panel, and of what is imported late."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_HEAVY_LIBRARIES = """
    import importlib, pkgutil, sys

    class Absent:
        names = {"torch", "panel", "bokeh", "param", "tornado", "pandas", "PIL"}

        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in self.names:
                raise ModuleNotFoundError(f"{name} is not installed here", name=name)

    sys.meta_path.insert(0, Absent())
"""


def python(program: str) -> str:
    """Return the output of a program that runs in a new interpreter; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_the_planning_half_imports_without_torch_and_panel() -> None:
    program = """
        from meshwave import engine
        for module in pkgutil.walk_packages(engine.__path__, "meshwave.engine.", onerror=lambda name: None):
            if not module.name.startswith("meshwave.engine.runtime"):
                importlib.import_module(module.name)
        print("all")
    """

    assert python(textwrap.dedent(WITHOUT_HEAVY_LIBRARIES) + textwrap.dedent(program)) == "all"


@pytest.mark.slow
def test_the_planning_commands_work_without_torch_and_panel() -> None:
    program = """
        from meshwave.engine.cli import main as cli
        from meshwave.engine.files import examples
        name = next(iter(examples()))
        for command in (["check", name], ["program", name], ["schema"], ["simulate", name, "--json"]):
            assert cli.main(command) == 0, command
    """

    assert '"makespan_s"' in python(textwrap.dedent(WITHOUT_HEAVY_LIBRARIES) + textwrap.dedent(program))


@pytest.mark.slow
def test_the_command_meshwave_imports_neither_torch_nor_panel() -> None:
    program = """
        import sys
        from meshwave.designer.main import main
        assert main(["examples"]) == 0
        print([name for name in ("torch", "panel", "bokeh", "pandas") if name in sys.modules])
        from meshwave.engine.frozen import field_docstrings
        print(field_docstrings.cache_info().currsize)
    """

    assert python(program).splitlines()[-2:] == ["[]", "0"], "nothing is imported or read that only the page needs"


@pytest.mark.slow
def test_the_designer_never_imports_torch_and_its_jobs_not_even_panel() -> None:
    program = """
        import importlib, pkgutil, sys
        import meshwave.designer.pages.warm_up
        assert "panel" not in sys.modules, "jobs compute only"
        from meshwave import designer
        for module in pkgutil.walk_packages(designer.__path__, "meshwave.designer."):
            importlib.import_module(module.name)
        print("torch" in sys.modules)
    """

    assert python(program).splitlines()[-1] == "False"
