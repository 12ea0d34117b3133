"""Tensor-parallel shards of a stage equal the whole stage and match the cost model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from meshwave.engine.costs import flops, stage_memory, transformer_layers
from meshwave.engine.costs.operators import Workload
from meshwave.engine.document.model import IGNORED
from meshwave.engine.families import model_families
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules.tensor_parallel import parallel_cross_entropy, weight_shard
from tests.engine.runtime.cover.axes import LANGUAGE
from tests.engine.runtime.modules.tensor_parallel_processes import BATCH, LAYERS, SHAPE, Case

PROCESSES = "tests.engine.runtime.modules.tensor_parallel_processes"
STAGES = range(len(LAYERS))


def call(crew: Any, function: str, size: int, argument: Any) -> list[Any]:
    outcomes = crew.call(f"{PROCESSES}:{function}", size, argument)
    errors = [outcome for outcome in outcomes if isinstance(outcome, tuple) and isinstance(outcome[0], str)]
    assert not errors, errors
    return outcomes  # type: ignore[no-any-return]


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_the_shards_of_a_model_make_up_the_model(tp: int) -> None:
    """Each weight of the whole is held once, or by all processes; 301 tokens are sharded unevenly."""
    shape = type(SHAPE)(**{**vars(SHAPE), "hidden": 72, "heads": 12, "vocab": 301})
    whole = build_stage(shape, [4], 0, 7).state_dict()
    covered = {name: torch.zeros_like(weight) for name, weight in whole.items()}

    for index in range(tp):
        module = build_stage(shape, [4], 0, 7, group=Group(tuple(range(tp)), index))
        for name, weight in module.named_parameters():
            shard = weight_shard(weight)
            assert torch.equal(weight, shard.select_part(whole[name]) if shard else whole[name]), name
            for piece in shard.pieces if shard else ():
                covered[name].narrow(shard.dim, piece.start, len(piece)).add_(1)
            covered[name] += 0 if shard else 1 / tp

    for name, times in covered.items():
        assert times.sub(1).abs().max() < 1e-6, name


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_shards_reduce_keep_and_hold_the_bytes_of_the_cost_model(tp: int, precision: str, crew: Any) -> None:
    cases = [Case(precision, stage, split) for stage in STAGES for split in (False, True)]

    for outcome in call(crew, "count_bytes", tp, cases):
        for case, counted in zip(cases, outcome, strict=True):
            ends = {"first": case.stage == 0, "last": case.stage == STAGES[-1]}
            load, layers = Workload.from_model(SHAPE, batch=BATCH, tp=tp, precision=precision), LAYERS[case.stage]
            reduced = [
                *layers * transformer_layers.layer_operators(load),
                *transformer_layers.end_operators(load, **ends),
            ]
            assert sorted(counted.forward) == sorted(size for each in reduced for size in each.forward_reduced)
            assert sorted(counted.backward) == sorted(size for each in reduced for size in each.backward_reduced)
            assert counted.parameters == flops.stage_parameters(load, layers, **ends)
            if case.split:
                assert counted.deferred == stage_memory.deferred_bytes(load, layers, **ends)
            else:
                scalars = 8 + load.precision.statistics if ends["last"] else 0  # the number of targets, and the loss
                assert counted.kept == flops.activation_bytes(load, layers, **ends) + scalars


def test_the_layers_of_all_architectures_exchange_the_bytes_of_the_cost_model(crew: Any) -> None:
    sizes = {"layers": sum(LAYERS), "hidden": 16, "heads": 4, "sequence": 12, "vocab": 257, "ffn": 32}
    models = {
        name: {**sizes, **options, "moe": None} for name, options in LANGUAGE.items() if "mtp_layers" not in options
    }
    models.pop("u-transformer")
    cases = [(name, divides_tokens) for name in models for divides_tokens in (False, True)]

    for outcome in call(crew, "exchange_sizes", 2, [(models[name], divides_tokens) for name, divides_tokens in cases]):
        for (name, divides_tokens), found in zip(cases, outcome, strict=True):
            shape = model_families[models[name]["kind"]].model_validate(models[name])
            load = replace(Workload.from_model(shape, batch=BATCH, tp=2), sequence_parallel=divides_tokens)
            operators = LAYERS[1] * transformer_layers.layer_operators(load)
            expected = {way: sorted(sum((getattr(each, way) for each in operators), ())) for way in found}
            assert {way: sorted(each) for way, each in found.items()} == expected, (name, divides_tokens)


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_a_split_backward_of_shards_has_the_bits_of_a_whole_one(precision: str, crew: Any) -> None:
    cases = [Case(precision, stage, split) for stage in STAGES for split in (False, True)]

    for outcome in call(crew, "count_bytes", 2, cases):
        for whole, split in zip(outcome[::2], outcome[1::2], strict=True):
            assert whole.gradients.keys() == split.gradients.keys()
            assert all(np.array_equal(value, split.gradients[name]) for name, value in whole.gradients.items())


@pytest.mark.parametrize(("tp", "vocab"), [(2, 257), (3, 256), (4, 5)])
def test_the_loss_of_sharded_logits_is_that_of_whole_ones(tp: int, vocab: int, crew: Any) -> None:
    """Logits up to 100, a third of the targets ignored, and shards of different sizes."""
    outcomes = call(crew, "compare_losses", tp, (12, vocab, IGNORED))

    assert len({outcome["found"] for outcome in outcomes}) == 1, "the same bits on all processes"
    for outcome in outcomes:
        assert outcome["found"] == pytest.approx(outcome["expected"], rel=1e-12)
        np.testing.assert_allclose(outcome["gradient"], outcome["whole_gradient"], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("split", [False, True])
def test_gradients_of_columns_are_summed_in_bf16_after_a_norm_in_float32(split: bool, crew: Any) -> None:
    assert call(crew, "column_reductions", 2, split) == [[(4 * 8 * 2, "torch.bfloat16")]] * 2


def test_every_process_knows_its_index_in_its_groups(crew: Any) -> None:
    """A group that is given twice is made once; a process alone needs no handle."""
    wanted = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 1), *((process,) for process in range(4))]

    outcomes = call(crew, "index_in_groups", 4, wanted)

    for process, own in enumerate(outcomes):
        assert set(own) == {members for members in wanted if process in members}
        for members, (index, has_handle, total) in own.items():
            assert members[index] == process
            assert has_handle == (len(members) > 1)
            assert total == sum(members)


def test_the_logarithms_of_a_loss_are_in_float32_under_any_autocast() -> None:
    """Autocast on a GPU leaves them in bf16: the loss of a vocabulary of 4096 would be a multiple of 1/32."""
    logits = torch.randn(16, 4096, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    targets = torch.arange(16)

    loss = parallel_cross_entropy(logits, targets, range(4096), ALONE, IGNORED)
    loss.backward()  # type: ignore[no-untyped-call]

    assert loss.dtype is torch.float32 and logits.grad is not None and logits.grad.dtype is torch.bfloat16
    assert torch.equal(loss, torch.nn.functional.cross_entropy(logits.float(), targets))
