"""Registries find a member because its file is in the folder."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshwave.engine.errors import InputError
from meshwave.engine.registry import Registry
from meshwave.engine.schedules import Schedule, schedules
from tests.conftest import PATIENCE_S


@pytest.fixture
def animal_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[str]]:
    """A registry with a folder of two members and a helper module."""
    package = tmp_path / "zoo_for_tests"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from meshwave.engine.registry import Registry\nanimals = Registry('animal', __name__)\n"
    )
    for file, names in (("zebra", ["zebra"]), ("cats", ["lion", "tiger"]), ("_helper", ["nobody"])):
        lines = "".join(f"animals.register('{name}')('a {name}')\n" for name in names)
        (package / f"{file}.py").write_text(f"from zoo_for_tests import animals\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    from importlib import import_module

    yield import_module("zoo_for_tests").animals
    for name in [name for name in sys.modules if name.startswith("zoo_for_tests")]:
        del sys.modules[name]


def test_members_are_found_in_the_order_of_their_names(animal_registry: Registry[str]) -> None:
    assert dict(animal_registry) == {"lion": "a lion", "tiger": "a tiger", "zebra": "a zebra"}
    assert len(animal_registry) == 3
    assert "nobody" not in animal_registry, "a name with an underscore is a helper"


def test_members_are_imported_at_the_first_look_up(animal_registry: Registry[str]) -> None:
    assert "zoo_for_tests.zebra" not in sys.modules
    assert "zebra" in animal_registry
    assert "zoo_for_tests.zebra" in sys.modules


def test_an_unknown_name_suggests_the_nearest_known_one(animal_registry: Registry[str]) -> None:
    with pytest.raises(InputError) as unknown:
        animal_registry["tigre"]

    assert str(unknown.value) == "there is no animal called 'tigre'. Did you mean 'tiger'? Known: lion, tiger, zebra."


def test_a_name_is_registered_once(animal_registry: Registry[str]) -> None:
    assert animal_registry["lion"]
    with pytest.raises(ValueError, match="two animals are called 'lion'"):
        animal_registry.register("lion")("another lion")


def test_a_member_that_cannot_be_imported_is_an_error(animal_registry: Registry[str], tmp_path: Path) -> None:
    """The error is raised again at the next access."""
    (tmp_path / "zoo_for_tests" / "yak.py").write_text("raise RuntimeError('no yak')\n")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no yak"):
            list(animal_registry)


def install(folder: Path, module: str) -> None:
    """Write a distribution with an entry point to a folder, like an installer does."""
    info = folder / "menagerie-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: menagerie\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[zoo_for_tests]\ndodo = menagerie_dodo\n")
    (folder / "menagerie_dodo.py").write_text(module)


def test_an_installed_distribution_adds_members_by_entry_points(animal_registry: Registry[str], tmp_path: Path) -> None:
    install(tmp_path, "from zoo_for_tests import animals\nanimals.register('dodo')('a dodo')\n")

    assert list(animal_registry) == ["dodo", "lion", "tiger", "zebra"]
    del sys.modules["menagerie_dodo"]


def test_an_installed_member_that_cannot_be_imported_names_its_package(
    animal_registry: Registry[str], tmp_path: Path
) -> None:
    install(tmp_path, "raise RuntimeError('extinct')\n")

    with pytest.raises(InputError, match=r"the animal 'dodo' of the package menagerie cannot be imported.*extinct"):
        list(animal_registry)


def test_the_schedules_of_this_version() -> None:
    zero_bubble = ["interleaved-zb", "v-half", "v-min", "zb-h1", "zb-h2", "zb-v"]
    others = ["1f1b", "chimera", "dualpipe", "dualpipe-v", "eager-1f1b", "gems", "gpipe", "hanayo", "interleaved-1f1b"]
    assert list(schedules) == sorted([*zero_bubble, *others, "looped-bfs", "auto", "custom"])
    assert all(issubclass(member, Schedule) for member in schedules.values())


def test_a_thread_that_waits_for_an_import_finds_all_members(animal_registry: Registry[str], tmp_path: Path) -> None:
    begun, going_on = threading.Event(), threading.Event()
    sys.modules["zoo_for_tests"].wait = lambda: (begun.set(), going_on.wait(PATIENCE_S))  # type: ignore[attr-defined]
    (tmp_path / "zoo_for_tests" / "owl.py").write_text(
        "from zoo_for_tests import animals, wait\nwait()\nanimals.register('owl')('an owl')\n"
    )
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(list, animal_registry)
        assert begun.wait(PATIENCE_S)
        second = pool.submit(lambda: "owl" in animal_registry)
        time.sleep(0.05)
        going_on.set()

        assert second.result(PATIENCE_S) and "owl" in first.result(PATIENCE_S)
