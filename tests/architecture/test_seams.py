"""Contract of all registries: each member is one file in its folder, and no other code names the member."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from meshwave import engine
from meshwave.engine.costs import CostModel, cost_models
from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.costs.model_flops import model_flops
from meshwave.engine.document import load_design
from meshwave.engine.document.model import LanguageModel, model_families
from meshwave.engine.exports import exports
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.simulation import TransferModel
from meshwave.engine.registry import Registry
from meshwave.engine.runs import Record
from meshwave.engine.runs.launchers import launchers
from tests.architecture.test_the_tree import matches


def registries() -> Iterator[Registry[Any]]:
    """The registries of the packages in ``engine``."""
    seen: set[int] = set()
    for module in pkgutil.walk_packages(engine.__path__, "meshwave.engine."):
        if module.ispkg and not module.name.startswith("meshwave.engine.runtime"):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, Registry) and id(value) not in seen:
                    seen.add(id(value))
                    yield value


def hold(registry: Registry[Any]) -> None:
    """Check that each member has its own file in the folder of its registry, and a docstring."""
    files = [inspect.getmodule(member) for member in registry.values()]
    names = [file.__name__ for file in files if file is not None]
    assert len(names) == len(set(names)) == len(registry) > 0, f"one file a member: {names}"
    for name, file in zip(registry, names, strict=True):
        package, _, own = file.rpartition(".")
        assert package == registry._package, f"{name} lies in {file}"
        assert not own.startswith("_"), f"{name} lies in {file}, a helper's name"
        assert inspect.getdoc(registry[name]), f"{name} does not say what it is"


@pytest.mark.slow
def test_every_member_is_one_file_in_its_folder() -> None:
    found = list(registries())

    assert len(found) >= 3  # schedules, cost models, launchers
    for registry in found:
        hold(registry)


def test_every_file_among_the_schedules_is_a_schedule() -> None:
    from meshwave.engine import schedules

    files = {module.name for module in pkgutil.iter_modules(schedules.__path__) if not module.name.startswith("_")}
    members = {inspect.getmodule(member) for member in schedules.schedules.values()}

    assert {module.__name__.rpartition(".")[2] for module in members if module} == files


def test_no_code_asks_which_cost_model_it_is() -> None:
    asks = re.compile(r"\bcost\.kind\s*(?:==|!=|in\b|not\b)|isinstance\([\w.]+, \w+Cost\)")

    assert [found for found in matches(asks, "engine", "designer") if "costs/models/" not in found] == []


def test_no_code_asks_which_family_a_model_is_of() -> None:
    families = "|".join(family.__name__ for family in model_families.values())
    asks = re.compile(rf"\bmodel\.kind\s*(?:==|!=|in\b|not\b)|isinstance\([\w.]+, (?:{families})\)")

    assert matches(asks, "engine", "designer") == []


@pytest.mark.parametrize("name", model_families)
def test_a_model_family_is_a_language_model_or_one_of_blocks(name: str) -> None:
    family = model_families[name]
    model = family.model_validate({"kind": name, **family.initial_values()})

    assert family.title
    assert isinstance(model, LanguageModel | BlockModel)
    inputs, targets = model.example(np.zeros(model.window, np.uint8), np.random.default_rng(0))
    assert inputs.size and targets.size
    assert model_flops(model, 2) == pytest.approx(2 * model_flops(model, 1))
    assert model.supports_tensor_parallelism(1)
    assert all(0 <= source < target < model.layers for source, target in model.skips)


@pytest.mark.torch
@pytest.mark.parametrize("name", model_families)
def test_a_model_family_builds_its_stages(name: str) -> None:
    from meshwave.engine.runtime.models import StageBuilder

    assert issubclass(model_families[name].stage_builder(), StageBuilder)


@pytest.mark.parametrize("name", cost_models)
def test_a_cost_model_has_the_keys_that_designs_rely_on(name: str) -> None:
    member = cost_models[name]

    assert issubclass(member, CostModel)
    assert member.model_fields["kind"].default == name
    assert member.model_fields["transfer_model"].default in get_args(TransferModel)
    assert member.title


@pytest.mark.parametrize("name", launchers)
def test_a_launcher_reports_its_capabilities_before_a_launch(name: str, tmp_path: Path) -> None:
    member = launchers[name]

    assert member.name == name
    assert member.title
    with closing(Record(tmp_path)) as record, closing(member(record)) as launcher:
        can = launcher.probe()
        assert can.can_launch == (can.most_processes > 0)
        assert launcher.handle()


@pytest.mark.parametrize("name", exports)
def test_an_export_states_its_format_and_the_program_that_opens_it(name: str) -> None:
    member = exports[name]

    assert member.title and member.note
    assert member.suffix.startswith(".")
    assert "/" in member.mime
    assert member.to_bytes(predict(load_design(example("03-gpt-on-two-cores"))))
