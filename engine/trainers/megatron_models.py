"""Conversion of a model to arguments of Megatron-LM, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshwave.engine import messages
from meshwave.engine.document.architecture import yarn_magnitude
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.trainers.argument_reader import ArgumentReader
from meshwave.engine.trainers.launch_script import Arguments
from meshwave.engine.trainers.megatron_arguments import (
    ACTIVATIONS,
    EXPERT_FLAGS,
    EXPERTS,
    LATENT,
    LLAMA3_SCALING,
    MODEL,
    NORMS,
    POSITIONS,
    REQUIRED,
    ROPE,
    YARN_CONTEXT,
    Flag,
    Value,
)
from meshwave.engine.trainers.megatron_layout import read_pattern, write_pattern
from meshwave.engine.trainers.models import Json, get_path, set_path, transformer_section

DEFAULT_VOCAB = 50_257
"""Vocabulary size of the tokenizer that Megatron-LM uses by default, that of GPT-2."""
MOST_LAYERS = 10_000
VOCAB_MULTIPLE = 128
"""Default of --make-vocab-size-divisible-by."""


def read_values(reader: ArgumentReader, table: tuple[Value, ...], section: Json) -> None:
    """Set the keys of a section from the arguments of a table; absent ones have Megatron-LM's defaults."""
    for each in table:
        value = reader.integer(each.name) if each.kind is int else reader.number(each.name)
        if value is None:
            value = each.default
        set_path(section, each.path, value)


def read_flags(reader: ArgumentReader, table: tuple[Flag, ...], section: Json) -> None:
    """Set the keys of a section from the flags of a table."""
    for flag in table:
        set_path(section, flag.path, flag.present if reader.has_argument(flag.name) else flag.absent)


def table_arguments(table: tuple[Value, ...], section: Json) -> Arguments:
    """Return the arguments of a table whose keys ``section`` sets to values that the arguments can express."""
    values = {each.name: (each.kind, get_path(section, each.path)) for each in table}
    return {
        name: (repr(kind(value)),)
        for name, (kind, value) in values.items()
        if value is not None and kind(value) == value
    }


def write_flags(table: tuple[Flag, ...], section: Json) -> Arguments:
    """Return the flags of a table that a section sets."""
    return {flag.name: () for flag in table if get_path(section, flag.path) == flag.present}


# ---- reading ----


def read_model(reader: ArgumentReader, vocab: int | None) -> Json:
    """Return the model section that the arguments describe.

    Args:
        reader: the arguments.
        vocab: the vocabulary size if the arguments do not state it; None for that of Megatron-LM's default tokenizer.
    """
    section: Json = {"kind": "transformer"}
    reader.require(REQUIRED)
    read_values(reader, MODEL, section)
    if not 1 <= (section["layers"] or 1) <= MOST_LAYERS:
        reader.add_problem("argument_value", argument="--num-layers", value=str(section["layers"]))
        section["layers"] = 1
    padded = reader.integer("--padded-vocab-size")
    section["vocab"] = section["vocab"] or padded
    if section["vocab"] is None:
        section["vocab"] = vocab or DEFAULT_VOCAB
        reader.add_note("assumed_vocabulary", vocab=section["vocab"])
    if padded is None:
        _note_padding(reader, section["vocab"])
    section["tied_embeddings"] = not reader.has_argument("--untie-embeddings-and-output-weights")
    set_path(section, "norm.kind", reader.choice("--normalization", NORMS, "LayerNorm"))
    _read_mlp(reader, section)
    _read_attention(reader, section)
    _read_positions(reader, section)
    section["moe"] = None
    if reader.text("--num-experts"):
        _read_experts(reader, section)
    section["mtp_layers"] = reader.integer("--mtp-num-layers", 0)
    section["mtp_loss_weight"] = reader.number("--mtp-loss-scaling-factor", 0.1)
    section["layers"] = (section["layers"] or 1) + section["mtp_layers"]
    return section


