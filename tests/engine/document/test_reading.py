"""Documents that stand alone are read as designs are: strictly, and refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwave.engine.costs.profile import parse_profile
from meshwave.engine.document.expert_layer_document import parse_expert_layer
from meshwave.engine.document.transfer_document import parse_transfer
from meshwave.engine.findings import DesignError

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
    ("text", "told"),
    [
        ("{", "line 1, column 2 is not JSON"),
        ("[1]", "is a JSON object with"),
        ('{"format": 1, "format": 2}', "the key 'format' stands twice in one object"),
        ("[" * 100_000, "nests its parts too deeply to be a"),
        (b"\xff\xfe\x00", "is not JSON"),
    ],
)
def test_what_is_no_document_is_told(read: Any, text: str | bytes, told: str) -> None:
    with pytest.raises(DesignError, match=told):
        read(text)


@pytest.mark.parametrize(
    ("part", "key", "known"),
    [
        ("", "sorce", "Did you mean 'source'"),
        ("tensor", "shap", "Known: item_bytes, shape"),
        ("links.intra_node", "bandwith", "Did you mean 'bandwidth'"),
    ],
)
def test_a_key_that_a_part_does_not_have_is_told_with_those_that_it_has(part: str, key: str, known: str) -> None:
    document = json.loads(json.dumps(TRANSFER))
    here = document
    for step in filter(None, part.split(".")):
        here = here[step]
    here[key] = 1

    with pytest.raises(DesignError) as refused:
        parse_transfer(json.dumps(document))

    (problem,) = refused.value.problems
    assert problem.where == f"{part}.{key}".lstrip(".")
    assert known in problem.message


def test_a_key_in_a_table_is_told_with_those_of_its_members() -> None:
    with pytest.raises(DesignError) as refused:
        parse_expert_layer(json.dumps({"fit": {"all_to_all": {"alpha_s": 1, "beta": 2}}}))

    told = {problem.where: problem.message for problem in refused.value.problems}
    assert told["fit.all_to_all.beta"] == "there is no key 'beta' here. Known: alpha_s, beta_s_per_byte."
