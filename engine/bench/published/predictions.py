"""Predictions of published training runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from meshwave.engine.bench.published.designs import published_design
from meshwave.engine.bench.published.runs import Run, parse_run
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.findings import Problem, problems_of
from meshwave.engine.predict.prediction import predict
from meshwave.engine.predict.similar_runs import SimilarRun

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class PredictedRun(SimilarRun):
    """Published run with its prediction."""

    publication: str
    predicted_s: float
    published_tokens_per_s_per_device: float
    predicted_tokens_per_s_per_device: float
    predicted_model_tflops_per_device: float
    """Model TFLOP/s per device, forward and backward without recomputation; attention is counted without its mask."""
    published_memory_gib: float | None
    predicted_memory_gib: float
    assumed: tuple[str, ...]


@dataclass(frozen=True)
class RefusedRun:
    """Published run that cannot be predicted, with the reason."""

    id: str
    publication: str
    problem: Problem


def predict_runs(rows: Iterable[Any]) -> Iterator[PredictedRun | RefusedRun]:
    """Yield the prediction of each row, or the reason why it cannot be predicted."""
    for number, row in enumerate(rows):
        try:
            yield predict_run(parse_run(row))
        except MeshwaveError as error:
            yield _refused_row(row, number, problems_of(error)[0])
        except Exception as error:  # a faulty row of a user's file must not stop the others
            yield _refused_row(row, number, Problem("", "run_unpriced", {"reason": f"{type(error).__name__}: {error}"}))


def predict_run(run: Run) -> PredictedRun:
    """Return the prediction of a published run.

    Raises:
        MeshwaveError: the run cannot be expressed as a design, or cannot be priced.
    """
    design, assumed = published_design(run)
    prediction = predict(design)
    published_s, predicted_s = run.step_s, prediction.timeline.makespan
    assert published_s is not None, "checked when the row was parsed"
    tokens = run.gbs * run.seq / run.devices
    return PredictedRun(
        id=run.id,
        publication=run.publication,
        model=run.model,
        device=design.cluster.device.name,
        devices=run.devices,
        arch=run.arch,
        parameters=prediction.numbers["parameters"],
        ranks=design.ranks,
        linear_precision=design.training.linear_precision,
        published_s=published_s,
        predicted_s=predicted_s,
        error=predicted_s / published_s - 1,
        published_tokens_per_s_per_device=tokens / published_s,
        predicted_tokens_per_s_per_device=tokens / predicted_s,
        predicted_model_tflops_per_device=prediction.costs.model_flops / predicted_s / run.devices / 1e12,
        published_memory_gib=run.memory_gib,
        predicted_memory_gib=float(prediction.memory.total_bytes.max()) / GIB,
        assumed=assumed,
    )


def to_json(found: PredictedRun | RefusedRun) -> dict[str, Any]:
    """Return a prediction or refusal as a JSON object for ``--json``."""
    if isinstance(found, PredictedRun):
        return asdict(found)
    reason = {"code": found.problem.code, "text": str(found.problem)}
    return {"id": found.id, "publication": found.publication, "refused": reason}


def _refused_row(row: Any, number: int, problem: Problem) -> RefusedRun:
    name = row.get("id") if isinstance(row, dict) else None
    name = name if isinstance(name, str) else f"row {number}"
    return RefusedRun(name, name.partition("-")[0], problem)
