"""Stand-alone documents are read like designs: strictly, with messages for mistakes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwave.engine.costs.profile import parse_profile
from meshwave.engine.document.expert_layer_document import parse_expert_layer
from meshwave.engine.document.transfer_document import parse_transfer
from meshwave.engine.findings import DesignError
from tests._findings import refusal

LINK = {"latency_s": 1e-5, "bandwidth": 1e9}
SIDE = {"shape": [2], "ranks": [0, 1], "hosts": [0, 0], "spec": ["R"]}
TRANSFER: dict[str, Any] = {
    "format": "meshwave-transfer/1",
    "tensor": {"shape": [4], "item_bytes": 4},
    "source": SIDE,
    "destination": {**SIDE, "ranks": [2, 3]},
    "links": {"intra_node": LINK, "inter_node": LINK},
}
READERS = (parse_transfer, parse_expert_layer, parse_profile)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "invalid_json"),
        ("[1]", "wrong_document"),
        ('{"format": 1, "format": 2}', "repeated_key"),
        ("[" * 100_000, "nested_json"),
        (b"\xff\xfe\x00", "wrong_encoding"),
        ("1" * 5000, "long_number"),
    ],
)
def test_text_that_is_not_a_document_is_refused(read: Any, text: str | bytes, code: str) -> None:
    assert refusal(lambda: read(text)).code == code


@pytest.mark.parametrize(
    ("part", "key", "suggestion"),
    [
        ("", "sorce", "source"),
        ("tensor", "shap", "shape"),
        ("links.intra_node", "bandwith", "bandwidth"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(part: str, key: str, suggestion: str) -> None:
    document = json.loads(json.dumps(TRANSFER))
    here = document
    for step in filter(None, part.split(".")):
        here = here[step]
    here[key] = 1

    problem = refusal(lambda: parse_transfer(json.dumps(document)))

    assert (problem.where, problem.code) == (f"{part}.{key}".lstrip("."), "unknown_key")
    assert problem.params["suggestion"] == suggestion


def test_an_unknown_key_in_a_table_is_refused_with_the_keys_of_its_members() -> None:
    with pytest.raises(DesignError) as refused:
        parse_expert_layer(json.dumps({"fit": {"all_to_all": {"alpha_s": 1, "beta": 2}}}))

    found = {problem.where: problem for problem in refused.value.problems}
    assert found["fit.all_to_all.beta"].params["known"] == ["alpha_s", "beta_s_per_byte"]
