"""Model sections in the form in which conversions write and compare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwave.engine.document.architecture import PLAIN
from meshwave.engine.document.model import LanguageModel, model_families

Json = dict[str, Any]
SIZES = ("layers", "hidden", "heads", "sequence", "vocab", "ffn")


def transformer_section(model: LanguageModel) -> Json:
    """Return the model section of a language model as the kind ``transformer``, in its shortest form."""
    section: Json = {"kind": "transformer", **model.architecture.model_dump(mode="json")}
    section |= {name: getattr(model, name) for name in SIZES}
    section["moe"] = None if model.moe is None else model.moe.model_dump(mode="json")
    return shorten_section(section)


def shorten_section(section: Mapping[str, Any]) -> Json:
    """Return a section of the kind ``transformer`` with all keys, and null where a value follows from other keys.

    Keys that other keys leave without effect have their defaults.
    """
    model = model_families["transformer"].model_validate(section, strict=False)
    assert isinstance(model, LanguageModel)
    full: Json = model.model_dump(mode="json")
    attention, positions, norm = full["attention"], full["positions"], full["norm"]
    _drop_keys(full, "ffn", 4 * model.hidden)
    if attention["latent"] is not None:
        attention |= {"kv_heads": None, "head_dim": None}
    _drop_keys(attention, "kv_heads", model.heads)
    _drop_keys(attention, "head_dim", model.hidden / model.heads)
    if attention["window"] is None:
        attention["full_every"] = 0
    if positions["kind"] == "learned":
        _drop_keys(positions, "table", positions["offset"] + model.sequence)
    else:
        positions |= {"table": None, "offset": 0}
    if positions["kind"] != "rope":
        positions |= {"theta": 10_000.0, "window_theta": None, "fraction": 1.0, "scaling": None}
    if norm["kind"] == "rmsnorm":
        norm["bias"] = True
    if full["mtp_layers"] == 0:
        full["mtp_loss_weight"] = PLAIN.mtp_loss_weight
    if full["moe"] is not None:
        first = min(model.expert_blocks, default=0)
        full["moe"]["first_dense"] = first if first >= full["moe"]["every"] else 0
        _shorten_experts(full["moe"], model.ffn_hidden)
    return full


def _shorten_experts(moe: Json, ffn_hidden: int) -> None:
    _drop_keys(moe, "ffn", ffn_hidden)
    if moe["top_k"] == 1:
        moe["normalize"] = True
    if not moe["bias_correction"]:
        moe["bias_update_rate"] = 1e-3
    if moe["groups"] == moe["top_groups"]:
        moe |= {"groups": 1, "top_groups": 1}
    if moe["shared_ffn"] == 0:
        moe["shared_gate"] = False


def _drop_keys(part: Json, key: str, usual: float) -> None:
    """Set a key to null if it has its usual value."""
    if part[key] == usual:
        part[key] = None


def set_path(section: Json, path: str, value: Any) -> None:
    """Set a key of a nested section, such as ``attention.head_dim``; missing parts of the section are added."""
    *parts, name = path.split(".")
    for part in parts:
        section = section.setdefault(part, {})
    section[name] = value


def get_path(section: Mapping[str, Any], path: str) -> Any:
    """Return the value of a key of a nested section; None if a part of the section is null."""
    value: Any = section
    for part in path.split("."):
        value = None if value is None else value[part]
    return value
