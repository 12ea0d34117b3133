"""Formulas of a U-Net compared with the modules, FLOPs and saved tensors of torch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from meshwave.engine.costs import estimate, layers_per_stage
from meshwave.engine.costs.device_sizes import device_sizes
from meshwave.engine.costs.profile_coverage import coverage_warnings
from meshwave.engine.costs.profile_store import store_profile
from meshwave.engine.costs.stage_balance import block_split
from meshwave.engine.document import parse_design
from meshwave.engine.families._u_net_blocks import element_count
from meshwave.engine.families.u_net import UNet
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import SENDS, Op
from tests._strategies import examples
from tests.engine.costs.profiles import example_profile, profile_of_actions

Document = dict[str, Any]


@st.composite
def u_nets(draw: st.DrawFn) -> UNet:
    levels = draw(st.integers(1, 3))
    size = 2 ** (levels - 1) * draw(st.integers(1, 3))
    sides = [size >> level for level in range(levels)]
    try:
        return UNet(
            kind="u-net",
            image_size=size,
            image_channels=draw(st.sampled_from((1, 3))),
            base_channels=draw(st.sampled_from((2, 4, 6))),
            channel_multipliers=tuple(draw(st.lists(st.integers(1, 3), min_size=levels, max_size=levels))),
            blocks_per_level=draw(st.integers(1, 2)),
            attention_resolutions=tuple(draw(st.sets(st.sampled_from(sides)))),
            heads=draw(st.sampled_from((1, 2))),
        )
    except ValidationError:
        raise AssertionError("sizes that suit each other") from None


@given(u_nets())
def test_input_channels_of_a_block_are_those_of_its_predecessor_and_skip_connection(model: UNet) -> None:
    blocks = model.blocks

    assert len(blocks) == model.layers
    assert all(block.shape_out == after.shape_in for block, after in pairwise(blocks))
    assert blocks[-1].shape_out == (model.base_channels * model.channel_multipliers[0], model.image_size)
    for source, target in model.skips:
        assert blocks[source].shape_skipped == (blocks[target].skipped, blocks[target].side)
    for number, block in enumerate(blocks):
        assert model.onward_message_units(number) * model.hidden == element_count(block.shape_out) + model.time_width
        assert model.skip_message_units(number) * model.hidden == element_count(block.shape_skipped)


@pytest.mark.torch
@given(u_nets())
@settings(max_examples=examples(12))
def test_torch_counts_equal_parameters_and_flops(model: UNet) -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from meshwave.engine.runtime.models import build_stage

    module, images = build_stage(model, [model.layers], 0, 0), 2
    inputs = torch.randn(images, model.image_channels * model.image_size**2 + 1)
    noise = torch.randn(images, model.image_channels, model.image_size, model.image_size)
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):  # whose products it counts
        loss = module(inputs, noise)
    forward = counter.get_total_flops()
    with counter, sdpa_kernel(SDPBackend.MATH):
        module(inputs, noise).backward()
    loss.detach()

    assert sum(parameter.numel() for parameter in module.parameters()) == model.parameters
    assert 3 * forward == model.flops(images)
    # What no gradient is wanted of, the images, costs nothing; nor do two of the five products of our attention,
    # which computes its scores again where the counted one keeps them.
    load = model.workload(images)
    operators = model.stage_operators(load, 0, model.layers, last=True)
    backward = sum(each.input_gradient.flops + each.weight_gradient.flops for each in operators)
    again = sum(each.forward.flops / 2 for each in operators if each.name == "attention")
    waves = next(each for each in operators if each.name == "noise step in").input_gradient.flops
    assert counter.get_total_flops() - forward in (backward - again, backward - again - waves)


MODEL: Document = {
    "kind": "u-net", "image_size": 16, "base_channels": 8, "channel_multipliers": [1, 2, 2], "blocks_per_level": 2,
    "attention_resolutions": [8], "heads": 2,
}  # fmt: skip
LINK = {"latency_s": 1e-5, "bandwidth": 1e9}


def u_net_document(pipeline: Document, meshes: int, **training: Any) -> Document:
    device = {"peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10, "efficiency": 0.5}
    return {
        "format": "meshwave/1",
        "cluster": {
            "nodes": 1, "devices_per_node": meshes, "device": device, "intra_node": LINK, "inter_node": LINK,
        },
        "model": MODEL,
        "meshes": [{"name": f"m{number}", "devices": [number]} for number in range(meshes)],
        "pipeline": pipeline,
        "training": {"micro_batch_size": 3, **training},
    }  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
@pytest.mark.parametrize("stages", [[13], [2, 3, 8], [5, 2, 6], [1, 1, 1, 10]])
def test_torch_keeps_the_bytes_predicted_by_the_formulas(stages: list[int], precision: str) -> None:
    import torch

    from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES
    from meshwave.engine.runtime.models import build_stage

    pipeline = {"schedule": "gpipe", "microbatches": 2, "stages": stages}
    design = parse_design(u_net_document(pipeline, len(stages), precision=precision))
    program = lower(design)
    held = device_sizes(design, program, tuple(stages))
    model, rows, dtype = design.model, 3, DTYPES[precision]
    for stage in range(len(stages)):
        module = build_stage(model, stages, stage, 0, dtype)
        kept: dict[int, int] = {}

        def record_saved_tensor(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            own = tensor.untyped_storage()
            kept[own.data_ptr()] = own.nbytes()
            return tensor

        def message(units: int) -> torch.Tensor:
            made = torch.randn(rows, 1, units * model.hidden).to(MESSAGE_DTYPES[precision])
            return made.requires_grad_()

        came = [units for source, target, units in program.skips.tolist() if target == stage and source != stage - 1]
        with_it = [units for source, target, units in program.skips.tolist() if (source, target) == (stage - 1, stage)]
        size = model.image_channels * model.image_size**2
        x = torch.randn(rows, size + 1) if stage == 0 else message(int(program.onward_units[stage - 1]) + sum(with_it))
        given = [x, *(message(units) for units in came)]
        noise = torch.randn(rows, model.image_channels, model.image_size, model.image_size)
        weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        watched = torch.autograd.graph.saved_tensors_hooks(record_saved_tensor, lambda tensor: tensor)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), watched:
            made = module(x, noise, given[1:])
        alive = [*given, *(made if isinstance(made, tuple) else (made,))]
        for tensor in alive:
            record_saved_tensor(tensor)
        of_weights = weights | _casts(kept, module, precision)
        total = sum(size for place, size in kept.items() if place not in of_weights)
        assert total == pytest.approx(held.activation_bytes[stage], rel=0.03), stage


def _casts(kept: dict[int, int], module: Any, precision: str) -> set[int]:
    """Return the storages of the bf16 copies of weights that autocast makes, which the runtime counts with the weights."""
    if precision != "bf16":
        return set()
    wanted = [parameter.numel() * 2 for parameter in module.parameters() if parameter.dim() > 1]
    found = set()
    for place, size in kept.items():
        if size in wanted:
            wanted.remove(size)
            found.add(place)
    return found


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_a_split_backward_keeps_the_bytes_of_the_formulas(precision: str) -> None:
    import torch

    from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
    from meshwave.engine.runtime.models import build_stage

    stages = [5, 2, 6]
    design = parse_design(
        u_net_document({"schedule": "zb-h1", "microbatches": 3, "stages": stages}, 3, precision=precision)
    )
    program = lower(design)
    held = device_sizes(design, program, tuple(stages))
    model: Any = design.model
    module = build_stage(model, stages, 1, 0, DTYPES[precision])
    local = LocalStage(module, precision, torch.device("cpu"), 1.0, splits_backward=True)

    def message(units: int) -> torch.Tensor:
        return torch.randn(3, 1, units * model.hidden).to(MESSAGE_DTYPES[precision])

    ends = [
        int(program.onward_units[at]) + sum(u for a, b, u in program.skips.tolist() if (a, b) == (at, at + 1))
        for at in (0, 1)
    ]
    _, saved = local.forward(message(ends[0]), None)
    _, due = local.input_gradient(saved, message(ends[1]))

    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    cast = {id(each) for part in module.modules() for each in (getattr(part, "cast", None) or ())}
    tensors = [arg for left in due for arg in left.args if isinstance(arg, torch.Tensor) and id(arg) not in cast]
    sizes_of = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    total = sum(size for place, size in sizes_of.items() if place not in weights)
    assert total == pytest.approx(held.deferred_bytes[1], rel=0.03)


@pytest.mark.parametrize("pipeline", [{"schedule": "1f1b"}, {"schedule": "hanayo", "waves": 2}, {"schedule": "zb-h1"}])
def test_a_message_is_priced_by_its_size(pipeline: Document) -> None:
    design = parse_design(u_net_document({**pipeline, "microbatches": 4}, 2))
    program = lower(design)
    costs, unit_bytes = estimate(design, program), 3 * design.model.hidden * 4

    for row in [row for row in range(len(program)) if program.op[row] in SENDS]:
        assert costs.bytes[row] == program.tensors[row] * unit_bytes
        assert costs.seconds[row] == pytest.approx(1e-5 + costs.bytes[row] / 1e9)
    first = layers_per_stage(design)[0]
    handed = element_count(design.model.blocks[first - 1].shape_out) + design.model.time_width
    assert program.onward_units[0] * design.model.hidden == handed


def test_stages_are_balanced_by_the_costs_of_their_blocks() -> None:
    """Blocks at full resolution take longest, so a stage in the middle of the model has more blocks."""
    design = parse_design(u_net_document({"schedule": "1f1b", "microbatches": 4}, 4))
    program, layers = lower(design), layers_per_stage(design)
    costs = estimate(design, program)
    forward = costs.seconds[program.tables.forward[:, 0]]

    assert sum(layers) == design.model.layers
    assert max(layers) > 2 * min(layers)
    equal = parse_design(u_net_document({"schedule": "1f1b", "microbatches": 4, "stages": [4, 3, 3, 3]}, 4))
    lowered = lower(equal)
    assert forward.max() < estimate(equal, lowered).seconds[lowered.tables.forward[:, 0]].max()


@pytest.mark.slow
@given(st.data())
def test_a_split_of_unequal_blocks_has_the_fastest_slowest_stage(data: st.DataObject) -> None:
    stages, layers = data.draw(st.integers(1, 4)), data.draw(st.integers(4, 8))
    seconds = st.lists(st.integers(0, 9).map(float), min_size=layers, max_size=layers)
    blocks = data.draw(st.lists(seconds, min_size=stages, max_size=stages))
    extra = data.draw(st.lists(st.integers(0, 5).map(float), min_size=stages, max_size=stages))

    def slowest(split: tuple[int, ...]) -> float:
        starts = [sum(split[:stage]) for stage in range(stages)]
        parts = zip(blocks, extra, starts, split, strict=True)
        return max(sum(each[start : start + count]) + more for each, more, start, count in parts)

    found = block_split(blocks, extra)

    assert sum(found) == layers
    assert min(found) >= 1
    assert slowest(found) == min(map(slowest, _splits(layers, stages)))


def _splits(layers: int, stages: int) -> list[tuple[int, ...]]:
    if stages == 1:
        return [(layers,)]
    return [(n, *rest) for n in range(1, layers - stages + 2) for rest in _splits(layers - n, stages - 1)]


def test_unit_costs_charge_a_message_by_its_size() -> None:
    document = u_net_document({"schedule": "1f1b", "microbatches": 4, "stages": [1, 1, 11]}, 3)
    document["cost"] = {"kind": "unit", "forward": 1, "backward": 2, "transfer": 0.5}
    design = parse_design(document)
    program = lower(design)
    costs = estimate(design, program)

    sends = (program.op == Op.SEND_F) & (program.other < 0)
    expected = 0.5 * program.tensors[sends] / program.onward_units.max()
    assert costs.seconds[sends].tolist() == pytest.approx(expected.tolist())


def test_a_measured_run_prices_its_stages() -> None:
    """Forwards took three times as long as their roofline, and backwards twice."""
    document = u_net_document({"schedule": "1f1b", "microbatches": 4, "stages": [4, 9]}, 2)
    plain = parse_design(document)
    program = lower(plain)
    store_profile(profile_of_actions({"op": "F", "seconds": 3.0}, {"op": "B", "seconds": 2.0}), "a-run.json")
    measured = parse_design(document | {"cost": {"kind": "calibrated", "profile": "a-run.json"}})

    before, after = estimate(plain, program).seconds, estimate(measured, program).seconds

    forward, backward = program.op == Op.F, program.op == Op.B
    assert after[forward].tolist() == pytest.approx((3 * before[forward]).tolist())
    assert after[backward].tolist() == pytest.approx((2 * before[backward]).tolist())


def test_a_profile_without_its_blocks_gives_a_warning() -> None:
    design = parse_design(u_net_document({"schedule": "1f1b", "microbatches": 4}, 2))

    found = [(problem.where, problem.code) for problem in coverage_warnings(design, example_profile())]

    assert found[0] == ("model.kind", "unmeasured_blocks")
    assert not {"model.hidden", "model.sequence", "model.vocab"} & {where for where, _ in found}
