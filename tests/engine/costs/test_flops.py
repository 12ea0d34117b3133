"""FLOPs and memory formulas compared with the cited papers, and with the tensors that torch keeps."""

from typing import Any

import pytest

from meshwave.engine.costs import flops, stage_memory, transformer_layers
from meshwave.engine.costs.operators import PRECISIONS, Workload
from meshwave.engine.document.model import LanguageModel, model_families
from meshwave.engine.document.training import Training

GPT3: Any = model_families["gpt"].model_validate(
    {"kind": "gpt", "layers": 96, "hidden": 12288, "heads": 96, "sequence": 2048, "vocab": 51200}
)


def test_gpt3_has_as_many_parameters_as_narayanan_et_al_count() -> None:
    """arXiv:2104.04473, eq. 2, in which embedding and head share one matrix and the last norm is omitted."""
    l, h, s, v = GPT3.layers, GPT3.hidden, GPT3.sequence, GPT3.vocab  # noqa: E741
    published = 12 * l * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * l * h))

    assert published == pytest.approx(174.6e9, rel=1e-3)
    assert flops.model_parameters(GPT3) == pytest.approx(published + v * h + 2 * h, rel=1e-12)


def test_an_iteration_of_gpt3_takes_the_flops_that_narayanan_et_al_count() -> None:
    """arXiv:2104.04473, appendix, without the recomputed forward: 72 instead of 96."""
    l, h, s, v, batch = GPT3.layers, GPT3.hidden, GPT3.sequence, GPT3.vocab, 1536  # noqa: E741
    published = 72 * batch * s * l * h**2 * (1 + s / (6 * h) + v / (12 * l * h))

    assert flops.model_flops(GPT3, batch) == pytest.approx(published, rel=1e-12)


def test_training_takes_about_six_flops_a_parameter_and_token() -> None:
    """Rule of thumb of Kaplan et al. (arXiv:2001.08361): 6ND, without attention and embedding."""
    tokens = GPT3.sequence
    rule = 6 * flops.model_parameters(GPT3) * tokens

    assert flops.model_flops(GPT3, 1) == pytest.approx(rule, rel=0.03)


@pytest.mark.parametrize("tp", [1, 8])
def test_a_split_backward_keeps_the_bytes_of_qi_et_al_and_the_norms(tp: int) -> None:
    """arXiv:2401.10241, table 1: 32sbh bytes per layer at 16 bits; inputs of products stay whole, other tensors are
    sharded.
    """
    load = Workload.from_model(GPT3, batch=4, tp=tp, precision="bf16")
    whole = 4 * GPT3.sequence * GPT3.hidden
    inputs_and_outputs_that_stay_whole, norms = 2 * 4, 2 * 4

    held = stage_memory.deferred_bytes(load, 1, first=False, last=False)

    published = whole * (inputs_and_outputs_that_stay_whole + (32 - inputs_and_outputs_that_stay_whole) / tp)
    assert held == pytest.approx(published + whole * norms + 4 * 4 * GPT3.sequence * 4, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 8])
def test_kept_activations_are_the_published_ones_less_attention_matrix_and_dropout(tp: int) -> None:
    """Korthikanti et al., arXiv:2205.05198, eq. 1 and 2: sbh(10 + 24/t + 5as/ht) bytes at 16 bits."""
    b, s, h, a = 4, GPT3.sequence, GPT3.hidden, GPT3.heads
    attention_matrix, dropout_masks = 5 * a * s / h / tp, 2
    published = s * b * h * (10 + 24 / tp + 5 * a * s / h / tp)
    statistics = 4 * b * s * (4 + a / tp)  # two norms' mean and deviation, and the softmax' row sums

    load = Workload.from_model(GPT3, batch=b, tp=tp, precision="bf16")
    kept = sum(operator.kept_bytes for operator in transformer_layers.layer_operators(load))

    assert kept == pytest.approx(published - s * b * h * (attention_matrix + dropout_masks) + statistics, rel=1e-12)


def test_tensor_parallel_devices_share_the_work_but_not_the_norms() -> None:
    whole, cut = (Workload.from_model(GPT3, batch=1, tp=tp) for tp in (1, 8))
    work = [
        sum(operator.forward.flops for operator in transformer_layers.layer_operators(load)) for load in (whole, cut)
    ]
    parameters = [flops.stage_parameters(load, 1, first=False, last=False) for load in (whole, cut)]
    h = GPT3.hidden

    assert work[0] == pytest.approx(8 * work[1])
    assert parameters[0] == 12 * h**2 + 13 * h
    assert parameters[1] == pytest.approx((12 * h**2 + 7 * h) / 8 + 6 * h)  # norms and output biases stay whole


def test_a_tensor_parallel_layer_reduces_twice_in_each_direction() -> None:
    """Megatron (arXiv:1909.08053), section 3: two all-reduces of bsh forward, two backward."""
    load = Workload.from_model(GPT3, batch=2, tp=8, precision="bf16")
    forward = [size for operator in transformer_layers.layer_operators(load) for size in operator.forward_reduced]
    backward = [size for operator in transformer_layers.layer_operators(load) for size in operator.backward_reduced]

    assert forward == backward == [2 * 2 * GPT3.sequence * GPT3.hidden] * 2


