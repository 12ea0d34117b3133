"""Designs of the Hanayo paper's experiments (arXiv:2308.15762, section 5), and their predictions.

From the paper: models, clusters, schemes, (D, P, W) and B. From data sheets: peak FLOP/s, memory and links. Assumed,
because the paper does not state them: precision, sequence length, efficiency, as many microbatches of B sequences as a
pipeline has devices, AdamW, no recomputation, and pipelines on consecutive devices of the cluster.
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
"""Schedules of the paper. Chimera-wave is one wave over half of the devices, with twice as many pipelines."""

MODELS: Mapping[str, Mapping[str, Any]] = {
    "bert": {"kind": "bert", "layers": 64, "hidden": 2560, "heads": 64, "vocab": 30522},
    "gpt": {"kind": "gpt", "layers": 128, "hidden": 1024, "heads": 16, "vocab": 50257},
}
"""Models of the paper with its layers, widths and heads; the vocabularies are those of BERT and GPT-2."""

PEAKS: Mapping[tuple[str, Number], float] = {
    ("A100", "16 bit"): 312e12,
    ("A100", "fp32"): 19.5e12,
    ("V100", "16 bit"): 125e12,
    ("V100", "fp32"): 15.7e12,
}
"""Peak FLOP/s from data sheets: 16 bit on tensor cores, fp32 on CUDA cores (PyTorch's default for fp32)."""

SEQUENCE = 256
"""Assumed tokens per sequence; with 512 the paper's bars would exceed the fp32 peak (``hanayo_throughput``)."""


class Setting(NamedTuple):
    """Experiment of the paper, with the assumptions about it."""

    cluster: str
    scheme: str
    layout: Layout
    model: str = "bert"
    number: Number = "fp32"
    sequence: int = SEQUENCE
    placement: Placement = "pipelines"
    """Use of consecutive devices: for the same pipeline ("pipelines"), or for replicas of the same stage ("copies")."""
    fitted: bool = False
    """True for unit costs with the fitted T_C, False for roofline costs."""


class PredictedExperiment(NamedTuple):
    """Prediction of an experiment."""

    sequences_per_s: float  # sequences/s; with fitted costs, per forward of one sequence on one device
    computing: float  # fraction of the step before the end of its last backward; reductions and the optimizer follow
    memory_gb: tuple[float, ...]  # peak bytes of a device of each mesh
    fits: bool
    microbatches: int  # of B sequences in each of the D pipelines

    @property
    def counted_per_s(self) -> float:
        """Throughput if a step is counted as D B sequences for any number of microbatches, as the bars seem to do."""
        return self.sequences_per_s / self.microbatches

    @property
    def compute_only_per_s(self) -> float:
        """Sequences/s if a step ended with its last backward."""
        return self.sequences_per_s / self.computing

    @property
    def memory_variance(self) -> float:
        """Variance of the peak memory in GB over the devices."""
        return float(np.var(self.memory_gb))


@lru_cache(maxsize=512)
def predict_experiment(setting: Setting) -> PredictedExperiment:
    """Predict an experiment."""
    prediction = predict(parse_design(experiment_document(setting)), setting_program(setting))
    scale = setting.layout.ranks / setting.layout.batch if setting.fitted else 1.0
    return PredictedExperiment(
        scale * prediction.costs.samples / prediction.timeline.makespan,
        _compute_share(prediction),
        tuple((prediction.memory.total_bytes / 1e9).tolist()),
        bool(prediction.memory.fits.all()),
        setting.layout.ranks,
    )


def setting_program(setting: Setting) -> Program:
    """Return the program of an experiment, which depends on its schedule and on the presence of replicas."""
    pipelines, ranks, _ = setting.layout
    return _lower_order(Setting("tacc", setting.scheme, Layout(min(pipelines, 2), ranks, 1)))


@lru_cache(maxsize=64)
def _lower_order(setting: Setting) -> Program:
    return lower(parse_design(experiment_document(setting)))


def _compute_share(prediction: Prediction) -> float:
    timeline = prediction.timeline
    return float(timeline.end[timeline.is_compute].max() - timeline.start.min()) / timeline.makespan


def experiment_document(setting: Setting) -> dict[str, Any]:
    """Return the design document of an experiment."""
    cluster = preset(f"hanayo-{setting.cluster}").cluster.model_dump(mode="json")
    cluster["device"]["peak_flops"] = PEAKS[cluster["device"]["name"][:4], setting.number]
    pipelines, ranks, batch = setting.layout
    is_halved = setting.scheme == "Chimera-wave"
    copies, meshes = (2 * pipelines, ranks // 2) if is_halved else (pipelines, ranks)
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
    """Return the model; if there are more stages than layers, it has twice as many layers of half the size."""
    model = {**MODELS[setting.model], "sequence": setting.sequence}
    if stages > model["layers"]:  # 4 h^2 for attention and 2 h f for the MLP: 12 h^2 for f = 4 h, half of it for f = h
        model |= {"layers": 2 * model["layers"], "ffn": model["hidden"]}
    return model


def _unit_cost(setting: Setting, meshes: int) -> dict[str, Any]:
    ranks = setting.layout.ranks
    share = ranks / meshes  # a unit is the forward of 1/P of the model, even if a mesh holds more
    return {
        "kind": "unit",
        "forward": share,
        "backward": share * backward_ratio(setting.cluster, ranks),
        "transfer": fitted_transfer(setting.cluster, ranks),
    }
