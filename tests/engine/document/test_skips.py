"""Valid and invalid U-ViT models, and their properties."""

from __future__ import annotations

from typing import Any

from meshwave.engine.document import parse_design
from meshwave.engine.document.unsupported import run_problems
from tests._findings import check_fixes, refusal
from tests._strategies import GPT, document

Document = dict[str, Any]


def skip_document(**model: Any) -> Document:
    pipeline = {"schedule": "1f1b", "microbatches": 4}
    return document(pipeline, 2, model={**GPT, "kind": "u-transformer", "layers": 8, **model})


def test_skip_connections_lead_to_the_mirrored_blocks() -> None:
    assert parse_design(skip_document(layers=7)).model.skips == ((0, 6), (1, 5), (2, 4))
    assert parse_design(skip_document(kind="bert")).model.skips == ()


def test_the_model_has_no_experts() -> None:
    document = skip_document(moe={"experts": 4})

    problem = refusal(lambda: parse_design(document))

    assert (problem.where, problem.code) == ("model.moe", "unsupported_experts")
    check_fixes(document, [problem])


def test_the_vocabulary_needs_a_mask_token_besides_the_bytes() -> None:
    (problem,) = run_problems(parse_design(skip_document(vocab=256)))
    assert (problem.where, problem.params["minimum"]) == ("model.vocab", 257)
    assert run_problems(parse_design(skip_document(vocab=257))) == []
