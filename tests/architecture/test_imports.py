"""The planning half imports only numpy and pydantic; all other import contracts are in ``pyproject.toml``."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANNING_NEEDS = {"numpy", "pydantic", "pydantic_core", "meshwave", *sys.stdlib_module_names}
EXCEPTIONS = {
    ("engine/compiled.py", "numba"),
    ("engine/exports/png.py", "PIL"),
    ("engine/hugging_face/saving.py", "safetensors"),
    ("engine/runs/training_data.py", "pyarrow"),
    ("engine/runs/training_data.py", "tokenizers"),
    ("engine/program/timeline.py", "pandas"),
    ("engine/runs/launchers/_manifests.py", "yaml"),
}
"""Optional libraries that functions import: numba compiles loops, Pillow writes PNG, safetensors writes weights,
pyarrow reads parquet files, tokenizers reads texts, pandas converts timelines to tables, and PyYAML writes manifests.
"""


def imported_packages(file: Path) -> Iterator[str]:
    """Return the top-level packages that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{file}, line {node.lineno}: use absolute imports"
            yield node.module.partition(".")[0]


@pytest.mark.slow
def test_planning_needs_numpy_and_pydantic_alone() -> None:
    files = [(file.relative_to(ROOT).as_posix(), file) for file in ROOT.glob("engine/**/*.py")]

    more = {
        (name, package)
        for name, file in files
        if not name.startswith("engine/runtime/")
        for package in imported_packages(file)
        if package not in PLANNING_NEEDS
    }

    assert more == EXCEPTIONS


KIND_OF_DEVICE = re.compile(r"torch[.]cuda|[.]is_cuda|[.]type [!=]= \"cuda\"")


def test_only_the_device_package_asks_for_the_kind_of_accelerator() -> None:
    folders = ("engine", "designer", "meshwave", "scripts", "tests")
    files = {file.relative_to(ROOT).as_posix(): file for folder in folders for file in ROOT.glob(f"{folder}/**/*.py")}

    asking = {name for name, file in files.items() if KIND_OF_DEVICE.search(file.read_text("utf-8"))}

    assert asking == {name for name in asking if name.startswith("engine/runtime/device/")}
