"""Tests of stages: split, recomputed and compiled ones compute the same as plain ones."""

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
from meshwave.engine.runtime.modules.deferred_gradients import Linear, compute_deferred_gradients

LAYERS = (2, 1, 1)
MICROBATCHES = 3
STAGES = [*range(len(LAYERS)), None]
"""First, middle and last of three stages, and the whole model as one stage (None)."""


class Result(NamedTuple):
    """Outputs and gradients of some microbatches of a stage."""

    outputs: list[Tensor]
    input_gradients: list[Tensor | None]
    gradients: dict[str, Tensor]


def shape(kind: str = "gpt") -> Any:
    sizes = {"layers": 4, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 257, "ffn": 48}
    return model_families[kind].model_validate({"kind": kind, **sizes})


def make_stage(kind: str, stage: int | None, precision: str, **options: bool) -> tuple[torch.nn.Module, LocalStage]:
    layers, number = ([sum(LAYERS)], 0) if stage is None else (LAYERS, stage)
    module = build_stage(shape(kind), layers, number, seed=0, dtype=DTYPES[precision])
    return module, LocalStage(module, precision, torch.device("cpu"), 1 / MICROBATCHES, **options)


MESSAGE_TENSORS = {0: (1, 2), 1: (2, 1)}
"""Numbers of tensors in the messages that a stage of a U-ViT receives and sends; else one. One more tensor skips from
the first of three stages to the last."""


def _random_message(precision: str, seed: int) -> Tensor:
    return torch.randn((2, 12, 16), generator=torch.Generator().manual_seed(seed)).to(MESSAGE_DTYPES[precision])


def batch(
    stage: int | None, precision: str, tensors: tuple[int, int] = (1, 1)
) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
    """Yield inputs, targets and output gradients of each microbatch; ``tensors``: how many of them a message holds."""
    rng = torch.Generator().manual_seed(1)
    for _ in range(MICROBATCHES):
        tokens, targets = torch.randint(0, 256, (2, 2, 12), generator=rng)
        x, gradient = (
            torch.randn((2, 12, 16 * count), generator=rng).to(MESSAGE_DTYPES[precision]) for count in tensors
        )
        is_last = stage in (None, len(LAYERS) - 1)
        yield x if stage else tokens, targets if is_last else None, None if is_last else gradient


def train(kind: str, stage: int | None, precision: str, *, defers: bool = False, **options: bool) -> Result:
    """Run the forwards of all microbatches, then their backwards; ``defers``: first all I, then all W."""
    module, local = make_stage(kind, stage, precision, **options)
    inputs = list(batch(stage, precision, MESSAGE_TENSORS.get(stage, (1, 1)) if kind == "u-transformer" else (1, 1)))
    skips, skip_gradients = (
        tuple(_random_message(precision, seed) for _ in ends)
        for seed, ends in enumerate((local.skip_sources, local.skip_targets))
    )
    forwards = [
        (local.forward(x, targets, tuple(s.clone() for s in skips)), gradient) for x, targets, gradient in inputs
    ]
    if defers:
        done = [local.input_gradient(saved, gradient, skip_gradients) for (_, saved), gradient in forwards]
        for _, deferred in done:
            compute_deferred_gradients(deferred)
        input_gradients = [input_gradient for input_gradient, _ in done]
    else:
        input_gradients = [local.backward(saved, gradient, skip_gradients) for (_, saved), gradient in forwards]
    input_gradients += [skip.grad for (_, saved), _ in forwards for skip in saved.skips]
    gradients = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
    weights = dict(module.named_parameters())
    assert set(gradients) == set(weights), "every weight has a gradient"
    assert all(gradients[name].stride() == weights[name].stride() for name in weights), (
        "fused kernels on a GPU require equal strides"
    )
    return Result([y for (y, _), _ in forwards], input_gradients, gradients)


def assert_equal_bits(one: Result, other: Result) -> None:
    assert all(map(torch.equal, one.outputs, other.outputs))
    for mine, theirs in zip(one.input_gradients, other.input_gradients, strict=True):
        assert mine is theirs is None or torch.equal(mine, theirs)
    for name, gradient in one.gradients.items():
        assert gradient.dtype == other.gradients[name].dtype
        assert torch.equal(gradient, other.gradients[name]), name


