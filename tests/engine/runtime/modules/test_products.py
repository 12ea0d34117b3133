"""Matrix products in fp8: close to those in float32, the same in split backwards, and refused where there are none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwave.engine.document.model import LanguageModel, model_families
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules import products
from meshwave.engine.runtime.modules.deferred_gradients import Linear
from meshwave.engine.runtime.modules.products import FLOAT8, PLAIN, multiplies_float8, use_float8

pytestmark = pytest.mark.torch


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_products_are_within_the_rounding_error_of_fp8() -> None:
    chance = torch.Generator().manual_seed(0)
    x, gradient = (1e-3 * torch.randn(50, width, generator=chance) for width in (64, 48))
    weight, bias = 100 * torch.randn(48, 64, generator=chance), torch.randn(48, generator=chance)
    pairs = [
        (
            each.output(each.keep(x), weight, bias),
            each.input_gradient(gradient, weight),
            each.weight_gradient(gradient, each.keep(x)),
        )
        for each in (FLOAT8, PLAIN)
    ]
    errors = [relative_error(*pair) for pair in zip(*pairs, strict=True)]
    assert all(0.005 < error < limit for error, limit in zip(errors, (0.05, 0.1, 0.1), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_multiplies_like_the_fp8_kernel_of_torch(dtype: torch.dtype) -> None:
    chance = torch.Generator().manual_seed(0)
    first, second = (torch.randn(*size, generator=chance).to(dtype) for size in ((32, 48), (48, 16)))
    one, other = first.to(torch.float8_e5m2), second.t().contiguous().to(torch.float8_e4m3fn)
    scales = torch.tensor(0.5), torch.tensor(3.0)
    expected = torch._scaled_mm(one, other.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=dtype)

    found = products._scaled_product(one, scales[0], other, scales[1], dtype)

    assert found.dtype == dtype
    torch.testing.assert_close(found, expected)


def train(precision: str, *, float8: bool, splits_backward: bool = False) -> tuple[list[Tensor], list[str]]:
    """Return the loss and the gradients of a stage, and the names of its layers that multiply in fp8."""
    sizes = {"kind": "transformer", "layers": 2, "hidden": 64, "heads": 4, "sequence": 24, "vocab": 260, "ffn": 72}
    model = model_families["transformer"].model_validate({**sizes, "mlp": {"gated": True}})
    assert isinstance(model, LanguageModel)
    module = build_stage(model, [1, 1], 1, 1, dtype=DTYPES[precision])
    if float8:
        assert use_float8(module.layers.modules()) == (3, 4)
    local = LocalStage(module, precision, torch.device("cpu"), 1.0, splits_backward=splits_backward)
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(2, 24, 64, generator=chance).to(MESSAGE_DTYPES[precision])
    loss, saved = local.forward(x, torch.randint(0, 256, (2, 24), generator=chance))
    gradient = local.backward(saved, None)
    gradients = [weight.grad for weight in module.parameters()]
    names = [name for name, part in module.named_modules() if isinstance(part, Linear) and part.products is FLOAT8]
    return [each for each in (loss, gradient, *gradients) if each is not None], names


@pytest.mark.parametrize("precision", ["fp32", "bf16", "pure_bf16"])
def test_layers_with_fitting_sizes_train_in_fp8(precision: str) -> None:
    plain, _ = train(precision, float8=False)
    whole, names = train(precision, float8=True)
    split, _ = train(precision, float8=True, splits_backward=True)

    assert names == ["layers.1.attention.qkv", "layers.1.attention.out", "layers.1.ffn_in"]  # ffn_out has 72 columns
    assert all(map(torch.equal, whole, split))
    assert 0 < relative_error(whole[0], plain[0]) < 0.01
    assert all(0 < relative_error(*pair) < 0.15 for pair in zip(whole[1:], plain[1:], strict=True))


def test_a_device_without_fp8_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    assert multiplies_float8(torch.device("cpu"))

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9")

    monkeypatch.setattr(products, "_scaled_product", refuse)
    assert not multiplies_float8(torch.device("cpu"))
