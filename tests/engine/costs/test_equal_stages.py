"""Equal stages on equal meshes are priced once."""

from __future__ import annotations

import json

import pytest

from meshwave.engine.costs import estimate, stage_memory
from meshwave.engine.costs.stage_prices import MeshPrices
from meshwave.engine.document import parse_design
from meshwave.engine.document.meshes import equal_meshes
from meshwave.engine.files import example
from meshwave.engine.lowering.lower import lower

RANKS = 16


@pytest.mark.parametrize(
    ("owner", "name"), [(MeshPrices, "stage"), (stage_memory, "transient_bytes")], ids=["seconds", "bytes"]
)
def test_the_first_the_last_and_one_middle_stage_are_priced(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    document = json.loads(example("03-gpt-on-two-cores").read_text())
    document |= {"meshes": equal_meshes(RANKS, {"dp": 1}), "cost": {"kind": "roofline"}}
    document["cluster"] |= {"nodes": RANKS, "devices_per_node": 1}
    document["model"] |= {"layers": 2 * RANKS}
    document["pipeline"] = {"schedule": "1f1b", "microbatches": 4, "stages": [2] * RANKS}
    design = parse_design(document)
    program, calls, original = lower(design), 0, getattr(owner, name)

    def count(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, count)
    estimate(design, program)

    passes = {"stage": 2, "transient_bytes": 1}[name]  # seconds, and the part of them that waits for collectives
    assert calls == 3 * passes