def _note_padding(reader: ArgumentReader, vocab: int) -> None:
    """Add a note if Megatron-LM pads the vocabulary, so that tensor-parallel devices have equal shares."""
    tp = reader.integer("--tensor-model-parallel-size", 1)
    multiple = max(tp * reader.integer("--make-vocab-size-divisible-by", VOCAB_MULTIPLE), 1)
    if vocab % multiple:
        reader.add_note("padded_vocabulary", vocab=vocab, padded=-(-vocab // multiple) * multiple)


def _read_mlp(reader: ArgumentReader, section: Json) -> None:
    chosen = [ACTIVATIONS[name] for name in ACTIVATIONS if reader.has_argument(name)]
    gated, activation = chosen[0] if chosen else (False, "gelu")
    section["mlp"] = {
        "gated": gated,
        "activation": activation,
        "bias": not reader.has_argument("--disable-bias-linear"),
    }
    if section["ffn"] is None and gated and section["hidden"]:
        section["ffn"] = section["hidden"] * 4 * 2 // 3 // 64 * 64  # Megatron-LM's default


def _read_attention(reader: ArgumentReader, section: Json) -> None:
    attention, has_bias = section["attention"], section["mlp"]["bias"]
    is_latent = reader.has_argument("--multi-latent-attention")
    groups = reader.integer("--num-query-groups")
    attention["kv_heads"] = groups if reader.has_argument("--group-query-attention") else None
    attention |= {"out_bias": has_bias, "qkv_bias": reader.has_argument("--add-qkv-bias") or has_bias}
    has_norm = reader.has_argument("--qk-layernorm")
    attention["sinks"] = reader.choice("--softmax-type", {"vanilla": False, "learnable": True}, "vanilla")
    if is_latent:
        read_values(reader, LATENT, section)
        attention["head_dim"] = None
        if not has_norm:
            reader.add_note("assumed_latent_norms")
    else:
        attention["qk_norm"] = "head" if has_norm else "none"
    window = reader.text("--window-size").strip("()").split(",")
    if window[0].strip().isdecimal():
        attention["window"] = int(window[0]) + 1
        attention["full_every"] = reader.integer("--window-attn-skip-freq", 0)


def _read_positions(reader: ArgumentReader, section: Json) -> None:
    kind = reader.choice("--position-embedding-type", POSITIONS, "learned_absolute")
    is_switched_off = reader.has_argument("--no-position-embedding")
    if reader.has_argument("--use-rotary-position-embeddings"):
        kind = "rope"
    elif kind == "learned" and is_switched_off:
        kind = "none"
    section["positions"] = {"kind": kind}
    rows = reader.integer("--max-position-embeddings")
    if kind == "learned":
        set_path(section, "positions.table", rows)
    elif kind == "rope":
        read_values(reader, ROPE, section)
        set_path(section, "positions.scaling", _read_scaling(reader, section))


def _read_scaling(reader: ArgumentReader, section: Json) -> Json | None:
    """Return the scaling of rotary positions; YaRN is the default of multi-latent attention."""
    scales = reader.has_argument("--use-rope-scaling")
    factor, llama3_factor = reader.number("--rotary-scaling-factor", 1.0), reader.number("--rope-scaling-factor", 8.0)
    linear_factor = reader.integer("--rotary-seq-len-interpolation-factor", 1)
    if section["attention"].get("latent"):
        is_yarn = reader.choice("--rope-type", {"yarn": True, "rope": False}, "yarn")
        return _read_yarn(reader, section["attention"], factor) if is_yarn and factor != 1 else None
    if scales:
        return {**LLAMA3_SCALING, "factor": llama3_factor}
    return {"kind": "linear", "factor": linear_factor} if linear_factor != 1 else None


def _read_yarn(reader: ArgumentReader, attention: Json, factor: float) -> Json:
    """Return the YaRN scaling of multi-latent attention, and set the scale of the attention scores if it is changed."""
    found = {"kind": "yarn", "factor": factor, "original_context": YARN_CONTEXT}
    weight, weight_all = reader.number("--mscale", 1.0), reader.number("--mscale-all-dim", 0.0)
    if weight_all:
        whole = yarn_magnitude(factor, weight_all)
        found["attention_factor"] = yarn_magnitude(factor, weight) / whole
        attention["scale"] = whole**2 * (attention["latent"]["nope_dim"] + attention["latent"]["rope_dim"]) ** -0.5
    return found


def _read_experts(reader: ArgumentReader, section: Json) -> None:
    section["moe"] = moe = {}
    read_values(reader, EXPERTS, section)
    read_flags(reader, EXPERT_FLAGS, section)
    moe["shared_ffn"] = reader.integer("--moe-shared-expert-intermediate-size", 0)
    for path, name in (("groups", "--moe-router-num-groups"), ("top_groups", "--moe-router-group-topk")):
        moe[path] = reader.integer(name, 1)
    moe["score"] = reader.choice("--moe-router-score-function", {"softmax": "softmax", "sigmoid": "sigmoid"}, "softmax")
    is_normalized = not reader.has_argument("--moe-router-pre-softmax")
    moe["normalize"] = moe["score"] == "sigmoid" or is_normalized
    moe["bias_correction"] = reader.has_argument("--moe-router-enable-expert-bias")
    moe["bias_update_rate"] = reader.number("--moe-router-bias-update-rate", 1e-3)
    kinds = {"aux_loss": True, "seq_aux_loss": True, "global_aux_loss": True, "none": False}
    has_loss = reader.choice("--moe-router-load-balancing-type", kinds, "aux_loss")
    weight = reader.number("--moe-aux-loss-coeff", 0.0)
    moe["aux_loss"] = weight if has_loss else 0.0
    _read_expert_layers(reader, section)


def _read_expert_layers(reader: ArgumentReader, section: Json) -> None:
    """Read the layers with experts, which a design describes by their interval and the number of dense first layers."""
    moe, layers, text = section["moe"], section["layers"] or 1, reader.text("--moe-layer-freq", "1")
    chosen = read_pattern(text, layers)
    if chosen:
        every = chosen[1] - chosen[0] if len(chosen) > 1 else chosen[0] + 1
        moe |= {"every": every, "first_dense": chosen[0] if chosen[0] >= every else 0}
        if chosen == [layer for layer in range(every - 1, layers, every) if layer >= moe["first_dense"]]:
            return
    reader.add_problem("unsupported_pattern", value=text)


# ---- writing ----


def write_model(model: LanguageModel) -> Arguments:
    """Return the arguments of a model; see :func:`read_model` for the parts that they describe."""
    section = transformer_section(model)
    architecture, positions = model.architecture, model.architecture.positions
    layers = model.layers - architecture.mtp_layers
    section |= {"ffn": model.ffn_hidden, "layers": layers}
    found = table_arguments(MODEL, section)
    found["--max-position-embeddings"] = (str(positions.table or positions.offset + model.sequence),)
    found["--make-vocab-size-divisible-by"] = ("1",)
    found["--normalization"] = ("RMSNorm" if architecture.norm.kind == "rmsnorm" else "LayerNorm",)
    found |= dict(_mlp_arguments(section))
    found |= dict(_attention_arguments(section))
    found |= dict(_position_arguments(section))
    if not architecture.tied_embeddings:
        found["--untie-embeddings-and-output-weights"] = ()
    if model.moe is not None:
        found |= dict(_expert_arguments(model.moe.blocks(layers), section))
    if architecture.mtp_layers:
        found["--mtp-num-layers"] = (str(architecture.mtp_layers),)
        found["--mtp-loss-scaling-factor"] = (repr(architecture.mtp_loss_weight),)
    return found


def _mlp_arguments(section: Json) -> Iterator[tuple[str, tuple[str, ...]]]:
    mlp = section["mlp"]
    if not mlp["bias"]:
        yield "--disable-bias-linear", ()
    yield from ((name, ()) for name, chosen in ACTIVATIONS.items() if chosen == (mlp["gated"], mlp["activation"]))


def _attention_arguments(section: Json) -> Iterator[tuple[str, tuple[str, ...]]]:
    attention = section["attention"]
    if attention["latent"] is not None:
        yield "--multi-latent-attention", ()
        yield from table_arguments(LATENT, section).items()
    if attention["kv_heads"] is not None:
        yield "--group-query-attention", ()
        yield "--num-query-groups", (str(attention["kv_heads"]),)
    if attention["qkv_bias"] and not section["mlp"]["bias"]:
        yield "--add-qkv-bias", ()
    if attention["latent"] is not None or attention["qk_norm"] == "head":
        yield "--qk-layernorm", ()
    if attention["sinks"]:
        yield "--softmax-type", ("learnable",)
    if attention["window"] is not None:
        yield "--window-size", (f"{attention['window'] - 1},0",)
        if attention["full_every"]:
            yield "--window-attn-skip-freq", (str(attention["full_every"]),)


def _position_arguments(section: Json) -> Iterator[tuple[str, tuple[str, ...]]]:
    positions, is_latent = section["positions"], section["attention"]["latent"] is not None
    names = {ours: theirs for theirs, ours in POSITIONS.items()}
    if positions["kind"] in names:
        yield "--position-embedding-type", (names[positions["kind"]],)
    if positions["kind"] != "rope":
        return
    yield from table_arguments(ROPE, section).items()
    scaling = positions["scaling"]
    kind = scaling["kind"] if scaling is not None else "none"
    if is_latent and kind == "yarn":
        yield "--rotary-scaling-factor", (repr(scaling["factor"]),)
    elif is_latent:
        yield "--rope-type", ("rope",)
    elif kind == "llama3":
        yield "--use-rope-scaling", ()
        yield "--rope-scaling-factor", (repr(scaling["factor"]),)
    elif kind == "linear" and scaling["factor"].is_integer():
        yield "--rotary-seq-len-interpolation-factor", (str(int(scaling["factor"])),)


def _expert_arguments(blocks: Sequence[int], section: Json) -> Iterator[tuple[str, tuple[str, ...]]]:
    moe: dict[str, Any] = section["moe"]
    yield from table_arguments(EXPERTS, section).items()
    yield from write_flags(EXPERT_FLAGS, section).items()
    if moe["shared_ffn"]:
        yield "--moe-shared-expert-intermediate-size", (str(moe["shared_ffn"]),)
    if len(blocks) < section["layers"]:
        yield "--moe-layer-freq", (write_pattern(blocks, section["layers"]),)
    yield "--moe-router-score-function", (moe["score"],)
    if moe["score"] == "softmax" and (moe["top_k"] == 1 or not moe["normalize"]):
        yield "--moe-router-pre-softmax", ()
    if moe["score"] == "sigmoid" and moe["bias_correction"]:  # Megatron-LM refuses the bias with softmax
        yield "--moe-router-enable-expert-bias", ()
        yield "--moe-router-bias-update-rate", (repr(moe["bias_update_rate"]),)
    if moe["groups"] > 1:
        yield "--moe-router-num-groups", (str(moe["groups"]),)
        yield "--moe-router-group-topk", (str(moe["top_groups"]),)
    yield "--moe-router-load-balancing-type", ("aux_loss" if moe["aux_loss"] else "none",)
    if moe["aux_loss"]:
        yield "--moe-aux-loss-coeff", (repr(moe["aux_loss"]),)
    yield "--moe-token-dispatcher-type", ("alltoall",)


messages.add_messages(
    assumed_vocabulary="the file does not state --vocab-size; the design has a vocabulary of {vocab:,}",
    padded_vocabulary="Megatron-LM pads the vocabulary from {vocab:,} to {padded:,} tokens",
    assumed_latent_norms="the design normalizes the compressed queries and keys, although --qk-layernorm is absent",
    unsupported_pattern=(
        "--moe-layer-freq {value} cannot be represented: a design has experts in the last of every n layers, after some "
        "dense layers"
    ),
)
