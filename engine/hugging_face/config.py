"""Conversion of Hugging Face ``transformers`` configurations to the model section of a design."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from meshwave.engine import messages
from meshwave.engine.document.architecture import yarn_magnitude
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.hugging_face.keys import ACTIVATIONS, MODEL_TYPES, NO_EFFECT, SIZES, Key

TYPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys((name for key in SIZES.values() for name in key.names), int),
    **dict.fromkeys(
        ("n_shared_experts", "moe_intermediate_size", "n_positions", "max_position_embeddings", "pad_token_id"), int
    ),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), dict),
    "query_pre_attn_scalar": (int, float),
    "layer_types": list,
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function", "activation"), str),
}
"""Types of the values that are used in calculations; the document checks the other values."""
LONGEST_SEQUENCE = 4096
"""Sequence length of the design in tokens, if the model supports longer sequences."""
ATTENTION_TYPES = ("full_attention", "sliding_attention")
SCALING_KINDS = ("linear", "dynamic", "llama3", "yarn", "longrope")
OLDER_KINDS = {"su": "longrope"}
"""Kinds of rotary scaling by their names in older configurations."""
SCALING_NUMBERS = ("attention_factor", "mscale", "mscale_all_dim")
"""Keys of rotary scaling that are used in calculations."""
SCALING_KEYS = {
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "truncate": "truncate",
    "short_factors": "short_factor",
    "long_factors": "long_factor",
}
"""Keys of rotary scaling by their names in the model section of a design."""

Json = dict[str, Any]


def read_model(config: Any, *, includes_mtp: bool = False) -> tuple[Json, list[Problem]]:
    """Convert a configuration to the model section of a design, and return it with notes.

    Args:
        config: the configuration.
        includes_mtp: True to include the layers of multi-token prediction, which transformers leaves out.

    Raises:
        DesignError: some settings cannot be represented; the error lists all of them by key.
    """
    if not isinstance(config, dict) or "model_type" not in config:
        raise DesignError([Problem("model_type", "hf_no_model_type", {"known": list(MODEL_TYPES)})])
    if isinstance(text := config.get("text_config"), dict):
        config = {**text, "model_type": text.get("model_type", f"{config['model_type']}_text")}
    if not isinstance(config["model_type"], str) or config["model_type"] not in MODEL_TYPES:
        params = {"model_type": str(config["model_type"]), "known": list(MODEL_TYPES)}
        raise DesignError([Problem("model_type", "hf_model_type", params)])
    reader = _Reader(config)
    model = reader.read()
    if reader.problems:
        raise DesignError(reader.problems)
    mtp_layers = model.pop("mtp_layers", None)
    if mtp_layers and includes_mtp:
        model |= {"mtp_layers": mtp_layers, "layers": model["layers"] + mtp_layers}
    return model, list(reader.notes())


class _Reader:
    """Reader of a configuration, which collects the problems and the used keys."""

    def __init__(self, config: Json) -> None:
        self._config, self._type = config, MODEL_TYPES[config["model_type"]]
        self._used: set[str] = set()
        self._model: Json = {"kind": "transformer"}
        self.problems: list[Problem] = []

    def read(self) -> Json:
        for path, value in self._type.constants.items():
            self._set_path(path, value)
        for path, key in {**SIZES, **self._type.keys}.items():
            self._set_path(path, self._value(key))
        for name, values in self._type.required.items():
            if self._get_key(name, values[0]) not in values:
                self._add_problem(name)
        self._check_sizes()
        if not self.problems:
            _SPECIAL.get(self._config["model_type"], _read_no_special_settings)(self, self._model)
            self._read_activation()
            self._read_rope()
            self._read_layer_types()
            self._read_experts()
            self._read_sequence()
        return self._model

    def notes(self) -> Iterator[Problem]:
        """Yield notes on settings that are not represented."""
        if count := self._get_key("num_nextn_predict_layers"):
            yield Problem("model.mtp_layers", "hf_mtp", {"count": count}, "warning")
        rest = [name for name, value in self._config.items() if name not in self._used | NO_EFFECT and value]
        if rest:
            yield Problem("", "hf_unused_keys", {"keys": sorted(rest)}, "warning")
        if self._model["sequence"] < self.longest:
            params = {"sequence": self._model["sequence"], "longest": self.longest}
            yield Problem("model.sequence", "hf_sequence", params, "warning")

    # ---- keys ----

    def _get_key(self, name: str, default: Any = None) -> Any:
        self._used.add(name)
        return self._config.get(name, default)

    def _value(self, key: Key) -> Any:
        found = [value for name in key.names if (value := self._get_key(name)) is not None]
        absent = not any(name in self._config for name in key.names)
        return found[0] if found else key.default if absent else None

    def _set_path(self, path: str, value: Any) -> None:
        *parts, name = path.split(".")
        part = self._model
        for each in parts:
            part = part.setdefault(each, {})
        part[name] = value

    def _add_problem(self, name: str) -> None:
        value = self._config.get(name)
        params = {"key": name, "value": json.dumps(value)[:80], "model_type": self._config["model_type"]}
        self.problems.append(Problem(name, "hf_unsupported", params))

    def _check_sizes(self) -> None:
        missing = [key.names[0] for path, key in SIZES.items() if self._model[path] is None]
        self.problems += [Problem(name, "hf_missing_key", {"key": name}) for name in missing]
        for name, value in self._config.items():
            kind = TYPES.get(name)
            if kind is not None and value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                self._add_problem(name)

    # ---- settings that need more than one key ----

    def _read_activation(self) -> None:
        mlp = self._model.setdefault("mlp", {})
        name = mlp.get("activation", "gelu")
        if name in ACTIVATIONS:
            mlp["activation"] = ACTIVATIONS[name]
        elif name != "clamped_swish":
            self._add_problem(next(key for key in self._type.keys["mlp.activation"].names if key in self._config))

    def _read_rope(self) -> None:
        parameters = self._get_key("rope_parameters") or {}
        local = parameters.get("sliding_attention", {})
        parameters = parameters.get("full_attention", parameters)
        if not isinstance(local, dict) or not isinstance(parameters, dict):
            self._add_problem("rope_parameters")
            return
        scaling = self._get_key("rope_scaling") or parameters
        for path, value in (
            ("positions.theta", parameters.get("rope_theta")),
            ("positions.fraction", parameters.get("partial_rotary_factor")),
            ("positions.window_theta", local.get("rope_theta")),
        ):
            if value is not None:
                self._set_path(path, value)
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind == "default":
            return
        kind = OLDER_KINDS.get(kind, kind) if isinstance(kind, str) else kind
        if kind == "longrope":
            scaling = self._read_longrope(scaling)
        numbers = [scaling.get("factor"), *(scaling.get(name, 1.0) for name in SCALING_NUMBERS)]
        if kind not in SCALING_KINDS or not all(isinstance(number, (int, float)) for number in numbers):
            self._add_problem("rope_scaling" if "rope_scaling" in self._config else "rope_parameters")
            return
        original = scaling.get("original_max_position_embeddings")
        if kind == "dynamic" or (original is None and kind != "linear"):
            original = self._get_key("max_position_embeddings")
        found = {
            "kind": kind,
            "factor": scaling.get("factor"),
            "original_context": original,
            "attention_factor": _attention_factor(scaling),
            **{path: _value_of(scaling[name]) for path, name in SCALING_KEYS.items() if scaling.get(name) is not None},
        }
        self._set_path("positions.scaling", found)
        self._read_score_scale(scaling)

    def _read_longrope(self, scaling: Json) -> Json:
        """Return the settings of LongRoPE, with the factor and the context of pretraining from the other settings."""
        found = {name: value for name, value in scaling.items() if value is not None}
        original = self._get_key("original_max_position_embeddings") or found.get("original_max_position_embeddings")
        longest = self._get_key("max_position_embeddings")
        if isinstance(original, int) and original > 1 and isinstance(longest, int):
            found = {"factor": longest / original, **found, "original_max_position_embeddings": original}
        return found

    def _read_score_scale(self, scaling: Json) -> None:
        """Read the scale of the attention scores of DeepSeek, whose square root grows with the context."""
        latent = self._model.get("attention", {}).get("latent")
        if latent and (weight := scaling.get("mscale_all_dim")):
            head_dim = latent["nope_dim"] + latent["rope_dim"]
            self._set_path("attention.scale", head_dim**-0.5 * yarn_magnitude(scaling["factor"], weight) ** 2)

    def _read_layer_types(self) -> None:
        """Read the interval of the layers without a sliding window."""
        types = self._get_key("layer_types")
        if not types or all(kind == "full_attention" for kind in types):
            if types and self._model.get("attention", {}).get("window"):
                self._set_path("attention.window", None)
            return
        full = [number for number, kind in enumerate(types) if kind == "full_attention"]
        every = full[0] + 1 if full else 0
        expected = list(range(every - 1, len(types), every)) if every else []
        if full != expected or any(kind not in ATTENTION_TYPES for kind in types):
            self._add_problem("layer_types")
        self._set_path("attention.full_every", every)

    def _read_experts(self) -> None:
        moe = self._model.get("moe")
        if moe is None:
            return
        if moe["experts"] is None:  # a configuration of the same type without experts
            self._model["moe"] = None
            return
        moe["capacity_factor"] = None
        if shared := self._get_key("n_shared_experts"):
            if moe.get("ffn") is None:
                self.problems.append(
                    Problem("moe_intermediate_size", "hf_missing_key", {"key": "moe_intermediate_size"})
                )
            else:
                moe["shared_ffn"] = shared * moe["ffn"]

    def _read_sequence(self) -> None:
        positions = self._model.get("positions", {})
        longest = positions.get("table") or self._get_key("max_position_embeddings") or self._get_key("seq_length")
        longest = (longest or LONGEST_SEQUENCE) - positions.get("offset", 0)
        self.longest = longest
        self._model["sequence"] = min(longest, LONGEST_SEQUENCE)


def _value_of(value: Any) -> Any:
    """Return a value of a configuration in the form of the model section, in which lists are tuples."""
    return tuple(value) if isinstance(value, list) else value


def _attention_factor(scaling: Json) -> float | None:
    """Return the multiplier of rotated queries and keys; None for the default of YaRN."""
    found, mscale, all_dim = (scaling.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if found is None and mscale and all_dim:
        return yarn_magnitude(scaling["factor"], mscale) / yarn_magnitude(scaling["factor"], all_dim)
    return found


def _read_no_special_settings(reader: _Reader, model: Json) -> None:
    """Do nothing, because most model types have no settings besides the listed keys."""


def _read_gemma(reader: _Reader, model: Json) -> None:
    """Read the settings of Gemma: embeddings scaled by the root of the hidden size, and a separate score scale."""
    model["embedding_scale"] = model["hidden"] ** 0.5
    if scalar := reader._get_key("query_pre_attn_scalar"):
        reader._set_path("attention.scale", scalar**-0.5)


def _read_falcon(reader: _Reader, model: Json) -> None:
    """Read the settings of Falcon, whose newer decoder has grouped key-value heads and two norms."""
    is_new = reader._get_key("new_decoder_architecture", False)
    kv_heads = reader._get_key("num_kv_heads", reader._get_key("num_key_value_heads")) if is_new else None
    if not is_new and reader._get_key("multi_query", True):
        kv_heads = 1
    reader._set_path("attention.kv_heads", kv_heads)
    two_norms = is_new and reader._get_key("num_ln_in_parallel_attn") != 1
    parallel = "parallel" if two_norms else "parallel-one-norm"
    model["residual"] = parallel if is_new or reader._get_key("parallel_attn", True) else "sequential"
    reader._set_path("positions.kind", "alibi" if reader._get_key("alibi", False) else "rope")
    if model["positions"]["kind"] == "alibi":
        model["positions"]["alibi_scale"] = (model["hidden"] / model["heads"]) ** -0.5


def _read_gpt_neox(reader: _Reader, model: Json) -> None:
    model["residual"] = "parallel" if reader._get_key("use_parallel_residual", True) else "sequential"


def _read_deepseek_v2(reader: _Reader, model: Json) -> None:
    """Read the settings of DeepSeek-V2, whose smaller models choose among all experts regardless of groups."""
    if reader._get_key("topk_method") == "greedy" and model.get("moe"):
        model["moe"] |= {"groups": 1, "top_groups": 1}


def _read_roberta(reader: _Reader, model: Json) -> None:
    """Read the settings of RoBERTa, whose positions follow the number of the padding token, and whose mask is the last token."""
    model["mask_token"] = model["vocab"] - 1
    padding = reader._get_key("pad_token_id")
    reader._set_path("positions.offset", (1 if padding is None else padding) + 1)


_SPECIAL = {
    "deepseek_v2": _read_deepseek_v2,
    "falcon": _read_falcon,
    "gemma": _read_gemma,
    "gemma2": _read_gemma,
    "gemma3_text": _read_gemma,
    "gpt_neox": _read_gpt_neox,
    "roberta": _read_roberta,
}


messages.add_messages(
    hf_no_model_type=(
        "the file has no key model_type and is not a Hugging Face configuration; supported types: {known:list}"
    ),
    hf_model_type="unsupported model type {model_type} (supported: {known:list})",
    hf_missing_key="the configuration lacks {key}",
    hf_unsupported="unsupported {key} = {value} for model type {model_type}",
    hf_mtp=(
        "the {count} layers of multi-token prediction are left out, as in transformers; to train them, add {count} to "
        "model.layers and set model.mtp_layers to {count}"
    ),
    hf_unused_keys="ignored settings: {keys:list}",
    hf_sequence="the sequence length in the design is {sequence} tokens; the model supports up to {longest}",
)
