"""What is wrong with the experts of a design is said at its place, with a way out."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.document.expert_layers import expert_layer, group_sizes, priced_layer, resolved
from meshwave.engine.document.problems import problems
from meshwave.engine.experts import expert_schedules
from meshwave.engine.findings import DesignError

BASE: dict[str, Any] = {
    "format": "meshwave/1",
    "name": "experts",
    "cluster": {
        "nodes": 2,
        "devices_per_node": 4,
        "device": {"peak_flops": 1e14, "memory_bytes": 8e10, "memory_bandwidth": 1e12},
        "intra_node": {"latency_s": 5e-6, "bandwidth": 1e11},
        "inter_node": {"latency_s": 1e-5, "bandwidth": 1e10},
    },
    "model": {
        "kind": "gpt",
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "sequence": 64,
        "vocab": 300,
        "moe": {"experts": 8, "top_k": 2, "capacity_factor": 2.0, "every": 2},
    },
    "pipeline": {"schedule": "gpipe", "microbatches": 4},
}


def found(dp: int = 4, tp: int = 2, moe: dict[str, Any] | None = None, **experts: Any) -> list[tuple[str, str, str]]:
    design = made(dp, tp, moe, **experts)
    return [(problem.where, problem.code, problem.message) for problem in problems(design)]


def made(dp: int = 4, tp: int = 2, moe: dict[str, Any] | None = None, **experts: Any) -> Any:
    model = {**BASE["model"], "moe": {**BASE["model"]["moe"], **(moe or {})}}
    mesh = {"name": "A", "devices": list(range(dp * tp)), "axes": {"dp": dp, "tp": tp}}
    return parse_design({**BASE, "model": model, "meshes": [mesh], "experts": experts}, draft=True)


QUIET = {"schedule": "parm-s2", "ep": 4}


def test_a_layer_that_fits_has_no_problems() -> None:
    assert found(**QUIET) == []
    assert found(schedule="ppmoe") == []
    assert found(schedule="deepspeed", ep=2, esp=2, variant="lanes") == []


@pytest.mark.parametrize(
    ("experts", "where", "told"),
    [
        ({"ep": 3}, "experts.ep", "ep=3 does not divide 8 experts; use a divisor"),
        ({"ep": 1}, "experts.ep", "hold the same tokens, so that groups of experts take them whole, and ep=1 x esp=1 does not; set ep to 2"),
        ({"ep": 1, "esp": 3, "schedule": "parm-s2"}, "experts.ep", "planned with ep=1 x esp=1 there and cannot run"),
        ({"schedule": "expert-parallel", "ep": 4, "esp": 2}, "experts.esp", "keeps each expert whole on one device, not cut in 2; set esp to 1"),
        ({"schedule": "deepspeed", "variant": "lanes", "ep": 4, "esp": 1}, "experts.esp", "set esp to 2"),
        ({"ep": 4, "placement": [[0, 1, 2, 3], [4, 5, 6, 7]]}, "experts.placement", "there are experts for 2 devices, and a group of ep=4 x esp=1 has 4; give it 4 entries or null"),
        ({"ep": 4, "placement": [[0, 1], [2, 3], [4, 5], [6, 6, 7]]}, "experts.placement[3]", "expert 6 is named twice; name it once"),
        ({"ep": 4, "placement": [[0, 1], [2, 3], [4, 5], [6]]}, "experts.placement", "expert 7 is on no device; place it"),
        (
            {"ep": 2, "esp": 2, "placement": [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6]]},
            "experts.placement[3]",
            "device 3 shares its experts with device 2 (esp=2), so that both have the same; give it [4, 5, 6, 7]",
        ),
        ({"schedule": "ppmoe", "placement": [[0], [1], [2], [3, 4, 5, 6, 7]]}, "experts.placement", "a group of tp=2 of mesh A has 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_at_its_place(experts: dict[str, Any], where: str, told: str) -> None:
    assert any(each[0] == where and told in each[2] for each in found(**experts)), found(**experts)


def test_devices_that_share_an_expert_have_equal_parts_of_its_width() -> None:
    """Which a dense block need not have: its width is cut over tp, in parts as equal as can be."""
    document = made(schedule="parm-s2", ep=2, esp=4).model_dump(mode="json")
    document["model"]["ffn"] = 30

    def told(**experts: Any) -> list[tuple[str, str]]:
        design = parse_design({**document, "experts": {"schedule": "parm-s2", **experts}}, draft=True)
        return [(problem.where, problem.message) for problem in problems(design) if problem.severity == "error"]

    assert told(ep=2, esp=4) == [("experts.esp", "esp=4 does not divide the experts' width of 30; use a divisor")]
    assert told(ep=4, esp=2) == told(ep=8, esp=1) == told(schedule="ppmoe", ep=1) == []


def test_so_many_experts_as_can_be_priced_are_and_more_are_refused() -> None:
    with pytest.raises(DesignError, match="1000000000 should be at most 65,536"):
        made(moe={"experts": 10**9})

    design = made(moe={"experts": 65_536}, **QUIET)
    assert priced_layer(design, design.meshes[0]).parameters == 65_536 / 4 * 2 * 64 * 256


def test_uneven_homes_need_no_divisor() -> None:
    assert found(dp=3, tp=1, schedule="expert-parallel", ep=3, placement=[[0, 1, 2], [3, 4, 5, 0], [6, 7]]) == []


def test_a_placement_that_follows_the_load_where_slots_are_padded_is_said_to_be_slower() -> None:
    hot = {"schedule": "expert-parallel", "ep": 4, "load": [3, 1, 1, 1, 1, 1, 1, 1]}
    homes = [[0], [1, 2], [3, 4, 0], [5, 6, 7]]
    ((where, code, message),) = found(dp=4, tp=1, **hot, placement=homes)

    assert (where, code) == ("experts.placement", "placement_slots")
    assert "computes 1.5 even shares of them, of the tokens 1.4;" in message
    assert found(dp=4, tp=1, **hot, placement=homes, moe={"capacity_factor": None}) == []
    assert found(dp=4, tp=1, **hot, placement=[[0, 2], [1, 3], [4, 5], [6, 7]]) == []


def test_where_experts_are_folded_ep_plays_no_part() -> None:
    ((where, code, message),) = found(schedule="ppmoe", ep=4)

    assert (where, code) == ("experts.ep", "experts_folded")
    assert "set it to 1" in message
    assert found(dp=1, tp=4, moe={"experts": 6, "top_k": 1}, schedule="ppmoe")[0][0] == "meshes[0].axes.tp"


def test_slots_that_are_rounded_up_are_told() -> None:
    ((where, code, message),) = found(**QUIET, moe={"experts": 8, "capacity_factor": 1.2, "top_k": 1}, degree=4)

    assert (where, code) == ("model.moe.capacity_factor", "capacity_rounded")
    assert message == "an expert needs 10 slots and gets 16, the next multiple of mp=2 x degree=4"
    assert found(**QUIET, moe={"capacity_factor": None}) == []


@pytest.mark.parametrize("schedule", ["parm-s1", "parm-auto"])
def test_where_s1_may_drop_other_tokens_it_is_said(schedule: str) -> None:
    told = found(schedule=schedule, ep=4)
    chosen = resolved(made(schedule=schedule, ep=4), made().meshes[0]).schedule

    assert [each[:2] for each in told] == ([("experts.schedule", "gate_drops")] if chosen == "parm-s1" else [])
    assert found(schedule="parm-s1", ep=4, moe={"capacity_factor": None}) == []
    assert found(schedule="parm-s1", ep=4, moe={"capacity_factor": 4.0}) == []  # room for every token
    assert found(dp=4, tp=1, schedule="parm-s1", ep=4) == []


def test_tokens_that_cannot_be_shared_are_refused_for_s1_alone() -> None:
    base = made(dp=2, tp=4, schedule="parm-s1", ep=4).model_dump(mode="json")
    base["model"]["sequence"] = 63
    for schedule, refused in (("parm-s1", True), ("parm-s2", False), ("parm-auto", False)):
        base["experts"]["schedule"] = schedule
        design = parse_design(base, draft=True)
        errors = [problem.where for problem in problems(design) if problem.severity == "error"]
        assert errors == (["training.micro_batch_size"] if refused else [])
        if schedule == "parm-auto":
            choice = resolved(design, design.meshes[0]).choice
            assert choice is not None and choice.name == "parm-s2" and "63 tokens" in choice.reason


# ---- what is left open ----


def test_groups_that_would_cross_a_mesh_are_planned_with_those_that_do_not() -> None:
    design = made(dp=3, tp=2, schedule="parm-s2", ep=4)

    assert group_sizes(design, design.meshes[0]) == (2, 1)
    assert expert_layer(design, design.meshes[0]).devices == 2
    drawn = made(dp=3, tp=2, schedule="parm-s2", ep=4, placement=[[0, 1], [2, 3], [4, 5], [6, 7]])
    assert expert_layer(drawn, drawn.meshes[0]).homes is None  # which are of other groups
    assert {problem.severity for problem in problems(drawn)} == {"warning"}


def test_the_number_of_chunks_that_is_left_open_is_the_fastest() -> None:
    design = made(schedule="parm-s2", ep=4, degree=None)
    mesh = design.meshes[0]
    name, layer, choice = resolved(design, mesh)

    assert (name, choice) == ("parm-s2", None)
    assert layer.degree in (1, 2, 4, 8)
    assert resolved(made(schedule="parm-s2", ep=4, degree=2), mesh).layer.degree == 2


def test_an_automatic_schedule_tells_what_it_chose_and_why() -> None:
    design = made(schedule="parm-auto", ep=4)
    name, _, choice = resolved(design, design.meshes[0])
    priced = priced_layer(design, design.meshes[0])

    assert choice is not None
    assert choice == priced.choice
    assert name == choice.name == priced.name
    assert choice.reason.startswith(f"S{name[-1]}: D (slots) is ")


def test_a_new_schedule_is_one_file() -> None:
    """The document knows every schedule that lies in the folder and is offered, and no variant."""
    schema = type(made()).model_json_schema()["$defs"]["Experts"]["properties"]["schedule"]

    assert set(schema["enum"]) == {name for name, schedule in expert_schedules.items() if schedule.option}


def test_a_loss_over_other_groups_of_tokens_is_told() -> None:
    """Once a number of copies; where no loss is taken of the balance, or all meshes have as many, there is nothing to say."""

    def told(dps: list[int], aux_loss: float) -> list[str]:
        meshes, at = [], 0
        for name, dp in zip("ABC", dps, strict=False):
            meshes.append({"name": name, "devices": list(range(at, at := at + dp)), "axes": {"dp": dp}})
        model = {**BASE["model"], "moe": {**BASE["model"]["moe"], "aux_loss": aux_loss}}
        training = {"micro_batch_size": 4}
        found = problems(parse_design({**BASE, "model": model, "meshes": meshes, "training": training}, draft=True))
        return [problem.message for problem in found if problem.code == "aux_loss_groups"]

    (message,) = told([1, 2, 2], 0.01)
    assert "(dp=1 on A and dp=2 on B)" in message and "set aux_loss to 0" in message
    assert told([1, 2], 0.0) == told([2, 2], 0.01) == []
