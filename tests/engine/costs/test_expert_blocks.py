"""Layers with experts: their memory, time and placement, and the reductions of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs import estimate, layers_per_stage
from meshwave.engine.costs.device_sizes import device_sizes, device_workload
from meshwave.engine.costs.expert_blocks import expert_block, expert_layers_per_stage, expert_sharing
from meshwave.engine.costs.flops import model_flops, model_parameters
from meshwave.engine.costs.models.roofline import mesh_prices
from meshwave.engine.costs.operators import Workload
from meshwave.engine.costs.stage_balance import balanced_split, unequal_split
from meshwave.engine.costs.transformer_layers import layer_operators, mlp_operators
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.expert_layers import (
    COMMON,
    device_rates,
    mesh_links,
    price_expert_layer,
    resolve_expert_layer,
)
from meshwave.engine.experts import StepOp, price_expert_schedule, simulate_layer
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op

MODEL = {"kind": "gpt", "layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocab": 300}


def design(dp: int = 2, tp: int = 2, meshes: int = 1, moe: dict[str, Any] | None = None, **experts: Any) -> Design:
    size = dp * tp
    return parse_design(
        {
            "format": "meshwave/1",
            "cluster": {
                "nodes": meshes,
                "devices_per_node": size,
                "device": {"peak_flops": 1e12, "memory_bytes": 8e9, "memory_bandwidth": 1e11},
                "intra_node": {"latency_s": 1e-5, "bandwidth": 1e10},
                "inter_node": {"latency_s": 3e-5, "bandwidth": 1e9},
            },
            "model": {**MODEL, "moe": {"experts": 8, "top_k": 2, "capacity_factor": 1.25, "every": 2, **(moe or {})}},
            "meshes": [
                {"name": f"m{at}", "devices": list(range(at * size, (at + 1) * size)), "axes": {"dp": dp, "tp": tp}}
                for at in range(meshes)
            ],
            "pipeline": {"schedule": "gpipe", "microbatches": 4},
            "experts": {"schedule": "parm-s2", "ep": 4, **experts},
        }
    )


def held_parameters(of: Design) -> Any:
    program = lower(of)
    return device_sizes(of, program, layers_per_stage(of))


def test_every_second_layer_has_experts_for_any_split_into_stages() -> None:
    of = design(meshes=2)

    assert expert_layers_per_stage(of, (4,)) == (2,)
    assert expert_layers_per_stage(of, (1, 3)) == (0, 2)
    assert expert_layers_per_stage(of, (1, 1, 1, 1)) == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("schedule", "experts", "cut", "places"),
    [("parm-s2", {"ep": 4}, 1, 4), ("parm-s1", {"ep": 2, "esp": 2}, 2, 2), ("ppmoe", {"ep": 1}, 1, 2)],
)
def test_a_device_holds_its_gate_and_its_part_of_the_experts(
    schedule: str, experts: dict[str, int], cut: int, places: int
) -> None:
    of = design(schedule=schedule, **experts)
    load = device_workload(of, of.meshes[0])
    dense = sum(operator.parameters for operator in layer_operators(load))
    block = sum(operator.parameters for operator in mlp_operators(load)) - 4 * 64  # without its norm

    found = held_parameters(of)

    hidden, wide = 64, 256
    expert = (2 * hidden + 1) * wide / cut + hidden
    of_ends = (300 / 2 + 32) * hidden + 300 / 2 * hidden + 2 * hidden
    assert found.experts[0, 0] == 2 * 8 / places * expert
    assert found.gates[0, 0] == 2 * 8 * hidden
    expected = 4 * dense - 2 * (block + 2 * hidden) + 2 * (8 / places * expert + 8 * hidden) + of_ends
    assert found.parameters[0, 0] == pytest.approx(expected)


def test_the_most_loaded_device_determines_the_cost() -> None:
    even, uneven = design(), design(placement=[[0, 1, 2, 3], [4, 5], [6], [7, 0]])

    assert held_parameters(uneven).experts[0, 0] == 2 * held_parameters(even).experts[0, 0]
    assert held_parameters(uneven).activation_bytes[0] > held_parameters(even).activation_bytes[0]


def test_a_layer_takes_the_simulated_time_and_that_of_the_rest_of_the_block() -> None:
    of = design()
    mesh = of.meshes[0]
    name, shape, _ = resolve_expert_layer(of, mesh)
    priced = price_expert_schedule(name, shape, mesh_links(of, mesh), device_rates(of))
    prices = mesh_prices(of)[0]
    block = expert_block(of, mesh, device_workload(of, mesh))

    assert block is not None
    forward = simulate_layer(priced, priced.forward).makespan
    assert prices.expert_layer().forward - forward == pytest.approx(
        prices._sequential_seconds(operator for operator in block.operators if operator.name != "experts").forward
    )
    whole = simulate_layer(priced, priced.backward).makespan
    assert block.input_gradient_s + block.weight_gradient_s - block.hidden_s == pytest.approx(whole)
    assert block.hidden_s == pytest.approx(0, abs=1e-12)  # in one chunk nothing hides


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize(("batch", "memory"), [(1, 1e9), (1, 1e11), (64, 1e11), (64, 1e15)])
def test_one_expert_for_all_tokens_costs_as_much_as_a_dense_block(precision: str, batch: int, memory: float) -> None:
    """This holds whether weights, activations or products limit the time."""
    document = design(dp=1, tp=1, moe={"experts": 1, "top_k": 1, "capacity_factor": 1.0}, ep=1).model_dump(mode="json")
    document["training"] = {"micro_batch_size": batch, "precision": precision}
    document["cluster"]["device"]["memory_bandwidth"] = memory
    of = parse_design(document)
    priced = price_expert_layer(of, of.meshes[0])
    dense = mesh_prices(of)[0].part(
        each for each in mlp_operators(device_workload(of, of.meshes[0])) if not is_around_experts(each.name)
    )

    forward, back = (
        next(costed for costed in way if costed.step.op == StepOp.EXPERTS) for way in (priced.forward, priced.backward)
    )

    assert forward.compute_s == pytest.approx([dense.forward])
    assert back.compute_s - back.weights_s == pytest.approx([dense.input_gradient])
    assert back.weights_s == pytest.approx([dense.weight_gradient])


def is_around_experts(name: str) -> bool:
    return "norm" in name or "residual" in name


def test_a_device_with_many_experts_and_few_tokens_is_bound_by_reading_weights() -> None:
    """Every chunk reads all weights again."""

    def forward_s(**changes: Any) -> float:
        of = design(dp=1, tp=1, ep=1, schedule="expert-parallel", **changes)
        steps = price_expert_layer(of, of.meshes[0]).forward
        return float(next(costed.compute_s for costed in steps if costed.step.op == StepOp.EXPERTS).max())

    few = {"moe": {"experts": 8, "top_k": 1, "capacity_factor": 1.0}}
    weights, rows, hidden, wide = 8 * 2 * 64 * 256, 32, 64, 256

    whole = forward_s(**few)

    assert whole == pytest.approx((weights + 2 * rows * (hidden + wide) + 2 * rows * wide) * 4 / 1e11)
    assert forward_s(**few, degree=2) - whole == pytest.approx(weights * 4 / 1e11)


def test_with_chunks_weight_gradients_overlap_with_messages() -> None:
    of = design(degree=4, meshes=2, dp=2)
    two_nodes = of.model_copy(update={"training": of.training.model_copy(update={"micro_batch_size": 64})})
    mesh = of.meshes[0].model_copy(update={"devices": (0, 1, 4, 5)})
    block = expert_block(two_nodes, mesh, device_workload(two_nodes, mesh))

    assert block is not None
    assert block.hidden_s > 0


def test_a_split_backward_defers_the_weight_gradients_of_experts_and_gates() -> None:
    of = design(meshes=2)
    document = of.model_dump(mode="json")
    document["pipeline"] = {"schedule": "zb-h1", "microbatches": 4}
    split = parse_design(document)
    program = lower(split)

    costs = estimate(split, program)

    of_first = [costs.seconds[(program.op == op) & (program.stage == 0)][0] for op in (Op.I, Op.W)]
    with_experts = expert_layers_per_stage(split, costs.layers)[0]
    first = mesh_prices(split)[0].stage(costs.layers[0], first=True, last=False, experts={COMMON: with_experts})
    dense = mesh_prices(split)[0].stage(costs.layers[0] - with_experts, first=True, last=False)
    block = expert_block(split, split.meshes[0], device_workload(split, split.meshes[0]))
    assert block is not None and with_experts
    assert of_first == pytest.approx([first.input_gradient, first.weight_gradient])
    assert first.weight_gradient - dense.weight_gradient > with_experts * block.weight_gradient_s > 0


def test_flops_of_the_model_count_the_experts_that_a_token_visits() -> None:
    of = design()
    dense = of.model.model_copy(update={"moe": None})
    tokens, block, gate = 5 * 32, 4 * 64 * 256, 2 * 64 * 8

    more = model_flops(of.model, 5) - model_flops(dense, 5)

    assert more == pytest.approx(3 * 2 * tokens * ((2 - 1) * block + gate))
    one = 2 * 64 * 256 + 256 + 64
    assert model_parameters(of.model) - model_parameters(dense) == 2 * (7 * one + 8 * 64)


def test_the_load_of_a_dropless_layer_is_that_of_its_hottest_device() -> None:
    hot = [8.0, 1, 1, 1, 1, 1, 1, 1]

    def seconds(**changes: Any) -> float:
        of = design(**changes)
        block = expert_block(of, of.meshes[0], device_workload(of, of.meshes[0]))
        assert block is not None
        return block.forward_s

    for schedule, ep in (("ppmoe", 1), ("parm-s2", 4)):
        assert seconds(schedule=schedule, ep=ep, load=hot) == seconds(schedule=schedule, ep=ep)
        dropless = {"schedule": schedule, "ep": ep, "moe": {"capacity_factor": None}}
        assert seconds(**dropless, load=hot) > seconds(**dropless)


def test_a_layer_with_a_placement_and_load_of_its_own_has_its_own_costs() -> None:
    own = {"placement": [[0, 1], [1, 2, 3], [4, 5], [6, 7]], "load": [8.0, *[1.0] * 7]}
    moe = {"capacity_factor": None}
    alike, same = design(moe=moe), design(moe=moe, **own)
    one = design(moe=moe, layers=[{"layer": 3, **own}])

    costs = [estimate(of, lower(of)) for of in (alike, one, same)]

    forward = [float(each.seconds[0]) for each in costs]
    assert forward[0] < forward[1] < forward[2]
    assert forward[1] == pytest.approx((forward[0] + forward[2]) / 2)
    parameters = [held_parameters(of).experts.sum() for of in (alike, one, same)]
    assert parameters[1] == (parameters[0] + parameters[2]) / 2 > parameters[0]
    reduced = [sum(part.share for part in expert_sharing(of, of.meshes)[0]) for of in (alike, one, same)]
    assert [share * size for share, size in zip(reduced, parameters, strict=True)] == pytest.approx(
        [4 * parameters[0]] * 3
    )


# ---- gradients ----


def test_gradients_of_experts_are_reduced_only_over_the_devices_that_hold_them() -> None:
    of = design(dp=4, tp=2, ep=4)
    parts, partial = expert_sharing(of, of.meshes)

    assert [part.devices for part in parts] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert {part.share for part in parts} == {1.0}
    assert not partial
    assert expert_sharing(design(schedule="parm-s1"), design().meshes)[1]


def test_replicas_of_an_expert_share_its_gradient() -> None:
    of = design(dp=4, tp=1, ep=4, schedule="expert-parallel", placement=[[0, 1, 2], [3, 4], [5, 6, 0], [7]])
    parts, _ = expert_sharing(of, of.meshes)

    assert {part.devices: part.share for part in parts} == {
        (0, 2): 1 / 3,
        (0,): 2 / 3,
        (1,): 2 / 3,
        (2,): 2 / 3,
        (3,): 1 / 3,
    }


def test_weights_without_copies_are_not_reduced() -> None:
    """Each expert has only one copy, so only the other weights are reduced over the data-parallel replicas."""
    alone, twice = design(dp=4, tp=1, schedule="expert-parallel"), design(dp=4, tp=1, ep=2, schedule="expert-parallel")

    def reduced_bytes_of(of: Design) -> float:
        program = lower(of)
        return float(estimate(of, program).seconds[program.op == Op.REDUCE_GRAD].sum())

    assert reduced_bytes_of(twice) > 1.5 * reduced_bytes_of(alone)


# ---- stages ----


def seconds(split: Sequence[int], blocks: Sequence[int], each: Sequence[Sequence[float]]) -> float:
    """Return the seconds of the slowest stage of a split."""
    layers, with_experts, extra = each
    start, found = 0, []
    for stage, n in enumerate(split):
        sparse = sum(start <= block < start + n for block in blocks)
        found.append((n - sparse) * layers[stage] + sparse * with_experts[stage] + extra[stage])
        start += n
    return max(found)


@pytest.mark.slow
@given(data=st.data(), layers=st.integers(1, 9), every=st.integers(1, 3))
def test_the_slowest_stage_is_as_fast_as_in_any_split(data: st.DataObject, layers: int, every: int) -> None:
    stages = data.draw(st.integers(1, min(layers, 4)))
    of_stage = st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=stages, max_size=stages)
    each = [data.draw(of_stage), data.draw(of_stage), data.draw(of_stage)]
    blocks = range(every - 1, layers, every)

    split = unequal_split(layers, blocks, *each)

    assert sum(split) == layers and min(split) >= 1
    cuts = ((0, *inner, layers) for inner in combinations(range(1, layers), stages - 1))
    best = min(seconds(np.diff(cut).tolist(), blocks, each) for cut in cuts)
    assert seconds(split, blocks, each) == pytest.approx(best)


def test_equal_layers_are_split_as_without_experts() -> None:
    each = [1.0] * 4

    assert (
        unequal_split(12, range(12), [9.0] * 4, each, [0.0] * 4) == balanced_split(12, each, [0.0] * 4) == (3, 3, 3, 3)
    )
    assert unequal_split(8, range(1, 8, 2), each, [3.0] * 4, [0.0] * 4) == (2, 2, 2, 2)


def test_a_large_model_is_split_quickly() -> None:
    split = unequal_split(100_000, range(1, 100_000, 2), [1.0] * 512, [2.0] * 512, [0.0] * 512)

    assert sum(split) == 100_000


def test_workloads_of_a_mesh_of_another_dp_have_as_many_tokens() -> None:
    load = Workload.from_model(design().model, batch=2, tp=2)
    assert load.tokens == 64


@pytest.mark.parametrize("device", [{}, {"name": "H100-SXM5-80GB"}])
def test_experts_are_faster_in_fp8_and_the_gate_is_not(device: dict[str, str]) -> None:
    document = design(dp=2, tp=1, schedule="expert-parallel", ep=2).model_dump(mode="json")
    document["model"] |= {"hidden": 4096, "sequence": 8192}
    document["cluster"]["device"] |= {"memory_bandwidth": 1e15, **device}
    seconds = []
    for linear in ("same", "fp8"):
        of = parse_design({**document, "training": {"linear_precision": linear, "precision": "bf16"}})
        priced = price_expert_layer(of, of.meshes[0])
        seconds.append({costed.step.op: float(costed.compute_s.max()) for costed in priced.forward})
    usual, fp8 = seconds

    assert fp8[StepOp.GATE] == usual[StepOp.GATE]
    assert 0.4 * usual[StepOp.EXPERTS] < fp8[StepOp.EXPERTS] < 0.8 * usual[StepOp.EXPERTS]


@pytest.mark.torch
@pytest.mark.parametrize("linear", ["same", "fp8"])
@pytest.mark.parametrize(
    "model", [{}, {"kind": "transformer", "mlp": {"gated": True, "bias": False}}], ids=["plain", "gated"]
)
def test_counted_parameters_are_those_that_the_runtime_builds(linear: str, model: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")

    from meshwave.engine.runtime.experts.build import single_process_factory

    document = design(dp=1, tp=1, ep=1, schedule="expert-parallel").model_dump(mode="json")
    of = parse_design({**document, "model": {**document["model"], **model}, "training": {"linear_precision": linear}})
    block = expert_block(of, of.meshes[0], device_workload(of, of.meshes[0]))
    built = single_process_factory(of, 1.0, torch.float32)(1)
    if linear == "fp8":
        built.use_float8()
    x = torch.randn(32, 64, requires_grad=True)
    kept: dict[int, int] = {}

    def record_tensor(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record_tensor, lambda tensor: tensor):
        built(x)

    assert block is not None
    (experts,) = (operator for operator in block.operators if operator.name == "experts")
    assert sum(parameter.numel() for parameter in built.parameters()) == experts.parameters
    assert experts.parameters - experts.copied == built.gate.weight.numel()
    weights = {parameter.untyped_storage().data_ptr() for parameter in built.parameters()}
    of_autograd = sum(size for at, size in kept.items() if at not in weights)
    assert of_autograd == pytest.approx(experts.kept_bytes, rel=0.03)
