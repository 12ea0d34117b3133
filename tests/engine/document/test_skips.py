"""What a U-ViT may be, and what it says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.document.unsupported import runnable
from meshwave.engine.findings import DesignError
from tests._strategies import GPT, document

Document = dict[str, Any]


def drawn(**model: Any) -> Document:
    pipeline = {"schedule": "1f1b", "microbatches": 4}
    return document(pipeline, 2, model={**GPT, "kind": "u-transformer", "layers": 8, **model})


def test_its_blocks_skip_to_their_mirror_images() -> None:
    assert parse_design(drawn(layers=7)).model.skips == ((0, 6), (1, 5), (2, 4))
    assert parse_design(drawn(kind="bert")).model.skips == ()


def test_it_has_no_experts() -> None:
    with pytest.raises(DesignError) as refused:
        parse_design(drawn(moe={"experts": 4}))

    (problem,) = refused.value.problems
    assert problem.where == "model.moe"
    assert "a u-transformer has no experts in this version; set moe to null, or kind to bert" in problem.message


def test_it_needs_the_mask_beside_the_bytes() -> None:
    (problem,) = runnable(parse_design(drawn(vocab=256)))
    assert (problem.where, "needs at least 257 tokens" in problem.message) == ("model.vocab", True)
    assert runnable(parse_design(drawn(vocab=257))) == []
