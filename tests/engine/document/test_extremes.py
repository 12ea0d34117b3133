"""Every number of every document, with values that are too small, too large or absurd.

Each is refused with a message, or gives finite results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from math import isfinite
from typing import Any

import pytest

from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.expert_layer_document import ExpertLayerSpec, parse_expert_layer
from meshwave.engine.document.transfer_document import TransferListSpec, TransferSpec, parse_transfer, parse_transfers
from meshwave.engine.errors import InputError
from meshwave.engine.files import example
from meshwave.engine.findings import DesignError
from meshwave.engine.predict import expert_comparison as moe_comparison
from meshwave.engine.predict import transfer_comparison as reshard
from meshwave.engine.predict.prediction import check_design, predict
from meshwave.engine.schedules import schedules
from tests._strategies import document

EXTREMES = (0, -1, 1e-300, 1e300, 10**30, 2**63)
LONGEST = 400
"""Maximum number of characters of a refusal, which does not print an absurd number in full."""

Place = tuple[str | int, ...]
Numbers = Mapping[Place, str]
"""Numbers of a document by their places, each with its name in the schema, such as ``Cluster.nodes``."""


# ---- documents in which every number of the schema stands ----

SMALL = {"layers": 8, "hidden": 64, "heads": 4, "sequence": 32, "vocab": 256, "ffn": 128}
LINK = {"latency_s": 1e-5, "bandwidth": 2.5e10}
SIDES = {
    "source": {"shape": [2, 2], "ranks": [0, 1, 2, 3], "hosts": [0, 0, 1, 1], "spec": ["S0", "R"], "partial": [1]},
    "destination": {"shape": [3, 2], "ranks": [4, 5, 6, 7, 8, 9], "hosts": [2, 2, 3, 3, 4, 4], "spec": ["S0", "R"]},
}
LINKS = {"intra_node": LINK, "inter_node": LINK}


def with_experts() -> dict[str, Any]:
    found = json.loads(example("16-gpt2-moe").read_text())
    placement = [[4 * place + each for each in range(4)] for place in range(4) for _ in range(2)]
    found["experts"].update(schedule="parm-s1", ep=4, esp=2, placement=placement, load=[1.0] * 16)
    found["experts"]["layers"] = [{"layer": 1, "placement": placement, "load": [1.0] * 16}]
    found["pipeline"].update(stages=[6, 6], placement=[0, 1], recompute=[0])
    found["model"]["ffn"], found["training"]["clip_norm"] = 3072, 1.0
    found["cluster"].update(node_bandwidth=1e12, uplink={"nodes": 1, "bandwidth": 5e10})
    found["cost"] = {"kind": "roofline", "overlap": 0.5}
    return dict(found)


def with_unequal_meshes() -> dict[str, Any]:
    return dict(json.loads(example("20-unequal-meshes").read_text()))


def with_unit_costs() -> dict[str, Any]:
    cost = {"kind": "unit", "forward": 1.0, "backward": 2.0, "transfer": 0.1, "weight": 1.0, "fused": 3.0}
    pipeline = {"schedule": "dualpipe", "microbatches": 8}
    return document(pipeline, 4, model={"kind": "gpt", **SMALL}, cost=cost)


def with_costs_per_stage() -> dict[str, Any]:
    cost = {"kind": "unit", "stage_costs": {"forward": [1.0, 2.0], "input": [1.0, 2.0], "weight": [1.0, 0.0]}}
    return document({"schedule": "1f1b", "microbatches": 4}, 2, model={"kind": "gpt", **SMALL}, cost=cost)


def with_images() -> dict[str, Any]:
    return dict(json.loads(example("21-u-net").read_text()))


def with_a_transformer() -> dict[str, Any]:
    latent = {"q_rank": 16, "kv_rank": 8, "nope_dim": 8, "rope_dim": 4, "value_dim": 8}
    attention = {"kv_heads": 4, "head_dim": 16, "window": 16, "full_every": 2, "scale": 0.25, "soft_cap": 50.0}
    scaling = {"kind": "llama3", "factor": 8.0, "original_context": 32}
    positions = {"kind": "rope", "table": 32, "window_theta": 1e4, "scaling": scaling}
    routed = {"experts": 4, "top_k": 2, "ffn": 32, "first_dense": 1, "shared_ffn": 32, "capacity_factor": 1.25}
    model = {
        "kind": "transformer",
        **SMALL,
        "moe": routed,
        "positions": positions,
        "logit_soft_cap": 30.0,
        "attention": {**attention, "latent": latent},
    }
    found = document({"schedule": "1f1b", "microbatches": 4}, 2, model=model, cost={"kind": "roofline"})
    found["training"] = {**found.get("training", {}), "document_end": 10, "document_lengths": [10, 20]}
    return found


def with_scaled_positions() -> dict[str, Any]:
    factors = {"short_factors": [1.0] * 8, "long_factors": [2.0] * 8}
    positions = {"kind": "rope", "scaling": {"kind": "longrope", "original_context": 16, **factors}}
    model = {"kind": "transformer", **SMALL, "positions": positions}
    return document({"schedule": "1f1b", "microbatches": 4}, 2, model=model, cost={"kind": "roofline"})


DOCUMENTS = (
    with_experts,
    with_unequal_meshes,
    with_unit_costs,
    with_costs_per_stage,
    with_images,
    with_a_transformer,
    with_scaled_positions,
)
LAYER = {
    "format": "meshwave-expert-layer/1",
    "ranks": 8,
    "ranks_per_node": 4,
    "mp": 4,
    "esp": 2,
    "ep": 4,
    "experts": 4,
    "batch": 4,
    "sequence": 64,
    "hidden": 768,
    "ffn_hidden": 3072,
    "top_k": 1,
    "capacity_factor": 1.2,
    "item_bytes": 4,
    "load": [1.0] * 4,
    "links": LINKS,
    "fit": {"all_to_all": {"alpha_s": 1e-5, "beta_s_per_byte": 1e-9}},
}
TRANSFER = {
    "format": "meshwave-transfer/1",
    "tensor": {"shape": [13, 6], "item_bytes": 2},
    **SIDES,
    "links": LINKS,
    "nics_per_host": 1,
    "chunks": 64,
}
TRANSFERS = {
    **{key: value for key, value in TRANSFER.items() if key != "tensor"},
    **{
        name: {key: value for key, value in side.items() if key in ("shape", "ranks", "hosts")}
        for name, side in SIDES.items()
    },
    "tensors": [
        {
            "shape": [13, 6],
            "item_bytes": 2,
            "source_spec": ["S0", "R"],
            "source_partial": [1],
            "destination_spec": ["R", "S1"],
        },
    ],
}


# ---- where the numbers are ----


def numbers(value: Any, node: Mapping[str, Any], schema: Mapping[str, Any], at: Place = (), name: str = "") -> Numbers:
    """Yield the numbers of a part of the document; the first entry of a list stands for all."""
    found: dict[Place, str] = {}
    for each in possible_members(value, node, schema):
        if each.get("type") in ("integer", "number"):
            found[at] = name
        elif "items" in each and isinstance(value, list):
            if value:
                found |= numbers(value[0], each["items"], schema, (*at, 0), name)
        elif isinstance(value, Mapping) and isinstance(each.get("additionalProperties"), Mapping):
            for key in value:
                found |= numbers(value[key], each["additionalProperties"], schema, (*at, key), name)
        elif isinstance(value, Mapping) and "properties" in each:
            for key, part in each["properties"].items():
                if key in value:
                    found |= numbers(value[key], part, schema, (*at, key), f"{each['title']}.{key}")
    return found


def possible_members(value: Any, node: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the members of a schema node that ``value`` could be an instance of, with references resolved."""
    if "$ref" in node:
        yield from possible_members(value, schema["$defs"][node["$ref"].rsplit("/", 1)[1]], schema)
    elif "discriminator" in node:
        tag = value[node["discriminator"]["propertyName"]]
        yield from possible_members(value, {"$ref": node["discriminator"]["mapping"][tag]}, schema)
    elif "anyOf" in node:
        for member in node["anyOf"]:
            yield from possible_members(value, member, schema)
    else:
        yield node


