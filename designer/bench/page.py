"""Benchmark of the page in a real browser (``meshwave bench page``)."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from meshwave.designer.bench.browser import BrowserPage, open_browser
from meshwave.designer.pages.design_page import warm_up
from meshwave.designer.server.serve import ThreadedServer, read_design
from meshwave.engine.bench.speed import Figures
from meshwave.engine.cli.doctor import CHROMIUM_REMEDY, find_chromium
from meshwave.engine.document import Design, parse_design
from meshwave.engine.findings import Refusal

EDITS, FEW_EDITS, ZOOM_STEPS, SETTLE_S = 15, 3, 12, 0.7
SHARED_BANDWIDTH = 2e9
"""Bandwidth in bytes/s of links between nodes that are the bottleneck of the step."""

# Time from a click on the microbatch stepper to the frame that shows the result.
EDIT = """async () => {
  const find = (root, label) => {
    for (const node of root.querySelectorAll("*")) {
      if (node.getAttribute("aria-label") === label) return node;
      const inner = node.shadowRoot && find(node.shadowRoot, label);
      if (inner) return inner;
    }
  };
  const { chart } = window.meshwaveTimeline;
  const before = chart.data.layers[0].makespan;
  const began = performance.now();
  find(document, "Increase microbatches").click();
  while (chart.data.layers[0].makespan === before) await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""
WHEEL = """async ([x, y, delta]) => {
  const { stats } = window.meshwaveTimeline.chart, { paints } = stats, began = performance.now();
  const at = document.elementFromPoint(x, y);
  let target = at;
  while (target.shadowRoot?.elementFromPoint(x, y)) target = target.shadowRoot.elementFromPoint(x, y);
  target.dispatchEvent(new WheelEvent("wheel", {clientX: x, clientY: y, deltaY: delta, bubbles: true, cancelable: true, composed: true}));
  while (stats.paints === paints) await new Promise(requestAnimationFrame);
  return [performance.now() - began, stats.paintMs];
}"""
AWAIT_PICTURE = """async () => {
  const isDrawn = (chart) => chart?.data.layers.length > 0 && chart.stats.paints > 0;
  while (!isDrawn(window.meshwaveTimeline?.chart)) await new Promise(requestAnimationFrame);
}"""
DRAWING_MS = "() => window.meshwaveTimeline.chart.stats.decodeMs + window.meshwaveTimeline.chart.stats.paintMs"
PAINT_WHOLE = """() => {
  const { chart } = window.meshwaveTimeline;
  chart.view.look(0, chart.view.to);
  chart.paint();
  return chart.stats.paintMs;
}"""


def bench_page() -> Figures:
    """Measure opening the page, an edit, and painting, zooming and panning of large timelines, in seconds."""
    chromium = find_chromium()
    if chromium is None:
        raise Refusal("page_bench_without_chromium", {"remedy": CHROMIUM_REMEDY})
    figures: Figures = {}
    with open_browser(chromium) as browser:
        for ranks, microbatches in ((8, 32), (64, 512), (128, 1024)):
            design, size = _pipeline_design(ranks, microbatches), f"{ranks} x {microbatches}"
            with temporary_home(), _serve_warm(design) as link, browser.open_page() as tab:
                figures[f"{size}: open to the first picture, cold_s"] = _time_opening(tab, link)
                figures[f"{size}: open again_s"] = _time_opening(tab, link)
                figures |= {f"{size}: {name}": value for name, value in _time_zoom(tab).items()}
                taken = [_time_edit(tab) for _ in range(EDITS if ranks == 8 else FEW_EDITS)]
                figures[f"{size}: edit to picture, median_s"] = statistics.median(taken)
                figures[f"{size}: edit to picture, slowest_s"] = max(taken)
                decoded = tab.evaluate(DRAWING_MS)
                figures[f"{size}: decode and draw new columns_s"] = decoded / 1e3
            design = _pipeline_design(ranks, microbatches, SHARED_BANDWIDTH)
            with temporary_home(), _serve_warm(design) as link, browser.open_page() as tab:
                _time_opening(tab, link)
                _time_edit(tab)  # the first edit loads compiled code
                taken = [_time_edit(tab) for _ in range(EDITS if ranks == 8 else FEW_EDITS)]
                figures[f"{size}, shared links: edit to picture, median_s"] = statistics.median(taken)
    return figures


@contextmanager
def _serve_warm(design: Design) -> Iterator[str]:
    """Serve a design, warmed up as a server is soon after its start, and yield its link."""
    server = ThreadedServer(design, "bench")
    try:
        warm_up(server.studio, read_design(None))
        yield server.link
    finally:
        server.close()


def _time_opening(tab: BrowserPage, link: str) -> float:
    began = time.perf_counter()
    tab.open(link)
    tab.evaluate(AWAIT_PICTURE)
    return time.perf_counter() - began


def _time_edit(tab: BrowserPage) -> float:
    """Return the duration of one edit in seconds, then wait until the page has finished drawing."""
    taken: float = tab.evaluate(EDIT) / 1e3
    time.sleep(SETTLE_S)
    return taken


def _time_zoom(tab: BrowserPage) -> Figures:
    """Zoom in and out with the wheel at one place, then repaint the whole timeline; return the times in seconds."""
    x, y = 600, 560
    deltas = [-120] * ZOOM_STEPS + [120] * ZOOM_STEPS
    frames, paints = zip(*(tab.evaluate(WHEEL, [x, y, delta]) for delta in deltas), strict=True)
    whole = tab.evaluate(PAINT_WHOLE)
    return {
        "zoom step to frame, median_s": statistics.median(frames) / 1e3,
        "zoom step to frame, slowest_s": max(frames) / 1e3,
        "zoom step, drawing only, median_s": statistics.median(paints) / 1e3,
        "drawing the whole timeline_s": whole / 1e3,
    }


@contextmanager
def temporary_home() -> Iterator[None]:
    """Use a temporary folder for drafts and runs, instead of the user's own."""
    before = os.environ.get("MESHWAVE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MESHWAVE_HOME"] = folder
        try:
            yield
        finally:
            os.environ.pop("MESHWAVE_HOME") if before is None else os.environ.update(MESHWAVE_HOME=before)


def _pipeline_design(ranks: int, microbatches: int, bandwidth: float = 25e9) -> Design:
    """Return 1F1B on meshes of one device each, with two devices per node."""
    link = {"latency_s": 1e-5, "bandwidth": bandwidth}
    device = {
        "name": "A100-80GB",
        "peak_flops": 312e12,
        "memory_bytes": 80e9,
        "memory_bandwidth": 2e12,
        "efficiency": 0.5,
    }
    return parse_design(
        {
            "format": "meshwave/1",
            "name": f"{ranks} x {microbatches}",
            "cluster": {
                "nodes": ranks // 2,
                "devices_per_node": 2,
                "device": device,
                "intra_node": link,
                "inter_node": link,
            },
            "model": {
                "kind": "gpt",
                "layers": 2 * ranks,
                "hidden": 1024,
                "heads": 16,
                "sequence": 1024,
                "vocab": 50257,
            },
            "meshes": [{"name": f"M{rank}", "devices": [rank], "axes": {"dp": 1, "tp": 1}} for rank in range(ranks)],
            "pipeline": {"schedule": "1f1b", "microbatches": microbatches},
        }
    )
