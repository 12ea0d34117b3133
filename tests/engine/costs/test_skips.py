"""Costs of skip connections compared with the paper's sizes, with torch, and with messages counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs import estimate, layers_per_stage
from meshwave.engine.costs.boundary_transfers import boundary_bytes, boundary_seconds
from meshwave.engine.costs.device_sizes import device_sizes, device_workload, skip_joins_per_stage
from meshwave.engine.costs.flops import model_flops, model_parameters, stage_parameters
from meshwave.engine.costs.models.roofline import mesh_prices
from meshwave.engine.costs.operators import Workload
from meshwave.engine.costs.transformer_layers import join_operators
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.model import LanguageModel, Model, model_families
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.predict.questions import Inspector, stage_flops
from meshwave.engine.program.action import Op
from meshwave.engine.schedules import schedules
from tests._strategies import document

MODEL = {"kind": "u-transformer", "layers": 7, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 257}
SENDS = (Op.SEND_F, Op.SEND_B)


def design(pipeline: dict[str, Any], ranks: int, *, layers: int = 7, **sections: Any) -> Design:
    sections = {"cost": {"kind": "roofline"}, **sections}
    model = {**MODEL, "layers": layers}
    return parse_design(document({"microbatches": 4, **pipeline}, ranks, model=model, **sections))


def without_skips(model: Model) -> LanguageModel:
    """Return the same model without skip connections."""
    plain = model_families["bert"].model_validate({**model.model_dump(), "kind": "bert"})
    assert isinstance(plain, LanguageModel)
    return plain


def test_a_join_is_a_product_of_two_widths_to_one() -> None:
    load = Workload.from_model(without_skips(design({"schedule": "gpipe"}, 2).model), batch=3)
    product = join_operators(load)[1]

    assert product.parameters == 2 * 16 * 16 + 16
    assert product.forward.flops == 4 * 3 * 12 * 16 * 16


def test_a_model_has_a_join_for_half_of_its_layers() -> None:
    skipping = design({"schedule": "1f1b"}, 2).model
    plain = without_skips(skipping)
    assert isinstance(skipping, LanguageModel)

    assert model_parameters(skipping) - model_parameters(plain) == 3 * (2 * 16 * 16 + 16)
    assert model_flops(skipping, 5) - model_flops(plain, 5) == 3 * 3 * 4 * 5 * 12 * 16 * 16


def test_joining_layers_are_counted_by_stage_and_priced() -> None:
    of = design({"schedule": "1f1b", "stages": [3, 1, 3]}, 3)
    prices = mesh_prices(of)[0]

    assert skip_joins_per_stage(of, (3, 1, 3)) == (0, 0, 3)
    joining = prices.stage(3, first=False, last=True, joins=3).forward
    assert joining == pytest.approx(
        prices.stage(3, first=False, last=True).forward
        + 3 * prices.part(join_operators(device_workload(of, of.meshes[0]))).forward
    )
    held = device_sizes(of, lower(of), (3, 1, 3))
    load = device_workload(of, of.meshes[0])
    plain = stage_parameters(load, 3, first=False, last=True)
    assert held.parameters[2, 2] == plain + 3 * (2 * 16 * 16 + 16)


def test_layers_are_balanced_with_their_joins() -> None:
    """A join has a seventh of a layer's weights, so the stages of the second half get fewer layers."""
    of = parse_design(
        document(
            {"schedule": "1f1b", "microbatches": 4},
            4,
            model={**MODEL, "layers": 100, "hidden": 64, "vocab": 257},
            cost={"kind": "roofline"},
        )
    )
    layers = layers_per_stage(of)

    assert sum(layers) == 100
    assert sum(layers[:2]) > sum(layers[2:])


def test_a_message_is_priced_by_its_number_of_tensors() -> None:
    of = design({"schedule": "1f1b"}, 3)
    program = lower(of)
    costs = estimate(of, program)
    sends = np.flatnonzero(np.isin(program.op, SENDS))

    assert program.skips.tolist() == [[0, 1, 2], [0, 2, 1]]
    assert set(program.tensors[sends].tolist()) == {1, 3}
    for row in sends.tolist():
        ends = int(program.rank[row]), int(program.peer[row]), int(program.tensors[row])
        assert costs.seconds[row] == boundary_seconds(of, *ends)
        assert costs.bytes[row] == boundary_bytes(of, *ends) == ends[2] * 12 * 16 * 4


def test_in_unit_costs_a_message_takes_one_transfer_per_tensor() -> None:
    of = design({"schedule": "1f1b"}, 3, cost={"kind": "unit", "forward": 1.0, "backward": 2.0, "transfer": 0.25})
    program = lower(of)
    sends = np.isin(program.op, SENDS)

    assert estimate(of, program).seconds[sends].tolist() == (0.25 * program.tensors[sends]).tolist()