def called_names(node: Any, name: str = "") -> set[str]:
    """Return the names of all numbers in a schema."""
    if isinstance(node, list):
        return {each for member in node for each in called_names(member, name)}
    if not isinstance(node, Mapping):
        return set()
    found = {name} if node.get("type") in ("integer", "number") else set()
    for key, part in node.items():
        if key == "properties":
            found |= {each for field, of in part.items() for each in called_names(of, f"{node['title']}.{field}")}
        elif key != "$defs" or not name:
            found |= called_names([*part.values()] if key == "$defs" else part, name)
    return found


def changed_document(given: Mapping[str, Any], place: Place, value: float) -> dict[str, Any]:
    found = deepcopy(dict(given))
    here: Any = found
    for step in place[:-1]:
        here = here[step]
    here[place[-1]] = value
    return found


# ---- what must hold ----


def check_answer(given: Mapping[str, Any]) -> None:
    """Check that a design is refused with a place, or checked and predicted with finite numbers."""
    try:
        found = check_design(parse_design(given, draft=True))
    except DesignError as error:
        found = list(error.problems)
    for problem in found:
        words = problem.message.replace(",", " ").replace("(", " ").split()
        assert len(problem.message) < LONGEST and not {"inf", "nan", "-inf"} & {*words}, problem
        assert problem.where or problem.severity == "warning", problem
    if not any(problem.severity == "error" for problem in found):
        assert is_finite(predict(parse_design(given)).numbers)


