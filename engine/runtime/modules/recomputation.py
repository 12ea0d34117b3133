"""Recomputation of parts of a layer in its backward (Korthikanti et al., arXiv:2205.05198, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, Self

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from meshwave.engine.runtime.modules.documents import pack_documents, packed_documents

aten = torch.ops.aten
ATTENTION_KERNELS = {
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
}
PRODUCTS = {aten.mm.default, aten.addmm.default, aten._scaled_mm.default}

_is_recomputing: ContextVar[bool] = ContextVar("is_recomputing", default=False)
_saves_products: ContextVar[bool] = ContextVar("saves_products", default=True)


def is_first_forward() -> bool:
    """Return True in the first run of a forward that a backward follows, and False in its recomputation."""
    return torch.is_grad_enabled() and not _is_recomputing.get()


@contextmanager
def recompute_products() -> Iterator[None]:
    """Recompute the matrix products of a ``with`` block in the backward; of all others, every second output is saved."""
    token = _saves_products.set(False)
    try:
        yield
    finally:
        _saves_products.reset(token)


class _Recomputing(ExitStack):
    """Context of a forward that is run again in the backward, in addition to another context.

    It is created in the first forward, whose documents the second one has too.
    """

    def __init__(self, other: AbstractContextManager[Any] | None = None) -> None:
        super().__init__()
        self._other, self._documents = other, packed_documents()

    def __enter__(self) -> Self:
        token = _is_recomputing.set(True)
        self.callback(_is_recomputing.reset, token)
        self.enter_context(pack_documents(self._documents))
        if self._other is not None:
            self.enter_context(self._other)
        return super().__enter__()


def recompute_layers(layers: Iterable[nn.Module], part: str) -> None:
    """Change layers so that their backward recomputes ``part`` of their forward, a value of ``pipeline.recompute``.

    ``operators`` saves the output of attention and of every second matrix product, like torchtitan. The hooks of a
    layer are not called again.
    """
    for layer in layers:
        if part == "attention":
            for module in layer.modules():
                if (attend := getattr(module, "attend", None)) is not None:
                    module.attend = _run_recomputed(attend, stops_early=True)
        else:
            contexts = _selective_contexts if part == "operators" else _plain_contexts
            layer.forward = _run_recomputed(layer.forward, contexts, stops_early=part != "layers")


Contexts = Callable[[], tuple[Any, Any]]


def _plain_contexts() -> tuple[Any, Any]:
    return nullcontext(), _Recomputing()


def _run_recomputed(function: Callable[..., Any], contexts: Contexts = _plain_contexts, *, stops_early: bool) -> Any:
    return partial(
        checkpoint,
        function,
        use_reentrant=False,
        context_fn=contexts,
        determinism_check="none",
        early_stop=stops_early,
        preserve_rng_state=False,
    )


def _selective_contexts() -> tuple[Any, Any]:
    """Return contexts that save the outputs of attention and of every second matrix product."""
    products = count()

    def policy(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
        is_counted = operator in PRODUCTS and _saves_products.get()
        is_saved = operator in ATTENTION_KERNELS or (is_counted and next(products) % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    forward, recomputation = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return forward, _Recomputing(recomputation)
