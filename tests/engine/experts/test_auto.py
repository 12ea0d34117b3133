"""Automatic choice among expert schedules: the fastest one that changes neither the placement nor the training result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.document import parse_design
from meshwave.engine.document.expert_layers import price_expert_layer, resolve_expert_layer
from meshwave.engine.experts import (
    Layer,
    Line,
    Links,
    Rates,
    expert_schedule_names,
    expert_schedules,
    price_expert_schedule,
    simulate_layer,
)
from meshwave.engine.experts.auto import exclusions
from tests.engine.experts.test_price import COMPUTES, LINKS, layer, layers

STEPPED = [name for name in expert_schedule_names() if not expert_schedules[name].chooses]


def schedule_seconds(name: str, of: Layer, links: Links = LINKS, rates: Rates = COMPUTES) -> float:
    priced = price_expert_schedule(name, of, links, rates)
    return priced.seconds(priced.forward) + priced.seconds(priced.backward)


@pytest.mark.slow
@given(of=layers(), dropless=st.booleans())
def test_the_choice_is_the_fastest_candidate(of: Layer, dropless: bool) -> None:
    of = replace(of, capacity_factor=None) if dropless else of
    out = dict(exclusions(of))

    auto = price_expert_schedule("auto", of, LINKS, COMPUTES)

    assert auto.choice is not None and auto.name == auto.choice.name in STEPPED
    assert auto.name not in out and "a2a-allgather" not in out
    assert schedule_seconds("auto", of) == pytest.approx(
        min(schedule_seconds(name, of) for name in STEPPED if name not in out)
    )
    assert auto.choice.params["name"] == auto.name
    assert [name for name, *_ in auto.choice.params["excluded"]] == list(out)
    assert price_expert_schedule("auto", of, LINKS, COMPUTES).choice == auto.choice


@given(of=layers())
def test_excluded_schedules_need_another_placement_or_change_the_training_result(of: Layer) -> None:
    out = dict(exclusions(of))

    assert ("expert-parallel" in out) == (of.esp > 1)
    assert ("ppmoe" in out) == (of.esp > 1 or of.ep != of.mp)
    may_differ = of.mp > 1 and of.may_drop
    assert ("parm-s1" in out) == (may_differ or of.tokens % of.mp > 0)
    assert not {"deepspeed", "a2a-allgather", "parm-s2"} & set(out)
    assert "parm-s1" not in dict(exclusions(replace(of, capacity_factor=None)))


def test_equivalent_schedules_are_named_by_the_oldest() -> None:
    of = layer(mp=1, esp=1, ep=4)

    choice = price_expert_schedule("auto", of, LINKS, COMPUTES).choice

    assert choice is not None
    assert choice.name == "expert-parallel"
    assert choice.params["equal"] == ["deepspeed", "a2a-allgather", "parm-s1", "parm-s2"]
    assert [name for name, *_ in choice.params["excluded"]] == ["ppmoe"]
    assert "Expert parallel takes" in choice.titled_reason and "PPMoE is excluded" in choice.titled_reason


def test_one_tensor_parallel_group_allows_the_folded_schedules() -> None:
    """A place is then one device under all schedules, so experts and replicas are the same."""
    of = layer(mp=4, esp=1, ep=4, placement=((0, 1, 2, 7), (3, 4), (5, 6), (7,)), tokens=4096)

    assert set(dict(exclusions(of))) == {"parm-s1"}
    slow = Links(Line(1e-5, 1e-8), Line(1e-5, 1e-8))
    assert price_expert_schedule("auto", of, slow, COMPUTES).name == min(
        (name for name in STEPPED if name != "parm-s1"), key=lambda name: schedule_seconds(name, of, slow)
    )
    assert price_expert_schedule("auto", replace(of, top_k=8, capacity_factor=1.0), slow, COMPUTES).name == "ppmoe"


DESIGN: dict[str, Any] = {
    "format": "meshwave/1",
    "cluster": {
        "nodes": 2,
        "devices_per_node": 4,
        "device": {"peak_flops": 1e13, "memory_bytes": 8e10, "memory_bandwidth": 1e12},
        "intra_node": {"latency_s": 5e-6, "bandwidth": 1e11},
        "inter_node": {"latency_s": 1e-5, "bandwidth": 1e10},
    },
    "model": {
        "kind": "gpt",
        "layers": 4,
        "hidden": 256,
        "heads": 4,
        "sequence": 512,
        "vocab": 300,
        "moe": {"experts": 8, "top_k": 2, "capacity_factor": 1.25, "every": 2},
    },
    "meshes": [{"name": "A", "devices": list(range(8)), "axes": {"dp": 4, "tp": 2}}],
    "pipeline": {"schedule": "gpipe", "microbatches": 4},
}


@pytest.mark.parametrize("degree", [1, None])
def test_a_design_without_a_chunk_count_gets_the_fastest_schedule_and_count(degree: int | None) -> None:
    def layer_of(schedule: str) -> Any:
        return parse_design({**DESIGN, "experts": {"schedule": schedule, "ep": 8, "degree": degree}})

    def seconds(schedule: str) -> float:
        design = layer_of(schedule)
        priced = price_expert_layer(design, design.meshes[0])
        return simulate_layer(priced, priced.forward).makespan + simulate_layer(priced, priced.backward).makespan

    design = layer_of("auto")
    name, of, choice = resolve_expert_layer(design, design.meshes[0])

    assert choice is not None and choice.name == name
    assert seconds("auto") == pytest.approx(min(seconds(each) for each in STEPPED if each not in dict(exclusions(of))))
