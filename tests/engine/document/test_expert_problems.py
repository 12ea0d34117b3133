"""Problems of the experts of a design: their place, their numbers, their fixes."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.document.expert_layers import (
    expert_group_sizes,
    expert_layer,
    price_expert_layer,
    resolve_expert_layer,
)
from meshwave.engine.document.problems import problems
from meshwave.engine.experts import expert_schedules
from meshwave.engine.findings import DesignError
from tests._findings import check_fixes, find_problems

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


def problem_params(
    dp: int = 4, tp: int = 2, moe: dict[str, Any] | None = None, **experts: Any
) -> list[tuple[str, str, dict[str, Any]]]:
    design = expert_design(dp, tp, moe, **experts)
    return [(problem.where, problem.code, dict(problem.params)) for problem in problems(design)]


def expert_design(dp: int = 4, tp: int = 2, moe: dict[str, Any] | None = None, **experts: Any) -> Any:
    model = {**BASE["model"], "moe": {**BASE["model"]["moe"], **(moe or {})}}
    mesh = {"name": "A", "devices": list(range(dp * tp)), "axes": {"dp": dp, "tp": tp}}
    return parse_design({**BASE, "model": model, "meshes": [mesh], "experts": experts}, draft=True)


QUIET = {"schedule": "parm-s2", "ep": 4}


def test_layers_with_a_placement_of_their_own_are_checked_one_by_one() -> None:
    two_each = [[0, 2], [1, 3], [4, 6], [5, 7]]
    good = {**QUIET, "layers": [{"layer": 1, "placement": two_each, "load": "zipf"}], "rebalance_steps": 5}
    assert problem_params(dp=2, **good) == []
    wrong = [{"layer": 3, "placement": two_each[:3]}, {"layer": 2}, {"layer": 1, "load": [1.0]}, {"layer": 1}]
    found = [(where, code) for where, code, _ in problem_params(dp=2, **QUIET, layers=wrong)]
    assert found == [
        ("experts.layers[0].placement", "unplaced_expert"),
        ("experts.layers[1].layer", "layer_without_experts"),
        ("experts.layers[2].load", "load_size"),
        ("experts.layers[3].layer", "repeated_expert_layer"),
    ]
    copied = {"layers": [{"layer": 1, "placement": [[0, 1, 2], [1, 3], [4, 6], [5, 7]]}]}
    uneven = expert_design(dp=2, **QUIET, **copied, rebalance_steps=5)
    (problem,) = problems(uneven)
    assert (problem.where, problem.code) == ("experts.rebalance_steps", "uneven_rebalanced_placement")
    check_fixes(uneven.model_dump(mode="json"), [problem])


def test_a_layer_that_fits_has_no_problems() -> None:
    assert problem_params(**QUIET) == []
    assert problem_params(schedule="ppmoe") == []
    assert problem_params(schedule="deepspeed", ep=2, esp=2, variant="lanes") == []


MISTAKES = [
    ({"ep": 3}, "experts.ep", "indivisible_experts", {"supported": [2, 4]}),
    ({"ep": 1}, "experts.ep", "split_tensor_parallel_groups", {"ep": 1, "esp": 1, "tp": 2, "advice": "set ep to 2"}),
    ({"ep": 1, "esp": 3, "schedule": "parm-s2"}, "experts.ep", "split_expert_groups", {"fitting_ep": 1, "fitting_esp": 1}),
    ({"schedule": "expert-parallel", "ep": 4, "esp": 2}, "experts.esp", "sharded_experts", {"esp": 2}),
    ({"schedule": "deepspeed", "variant": "lanes", "ep": 4, "esp": 1}, "experts.esp", "unequal_lanes", {"mp": 2}),
    ({"ep": 4, "placement": [[0, 1, 2, 3], [4, 5, 6, 7]]}, "experts.placement", "placement_size", {"given": 2, "expected": 4}),
    ({"ep": 4, "placement": [[0, 1], [2, 3], [4, 5], [6, 6, 7]]}, "experts.placement[3]", "repeated_expert", {"expert": 6}),
    ({"ep": 4, "placement": [[0, 1], [2, 3], [4, 5], [6]]}, "experts.placement", "unplaced_expert", {"expert": 7}),
    (
        {"ep": 2, "esp": 2, "placement": [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6]]},
        "experts.placement[3]",
        "unequal_shards",
        {"device": 3, "first": 2, "esp": 2, "experts": [4, 5, 6, 7]},
    ),
    ({"schedule": "ppmoe", "placement": [[0], [1], [2], [3, 4, 5, 6, 7]]}, "experts.placement", "placement_size", {"expected": 2}),
]  # fmt: skip
every_mistake = pytest.mark.parametrize(("experts", "where", "code", "params"), MISTAKES)


@every_mistake
def test_a_mistake_is_a_problem_at_its_key(
    experts: dict[str, Any], where: str, code: str, params: dict[str, Any]
) -> None:
    known = [each for each in problem_params(**experts) if each[:2] == (where, code)]

    assert any(params.items() <= each[2].items() for each in known), problem_params(**experts)


@every_mistake
def test_each_fix_removes_its_problem(experts: dict[str, Any], where: str, code: str, params: dict[str, Any]) -> None:
    document = expert_design(**experts).model_dump(mode="json")

    check_fixes(document, find_problems(document))


def test_devices_that_share_an_expert_have_equal_parts_of_its_width() -> None:
    """Unlike this, a dense block may be divided unevenly over tp."""
    document = expert_design(schedule="parm-s2", ep=2, esp=4).model_dump(mode="json")
    document["model"]["ffn"] = 30

    def error_codes(**experts: Any) -> list[tuple[str, str]]:
        design = parse_design({**document, "experts": {"schedule": "parm-s2", **experts}}, draft=True)
        return [(problem.where, problem.code) for problem in problems(design) if problem.severity == "error"]

    assert error_codes(ep=2, esp=4) == [("experts.esp", "indivisible_expert_width")]
    assert error_codes(ep=4, esp=2) == error_codes(ep=8, esp=1) == error_codes(schedule="ppmoe", ep=1) == []


def test_the_maximum_number_of_experts_is_priced_and_more_are_refused() -> None:
    with pytest.raises(DesignError, match="1000000000 should be at most 65,536"):
        expert_design(moe={"experts": 10**9})

    design = expert_design(moe={"experts": 65_536}, **QUIET)
    assert price_expert_layer(design, design.meshes[0]).expert_weights == 65_536 / 4 * 2 * 64 * 256


def test_an_uneven_placement_needs_no_divisor() -> None:
    assert (
        problem_params(dp=3, tp=1, schedule="expert-parallel", ep=3, placement=[[0, 1, 2], [3, 4, 5, 0], [6, 7]]) == []
    )


def test_a_placement_by_load_with_padded_slots_gives_a_warning() -> None:
    hot = {"schedule": "expert-parallel", "ep": 4, "load": [3, 1, 1, 1, 1, 1, 1, 1]}
    placement = [[0], [1, 2], [3, 4, 0], [5, 6, 7]]
    ((where, code, params),) = problem_params(dp=4, tp=1, **hot, placement=placement)

    assert (where, code) == ("experts.placement", "unbalanced_slots")
    assert (params["slots"], params["tokens"]) == (pytest.approx(1.5), pytest.approx(1.4))
    assert problem_params(dp=4, tp=1, **hot, placement=placement, moe={"capacity_factor": None}) == []
    assert problem_params(dp=4, tp=1, **hot, placement=[[0, 2], [1, 3], [4, 5], [6, 7]]) == []


def test_ep_is_unused_if_experts_are_in_the_tensor_parallel_group() -> None:
    ((where, code, params),) = problem_params(schedule="ppmoe", ep=4)

    assert (where, code) == ("experts.ep", "unused_group_size")
    assert params["value"] == 4
    assert problem_params(dp=1, tp=4, moe={"experts": 6, "top_k": 1}, schedule="ppmoe")[0][0] == "meshes[0].axes.tp"


def test_rounded_up_slots_give_a_warning() -> None:
    ((where, code, params),) = problem_params(**QUIET, moe={"experts": 8, "capacity_factor": 1.2, "top_k": 1}, degree=4)

    assert (where, code) == ("model.moe.capacity_factor", "rounded_capacity")
    assert params == {"slots": 10, "capacity": 16, "mp": 2, "degree": 4}
    assert problem_params(**QUIET, moe={"capacity_factor": None}) == []


@pytest.mark.parametrize("schedule", ["parm-s1", "parm-auto"])
def test_s1_gives_a_warning_if_it_may_drop_other_tokens(schedule: str) -> None:
    told = problem_params(schedule=schedule, ep=4)
    chosen = resolve_expert_layer(expert_design(schedule=schedule, ep=4), expert_design().meshes[0]).schedule

    assert [each[:2] for each in told] == ([("experts.schedule", "partial_gate")] if chosen == "parm-s1" else [])
    assert problem_params(schedule="parm-s1", ep=4, moe={"capacity_factor": None}) == []
    assert problem_params(schedule="parm-s1", ep=4, moe={"capacity_factor": 4.0}) == []  # room for every token
    assert problem_params(dp=4, tp=1, schedule="parm-s1", ep=4) == []


def test_an_indivisible_number_of_tokens_is_refused_for_s1_only() -> None:
    base = expert_design(dp=2, tp=4, schedule="parm-s1", ep=4).model_dump(mode="json")
    base["model"]["sequence"] = 63
    for schedule, refused in (("parm-s1", True), ("parm-s2", False), ("parm-auto", False)):
        base["experts"]["schedule"] = schedule
        design = parse_design(base, draft=True)
        errors = [problem.where for problem in problems(design) if problem.severity == "error"]
        assert errors == (["training.micro_batch_size"] if refused else [])
        if schedule == "parm-auto":
            choice = resolve_expert_layer(design, design.meshes[0]).choice
            assert choice is not None and choice.name == "parm-s2" and choice.code == "parm_s2_only"


# ---- what is left open ----


def test_groups_that_would_cross_a_mesh_are_planned_with_those_that_do_not() -> None:
    design = expert_design(dp=3, tp=2, schedule="parm-s2", ep=4)

    assert expert_group_sizes(design, design.meshes[0]) == (2, 1)
    assert expert_layer(design, design.meshes[0]).devices == 2
    drawn = expert_design(dp=3, tp=2, schedule="parm-s2", ep=4, placement=[[0, 1], [2, 3], [4, 5], [6, 7]])
    assert expert_layer(drawn, drawn.meshes[0]).placement is None  # which are of other groups
    assert {problem.severity for problem in problems(drawn)} == {"warning"}


def test_an_unset_number_of_chunks_becomes_the_fastest() -> None:
    design = expert_design(schedule="parm-s2", ep=4, degree=None)
    mesh = design.meshes[0]
    name, layer, choice = resolve_expert_layer(design, mesh)

    assert (name, choice) == ("parm-s2", None)
    assert layer.degree in (1, 2, 4, 8)
    assert resolve_expert_layer(expert_design(schedule="parm-s2", ep=4, degree=2), mesh).layer.degree == 2


def test_an_automatic_schedule_reports_its_choice_and_the_reason() -> None:
    design = expert_design(schedule="parm-auto", ep=4)
    name, _, choice = resolve_expert_layer(design, design.meshes[0])
    priced = price_expert_layer(design, design.meshes[0])

    assert choice is not None
    assert choice == priced.choice
    assert name == choice.name == priced.name
    assert choice.reason.startswith(f"S{name[-1]} is faster (its messages take ")


def test_a_new_schedule_is_one_file() -> None:
    """The document accepts every selectable schedule in the folder, but no internal variant."""
    schema = type(expert_design()).model_json_schema()["$defs"]["Experts"]["properties"]["schedule"]

    assert set(schema["enum"]) == {name for name, schedule in expert_schedules.items() if schedule.is_listed}


def test_a_loss_over_other_groups_of_tokens_gives_a_warning() -> None:
    """There is one warning per value of dp, and none if the loss is not used or all meshes have the same dp."""

    def warned_sizes(dps: list[int], aux_loss: float) -> list[Any]:
        meshes, at = [], 0
        for name, dp in zip("ABC", dps, strict=False):
            meshes.append({"name": name, "devices": list(range(at, at := at + dp)), "axes": {"dp": dp}})
        model = {**BASE["model"], "moe": {**BASE["model"]["moe"], "aux_loss": aux_loss}}
        training = {"micro_batch_size": 4}
        found = problems(parse_design({**BASE, "model": model, "meshes": meshes, "training": training}, draft=True))
        return [problem.params["sizes"] for problem in found if problem.code == "unequal_token_groups"]

    assert warned_sizes([1, 2, 2], 0.01) == [["dp=1 on A", "dp=2 on B"]]
    assert warned_sizes([1, 2], 0.0) == warned_sizes([2, 2], 0.01) == []