@pytest.mark.parametrize(
    ("precision", "optimizer", "held"),
    [("fp32", "adamw", 16), ("bf16", "adamw", 18), ("fp64", "adamw", 32), ("fp32", "sgd", 8), ("bf16", "sgd", 10)],
)
def test_bytes_of_training_state_per_parameter(precision: str, optimizer: str, held: int) -> None:
    size = PRECISIONS[precision]

    assert (
        size.weights
        + size.copy
        + size.gradients
        + flops.optimizer_state_bytes(Training(optimizer=optimizer, precision=precision))
        == held
    )


@pytest.mark.parametrize(
    ("precision", "optimizer", "clipped", "moved"),
    [
        ("fp32", "adamw", False, 28),
        ("fp32", "sgd", False, 12),
        ("bf16", "adamw", False, 30),
        ("fp32", "adamw", True, 40),
    ],
)
def test_bytes_per_parameter_that_an_optimizer_step_transfers(
    precision: str, optimizer: str, clipped: bool, moved: int
) -> None:
    training = Training(optimizer=optimizer, precision=precision, clip_norm=1.0 if clipped else None)
    assert flops.optimizer_traffic_bytes(training) == moved


LLAMA = {
    "attention": {"kv_heads": 2, "qkv_bias": False, "out_bias": False},
    "mlp": {"gated": True, "activation": "silu", "bias": False},
    "norm": {"kind": "rmsnorm"},
    "positions": {"kind": "rope"},
}


def small_model(kind: str = "gpt") -> LanguageModel:
    sizes = {"layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocab": 300, "ffn": 192}
    others = LLAMA if kind == "transformer" else {}
    model = model_families[kind].model_validate({"kind": kind, **sizes, **others})
    assert isinstance(model, LanguageModel)
    return model


SMALL = small_model()


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["gpt", "bert", "transformer"])
@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
@pytest.mark.parametrize(("split", "stage"), [((4,), 0), ((1, 2, 1), 0), ((1, 2, 1), 1), ((1, 2, 1), 2)])
def test_torch_keeps_the_bytes_of_the_formulas(kind: str, precision: str, split: tuple[int, ...], stage: int) -> None:
    import torch

    from meshwave.engine.runtime.models import build_stage

    first, last = stage == 0, stage == len(split) - 1
    wide = torch.float64 if precision == "fp64" else torch.float32
    shape = small_model(kind)
    module = build_stage(shape, split, stage, 0, wide)
    batch = 3
    load = Workload.from_model(shape, batch=batch, precision=precision)

    kept: dict[int, tuple[object, int]] = {}  # by storage, so that views count once; holding it keeps it apart

    def run_microbatch() -> None:
        tokens = torch.randint(0, 256, (batch, shape.sequence))
        item = torch.bfloat16 if precision == "bf16" else wide
        x = tokens if first else torch.randn(batch, shape.sequence, shape.hidden, dtype=item, requires_grad=True)
        y = module(x, tokens.clone()) if last else module(x)
        record_saved_tensor(y)

    def record_saved_tensor(tensor: object) -> object:
        storage = tensor.untyped_storage()  # type: ignore[attr-defined]
        kept[storage.data_ptr()] = tensor, storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(record_saved_tensor, lambda tensor: tensor)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), hooks:
        run_microbatch()  # the weights and their one bf16 copy
        before = set(kept)
        run_microbatch()
    activations = sum(size for place, (_, size) in kept.items() if place not in before)
    scalars = 8 * wide.itemsize if last else 0  # the loss and the sum of its weights

    linear = [part for part in module.modules() if isinstance(part, torch.nn.Linear)]
    assert sum(parameter.numel() for part in linear for parameter in part.parameters()) == flops.copied_parameters(
        load, split[stage], first=first, last=last
    )
    assert sum(parameter.numel() for parameter in module.parameters()) == flops.stage_parameters(
        load, split[stage], first=first, last=last
    )
    assert activations == pytest.approx(flops.activation_bytes(load, split[stage], first=first, last=last), abs=scalars)


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
@pytest.mark.parametrize(("split", "stage"), [((4,), 0), ((1, 2, 1), 0), ((1, 2, 1), 1), ((1, 2, 1), 2)])
def test_a_split_backward_keeps_the_bytes_of_the_formulas(precision: str, split: tuple[int, ...], stage: int) -> None:
    import torch

    from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
    from meshwave.engine.runtime.models import build_stage

    first, last = stage == 0, stage == len(split) - 1
    module = build_stage(SMALL, split, stage, 0, DTYPES[precision])
    local = LocalStage(module, precision, torch.device("cpu"), 1.0, splits_backward=True)
    batch, item = 3, MESSAGE_DTYPES[precision]
    load = Workload.from_model(SMALL, batch=batch, precision=precision)
    tokens = torch.randint(0, 256, (batch, SMALL.sequence))
    x, gradient = (torch.randn(batch, SMALL.sequence, SMALL.hidden).to(item) for _ in range(2))

    _, saved = local.forward(tokens if first else x, tokens.clone() if last else None)
    _, due = local.input_gradient(saved, None if last else gradient)

    held = {
        argument.untyped_storage().data_ptr(): argument.untyped_storage().nbytes()
        for left in due
        for argument in left.args
        if isinstance(argument, torch.Tensor)
    }
    assert sum(held.values()) == stage_memory.deferred_bytes(load, split[stage], first=first, last=last)
