"""Comparison of expert schedules: the output of ``meshwave moe``, and messages about invalid input."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.cli.experts import to_text
from meshwave.engine.cli.main import main
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.document.expert_layer_document import ExpertLayerSpec, parse_expert_layer
from meshwave.engine.document.expert_layers import price_expert_layer, resolve_expert_layer
from meshwave.engine.errors import InputError
from meshwave.engine.experts import simulate_layer
from meshwave.engine.files import example, examples
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.expert_comparison import design_expert_layer_json, expert_layer_json, find_expert_mesh

SPEC: dict[str, Any] = {
    "format": "meshwave-expert-layer/1",
    "ranks": 8,
    "ranks_per_node": 8,
    "mp": 4,
    "esp": 2,
    "ep": 4,
    "experts": 4,
    "batch": 4,
    "sequence": 1024,
    "hidden": 768,
    "ffn_hidden": 3072,
    "top_k": 1,
    "capacity_factor": 1.2,
    "item_bytes": 4,
    "links": {
        "intra_node": {"latency_s": 1e-5, "bandwidth": 1e10},
        "inter_node": {"latency_s": 5e-5, "bandwidth": 1.25e9},
    },
    "fit": None,
}


def spec(**changes: Any) -> ExpertLayerSpec:
    return parse_expert_layer(json.dumps({**SPEC, **changes}))


def test_the_output_has_the_documented_keys() -> None:
    found = expert_layer_json(spec())

    assert found["capacity"] == 1232  # ceil(1.2 * 4096 / 4) = 1229, and a multiple of 4
    assert list(found["schedules"]) == [
        *("expert-parallel", "deepspeed", "deepspeed-pregate", "a2a-allgather", "ppmoe"),
        *("parm-s1", "parm-s2", "parm-auto", "auto"),
    ]
    assert found["choice"] == "parm-s1"
    assert found["reason"].startswith("S1 is faster (")
    one = found["schedules"]["parm-s1"]
    assert {"forward", "backward", "communication_s", "flops", "parameters"} <= one.keys()
    assert {
        *("name", "group", "group_size", "buffer_bytes", "sent_bytes", "intra_bytes", "inter_bytes", "time_s")
    } <= one["forward"][0].keys()
    y = 2 * 4 * 1232 * 768 * 4 / 4
    assert [(each["name"], each["group"], each["buffer_bytes"]) for each in one["forward"]] == [
        ("all_to_all", "ep_esp", y),
        ("all_to_all", "ep_esp", y),
        ("all_gather", "mp", 4096 * 768 * 4 / 4),
    ]
    assert one["communication_s"]["forward"] == pytest.approx(
        2 * 7 * (1e-5 + y / 8 / 1e10) + 3 * (1e-5 + 4096 * 768 / 1e10)
    )
    assert one["flops"] == 4 * 4 * 1232 * 768 * 3072 / 4
    assert one["parameters"] == 2 * 768 * 3072 * 4 / 8
    assert found["schedules"]["parm-auto"]["communication_s"] == one["communication_s"]


# ---- the layer of a design ----

MOES = [name for name, path in examples().items() if load_design(path).model.moe is not None]


@pytest.mark.parametrize("name", MOES)
def test_a_design_is_compared_by_the_cost_of_its_layer(name: str) -> None:
    design = load_design(example(name))
    rank = find_expert_mesh(design)

    found = design_expert_layer_json(design, rank)

    mesh, own = design.meshes[rank], found["schedules"][design.experts.member]
    priced = price_expert_layer(design, mesh)
    assert found["capacity"] == priced.layer.capacity
    assert own["seconds"]["forward"] == simulate_layer(priced, priced.forward).makespan
    assert own["runs"] == priced.name
    auto = design.model_copy(update={"experts": design.experts.model_copy(update={"schedule": "auto"})})
    assert found["auto"]["choice"] == resolve_expert_layer(auto, mesh).schedule
    text = to_text(found)
    assert text[0].startswith(f"a layer of {design.name} on mesh {mesh.name}: {design.model.moe.experts} experts of ")
    assert text[3].endswith("  whole")


def test_the_layer_is_on_the_first_mesh_with_experts_or_the_named_one() -> None:
    document = json.loads(example("16-gpt2-moe").read_text())
    document["model"]["moe"]["every"] = 12
    design = parse_design(document)

    assert [find_expert_mesh(design, wanted) for wanted in (None, "B", "1")] == [1, 1, 1]
    for wanted, said in (
        ("A", "no stage on mesh A has experts; the stages on B do"),
        ("X", "no mesh called 'X'. Known: A, B"),
    ):
        with pytest.raises(InputError, match=said):
            find_expert_mesh(design, wanted)


def test_the_command_accepts_the_name_of_a_design(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer = tmp_path / "layer.json"
    layer.write_text(json.dumps(SPEC))

    assert main(["moe", "16-gpt2-moe", "--mesh", "B", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["mesh"], found["layer"]["ep"], found["schedule"]) == ("B", 4, "ppmoe")
    exchanged = found["schedules"]["parm-s1"]["all_to_all"]["forward"]
    assert exchanged["unit"] == "device"
    assert set(exchanged["numbers"]) <= set(load_design(example("16-gpt2-moe")).meshes[1].devices)
    sent = found["schedules"]["parm-s1"]["forward"]
    assert max(map(sum, exchanged["bytes"])) == pytest.approx(
        sum(each["sent_bytes"] for each in sent if each["name"] == "all_to_all")
    )
    for line, said in (
        (["01-first-wave"], "the model of 'One wave on four meshes' has no experts"),
        (["16-gpt2"], "Did you mean 16-gpt2-moe?"),
        ([str(layer), "--mesh", "B"], "--mesh applies to designs only"),
    ):
        assert main(["moe", *line]) == 2
        assert said in capsys.readouterr().err


# ---- a layer alone ----


def test_schedules_that_cannot_run_are_omitted_with_the_reason() -> None:
    found = expert_layer_json(spec(batch=1, sequence=1023, experts=6, ep=2, esp=2, ranks=4, capacity_factor=None))

    assert set(found["refused"]) == {"deepspeed-lanes", "parm-s1", "ppmoe"}
    assert not set(found["refused"]) & set(found["schedules"])
    assert "6 experts" in found["refused"]["ppmoe"]
    assert found["choice"] == "parm-s2"
    assert "4 devices cannot share 1023 tokens evenly" in found["reason"]
    assert "deepspeed-lanes" in expert_layer_json(spec(esp=4, ep=2))["schedules"]


def test_plain_expert_parallelism_beside_shards_exchanges_d_in_every_lane() -> None:
    found = expert_layer_json(spec())["schedules"]["expert-parallel"]

    assert [(each["group"], each["group_size"]) for each in found["forward"]] == [("ep", 4)] * 2
    assert found["forward"][0]["buffer_bytes"] == 4 * 1232 * 768 * 4
    assert found["parameters"] == 2 * 768 * 3072  # one whole expert


def test_assumptions_are_stated() -> None:
    notes = expert_layer_json(spec(fit={"all_gather": {"alpha_s": 1e-5, "beta_s_per_byte": 1e-10}}))["notes"]

    for words in (
        "1,229 slots and gets 1,232",
        "the measurements include no overlap",
        "parm-s1 splits the tokens into 4 parts",
    ):
        assert any(words in note for note in notes), words
    assert not any("slots and gets" in note for note in expert_layer_json(spec(capacity_factor=1.25))["notes"])


def test_dropped_tokens_are_reported_if_there_are_any() -> None:
    found = expert_layer_json(spec(load="zipf", batch=1, sequence=64))
    of = {name: each["dropped"] for name, each in found["schedules"].items()}

    assert of["deepspeed"] == of["parm-s2"] < of["parm-s1"] == of["parm-auto"]
    words = f"dropped: {of['parm-s2']:.1%} of token assignments at this load, if tokens choose independently; "
    assert f"{words}{of['parm-s1']:.1%} under parm-s1" in to_text(found)
    assert not any(line.startswith("dropped") for line in to_text(expert_layer_json(spec(capacity_factor=None))))


def test_links_can_have_infinite_bandwidth() -> None:
    link = {"latency_s": 1e-5, "bandwidth": None}

    found = expert_layer_json(spec(links={"intra_node": link, "inter_node": link}))

    assert found["schedules"]["ppmoe"]["communication_s"]["forward"] == pytest.approx(6e-5)


@pytest.mark.parametrize(
    ("changes", "where", "code", "fixes"),
    [
        ({"ep": 3}, "ep", "rank_count", ["set ep to 4"]),
        ({"mp": 3}, "mp", "indivisible_devices", ["set mp to 2", "set mp to 4"]),
        ({"experts": 6}, "ep", "indivisible_experts", ["set ep to 3", "set ep to 6"]),
        ({"ffn_hidden": 3}, "esp", "indivisible_expert_width", ["set esp to 1", "set esp to 3"]),
        ({"top_k": 9}, "top_k", "top_k", ["set top_k to 4"]),
        ({"load": [1]}, "load", "load_size", ['set load to "uniform"']),
        ({"load": [0, 0, 0, 0]}, "load", "zero_load", ['set load to "uniform"']),
        ({"hidden": 0}, "hidden", "out_of_range", ["set hidden to 1"]),
        ({"rank": 8}, "rank", "unknown_key", ["remove rank"]),
        ({"links": None}, "links", "wrong_type", []),
        (
            {"fit": {"all_to_al": {"alpha_s": 0, "beta_s_per_byte": 0}}},
            "fit.all_to_al",
            "unknown_collective",
            ["rename all_to_al to all_to_all"],
        ),
        (
            {"fit": {"all_to_all@e": {"alpha_s": 0, "beta_s_per_byte": 0}}},
            "fit.all_to_all@e",
            "unknown_group",
            ["rename all_to_all@e to all_to_all@ep"],
        ),
        (
            {"fit": {"all_to_all": {"alpha": 0, "beta_s_per_byte": 0}}},
            "fit.all_to_all.alpha",
            "unknown_key",
            ["rename alpha to alpha_s", "remove alpha"],
        ),
    ],
)
def test_a_mistake_is_a_problem_at_its_key(changes: Mapping[str, Any], where: str, code: str, fixes: list[str]) -> None:
    with pytest.raises(DesignError) as error:
        spec(**changes)

    found = {(each.where, each.code): [fix.label for fix in each.fixes] for each in error.value.problems}
    assert found[where, code] == fixes


def test_all_problems_are_found_at_once() -> None:
    with pytest.raises(DesignError) as error:
        spec(hidden="wide", ranks=-1, links={"intra_node": {}, "inter_node": SPEC["links"]["inter_node"]})

    places = {problem.where for problem in error.value.problems}
    assert places == {"hidden", "ranks", "links.intra_node.latency_s", "links.intra_node.bandwidth"}


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000, '{"format": "meshwave/1"}', '{"ranks": NaN}'])
def test_a_document_that_is_not_a_layer_is_refused_with_a_message(text: str) -> None:
    with pytest.raises(DesignError):
        parse_expert_layer(text)


def test_the_command_prints_json_or_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "layer.json"
    file.write_text(json.dumps(SPEC))

    assert main(["moe", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expert_layer_json(spec())))
    assert main(["moe", str(file)]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines() == to_text(expert_layer_json(spec()))
    assert "parm-auto chooses parm-s1. S1 is faster (" in shown and "D (slots) is 1.2 times X (tokens)" in shown
    assert main(["moe", str(tmp_path / "none.json")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_the_command_reads_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe can be read only once."""
    out, into = os.pipe()
    try:
        os.write(into, json.dumps(SPEC).encode())
        os.close(into)
        assert main(["moe", f"/dev/fd/{out}"]) == 0
    finally:
        os.close(out)
    assert capsys.readouterr().out.splitlines() == to_text(expert_layer_json(spec()))


@pytest.mark.parametrize("load", ["uniform", "zipf", [4, 1, 1, 1]])
def test_without_drops_the_hottest_expert_sets_the_capacity(load: Any) -> None:
    found = expert_layer_json(spec(capacity_factor=None, load=load))

    hottest = {"uniform": 1 / 4, "zipf": 12 / 25}.get(load if isinstance(load, str) else "", 4 / 7)
    assert found["capacity"] - 4096 * hottest < 4 + 1
    assert found["capacity"] >= 4096 * hottest
