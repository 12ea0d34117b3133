"""Published training runs: reading a file of rows, and the keys of a row that a prediction uses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from meshwave.engine.document.cluster import MAX_DEVICES
from meshwave.engine.findings import Refusal

Size = Annotated[int, Field(ge=1, le=1_000_000_000)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Devices = Annotated[int, Field(ge=1, le=MAX_DEVICES)]
SHIPPED = "runs.json"


class Latent(BaseModel):
    """Multi-head latent attention of a published model."""

    q_lora_rank: Size | None = None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size


class Run(BaseModel):
    """Configuration and measurements of a published run; unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    id: str
    source: str = ""
    kind: str = "train_step"
    device: str
    devices: Devices
    gpus_per_node: Devices
    interconnect: str | None = None
    model: str = ""
    arch: str = "dense"
    layers: Size
    hidden: Size
    ffn: Size
    heads: Size
    kv_heads: Size | None = None
    head_dim: Size | None = None
    vocab: Size
    seq: Size
    mlp: str
    tied_embeddings: bool | None = None
    attention_type: str | None = None
    mla: Latent | None = None
    experts: Size | None = None
    top_k: Size | None = None
    moe_ffn: Size | None = None
    shared_expert_ffn: Count = 0
    dense_layers: Count = 0
    mtp_layers: Count = 0
    precision: str
    tp: Size = 1
    cp: Size = 1
    pp: Size = 1
    dp: Size = 1
    ep: Size = 1
    etp: Size | None = None
    vp: Size | None = None
    mbs: Size
    gbs: Size
    sharding: str | None = None
    recompute: str
    recompute_detail: str | None = None
    sequence_parallel: bool = False
    stage_layout: str | None = None
    schedule: str | None = None
    framework: str = ""
    notes: str | None = None
    iteration_s: Annotated[float, Field(gt=0)] | None = None
    iteration_s_derived: Annotated[float, Field(gt=0)] | None = None
    memory_gib: float | None = None
    complete: str = "complete"
    missing: tuple[str, ...] = ()

    @property
    def step_s(self) -> float | None:
        """Published step time in seconds."""
        return self.iteration_s or self.iteration_s_derived

    @property
    def publication(self) -> str:
        """Name of the source: the first part of the id, such as ``bloom``."""
        return self.id.partition("-")[0]


def read_rows(path: Path | None) -> list[Any]:
    """Read the rows of a file, or the published runs that come with Meshwave.

    Raises:
        Refusal: the file cannot be read, or is not a list of rows.
    """
    try:
        text = (resources.files(__package__) / SHIPPED if path is None else path).read_text()
        rows = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise Refusal("unreadable_runs", {"path": str(path), "reason": str(error)}) from None
    found = rows.get("rows") if isinstance(rows, Mapping) else rows
    if not isinstance(found, list):
        raise Refusal("unreadable_runs", {"path": str(path), "reason": "a list of rows is expected"})
    return found


def parse_run(row: Any) -> Run:
    """Parse a row into a published run.

    Raises:
        Refusal: the row lacks keys, or a value is not valid for a training step.
    """
    if isinstance(row, Mapping) and row.get("kind", "train_step") != "train_step":
        raise Refusal("run_not_a_step", {"kind": str(row["kind"])})
    if isinstance(row, Mapping) and isinstance(missing := row.get("missing"), list) and missing:
        raise Refusal("run_incomplete", {"keys": [str(key) for key in missing]})
    try:
        run = Run.model_validate(row)
    except ValidationError as error:
        raise Refusal("run_unreadable", {"problems": sorted(set(_problem_texts(error)))}) from None
    if run.step_s is None:
        raise Refusal("run_incomplete", {"keys": ["iteration_s"]})
    return run


def _problem_texts(error: ValidationError) -> Iterator[str]:
    for each in error.errors():
        yield f"{'.'.join(map(str, each['loc'])) or 'row'}: {each['msg']}"