@pytest.mark.parametrize("kind", [kind for kind in model_families if kind != "u-net"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("precision", list(DTYPES))
@pytest.mark.parametrize("defers", [True, False], ids=["I-W", "B"])
@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_a_split_backward_equals_a_full_one_bit_by_bit(
    kind: str, stage: int | None, precision: str, defers: bool, recomputed: bool
) -> None:
    split = train(kind, stage, precision, splits_backward=True, defers=defers, recomputes=recomputed)

    assert_equal_bits(split, train(kind, stage, precision))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("precision", list(DTYPES))
def test_recomputation_changes_no_bit(stage: int | None, precision: str) -> None:
    assert_equal_bits(train("gpt", stage, precision, recomputes=True), train("gpt", stage, precision))


class KernelCounter(TorchDispatchMode):
    """Counts the kernels that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name
        if (
            name == "aten::native_layer_norm_backward"
        ):  # one kernel computes the gradients that its last argument asks for
            self.calls.update(f"{name} {wanted}" for wanted in args[-1] if wanted)
        else:
            self.calls[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("stage", STAGES)
def test_a_split_backward_computes_nothing_twice(stage: int | None) -> None:
    calls = []
    for options in ({}, {"splits_backward": True, "defers": True}):
        with KernelCounter() as counter:
            train("gpt", stage, "fp64", **options)
        calls.append(counter.calls)
    whole, split = calls

    heavy = {name for name in whole | split if any(part in name for part in ("mm", "attention", "norm", "embedding"))}
    assert len(heavy) >= 4
    assert {name: split[name] for name in heavy} == {name: whole[name] for name in heavy}


@pytest.mark.parametrize("stage", STAGES)
def test_an_input_gradient_frees_what_the_weight_gradients_do_not_need(stage: int | None) -> None:
    _, local = make_stage("gpt", stage, "fp64", splits_backward=True)
    saved_tensors: list[weakref.ref[Tensor]] = []

    def record(tensor: Tensor) -> Tensor:
        saved_tensors.append(weakref.ref(tensor))
        return tensor

    x, targets, gradient = next(batch(stage, "fp64"))
    with saved_tensors_hooks(record, lambda tensor: tensor):
        y, saved = local.forward(x, targets)
    del y
    gc.collect()
    before = sum(tensor() is not None for tensor in saved_tensors)
    _, deferred = local.input_gradient(saved, gradient)
    del saved, x, gradient, targets
    gc.collect()
    after = {tensor().data_ptr() for tensor in saved_tensors if tensor() is not None}
    needed = {argument.data_ptr() for entry in deferred for argument in entry.args if isinstance(argument, Tensor)}

    assert 0 < len(after) < before
    assert after <= needed


def test_a_module_that_cannot_defer_gradients_is_rejected() -> None:
    module = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 1))
    with pytest.raises(TypeError, match="Conv1d cannot defer"):
        LocalStage(module, "fp32", torch.device("cpu"), 1.0, splits_backward=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", [False, True])
def test_microbatches_of_a_step_share_one_bf16_copy_of_the_weights(split: bool) -> None:
    module, local = make_stage("gpt", 1, "bf16", splits_backward=split)
    linears = [part for part in module.modules() if isinstance(part, Linear)]
    copies = []
    for x, targets, _ in batch(1, "bf16"):
        local.forward(x, targets)
        copies.append([tensor for linear in linears for tensor in linear.cast or ()])

    assert len(copies[0]) == 2 * len(linears) > 0
    for later in copies[1:]:
        assert all(one is other for one, other in zip(copies[0], later, strict=True))
    assert all(tensor.dtype is torch.bfloat16 for tensor in copies[0])
    local.drop_cast_weights()
    assert all(linear.cast is None for linear in linears)


@pytest.mark.parametrize("split", [False, True])
def test_changed_weights_are_cast_again(split: bool) -> None:
    module, local = make_stage("gpt", 1, "bf16", splits_backward=split)
    x, _, _ = next(batch(1, "bf16"))
    before, _ = local.forward(x.clone(), None)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(1.5)
    local.drop_cast_weights()

    after, _ = local.forward(x.clone(), None)

    assert not torch.equal(before, after)


# ---- compiled ----


def assert_close(one: Result, other: Result, tolerance: float) -> None:
    for mine, theirs in zip(one.outputs + one.input_gradients, other.outputs + other.input_gradients, strict=True):
        assert mine is theirs is None or torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance)  # type: ignore[arg-type]
    for name, gradient in one.gradients.items():
        assert torch.allclose(gradient, other.gradients[name], rtol=tolerance, atol=tolerance), name


@pytest.fixture
def trace_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch.compile trace forwards and backwards, and run them without code generation."""
    monkeypatch.setattr("meshwave.engine.runtime.models.stages.COMPILER", "aot_eager")


@pytest.mark.parametrize(("kind", "precision", "recomputed"), [("u-transformer", "fp64", True), ("gpt", "bf16", False)])
def test_compilation_changes_no_result(kind: str, precision: str, recomputed: bool, trace_imports: None) -> None:
    """Each kind of block is one graph, without breaks."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = train(kind, None, precision, recomputes=recomputed, compiles=True)
    assert_close(compiled, train(kind, None, precision), 1e-9 if precision == "fp64" else 2e-2)
    assert counters["stats"]["unique_graphs"] > 0 and not counters["graph_break"]


def test_stages_that_defer_gradients_or_communicate_are_not_compiled() -> None:
    split, local = make_stage("gpt", 0, "fp32", splits_backward=True, compiles=True)
    sharded = build_stage(shape(), [4], 0, 0, group=Group((0, 1), 0))

    assert local.compiled_blocks == sharded.compile_blocks() == 0
    assert not [part for module in (split, sharded) for part in module.modules() if part._compiled_call_impl]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compilation_changes_no_result_on_a_gpu(precision: str) -> None:
    device, found = torch.device("cuda"), []
    for compiled in (False, True):
        module = build_stage(shape(), [2], 0, seed=0, dtype=DTYPES[precision], device=device)
        local = LocalStage(module, precision, device, 1.0, compiles=compiled)
        tokens = torch.arange(24, device=device).view(2, 12)
        loss, saved = local.forward(tokens, tokens)
        local.backward(saved, None)
        found.append([loss, *(parameter.grad for parameter in module.parameters())])
    for plain, fused in zip(*found, strict=True):
        assert torch.allclose(plain, fused, rtol=2e-2, atol=2e-2 if precision == "bf16" else 1e-4)


@pytest.mark.gpu
def test_bf16_attention_uses_flash_attention_on_a_gpu() -> None:
    """The layout of its inputs lets torch choose the kernel that keeps no matrix of scores."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model = shape().model_copy(update={"hidden": 128, "sequence": 64})
    module = build_stage(model, [2], 0, seed=0, device="cuda")
    local = LocalStage(module, "bf16", torch.device("cuda"), 1.0)
    tokens = torch.arange(128, device="cuda").view(2, 64)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # torch raises an error for any other backend
        _, saved = local.forward(tokens, tokens)
        local.backward(saved, None)
