"""Kernels of attention that a design names: runs use them, or say why they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from meshwave.engine.document import parse_design
from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.findings import Refusal
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules.attention_kernels import use_attention_kernel
from tests.engine.runtime.equality import Document, assert_equal, reference
from tests.engine.runtime.test_equality_meshes import LLAMA

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
GPIPE = {"schedule": "gpipe", "microbatches": 2}
LATENT = {"latent": {"kv_rank": 8, "nope_dim": 4, "rope_dim": 4, "value_dim": 8}}


class Operators(TorchDispatchMode):
    """Names of the operators that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kernel", ["flash_2", "unfused"])
@pytest.mark.parametrize("change", [{}, {"attention": LATENT}, {"positions": {"kind": "alibi"}}], ids=str)
def test_attention_is_computed_by_the_kernel_that_the_design_names(
    kernel: Any, change: Document, draw: Callable[..., Document]
) -> None:
    document = draw(GPIPE)
    document["model"] |= {"kind": "transformer", **change}
    model = parse_design(document).model
    plain, module = (build_stage(model, [model.layers], 0, 1, torch.float64) for _ in range(2))
    use_attention_kernel(module.modules(), kernel, model, torch.float64, CPU)
    tokens = torch.arange(2 * model.sequence).view(2, -1) % 256
    with Operators() as operators:
        loss = module(tokens, tokens)
    is_fused = "_scaled_dot_product_flash_attention_for_cpu" in operators.names
    assert is_fused == (kernel == "flash_2")
    torch.testing.assert_close(loss, plain(tokens, tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kernel", "reason"), [("cudnn", "No viable backend"), ("flash_3", "flash_attn_interface")])
def test_a_kernel_that_torch_does_not_have_is_refused(kernel: Any, reason: str, draw: Callable[..., Document]) -> None:
    model = parse_design(draw(GPIPE)).model
    with pytest.raises(Refusal, match=f"training.attention_kernel = {kernel} on CPU; set it to default .*{reason}"):
        use_attention_kernel([], kernel, model, torch.float64, CPU)


def test_fused_kernels_are_refused_where_runs_compute_the_scores(draw: Callable[..., Document]) -> None:
    document = draw({"schedule": "gpipe", "microbatches": 2}, cp=2, attention_kernel="flash_2")
    document["model"] |= {"kind": "transformer", "attention": {"sinks": True}}
    (problem,) = run_problems(parse_design(document))
    assert (problem.code, problem.params["parts"]) == (
        "unfused_attention",
        ["model.attention.sinks", "training.context_parallel"],
    )
    for kernel in ("default", "unfused"):
        document["training"]["attention_kernel"] = kernel
        assert run_problems(parse_design(document)) == []


CASES: dict[str, tuple[Document, Document, Document]] = {
    "flash": ({"schedule": "1f1b", "recompute": "attention"}, {"pp": 2, "tp": 2}, {"attention_kernel": "flash_2"}),
    "unfused": ({"schedule": "zb-h1"}, {"pp": 2}, {"attention_kernel": "unfused"}),
    "gathered": (
        {"schedule": "gpipe", "recompute": "layers"},
        {"cp": 2},
        {"attention_kernel": "flash_2", "context_parallel": "all_gather"},
    ),
    "overlapped-slots": (
        {"schedule": "dualpipe", "recompute": "operators"},
        {"cp": 2},
        {"attention_kernel": "unfused", "context_parallel": "all_gather"},
    ),
}
"""Schedule, axes and training settings."""


@pytest.mark.parametrize("name", CASES)
def test_training_with_a_named_kernel_equals_one_process(name: str, crew: Any, draw: Callable[..., Document]) -> None:
    pipeline, axes, training = CASES[name]
    document = draw({"microbatches": 4, **pipeline}, layers=3, **axes, **training)
    document["model"] |= LLAMA
    assert_equal(crew.train(document), reference(document))
