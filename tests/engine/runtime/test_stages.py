"""A stage computes the same bits whole or split, kept or recomputed, and nothing twice."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from meshwave.engine.document.model import model_families
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules.deferred_gradients import Linear, compute_deferred

LAYERS = (2, 1, 1)
MICROBATCHES = 3
STAGES = [*range(len(LAYERS)), None]
"""First, middle and last of three, and the whole model in one."""


class Trained(NamedTuple):
    """What some microbatches made of a stage."""

    outputs: list[Tensor]
    input_gradients: list[Tensor | None]
    gradients: dict[str, Tensor]


def shape(kind: str = "gpt") -> Any:
    sizes = {"layers": 4, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 257, "ffn": 48}
    return model_families[kind].model_validate({"kind": kind, **sizes})


def make(kind: str, stage: int | None, precision: str, **how: bool) -> tuple[torch.nn.Module, LocalStage]:
    layers, number = ([sum(LAYERS)], 0) if stage is None else (LAYERS, stage)
    module = build_stage(shape(kind), layers, number, seed=0, dtype=DTYPES[precision])
    return module, LocalStage(module, precision, torch.device("cpu"), 1 / MICROBATCHES, **how)


BESIDE = {0: (1, 2), 1: (2, 1)}
"""How many tensors lie side by side in what a stage of a U-ViT takes and hands on; else one. From the
first to the last of three one more skips the second."""


def _like(precision: str, seed: int) -> Tensor:
    return torch.randn((2, 12, 16), generator=torch.Generator().manual_seed(seed)).to(MESSAGE_DTYPES[precision])


def batch(
    stage: int | None, precision: str, tensors: tuple[int, int] = (1, 1)
) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
    """Inputs, targets and gradients of the output of each microbatch, so many tensors side by side."""
    chance = torch.Generator().manual_seed(1)
    for _ in range(MICROBATCHES):
        tokens, targets = torch.randint(0, 256, (2, 2, 12), generator=chance)
        x, gradient = (
            torch.randn((2, 12, 16 * count), generator=chance).to(MESSAGE_DTYPES[precision]) for count in tensors
        )
        is_last = stage in (None, len(LAYERS) - 1)
        yield x if stage else tokens, targets if is_last else None, None if is_last else gradient


def train(kind: str, stage: int | None, precision: str, *, halves: bool = False, **how: bool) -> Trained:
    """Forwards of all microbatches, then their backwards, in ``halves``: first all I, then all W."""
    module, local = make(kind, stage, precision, **how)
    inputs = list(batch(stage, precision, BESIDE.get(stage, (1, 1)) if kind == "u-transformer" else (1, 1)))
    skips, of_given = (
        tuple(_like(precision, seed) for _ in ends)
        for seed, ends in enumerate((local.skip_sources, local.skip_targets))
    )
    forwards = [
        (local.forward(x, targets, tuple(s.clone() for s in skips)), gradient) for x, targets, gradient in inputs
    ]
    if halves:
        done = [local.input_gradient(saved, gradient, of_given) for (_, saved), gradient in forwards]
        for _, due in done:
            compute_deferred(due)
        input_gradients = [of_input for of_input, _ in done]
    else:
        input_gradients = [local.backward(saved, gradient, of_given) for (_, saved), gradient in forwards]
    input_gradients += [skip.grad for (_, saved), _ in forwards for skip in saved.skips]
    gradients = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
    weights = dict(module.named_parameters())
    assert set(gradients) == set(weights), "every weight has a gradient"
    assert all(gradients[name].stride() == weights[name].stride() for name in weights), "as fused kernels on a GPU ask"
    return Trained([y for (y, _), _ in forwards], input_gradients, gradients)


def assert_same_bits(one: Trained, other: Trained) -> None:
    assert all(map(torch.equal, one.outputs, other.outputs))
    for mine, theirs in zip(one.input_gradients, other.input_gradients, strict=True):
        assert mine is theirs is None or torch.equal(mine, theirs)
    for name, gradient in one.gradients.items():
        assert gradient.dtype == other.gradients[name].dtype
        assert torch.equal(gradient, other.gradients[name]), name


@pytest.mark.parametrize("kind", [kind for kind in model_families if kind != "u-net"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("precision", list(DTYPES))
@pytest.mark.parametrize("halves", [True, False], ids=["I-W", "B"])
@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_a_split_backward_has_the_bits_of_a_whole_one(
    kind: str, stage: int | None, precision: str, halves: bool, recomputed: bool
) -> None:
    split = train(kind, stage, precision, split=True, halves=halves, recomputed=recomputed)

    assert_same_bits(split, train(kind, stage, precision))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("precision", list(DTYPES))
def test_a_recomputed_stage_has_the_bits_of_one_that_keeps(stage: int | None, precision: str) -> None:
    assert_same_bits(train("gpt", stage, precision, recomputed=True), train("gpt", stage, precision))


class Counting(TorchDispatchMode):
    """Counts the kernels that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name
        if name == "aten::native_layer_norm_backward":  # one kernel makes both halves, as it is told
            self.calls.update(f"{name} {wanted}" for wanted in args[-1] if wanted)
        else:
            self.calls[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("stage", STAGES)
def test_the_halves_compute_nothing_twice(stage: int | None) -> None:
    calls = []
    for how in ({}, {"split": True, "halves": True}):
        with Counting() as counting:
            train("gpt", stage, "fp64", **how)
        calls.append(counting.calls)
    whole, halves = calls

    heavy = {name for name in whole | halves if any(part in name for part in ("mm", "attention", "norm", "embedding"))}
    assert len(heavy) >= 4
    assert {name: halves[name] for name in heavy} == {name: whole[name] for name in heavy}


@pytest.mark.parametrize("stage", STAGES)
def test_the_first_half_frees_what_the_second_does_not_need(stage: int | None) -> None:
    _, local = make("gpt", stage, "fp64", split=True)
    kept: list[weakref.ref[Tensor]] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(weakref.ref(tensor))
        return tensor

    x, targets, gradient = next(batch(stage, "fp64"))
    with saved_tensors_hooks(note, lambda tensor: tensor):
        y, saved = local.forward(x, targets)
    del y
    gc.collect()
    before = sum(tensor() is not None for tensor in kept)
    _, due = local.input_gradient(saved, gradient)
    del saved, x, gradient, targets
    gc.collect()
    after = {tensor().data_ptr() for tensor in kept if tensor() is not None}
    needed = {argument.data_ptr() for entry in due for argument in entry.args if isinstance(argument, Tensor)}

    assert 0 < len(after) < before
    assert after <= needed


def test_a_part_that_cannot_defer_is_refused() -> None:
    module = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 1))
    with pytest.raises(TypeError, match="a Conv1d cannot put off"):
        LocalStage(module, "fp32", torch.device("cpu"), 1.0, split=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", [False, True])
def test_all_microbatches_of_a_step_share_one_copy_of_the_weights_in_bf16(split: bool) -> None:
    module, local = make("gpt", 1, "bf16", split=split)
    linears = [part for part in module.modules() if isinstance(part, Linear)]
    copies = []
    for x, targets, _ in batch(1, "bf16"):
        local.forward(x, targets)
        copies.append([tensor for linear in linears for tensor in linear.cast or ()])

    assert len(copies[0]) == 2 * len(linears) > 0
    for later in copies[1:]:
        assert all(one is other for one, other in zip(copies[0], later, strict=True))
    assert all(tensor.dtype is torch.bfloat16 for tensor in copies[0])
    local.forget()
    assert all(linear.cast is None for linear in linears)


@pytest.mark.parametrize("split", [False, True])
def test_a_changed_weight_is_copied_again(split: bool) -> None:
    module, local = make("gpt", 1, "bf16", split=split)
    x, _, _ = next(batch(1, "bf16"))
    before, _ = local.forward(x.clone(), None)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(1.5)
    local.forget()

    after, _ = local.forward(x.clone(), None)

    assert not torch.equal(before, after)


# ---- compiled ----


def assert_near(one: Trained, other: Trained, far: float) -> None:
    for mine, theirs in zip(one.outputs + one.input_gradients, other.outputs + other.input_gradients, strict=True):
        assert mine is theirs is None or torch.allclose(mine, theirs, rtol=far, atol=far)  # type: ignore[arg-type]
    for name, gradient in one.gradients.items():
        assert torch.allclose(gradient, other.gradients[name], rtol=far, atol=far), name


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are traced forwards and backwards as for a compiler, and played as they were traced."""
    monkeypatch.setattr("meshwave.engine.runtime.models.stages.COMPILER", "aot_eager")


@pytest.mark.parametrize(("kind", "precision", "recomputed"), [("u-transformer", "fp64", True), ("gpt", "bf16", False)])
def test_a_compiled_stage_computes_the_same(kind: str, precision: str, recomputed: bool, traced: None) -> None:
    """A graph a kind of block, without a break."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = train(kind, None, precision, recomputed=recomputed, compiled=True)
    assert_near(compiled, train(kind, None, precision), 1e-9 if precision == "fp64" else 2e-2)
    assert counters["stats"]["unique_graphs"] > 0 and not counters["graph_break"]


def test_what_puts_off_or_exchanges_inside_is_not_compiled() -> None:
    split, local = make("gpt", 0, "fp32", split=True, compiled=True)
    cut = build_stage(shape(), [4], 0, 0, group=Group((0, 1), 0))

    assert local.compiled == cut.compile_blocks() == 0
    assert not [part for module in (split, cut) for part in module.modules() if part._compiled_call_impl]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fused_kernels_compute_the_same_on_a_gpu(precision: str) -> None:
    device, found = torch.device("cuda"), []
    for compiled in (False, True):
        module = build_stage(shape(), [2], 0, seed=0, dtype=DTYPES[precision], device=device)
        local = LocalStage(module, precision, device, 1.0, compiled=compiled)
        tokens = torch.arange(24, device=device).view(2, 12)
        loss, saved = local.forward(tokens, tokens)
        local.backward(saved, None)
        found.append([loss, *(parameter.grad for parameter in module.parameters())])
    for plain, fused in zip(*found, strict=True):
        assert torch.allclose(plain, fused, rtol=2e-2, atol=2e-2 if precision == "bf16" else 1e-4)


@pytest.mark.gpu
def test_attention_in_bf16_is_flash_attention_on_a_gpu() -> None:
    """Its inputs are laid out so that torch may choose the kernel that keeps no matrix of scores."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model = shape().model_copy(update={"hidden": 128, "sequence": 64})
    module = build_stage(model, [2], 0, seed=0, device="cuda")
    local = LocalStage(module, "bf16", torch.device("cuda"), 1.0)
    tokens = torch.arange(128, device="cuda").view(2, 64)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # any other is refused
        _, saved = local.forward(tokens, tokens)
        local.backward(saved, None)