def is_finite(found: Any) -> bool:
    if isinstance(found, Mapping):
        return all(map(is_finite, found.values()))
    if isinstance(found, list | tuple):
        return all(map(is_finite, found))
    return not isinstance(found, float) or isfinite(found)


def question_check(parse: Callable[[str], Any], answer: Callable[[Any], Any]) -> Callable[[Mapping[str, Any]], None]:
    """Return a check that a question is refused with the place of the mistake, or answered with finite numbers."""

    def ask(given: Mapping[str, Any]) -> None:
        refused: list[str] = []
        try:
            found = answer(parse(json.dumps(given)))
        except DesignError as error:
            refused = [problem.message for problem in error.problems if problem.where]
        except InputError as error:
            refused = [str(error)]
        else:
            assert is_finite(found)
            return
        assert refused and all(len(message) < LONGEST for message in refused)

    return ask


def every_extreme(given: Mapping[str, Any], places: Numbers, ask: Callable[[Mapping[str, Any]], None]) -> None:
    for place in places:
        for value in EXTREMES:
            try:
                ask(changed_document(given, place, value))
            except Exception as error:
                raise AssertionError(f"{'.'.join(map(str, place))}: {value}: {error!r}") from error


SCHEMA = Design.model_json_schema()


@pytest.mark.slow
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("make", DOCUMENTS)
def test_no_number_of_a_design_breaks_it(make: Callable[[], dict[str, Any]]) -> None:
    given = parse_design(make()).model_dump(mode="json")

    every_extreme(given, numbers(given, SCHEMA, SCHEMA), check_answer)


@pytest.mark.parametrize("name", [name for name in schedules if name != "custom"])
def test_no_number_of_a_schedule_breaks_it(name: str) -> None:
    given = parse_design(document({"schedule": name, "microbatches": 4}, 2, model={"kind": "gpt", **SMALL}))
    data = given.model_dump(mode="json")
    own = {place: each for place, each in numbers(data, SCHEMA, SCHEMA).items() if place[0] == "pipeline"}

    every_extreme(data, own, check_answer)


def test_the_maximum_number_of_chunks_is_simulated() -> None:
    given = with_experts()
    given["experts"]["degree"] = 64

    check_answer(given)


@pytest.mark.parametrize("shares", [[1e308] * 16, [1e30] * 16, [1e30, *[1e-300] * 15], [1e-320, *[0.0] * 15]])
def test_loads_of_any_size_are_shares_of_one(shares: list[float]) -> None:
    given = with_experts()
    given["experts"]["load"] = shares

    check_answer(given)


def test_every_number_of_the_document_is_tried() -> None:
    """One pipeline and one language model represent all members, whose common keys are the same."""
    made = [parse_design(make()).model_dump(mode="json") for make in DOCUMENTS]
    made += [
        parse_design(document({"schedule": name, "microbatches": 4}, 2)).model_dump(mode="json")
        for name in schedules
        if name != "custom"
    ]
    shared = re.compile(r"\w+Pipeline\.|(?:Gpt|Bert|U?Transformer)\.")

    walked = {name for given in made for name in numbers(given, SCHEMA, SCHEMA).values()}

    assert {shared.sub("", name) for name in called_names(SCHEMA)} == {shared.sub("", name) for name in walked}


@pytest.mark.slow
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("given", "root", "ask"),
    [
        (LAYER, ExpertLayerSpec, question_check(parse_expert_layer, moe_comparison.expert_layer_json)),
        (TRANSFER, TransferSpec, question_check(parse_transfer, reshard.transfer_comparison_json)),
        (TRANSFERS, TransferListSpec, question_check(parse_transfers, reshard.transfer_comparison_json)),
    ],
    ids=["layer", "transfer", "transfers"],
)
def test_no_number_of_a_stand_alone_document_breaks_it(given: Any, root: Any, ask: Any) -> None:
    schema = root.model_json_schema()
    places = numbers(given, schema, schema)

    assert {*places.values()} == called_names(schema)
    every_extreme(given, places, ask)
