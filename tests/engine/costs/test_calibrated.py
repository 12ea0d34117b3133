"""Prices from measurements: lines of blocks, links and updates, or the actions of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs import estimate, layers_per_stage
from meshwave.engine.costs import transformer_layers as flops
from meshwave.engine.costs.cost_model import Costs
from meshwave.engine.costs.device_sizes import device_workload
from meshwave.engine.costs.models.roofline import mesh_prices
from meshwave.engine.costs.operators import PRECISIONS, Workload
from meshwave.engine.costs.profile import ActionTime, KeptActivations, MatrixRate, MeasuredCollective
from meshwave.engine.costs.profile_coverage import coverage_warnings
from meshwave.engine.costs.profile_prices import Slowness, action_distance, measured_design, phase_work
from meshwave.engine.costs.profile_store import list_profiles, load_stored_profile, store_profile
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import check_design, predict
from meshwave.engine.program.action import Op
from tests.engine.costs.profiles import FORWARD, block, example_profile, profile_of_actions

NAME = "calibrated-test.json"
Make = Callable[..., Design]


def program_costs(made: Design, profile: Any) -> Costs:
    store_profile(profile, NAME)
    return estimate(made, lower(made))


def seconds_of_action(costs: Costs, made: Design, op: Op, stage: int) -> float:
    program = lower(made)
    return float(costs.seconds[(program.op == op) & (program.stage == stage)][0])


def calibrated_design(design: Make, ranks: int = 4, **changes: Any) -> Design:
    return design(ranks, cost={"kind": "calibrated", "profile": NAME}, **changes)


# ---- lines ----


def test_a_stage_takes_the_time_of_its_fitted_lines(design: Make) -> None:
    made = calibrated_design(design, pipeline={"stages": [8] * 4})
    costs = program_costs(made, example_profile())

    load = device_workload(made, made.meshes[0])
    by_hand = 0.0
    for operator in flops.layer_operators(load):
        rate = FORWARD["attention" if operator.name == "attention" else "products"]
        by_hand += rate * operator.forward.flops + FORWARD["bytes"] * operator.forward.bytes
    assert seconds_of_action(costs, made, Op.F, 1) == pytest.approx(8 * (1e-3 + by_hand) + 1e-4)
    (embedding,) = flops.embedding_operators(load)
    first = 8 * (1e-3 + by_hand) + 1e-4 + FORWARD["bytes"] * embedding.forward.bytes
    assert seconds_of_action(costs, made, Op.F, 0) == pytest.approx(first)


def test_a_full_backward_has_a_line_of_its_own(design: Make) -> None:
    profile = example_profile()
    layer = profile.blocks[0]
    twice = layer.fits["backward"].model_copy(update={"per": {**layer.fits["backward"].per, "block": 5e-3}})
    slow = layer.model_copy(update={"fits": {**layer.fits, "backward": twice}})
    profile = profile.model_copy(update={"blocks": (slow, *profile.blocks[1:])})
    whole, split = (
        calibrated_design(design, schedule=schedule, pipeline={"stages": [8] * 4}) for schedule in ("1f1b", "zb-h1")
    )

    halves = [seconds_of_action(program_costs(split, profile), split, op, 1) for op in (Op.I, Op.W)]

    assert seconds_of_action(program_costs(whole, profile), whole, Op.B, 1) == pytest.approx(sum(halves) + 8 * 3e-3)


@pytest.mark.parametrize("tp", [1, 2])
def test_recomputed_layers_take_the_measured_time_of_their_forward(design: Make, tp: int) -> None:
    def backward_s(recompute: str) -> float:
        made = calibrated_design(design, tp=tp, pipeline={"stages": [8] * 4, "recompute": recompute})
        costs = program_costs(made, example_profile())
        return seconds_of_action(costs, made, Op.B, 1) - (1e-4 if recompute == "full" else 0)  # another action

    kept, attention, operators, layers, stage = map(backward_s, ("none", "attention", "operators", "layers", "full"))

    assert kept < attention < operators < layers
    assert layers == pytest.approx(stage)


def test_messages_take_the_measured_time_of_their_link(design: Make) -> None:
    made = calibrated_design(design)
    costs, program = program_costs(made, example_profile()), lower(made)

    sends = costs.seconds[program.op == Op.SEND_F]

    assert sends == pytest.approx(1e-4 + 1e-9 * 32 * 64 * 4)


def test_the_update_takes_the_measured_time_of_the_optimizer(design: Make) -> None:
    made = calibrated_design(design, pipeline={"stages": [8] * 4}, training={"clip_norm": None})
    program = lower(made)
    costs = program_costs(made, example_profile())

    parameters = costs.static_bytes["weights"] / 4

    assert costs.seconds[program.op == Op.STEP] == pytest.approx(1e-3 + 1e-9 * parameters)


@pytest.mark.parametrize(("precision", "seconds"), [("fp32", 1.0), ("bf16", 2.0), ("pure_bf16", 3.0), ("fp64", 1.0)])
def test_the_update_takes_the_time_of_weights_in_its_precision(precision: str, seconds: float, design: Make) -> None:
    (line,) = example_profile().optimizer
    lines = [
        line.model_copy(update={"precision": each, "alpha_s": float(number), "s_per_parameter": 0.0})
        for number, each in enumerate(("fp32", "bf16", "pure_bf16"), 1)
    ]
    made = calibrated_design(design, training={"clip_norm": None, "precision": precision})
    program = lower(made)

    costs = program_costs(made, example_profile(optimizer=tuple(lines)))

    assert set(costs.seconds[program.op == Op.STEP]) == {seconds}


def test_all_reduces_of_measured_group_sizes_use_their_line_and_others_a_ring(design: Make) -> None:
    line = MeasuredCollective(
        collective="all_reduce", group="mp", size=2, alpha_s=1.0, beta_s_per_byte=0.0, r2=1.0, samples=((1e3, 1.0),)
    )
    made = calibrated_design(design, 2, tp=2, schedule="gpipe")
    alone = seconds_of_action(program_costs(made, example_profile()), made, Op.F, 0)

    assert seconds_of_action(program_costs(made, example_profile(collectives=(line,))), made, Op.F, 0) == pytest.approx(
        alone + 33, rel=0.01
    )


def test_layers_are_balanced_by_measured_times(design: Make) -> None:
    made = calibrated_design(design)
    store_profile(example_profile(blocks=(block("layer"), block("embedding"), _slow_head())), NAME)

    layers = layers_per_stage(made)

    assert sum(layers) == 32
    assert layers[-1] < min(layers[:-1])


def _slow_head() -> Any:
    head = block("head")
    fits = {phase: fit.model_copy(update={"per": {**fit.per, "action": 4e-3}}) for phase, fit in head.fits.items()}
    return head.model_copy(update={"fits": fits})


def test_allocated_bytes_replace_those_of_the_formulas(design: Make) -> None:
    made = calibrated_design(design, pipeline={"stages": [8] * 4})
    usual = program_costs(made, example_profile()).activation_bytes

    kept = program_costs(
        made, example_profile(memory=(KeptActivations(kind="layer", precision="fp32", samples=((100.0, 150.0),)),))
    )

    assert kept.activation_bytes[1] == pytest.approx(1.5 * usual[1])
    assert usual[3] < kept.activation_bytes[3] < 1.5 * usual[3]


def test_utilization_is_reported_against_the_measured_rate(design: Make) -> None:
    made = calibrated_design(design)

    assert program_costs(made, example_profile()).peak_flops == 4 * 312e12
    assert program_costs(made, example_profile(matrix=(MatrixRate(precision="fp32", flops=1e12),))).peak_flops == 4e12


@given(
    hidden=st.sampled_from([64, 256, 1024]),
    sequence=st.sampled_from([32, 128]),
    batch=st.integers(1, 4),
    phase=st.sampled_from(["forward", "input_gradient", "weight_gradient"]),
)
def test_terms_contain_all_flops_and_bytes_of_a_block(hidden: int, sequence: int, batch: int, phase: Any) -> None:
    load = Workload(sequence, hidden, batch, PRECISIONS["fp32"], ffn_hidden=4 * hidden, heads=4, vocab=300)
    operators = flops.layer_operators(load)

    work = phase_work(operators, phase)

    assert work["products"] + work["attention"] == pytest.approx(sum(getattr(each, phase).flops for each in operators))
    assert work["bytes"] == pytest.approx(sum(getattr(each, phase).bytes for each in operators))


# ---- a run's actions ----


def test_an_action_has_the_slowness_of_the_most_similar_action_of_the_run(design: Make) -> None:
    plain = design(4, pipeline={"stages": [8] * 4})
    made = plain.model_copy(update={"cost": calibrated_design(design).cost})
    profile = profile_of_actions({"op": "F"}, {"op": "F", "first": True, "seconds": 3.0}, {"op": "B", "seconds": 4.0})

    found, roofline = program_costs(made, profile), estimate(plain, lower(plain))

    for op, stage, times in ((Op.F, 1, 2), (Op.F, 0, 3), (Op.B, 1, 4), (Op.STEP, -1, 1)):
        assert seconds_of_action(found, made, op, stage) == pytest.approx(
            times * seconds_of_action(roofline, plain, op, stage)
        )


def test_halves_of_a_backward_use_whole_ones_if_the_run_had_no_halves() -> None:
    like = ActionTime(op="I", layers=8, seconds=1.0, roofline_s=1.0)

    assert Slowness(profile_of_actions({"op": "B", "seconds": 5.0}).actions).of(like) == 5.0
    assert Slowness(profile_of_actions({"op": "F"}).actions).of(like) == 1.0


@given(layers=st.integers(1, 100), first=st.booleans(), last=st.booleans(), tp=st.sampled_from([1, 2, 4]))
def test_the_most_similar_action_is_the_action_itself(layers: int, first: bool, last: bool, tp: int) -> None:
    own = ActionTime(op="F", layers=layers, first=first, last=last, tp=tp, seconds=1.0, roofline_s=1.0)

    assert action_distance(own, own) == 0
    assert action_distance(own, own.model_copy(update={"first": not first})) > action_distance(
        own, own.model_copy(update={"layers": 2 * layers})
    )


def test_the_roofline_of_a_run_is_that_of_its_device(design: Make) -> None:
    made = calibrated_design(design)
    slow = made.cluster.device.model_copy(update={"peak_flops": 1e9})
    profile = profile_of_actions({"op": "F"}).model_copy(update={"reference": slow})

    assert measured_design(made, profile).cluster.device.peak_flops == 1e9


# ---- what was not measured ----


def test_a_design_within_the_measured_range_has_no_warnings(design: Make) -> None:
    made = calibrated_design(design)

    assert coverage_warnings(made, example_profile()) == []


@pytest.mark.parametrize(
    ("changes", "where", "code"),
    [
        ({"model": {"hidden": 256}}, "model.hidden", "unmeasured_size"),
        ({"model": {"sequence": 64}}, "model.sequence", "unmeasured_size"),
        ({"training": {"micro_batch_size": 2}}, "training.micro_batch_size", "unmeasured_size"),
        ({"model": {"vocab": 1000}}, "model.vocab", "unmeasured_size"),
        ({"training": {"precision": "bf16"}}, "training.precision", "unmeasured_precision"),
        ({"training": {"optimizer": "sgd"}}, "training.optimizer", "unmeasured_optimizer"),
        ({"model": {"moe": {"experts": 4}}}, "model.moe", "unmeasured_blocks"),
        ({"model": {"kind": "u-transformer"}}, "model.kind", "unmeasured_blocks"),
    ],
)
def test_an_unmeasured_part_gives_a_warning_at_its_key(
    design: Make, changes: dict[str, Any], where: str, code: str
) -> None:
    found = coverage_warnings(calibrated_design(design, **changes), example_profile())

    assert (where, code) in [(problem.where, problem.code) for problem in found]
    assert {problem.severity for problem in found} == {"warning"}


def test_an_unmeasured_link_between_nodes_gives_a_warning(design: Make) -> None:
    made = calibrated_design(design, 4, dp=4)

    found = [(problem.where, problem.code) for problem in coverage_warnings(made, example_profile())]

    assert [each for each in found if each[0].startswith("cluster")] == [
        ("cluster.inter_node", "unmeasured_inter_node_link")
    ]


def test_an_unmeasured_all_reduce_gives_a_warning(design: Make) -> None:
    made = calibrated_design(design, 2, tp=2, schedule="gpipe")

    found = [(problem.where, problem.code) for problem in coverage_warnings(made, example_profile())]

    assert found == [("meshes[0].axes.tp", "unmeasured_all_reduce")]


def test_a_run_without_such_stages_gives_a_warning(design: Make) -> None:
    told = coverage_warnings(calibrated_design(design, 2, tp=2), profile_of_actions({"op": "F"}))

    assert any(problem.where == "meshes[0].axes.tp" for problem in told)


def test_warnings_are_listed_with_the_prediction(design: Make) -> None:
    store_profile(example_profile(), NAME)

    assert any(
        "hidden size of 256" in str(each) for each in predict(calibrated_design(design, model={"hidden": 256})).warnings
    )


# ---- profiles that are kept ----


def test_a_profile_is_stored_and_found_by_its_name() -> None:
    store_profile(example_profile(), "kept-here")

    assert "kept-here.json" in list_profiles()
    assert load_stored_profile("kept-here.json") == example_profile()
    store_profile(example_profile(blocks=()), "kept-here.json")
    assert load_stored_profile("kept-here.json").blocks == ()


def test_a_missing_profile_is_a_problem_at_its_key(design: Make) -> None:
    made = design(cost={"kind": "calibrated", "profile": "nowhere.json"})

    (problem,) = [each for each in check_design(made) if each.severity == "error"]

    assert (problem.where, problem.code) == ("cost.profile", "missing_profile")
    assert problem.fixes[-1].label == "use roofline costs"
    with pytest.raises(DesignError, match=r"cost\.profile"):
        predict(made)


def test_a_file_that_is_not_a_profile_is_a_problem_at_its_key(design: Make) -> None:
    path = store_profile(example_profile(), "broken.json")
    path.write_text('{"format": "meshwave-profile/1"}')

    (problem,) = check_design(design(cost={"kind": "calibrated", "profile": "broken.json"}))

    assert (problem.where, problem.code) == ("cost.profile", "invalid_profile")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../x", "a\\b"])
def test_a_name_outside_the_folder_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not a valid profile name"):
        store_profile(example_profile(), name)


def test_the_layers_of_a_block_use_the_same_lines(design: Make) -> None:
    made = calibrated_design(design)
    store_profile(example_profile(), NAME)
    prices = mesh_prices(made)[0]
    load = device_workload(made, made.meshes[0])

    parts = prices.part(flops.attention_operators(load)) + prices.part(flops.mlp_operators(load))

    assert parts.forward == pytest.approx(prices.layer.forward - FORWARD["block"])
    assert np.isclose(parts.backward, prices.layer.backward - 2 * FORWARD["block"])


def test_measured_actions_are_as_fast_as_measured_also_beside_gathers(design: Make) -> None:
    """The run whose forwards took half the predicted time also gathered its weights in that time."""
    slow = {"devices_per_node": 1, "nodes": 8, "inter_node": {"latency_s": 1e-6, "bandwidth": 1e9}}
    state = {"sharding": "parameters", "unsharded_stages": 0}
    made = calibrated_design(design, 2, dp=2, cluster=slow, training=state)
    equal, halved = (program_costs(made, profile_of_actions({"op": "F", "seconds": seconds})) for seconds in (1.0, 0.5))

    forwards = lower(made).op == Op.F

    assert halved.seconds[forwards] == pytest.approx(equal.seconds[forwards] / 2)
