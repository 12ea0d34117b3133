"""Cuts of a stage are the whole stage, exchange and keep what is priced, and agree on the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from meshwave.engine.costs import flops, operators
from meshwave.engine.costs.operators import Workload
from meshwave.engine.document.model import IGNORED
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules.tensor_parallel import parallel_cross_entropy, weight_shard
from tests.engine.runtime.cut_works import BATCH, LAYERS, SHAPE, Case

WORKS = "tests.engine.runtime.cut_works:"
STAGES = range(len(LAYERS))


def works(crew: Any, name: str, cuts: int, argument: Any) -> list[Any]:
    found = crew.call(WORKS + name, cuts, argument)
    assert not [outcome for outcome in found if isinstance(outcome, tuple) and isinstance(outcome[0], str)], found
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("cuts", [2, 3, 4])
def test_the_cuts_of_a_model_are_the_model(cuts: int) -> None:
    """Each number of the whole is held once, or by all; 301 tokens are cut unevenly."""
    shape = type(SHAPE)(**{**vars(SHAPE), "hidden": 72, "heads": 12, "vocab": 301})
    whole = build_stage(shape, [4], 0, 7).state_dict()
    covered = {name: torch.zeros_like(weight) for name, weight in whole.items()}

    for cut in range(cuts):
        module = build_stage(shape, [4], 0, 7, group=Group(tuple(range(cuts)), cut))
        for name, weight in module.named_parameters():
            part = weight_shard(weight)
            assert torch.equal(weight, part.select(whole[name]) if part else whole[name]), name
            for piece in part.pieces if part else ():
                covered[name].narrow(part.dim, piece.start, len(piece)).add_(1)
            covered[name] += 0 if part else 1 / cuts

    for name, times in covered.items():
        assert times.sub(1).abs().max() < 1e-6, name


@pytest.mark.parametrize("cuts", [2, 4])
@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_cuts_exchange_keep_and_hold_what_the_formulas_say(cuts: int, precision: str, crew: Any) -> None:
    cases = [Case(precision, stage, split) for stage in STAGES for split in (False, True)]

    for outcome in works(crew, "count", cuts, cases):
        for case, counted in zip(cases, outcome, strict=True):
            ends = {"first": case.stage == 0, "last": case.stage == STAGES[-1]}
            load, layers = Workload.of(SHAPE, batch=BATCH, tp=cuts, precision=precision), LAYERS[case.stage]
            reduced = [*layers * operators.layer(load), *operators.ends(load, **ends)]
            assert sorted(counted.forward) == sorted(size for each in reduced for size in each.forward_reduced)
            assert sorted(counted.backward) == sorted(size for each in reduced for size in each.backward_reduced)
            assert counted.parameters == flops.stage_parameters(load, layers, **ends)
            if case.split:
                assert counted.deferred == operators.deferred_bytes(load, layers, **ends)
            else:
                scalars = 8 + load.precision.statistics if ends["last"] else 0  # how many targets, and the loss
                assert counted.kept == flops.activation_bytes(load, layers, **ends) + scalars


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_a_split_backward_of_a_cut_has_the_bits_of_a_whole_one(precision: str, crew: Any) -> None:
    cases = [Case(precision, stage, split) for stage in STAGES for split in (False, True)]

    for outcome in works(crew, "count", 2, cases):
        for whole, split in zip(outcome[::2], outcome[1::2], strict=True):
            assert whole.gradients.keys() == split.gradients.keys()
            assert all(np.array_equal(value, split.gradients[name]) for name, value in whole.gradients.items())


@pytest.mark.parametrize(("cuts", "vocab"), [(2, 257), (3, 256), (4, 5)])
def test_the_loss_of_cut_logits_is_that_of_whole_ones(cuts: int, vocab: int, crew: Any) -> None:
    """Logits as large as 100, a third of the targets ignored, and shares of different size."""
    found = works(crew, "loss", cuts, (12, vocab, IGNORED))

    assert len({outcome["found"] for outcome in found}) == 1, "the same bits everywhere"
    for outcome in found:
        assert outcome["found"] == pytest.approx(outcome["expected"], rel=1e-12)
        np.testing.assert_allclose(outcome["gradient"], outcome["of_whole"], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("split", [False, True])
def test_what_norms_in_32_bits_is_still_summed_in_16(split: bool, crew: Any) -> None:
    assert works(crew, "reduced_by_columns", 2, split) == [[(4 * 8 * 2, "torch.bfloat16")]] * 2


def test_every_process_finds_its_place_in_its_groups(crew: Any) -> None:
    """Given twice, a group is made once; alone there is do_nothing to wait for."""
    wanted = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 1), *((process,) for process in range(4))]

    found = works(crew, "groups", 4, wanted)

    for process, own in enumerate(found):
        assert set(own) == {members for members in wanted if process in members}
        for members, (index, waits, total) in own.items():
            assert members[index] == process
            assert waits == (len(members) > 1)
            assert total == sum(members)


def test_the_logarithms_of_a_loss_are_in_32_bits_whatever_autocast_does() -> None:
    """That of a GPU leaves them at 16: of a vocabulary of 4096 the loss would be a multiple of a 32nd."""
    logits = torch.randn(16, 4096, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    targets = torch.arange(16)

    loss = parallel_cross_entropy(logits, targets, range(4096), ALONE, IGNORED)
    loss.backward()  # type: ignore[no-untyped-call]

    assert loss.dtype is torch.float32 and logits.grad is not None and logits.grad.dtype is torch.bfloat16
    assert torch.equal(loss, torch.nn.functional.cross_entropy(logits.float(), targets))
