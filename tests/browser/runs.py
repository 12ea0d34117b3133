"""Run folders as launchers and processes write them, for the tests of the page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Record, State, write_bundle
from meshwave.engine.runs.process_identity import own_handle
from meshwave.engine.runs.run_folder import RunSpec
from tests.engine.runs.recorded import record as record_timeline

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from meshwave.engine.document import Design

LOSSES = """() => {
    const all = (view) => [view, ...(view.child_views ?? []).flatMap(all)];
    const figure = Bokeh.index.roots.flatMap(all).find(({ model }) => model.type === "Figure");
    return figure && [...figure.model.renderers[0].data_source.data.y].map((values) => [...values]);
}"""
"""Script that returns the losses of each run that the first plot draws."""


def drawn_losses(page: Page) -> list[list[float]]:
    """Return the losses of each run that the Loss tab draws."""
    return list(page.evaluate(LOSSES))


def write_run(record: Record, design: Design, *, factor: float = 1.0, steps: int = 3) -> str:
    """Write a finished run whose computations took ``factor`` times their predicted time, and return its ID."""
    prediction = predict(design)
    program = prediction.program
    entry, _ = record.submit(
        name=design.name,
        launcher="local",
        handle={"owner": own_handle(), "processes": []},
        digest=program.digest,
        processes=sum(len(mesh.devices) for mesh in design.meshes),
        steps=steps,
        limit=10,
    )
    folder = write_bundle(RunSpec(prediction, design), record.folder(entry.id)).folder
    record.change_state(entry.id, State.RUNNING)
    rows = ({"step": step, "loss": 5.0 - step, "seconds": 0.1, "tokens_per_s": 1e3} for step in range(steps))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rank-0.log").write_text("".join(f"step {step}\n" for step in range(steps)))
    started = {"time": 0.0, "event": "started", "device": "CPU"}
    (folder / "events-0.jsonl").write_text(json.dumps(started) + "\n")
    record_timeline(folder, prediction, (1 + (factor - 1) * program.is_compute) * prediction.costs.seconds)
    record.change_state(entry.id, State.SUCCEEDED)
    return entry.id
