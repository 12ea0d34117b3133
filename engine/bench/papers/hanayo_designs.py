"""Designs of the Hanayo paper's experiments (arXiv:2308.15762, section 5), and what is predicted of them.

From the paper: models, clusters, schemes, (D, P, W) and B. From data sheets: peaks, memory and links. Assumed, since
the paper does not print them: precision, sequence length, efficiency, as many microbatches as a pipeline has devices,
B sequences in each of them, AdamW, no recomputation, and pipelines that take consecutive devices of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from meshwave.engine.bench.papers.hanayo_bars import Layout
from meshwave.engine.bench.papers.hanayo_fit import backward_ratio, fitted_transfer
from meshwave.engine.costs.presets import preset
from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.program import Program

Number = Literal["16 bit", "fp32"]
Placement = Literal["pipelines", "copies"]

SCHEMES: Mapping[str, Mapping[str, object]] = {
    "GPipe": {"schedule": "gpipe"},
    "1F1B": {"schedule": "1f1b"},
    "Chimera-wave": {"schedule": "hanayo", "waves": 1},
    "H-1": {"schedule": "hanayo", "waves": 1},
    "H-2": {"schedule": "hanayo", "waves": 2},
    "H-4": {"schedule": "hanayo", "waves": 4},
    "H-8": {"schedule": "hanayo", "waves": 8},
}
"""Chimera-wave is one wave over half of the devices, with twice as many pipelines (figure 5)."""

MODELS: Mapping[str, Mapping[str, Any]] = {
    "bert": {"kind": "bert", "layers": 64, "hidden": 2560, "heads": 64, "vocab": 30522},
    "gpt": {"kind": "gpt", "layers": 128, "hidden": 1024, "heads": 16, "vocab": 50257},
}
"""Layers, width and heads are printed; the vocabularies are those of BERT and GPT-2."""

PEAKS: Mapping[tuple[str, Number], float] = {
    ("A100", "16 bit"): 312e12,
    ("A100", "fp32"): 19.5e12,
    ("V100", "16 bit"): 125e12,
    ("V100", "fp32"): 15.7e12,
}
"""FLOP/s of the data sheets: tensor cores on 16 bit, or CUDA cores on fp32, which is PyTorch's default for fp32."""

SEQUENCE = 256
"""Tokens of a sequence: assumed, for time. 512 do not fit into the peak of fp32 (``hanayo_throughput``)."""


class Setting(NamedTuple):
    """One experiment, and what is assumed of it."""

    cluster: str
    scheme: str
    layout: Layout
    model: str = "bert"
    number: Number = "fp32"
    sequence: int = SEQUENCE
    placement: Placement = "pipelines"
    """pipelines: each takes consecutive devices; copies: the devices that hold the same stage do."""
    fitted: bool = False
    """Unit costs with the T_C that was fitted to the bars, instead of a roofline."""


class Played(NamedTuple):
    """What is predicted of one experiment."""

    sequences_per_s: float  # of a fitted one: in the time that one forward of the model takes a sequence on one device
    computing: float  # the share of the step until its last backward ends: what follows is reductions and the optimizer
    memory_gb: tuple[float, ...]  # of a device of each mesh
    fits: bool
    microbatches: int  # of B sequences in each of the D pipelines

    @property
    def as_counted(self) -> float:
        """D B sequences a step, however many microbatches of B there are: the throughput that fits the bars."""
        return self.sequences_per_s / self.microbatches

    @property
    def without_reductions(self) -> float:
        """Sequences/s if a step ended with its last backward."""
        return self.sequences_per_s / self.computing

    @property
    def variance(self) -> float:
        """Of the peak memory in GB over devices, of which every mesh has as many."""
        return float(np.var(self.memory_gb))


@lru_cache(maxsize=512)
def played(setting: Setting) -> Played:
    """Predict one experiment through its design."""
    prediction = predict(parse_design(document(setting)), program_of(setting))
    scale = setting.layout.ranks / setting.layout.batch if setting.fitted else 1.0
    return Played(
        scale * prediction.costs.samples / prediction.timeline.makespan,
        _computing(prediction),
        tuple((prediction.memory.total_bytes / 1e9).tolist()),
        bool(prediction.memory.fits.all()),
        setting.layout.ranks,
    )


def program_of(setting: Setting) -> Program:
    """Lower an experiment: whatever its costs, its order is that of its scheme, with reductions between copies or not."""
    pipelines, ranks, _ = setting.layout
    return _lowered(Setting("tacc", setting.scheme, Layout(min(pipelines, 2), ranks, 1)))


@lru_cache(maxsize=64)
def _lowered(setting: Setting) -> Program:
    return lower(parse_design(document(setting)))


def _computing(prediction: Prediction) -> float:
    timeline = prediction.timeline
    return float(timeline.end[timeline.is_compute].max() - timeline.start.min()) / timeline.makespan


def document(setting: Setting) -> dict[str, Any]:
    """Draw one experiment."""
    cluster = preset(f"hanayo-{setting.cluster}").cluster.model_dump(mode="json")
    cluster["device"]["peak_flops"] = PEAKS[cluster["device"]["name"][:4], setting.number]
    pipelines, ranks, batch = setting.layout
    halved = setting.scheme == "Chimera-wave"
    copies, meshes = (2 * pipelines, ranks // 2) if halved else (pipelines, ranks)
    pipeline = {**SCHEMES[setting.scheme], "microbatches": meshes}
    return {
        "format": "meshwave/1",
        "name": f"{setting.cluster}, {setting.model}, {setting.scheme}, {setting.layout}",
        "cluster": cluster,
        "model": _model(setting, 2 * meshes * int(str(pipeline.get("waves", 0)))),
        "meshes": [
            {"name": str(rank), "devices": _devices(setting, rank, meshes, copies), "axes": {"dp": copies, "tp": 1}}
            for rank in range(meshes)
        ],
        "pipeline": pipeline,
        "training": {"micro_batch_size": batch, "precision": "fp32" if setting.number == "fp32" else "bf16"},
        "cost": _unit_cost(setting, meshes) if setting.fitted else {"kind": "roofline"},
    }


def _devices(setting: Setting, rank: int, meshes: int, copies: int) -> list[int]:
    if setting.placement == "pipelines":
        return [copy * meshes + rank for copy in range(copies)]
    return [rank * copies + copy for copy in range(copies)]


def _model(setting: Setting, stages: int) -> dict[str, Any]:
    """The model; in twice as many layers of half the products where there are more stages than layers."""
    model = {**MODELS[setting.model], "sequence": setting.sequence}
    if stages > model["layers"]:  # 4 h^2 of attention and 2 h f of the rest: 12 h^2 for f = 4 h, half for f = h
        model |= {"layers": 2 * model["layers"], "ffn": model["hidden"]}
    return model


def _unit_cost(setting: Setting, meshes: int) -> dict[str, Any]:
    ranks = setting.layout.ranks
    share = ranks / meshes  # units are forwards of 1/P of the model, also where a mesh holds more of it
    return {
        "kind": "unit",
        "forward": share,
        "backward": share * backward_ratio(setting.cluster, ranks),
        "transfer": fitted_transfer(setting.cluster, ranks),
    }
