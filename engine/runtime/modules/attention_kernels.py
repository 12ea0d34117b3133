"""Kernel of scaled_dot_product_attention that a run uses instead of torch's own choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, activate_flash_attention_impl, sdpa_kernel

from meshwave.engine.document.devices import AttentionKernel
from meshwave.engine.document.model import Model
from meshwave.engine.findings import Refusal
from meshwave.engine.runtime.device.accelerator import device_name

BACKENDS: dict[AttentionKernel, SDPBackend] = {
    "flash_2": SDPBackend.FLASH_ATTENTION,
    "flash_3": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "unfused": SDPBackend.MATH,
}
"""Backends of torch by the kernel that a design names; on CPUs, torch's FlashAttention follows FlashAttention-2."""
PROBED_TOKENS = 16


def use_attention_kernel(
    modules: Iterable[nn.Module], kernel: AttentionKernel, model: Model, dtype: torch.dtype, device: torch.device
) -> None:
    """Let the attention of modules use a kernel, after a probe of it.

    Raises:
        Refusal: torch cannot use the kernel for this model, dtype and device.
    """
    backend = BACKENDS[kernel]
    try:
        if kernel == "flash_3":
            activate_flash_attention_impl("FA3")
        _probe(backend, model, dtype, device)
    except (ImportError, RuntimeError) as error:
        params = {"kernel": kernel, "device": device_name(device), "reason": str(error)}
        raise Refusal("no_attention_kernel", params) from error
    product = _product_of(backend)
    for module in modules:
        if (rule := getattr(module, "rule", None)) is not None:
            module.rule = rule._replace(fused_product=product)
        elif hasattr(module, "attend"):
            module.attend = product  # type: ignore[assignment]


def _probe(backend: SDPBackend, model: Model, dtype: torch.dtype, device: torch.device) -> None:
    """Run a small attention forward and backward, with the head sizes and the kind of mask of the model."""
    part, positions = model.architecture.attention, model.architecture.positions
    dims = values = part.head_dim or model.hidden // getattr(model, "heads", 1)
    if part.latent is not None:
        dims, values = part.latent.nope_dim + part.latent.rope_dim, part.latent.value_dim
    q, k, v = (torch.zeros(1, 1, PROBED_TOKENS, width, dtype=dtype, device=device) for width in (dims, dims, values))
    mask = q.new_zeros(PROBED_TOKENS, PROBED_TOKENS) if part.window or positions.kind == "alibi" else None
    with sdpa_kernel(backend):
        attended = F.scaled_dot_product_attention(q.requires_grad_(), k, v, attn_mask=mask)
        torch.autograd.grad(attended.sum(), q)


def _product_of(backend: SDPBackend) -> Callable[..., Tensor]:
    """Return an attention function that uses only one backend.

    The backend is a global setting of torch. It must not be set while a collective is awaited, when the other computation
    of an overlapped slot continues.
    """

    def product(*args: Any, **options: Any) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*args, **options)

    return product
