"""Documents of older versions are upgraded; those of newer versions are refused with a message."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.document import parse_design, upgrades
from meshwave.engine.findings import DesignError
from tests._findings import refusal
from tests._strategies import document


def test_each_version_is_upgraded_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test adds versions 2 and 3, in which meshes had other names."""

    def to_second_version(document: dict[str, Any]) -> dict[str, Any]:
        return {**{key: value for key, value in document.items() if key != "groups"}, "meshes": document["groups"]}

    def to_third_version(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "name": document["name"].title()}

    monkeypatch.setattr(upgrades, "VERSION", 3)
    monkeypatch.setattr(upgrades, "UPGRADES", {1: to_second_version, 2: to_third_version})
    old = document({"schedule": "gpipe", "microbatches": 1}, 1)
    written = {**{key: value for key, value in old.items() if key != "meshes"}, "groups": old["meshes"]}

    design = parse_design(written)

    assert (design.name, design.ranks, design.format) == ("A Test", 1, upgrades.FORMAT)
    assert "groups" in written, "what was read is left as it was"
    assert parse_design({**old, "format": "meshwave/3"}).name == "a test"
    newer = refusal(lambda: parse_design({**old, "format": "meshwave/4"}))
    assert (newer.code, newer.params) == ("newer_format", {"version": 4, "supported": 3})


@pytest.mark.parametrize(("former", "kernel", "graphs"), [(True, "default", "step"), (False, "unfused", "none")])
def test_booleans_of_older_documents_become_options(former: bool, kernel: str, graphs: str) -> None:
    old = document({"schedule": "gpipe", "microbatches": 1}, 1)

    training = parse_design(
        {**old, "training": {"fused_attention": former, "cuda_graphs": former, "steps": 7}}
    ).training

    assert (training.attention_kernel, training.cuda_graphs, training.steps) == (kernel, graphs, 7)


def test_every_version_has_an_upgrade() -> None:
    assert sorted(upgrades.UPGRADES) == list(range(1, upgrades.VERSION))
    assert f"meshwave/{upgrades.VERSION}" == upgrades.FORMAT


@pytest.mark.parametrize(
    "stated", ["meshwave/", "meshwave/1.0", "meshwave/01", "meshwave/٣", "meshwave/²", "meshwave/1\n", [], {}, True]
)
def test_an_invalid_version_is_refused(stated: Any) -> None:
    assert refusal(lambda: parse_design({"format": stated})).code == "unknown_format"


def test_a_version_of_a_thousand_digits_is_shortened() -> None:
    with pytest.raises(DesignError) as refused:
        parse_design({"format": "meshwave/" + "9" * 5000})

    assert len(str(refused.value)) < 200