def test_tensors_for_a_later_stage_of_the_mesh_take_memory() -> None:
    """Two microbatches pass one mesh in a wave; the skip tensor and its gradient are stored until they are used."""
    of = design({"schedule": "gpipe", "microbatches": 2, "placement": None}, 1)
    wave = design({"schedule": "hanayo", "waves": 1, "microbatches": 2, "stages": [2, 1, 1, 3]}, 2)
    program = lower(wave)
    plain = lower(wave.model_copy(update={"model": without_skips(wave.model)}))

    waiting = (
        device_sizes(wave, program, (2, 1, 1, 3)).working_bytes[0]
        - device_sizes(wave, plain, (2, 1, 1, 3)).working_bytes[0]
    )

    assert program.distant_skips == [(0, 3), (1, 3)]
    assert waiting >= 2 * device_workload(of, of.meshes[0]).hidden_bytes


@pytest.mark.torch
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layers", [(7,), (4, 3), (2, 2, 3), (1, 2, 1, 2, 1), (3, 1, 1, 2)], ids=str)
def test_torch_keeps_the_predicted_bytes(layers: tuple[int, ...], precision: str, recomputed: bool) -> None:
    import torch

    from meshwave.engine.runtime.execution.stages import MESSAGE_DTYPES, LocalStage
    from meshwave.engine.runtime.models import build_stage

    recompute = "full" if recomputed else "none"
    of = design(
        {"schedule": "gpipe", "stages": layers, "recompute": recompute},
        len(layers),
        training={"precision": precision, "micro_batch_size": 3},
    )
    program = lower(of)
    said = device_sizes(of, program, layers).activation_bytes
    item, last = MESSAGE_DTYPES[precision], len(layers) - 1
    for stage in range(len(layers)):
        module = build_stage(of.model, layers, stage, 0)
        local = LocalStage(module, precision, torch.device("cpu"), 1.0, recomputes=recomputed)
        kept: dict[int, tuple[Any, int]] = {}

        def record_saved_tensor(tensor: Any, kept: Any = kept) -> Any:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = tensor, storage.nbytes()
            return tensor

        def run_microbatch(
            stage: int = stage, module: Any = module, local: Any = local, record_saved_tensor: Any = record_saved_tensor
        ) -> None:
            tokens = torch.randint(0, 256, (3, 12))
            came = {(a, b): n for a, b, n in program.skips.tolist()}

            def message(tensors: int) -> Any:
                return torch.randn(3, 12, tensors * 16).to(item)

            x = message(1 + came.get((stage - 1, stage), 0)) if stage else tokens
            skips = tuple(message(came[source, stage]) for source in module.skip_sources)
            _, saved = local.forward(x, tokens.clone() if stage == last else None, skips)
            saved = saved._replace(skip_outputs=()) if recomputed else saved
            for tensor in (saved.x, saved.y, saved.targets, *saved.skips, *saved.skip_outputs):
                if tensor is not None and tensor.numel() > 1:
                    record_saved_tensor(tensor)

        with torch.autograd.graph.saved_tensors_hooks(record_saved_tensor, lambda tensor: tensor):
            run_microbatch()
            before = set(kept)
            run_microbatch()
        found = sum(size for place, (_, size) in kept.items() if place not in before)
        scalars = 8 * 4 if stage == last and not recomputed else 0
        assert found == pytest.approx(said[stage], abs=scalars), stage


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in schedules if name != "custom"])
def test_every_schedule_is_priced(name: str) -> None:
    of = design({"schedule": name, "microbatches": 8}, 4, layers=24)
    program = lower(of)
    costs = estimate(of, program)

    assert costs.seconds.shape == (len(program),)
    assert (costs.bytes[np.isin(program.op, SENDS)] > 0).all()


def test_flops_of_the_stages_sum_to_those_of_the_model() -> None:
    """The sum includes what the attention kernel recomputes."""
    of = design({"schedule": "1f1b"}, 4, layers=12)
    prediction = predict(of)
    found = stage_flops(of, prediction.program, prediction.costs)

    assert found is not None
    once = found.flops[[Op.F, Op.B]].sum() * of.sequences_per_step
    assert once == pytest.approx(prediction.costs.model_flops, rel=0.05)


def test_every_gap_and_the_critical_path_are_explained() -> None:
    """A gap before a computation that needs a skip tensor is explained by that tensor."""
    links = {"latency_s": 1e-5, "bandwidth": 1e9}
    pipeline = {"schedule": "1f1b", "microbatches": 4, "stages": [4, 1, 4]}
    slow = document(pipeline, 3, model={**MODEL, "layers": 9}, cost={"kind": "roofline"})
    slow["cluster"] |= {"intra_node": links, "inter_node": {**links, "bandwidth": 1e7}}
    prediction = predict(parse_design(slow))
    timeline = prediction.timeline
    inspector = Inspector(timeline)

    waited = {str(timeline.action(cause)) for cause in timeline.cause[timeline.is_compute].tolist() if cause >= 0}
    assert any("TO" in action for action in waited), "some wait for a skip"
    for span in np.flatnonzero(timeline.is_compute).tolist():
        cause = int(timeline.cause[span])
        if cause >= 0 and timeline.other[cause] >= 0:
            told = inspector.explain_idle(int(timeline.rank[span]), float(timeline.start[span]) - 1e-9)
            assert told is None or told.words
