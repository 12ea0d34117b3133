"""Random designs with experts: designs that ``check`` accepts are lowered, priced and simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.problems import problems
from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.experts import expert_schedule_names
from meshwave.engine.predict.prediction import predict

Document = dict[str, Any]
LINKS = {"intra_node": {"latency_s": 1e-5, "bandwidth": 1e10}, "inter_node": {"latency_s": 3e-5, "bandwidth": 1e9}}
DEVICE = {"peak_flops": 1e12, "memory_bytes": 8e9, "memory_bandwidth": 1e11}
PIPELINES = ({"schedule": "gpipe"}, {"schedule": "zb-h1"}, {"schedule": "chimera"}, {"schedule": "hanayo", "waves": 1})


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """Draw small designs with experts, most of which are valid: one to three meshes on nodes of any size."""
    heads, experts = draw(st.sampled_from([4, 12, 12, 12])), draw(st.integers(1, 8))
    axes = st.fixed_dictionaries({"dp": st.sampled_from([1, 2, 3, 4]), "tp": st.sampled_from([1, 2, 3])})
    alike, meshes, at = draw(axes), [], 0
    for number in range(draw(st.sampled_from([1, 1, 2, 3]))):
        own = draw(st.one_of(st.just(alike), st.just(alike), axes))
        devices = list(range(at, at := at + own["dp"] * own["tp"]))
        meshes.append({"name": f"m{number}", "devices": devices, "axes": own})
    per_node = draw(st.sampled_from([2, 4, 8, 64]))
    return {
        "format": "meshwave/1",
        "name": "drawn at random",
        "cluster": {"nodes": -(-at // per_node), "devices_per_node": per_node, "device": DEVICE, **LINKS},
        "model": {
            "kind": "gpt",
            "layers": draw(st.integers(4, 7)),
            "hidden": heads * draw(st.integers(1, 2)),
            "heads": heads,
            "sequence": draw(st.integers(1, 9)),
            "vocab": 257,
            "ffn": draw(st.integers(1, 12)),
            "moe": {
                "experts": experts,
                "top_k": draw(st.integers(1, min(3, experts))),
                "capacity_factor": draw(st.sampled_from([None, None, 0.3, 1.0, 1.25])),
                "every": draw(st.sampled_from([1, 2, 9])),
            },
        },
        "meshes": meshes,
        "pipeline": {**draw(st.sampled_from(PIPELINES)), "microbatches": 2 * draw(st.integers(1, 3))},
        "experts": draw(placed_documents(experts, alike)),
        "training": {
            "steps": 1,
            "micro_batch_size": draw(st.integers(1, 4)),
            "precision": draw(st.sampled_from(["fp32", "bf16", "fp64"])),
        },
        "cost": draw(st.sampled_from([{"kind": "roofline"}, {"kind": "unit"}])),
    }


@st.composite
def placed_documents(draw: st.DrawFn, experts: int, axes: dict[str, int]) -> Document:
    """Draw groups that usually fit a mesh, and any placement of the experts."""
    schedule, devices = draw(st.sampled_from(expert_schedule_names())), axes["dp"] * axes["tp"]
    whole = axes["tp"] * draw(st.sampled_from(divisors(axes["dp"])))
    size = draw(st.sampled_from([whole, whole, whole, *divisors(devices)]))
    esp = draw(st.sampled_from([1, *divisors(size)]))
    ep = size // esp
    found: Document = {"schedule": schedule, "ep": ep, "esp": esp, "degree": draw(st.sampled_from([1, 1, 2, 3, None]))}
    if schedule == "deepspeed":
        found["variant"] = draw(st.sampled_from(["paper", "pregate", "lanes"]))
    if draw(st.booleans()) or experts % ep:
        places = axes["tp"] if schedule == "ppmoe" else ep
        placement: list[set[int]] = [set() for _ in range(places)]
        for expert in range(experts):
            for place in draw(st.sets(st.integers(0, places - 1), min_size=1, max_size=2)):
                placement[place].add(expert)
        shards = 1 if schedule == "ppmoe" else esp
        found["placement"] = [sorted(held) for held in placement for _ in range(shards)]
    loads = st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.0]), min_size=experts, max_size=experts)
    found["load"] = draw(st.one_of(st.sampled_from([None, "uniform", "zipf"]), loads))
    return found


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def parse_or_none(document: Document) -> Design | None:
    """Return the design if ``check`` finds no problem; otherwise None."""
    design = parse_design(document, draft=True)
    return None if any(problem.severity == "error" for problem in problems(design)) else design


@pytest.mark.slow
@given(document=documents())
def test_accepted_designs_are_lowered_priced_and_simulated(document: Document) -> None:
    design = parse_or_none(document)
    event("accepted" if design else "refused")
    event(design.experts.schedule if design else "none")
    assume(design is not None)
    assert design is not None

    found = predict(design)

    assert np.isfinite(found.costs.seconds).all() and (found.costs.seconds >= 0).all()
    assert found.timeline.makespan > 0
    assert found.numbers["peak_memory_bytes"]
    run_problems(design)
