"""Launched dry runs: real processes and messages, with waits in place of computations."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from meshwave.engine.document import Design, parse_design
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.action import Op
from meshwave.engine.program.simulation import simulate
from meshwave.engine.runs import Options, Run, State
from meshwave.engine.runs.dry_run import CATCH_UP_FRACTION, Rehearsal, slot_seconds
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.recording import Recording, read_recording
from tests.engine.program.matching import match_spans
from tests.engine.runs.play import draw, have_all_ended
from tests.engine.runs.test_dry_run_threads import slow_network

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform == "win32", reason="processes need POSIX")]

LAYERS: dict[str, Any] = {"kind": "gpt", "layers": 16, "hidden": 32, "heads": 2, "sequence": 32, "vocab": 260}
SLACK_S = 2e-4
"""Largest time by which the measured length of a wait may be shorter than the wait."""


def unit_cost_design(schedule: str, **more: Any) -> Design:
    cost = {"kind": "unit", "forward": 1, "backward": 2, "transfer": 0.5, "transfer_model": "link-serial"}
    pipeline = {"schedule": schedule, "microbatches": 8, **more}
    return draw(pipeline=pipeline, model=LAYERS, cost=cost, training={"steps": 2})


def unequal_design() -> Design:
    """Return a model with skip connections on meshes of dp 2, tp 2 and one device, with clipped gradients."""
    document = draw(pp=3, dp=2, model={**LAYERS, "kind": "u-transformer"}).model_dump(mode="json")
    document["meshes"][1]["axes"] = {"dp": 1, "tp": 2}
    document["meshes"][2] = {"name": "M2", "devices": [4], "axes": {"dp": 1}}
    document["training"].update(micro_batch_size=2, steps=2, clip_norm=1.0)
    return parse_design(document)


def with_experts() -> Design:
    model = {**LAYERS, "moe": {"experts": 4, "top_k": 2, "capacity_factor": 1.25, "every": 2}}
    experts = {"schedule": "parm-auto", "ep": 2, "esp": 1}
    return draw(pp=2, dp=2, model=model, experts=experts, training={"steps": 2})


def with_gathers() -> Design:
    """Return two meshes that gather the weights of their stages several times per step, and reduce gradients once."""
    training = {"steps": 2, "sharding": "parameters", "unsharded_stages": 1, "gradient_reduction": "step"}
    pipeline = {"schedule": "interleaved-1f1b", "microbatches": 4}
    return draw(pp=2, dp=2, model=LAYERS, pipeline=pipeline, training=training)


def with_buckets() -> Design:
    """Return two meshes that reduce the gradients of each stage in three buckets, in the weight halves of the backward."""
    pipeline, training = {"schedule": "zb-h1", "microbatches": 4}, {"steps": 2, "gradient_buckets": 3}
    return draw(pp=2, dp=2, model=LAYERS, pipeline=pipeline, training=training)


def with_divided_tokens() -> Design:
    """Return meshes of tp 2, tp 2 and dp 2, on the first two of which each device has half of the tokens."""
    document = draw(pp=3, dp=2, model=LAYERS).model_dump(mode="json")
    for mesh in document["meshes"][:2]:
        mesh["axes"] = {"dp": 1, "tp": 2}
    document["training"].update(micro_batch_size=2, steps=2, sequence_parallel=True)
    return parse_design(document)


def with_padded_documents() -> Design:
    """Return meshes of tp 2 and cp 2 whose microbatches, with their messages and collectives, have four lengths."""
    model = {**LAYERS, "moe": {"experts": 4, "top_k": 2, "capacity_factor": 1.25, "every": 2}}
    document = draw(pp=2, dp=2, model=model, pipeline={"schedule": "zb-h1", "microbatches": 4}).model_dump(mode="json")
    for mesh, axis in zip(document["meshes"], ("tp", "cp"), strict=True):
        mesh["axes"] = {"dp": 1, axis: 2}
    document["experts"] = {"schedule": "expert-parallel", "ep": 2}
    lengths = {"document_end": 10, "pad_documents": True, "document_lengths": [32, 5, 17, 9]}
    document["training"].update(steps=2, **lengths)
    return parse_design(document)


def with_images() -> Design:
    """Return a model whose stages exchange tensors of different sizes."""
    model = {"kind": "u-net", "image_size": 16, "base_channels": 8, "blocks_per_level": 2, "heads": 2}
    return draw(pp=3, model=model, training={"steps": 2})


DESIGNS = {
    "hanayo": (unit_cost_design("hanayo", waves=2), 0.005),
    "zb-v": (unit_cost_design("zb-v"), 0.005),
    "shared slots": (unit_cost_design("dualpipe"), 0.005),
    "replicas": (draw(pp=4, model=LAYERS, pipeline={"schedule": "chimera", "microbatches": 4}), 2.0),
    "unequal meshes and skips": (unequal_design(), 2.0),
    "experts": (with_experts(), 2.0),
    "divided tokens": (with_divided_tokens(), 2.0),
    "gathers of weights": (with_gathers(), 20.0),
    "buckets of gradients": (with_buckets(), 10.0),
    "messages of different sizes": (with_images(), 5.0),
    "padded documents": (with_padded_documents(), 5.0),
}


@dataclass
class Found:
    run: Run
    prediction: Prediction
    recording: Recording


def rehearse(trainer: LocalLauncher, design: Design, scale: float) -> Found:
    prediction = predict(design)
    options = Options(rehearse=Rehearsal(scale=scale))
    run = trainer.submit(specify_run(prediction, options))
    assert run.wait(timeout_s=60) is State.SUCCEEDED, run.reason
    return Found(run, prediction, read_recording(run.folder))


@pytest.mark.parametrize("name", DESIGNS)
def test_processes_execute_every_action_in_order_and_none_too_fast(trainer: LocalLauncher, name: str) -> None:
    design, scale = DESIGNS[name]

    found = rehearse(trainer, design, scale)

    timeline, prediction = found.recording.timeline(), found.prediction
    matched = match_spans(prediction.timeline, timeline)
    assert (timeline.source, found.recording.scale) == ("rehearsed", scale)
    assert len(matched[0]) == len(prediction.timeline), "every action and every message"
    _check_wait_lengths(prediction, timeline.end - timeline.start, matched, scale)
    assert _orders(timeline) == _orders(prediction.timeline)
    assert timeline.makespan >= (1 - CATCH_UP_FRACTION) * prediction.timeline.makespan - SLACK_S / scale
    _check_inputs_arrived(timeline)
    assert found.run.entry.is_rehearsal
    assert "loss" not in found.run.metrics()[0]
    assert found.run.metrics()[0]["unit"] == prediction.costs.unit
    assert found.run.notes()[0].startswith("messages use ")
    assert "dry run: nothing is computed" in found.run.notes()[1]
    assert have_all_ended(found.run)


def _check_wait_lengths(prediction: Prediction, took: Any, matched: Any, scale: float) -> None:
    """Check that each computation and optimizer step takes at least its price, minus the time to catch up."""
    program = prediction.program
    priced = slot_seconds(program, prediction.costs.seconds)[program.slot[program.spans]]
    predicted, measured = matched
    worked = prediction.timeline.is_work[predicted]
    least = (1 - CATCH_UP_FRACTION) * priced[predicted][worked] - SLACK_S / scale
    assert (took[measured][worked] >= least).all()


def _orders(timeline: Any) -> list[list[tuple[int, int, int]]]:
    """Return the computations of each rank in their measured order."""
    orders = []
    for rank in range(timeline.ranks):
        own = np.flatnonzero((timeline.rank == rank) & timeline.is_compute & ~timeline.fused)
        own = own[np.argsort(timeline.start[own], kind="stable")]
        orders.append([(int(timeline.op[i]), int(timeline.stage[i]), int(timeline.microbatch[i])) for i in own])
    return orders


def _check_inputs_arrived(timeline: Any) -> None:
    """Check that no forward begins before its message has arrived."""
    arrived = {
        (int(timeline.stage[i]) + 1, int(timeline.microbatch[i])): timeline.end[i]
        for i in np.flatnonzero((timeline.op == Op.SEND_F) & (timeline.other < 0))
    }
    forwards = np.flatnonzero(timeline.op == Op.F)
    took = [(timeline.start[i], arrived.get((int(timeline.stage[i]), int(timeline.microbatch[i])))) for i in forwards]
    assert any(came is not None for _, came in took)
    assert all(came is None or start >= came - 1e-9 for start, came in took)


def test_processes_share_links_as_the_simulator_does(trainer: LocalLauncher) -> None:
    design = slow_network("gpipe")
    prediction = predict(design)
    alone = simulate(prediction.program, prediction.costs.seconds, "latency").makespan

    found = rehearse(trainer, design, 2.0 / prediction.timeline.makespan)

    assert prediction.timeline.makespan > 1.1 * alone, "else nothing is shared that matters"
    assert found.run.metrics()[0]["seconds"] == pytest.approx(prediction.timeline.makespan, rel=0.08)


@pytest.mark.parametrize("name", ["tensor parallel", "experts"])
def test_collectives_inside_stages_are_sent(trainer: LocalLauncher, name: str) -> None:
    design = with_experts() if name == "experts" else split_design()
    prediction = predict(design)

    found = rehearse(trainer, design, 1.0 / prediction.timeline.makespan)

    assert any(note.startswith("collectives inside stages have ") for note in found.run.notes())
    assert found.run.metrics()[1]["seconds"] == pytest.approx(prediction.timeline.makespan, rel=0.15)


def split_design() -> Design:
    document = draw(pp=2, dp=2, model=LAYERS, training={"steps": 2}).model_dump(mode="json")
    for mesh in document["meshes"]:
        mesh["axes"] = {"dp": 1, "tp": 2}
    return parse_design(document)


def test_designs_that_this_machine_cannot_train_run_as_dry_runs(trainer: LocalLauncher) -> None:
    """A dry run of GPT-3 with 175 billion parameters allocates no weights, and shrinks its messages."""
    gpt3 = {"kind": "gpt", "layers": 96, "hidden": 12288, "heads": 96, "sequence": 2048, "vocab": 128}
    design = draw(pp=4, model=gpt3, training={"precision": "bf16", "steps": 1, "data": "no-such.txt"})
    prediction = predict(design)
    scale = 0.5 / prediction.timeline.makespan

    assert {problem.code for problem in trainer.problems(design)} == {"vocabulary", "text_missing"}
    found = rehearse(trainer, design, scale)

    assert len(match_spans(prediction.timeline, found.recording.timeline())[0]) == len(prediction.timeline)
    assert "messages are smaller than modelled" in found.run.notes()[2]
