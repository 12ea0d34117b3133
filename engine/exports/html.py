"""HTML export: a page with the zoomable timeline of a design, its metrics, and the document.

The page is self-contained: it loads and sends nothing. Names in the design are escaped, never interpreted as markup.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from meshwave.engine.document.links import data_url
from meshwave.engine.exports._base import Export, exports
from meshwave.engine.exports._html_experts import experts_section
from meshwave.engine.exports._markup import escape
from meshwave.engine.exports.pictures.palette import SURFACES, Theme
from meshwave.engine.exports.pictures.rows import ShownTimeline, count_blocks, whole_step
from meshwave.engine.exports.pictures.timelines import lay_out_timelines
from meshwave.engine.exports.png import draw_png
from meshwave.engine.exports.svg import MAX_BLOCKS, theme_aware_svg
from meshwave.engine.units import format_units, percent, quantity

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@exports.register("html")
class Html(Export):
    """HTML page with the timeline, the metrics and the design."""

    title = "HTML page"
    note = "one self-contained file, to share or archive"
    suffix = ".html"
    mime = "text/html"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        return Html.shown_bytes(prediction, whole_step(prediction))

    @classmethod
    def shown_bytes(cls, prediction: Prediction, shown: Sequence[ShownTimeline]) -> bytes:
        return "\n".join(_page_lines(prediction, shown)).encode()


def page_frame(prediction: Prediction, height: int = 520) -> str:
    """Return the page in a frame for a notebook cell; it needs no server and remains in a saved notebook."""
    page = escape(Html.to_bytes(prediction).decode())
    return f'<iframe srcdoc="{page}" width="100%" height="{height}" style="border: 0"></iframe>'


def _page_lines(prediction: Prediction, shown: Sequence[ShownTimeline]) -> Iterator[str]:
    design = prediction.design
    name = escape(design.name or "Design")
    yield "<!doctype html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<style>{_style_sheet()}</style></head><body><main>"
    yield f"<h1>{name}</h1>"
    yield '<p class="keys">Zoom with the wheel, + and −; pan by dragging or with the arrow keys; press 0 to show all. Hover over a block for details.</p>'
    label = "Predicted timeline" if len(shown) == 1 else "Timelines"
    drawing = _timeline_element(prediction, shown, label)
    yield f'<div id="timeline" tabindex="0" role="group" aria-label="{label}">{drawing}</div>'
    yield from _figures_section(prediction)
    yield from experts_section(prediction)
    yield (
        f'<details><summary>Design document</summary><p><a download="design.json" '
        f'href="{data_url(design)}">Download the design</a> and open it in Meshwave.</p>'
        f"<pre>{escape(design.to_json())}</pre></details>"
    )
    yield f"</main><script>{SCRIPT}</script></body></html>"


def _timeline_element(prediction: Prediction, shown: Sequence[ShownTimeline], label: str) -> str:
    """Return a drawing for both themes, or a bitmap if there are too many blocks for a drawing."""
    lay_out = partial(lay_out_timelines, shown, title=label, unit=prediction.costs.unit)
    if 2 * count_blocks(shown) > MAX_BLOCKS:  # drawn in both themes
        bitmap = draw_png(lay_out(width=2880))
        source = f"data:image/png;base64,{base64.b64encode(bitmap).decode()}"
        return f'<img alt="{label}" draggable="false" src="{source}">'
    themes: tuple[Theme, Theme] = "light", "dark"
    light, dark = (lay_out(theme=theme, dense=False) for theme in themes)
    return theme_aware_svg(light, dark, prediction.design.name or "Timeline")


def _figures_section(prediction: Prediction) -> Iterator[str]:
    numbers, in_seconds = prediction.numbers, prediction.costs.unit == "s"

    def time(value: float) -> str:
        return quantity(value, "s") if in_seconds else format_units(value)

    told = [("step time", time(numbers["makespan_s"])), ("bubble ratio", percent(numbers["bubble_ratio"]))]
    if in_seconds:
        told += [("throughput", quantity(numbers["tokens_per_s"], "tokens/s")), ("MFU", percent(numbers["mfu"]))]
    exposed, inside = numbers["mean_exposed_communication_s"], numbers["mean_inside_communication_s"]
    waits = f"{time(exposed)} + {time(inside)} inside blocks" if inside else time(exposed)
    told.append(("exposed communication (mean over meshes)", waits))
    fits = "fits" if numbers["fits"] else "does not fit"
    told.append(("memory per device", f"{quantity(numbers['capacity_bytes'], 'B')}, {fits}"))
    yield "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in told) + "</dl>"
    times = {"busy_s": "busy", "idle_s": "idle", "exposed_communication_s": "exposed communication"}
    if inside:
        times["inside_communication_s"] = "communication inside blocks"
    heads = ("mesh", "layers", *times.values(), "in flight", "peak memory")
    yield "<table><thead><tr>" + "".join(f'<th scope="col">{head}</th>' for head in heads) + "</tr></thead><tbody>"
    layers = prediction.costs.layers
    for rank, name in enumerate(numbers["meshes"]):
        held = sum(layers[stage] for stage in prediction.program.stages_of(rank))
        cells = [
            str(held),
            *(time(numbers[key][rank]) for key in times),
            f"{numbers['peak_inflight'][rank]:.3g}",
            quantity(numbers["peak_memory_bytes"][rank], "B"),
        ]
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        yield f'<tr><th scope="row">{escape(name)}</th>{row}</tr>'
    yield "</tbody></table>"
    if notes := [*numbers["findings"], *numbers["warnings"]]:
        yield "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _style_sheet() -> str:
    light, dark = (_colour_variables(theme) for theme in ("light", "dark"))
    return (
        f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        "body{margin:0;background:var(--background);color:var(--text);font:14px/1.5 system-ui,sans-serif}"
        "main{max-width:1440px;margin:auto;padding:16px}h1{font-size:20px;margin:0}"
        ".keys{color:var(--muted);margin:0 0 12px}"
        "#timeline{overflow:hidden;border:1px solid var(--line);border-radius:6px;cursor:grab;"
        "touch-action:pan-y;user-select:none}"
        "#timeline svg,#timeline img{display:block;width:100%;height:auto;transform-origin:0 0}"
        "dl{display:flex;flex-wrap:wrap;gap:8px 32px}dt{color:var(--muted)}dd{margin:0;font-size:18px}"
        "table{border-collapse:collapse}th,td{text-align:right;padding:2px 12px;border-bottom:1px solid var(--line)}"
        "h2{font-size:17px;margin:24px 0 0}h3{font-size:14px;margin:8px 0}"
        ".layer{overflow:hidden;border:1px solid var(--line);border-radius:6px;margin:0 0 12px}"
        ".layer svg{display:block;width:100%;height:auto}summary{cursor:pointer}"
        "th:first-child{text-align:left}pre{overflow:auto;max-height:480px}a{color:inherit}"
    )


def _colour_variables(theme: Theme) -> str:
    return "".join(f"--{name}:{SURFACES[theme][name]};" for name in ("background", "text", "muted", "line"))


SCRIPT = """
const frame = document.getElementById("timeline"), sheet = frame.firstElementChild;
let scale = 1, x = 0, y = 0, held = null;
function show() {
  const { width, height } = frame.getBoundingClientRect();
  scale = Math.min(Math.max(scale, 1), 200);
  x = Math.min(0, Math.max(x, width * (1 - scale)));
  y = Math.min(0, Math.max(y, height * (1 - scale)));
  sheet.style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
}
function zoom(factor, at) {
  const before = scale;
  scale = Math.min(Math.max(scale * factor, 1), 200);
  if (scale === before) return false;
  x = at[0] - (at[0] - x) * scale / before;
  y = at[1] - (at[1] - y) * scale / before;
  show();
  return true;
}
function within(event) {
  const box = frame.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}
frame.addEventListener("wheel", (event) => {
  if (zoom(Math.exp(-event.deltaY / 300), within(event))) event.preventDefault();
}, { passive: false });
frame.addEventListener("pointerdown", (event) => {
  held = [event.clientX - x, event.clientY - y];
  frame.setPointerCapture(event.pointerId);
});
frame.addEventListener("pointermove", (event) => {
  if (!held) return;
  x = event.clientX - held[0];
  y = event.clientY - held[1];
  show();
});
for (const end of ["pointerup", "pointercancel"]) frame.addEventListener(end, () => (held = null));
frame.addEventListener("dblclick", () => { scale = 1; show(); });
frame.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const box = frame.getBoundingClientRect(), middle = [box.width / 2, box.height / 2];
  const moves = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] };
  if (event.key === "+" || event.key === "=") zoom(1.3, middle);
  else if (event.key === "-") zoom(1 / 1.3, middle);
  else if (event.key === "0") { scale = 1; show(); }
  else if (moves[event.key]) { x += moves[event.key][0]; y += moves[event.key][1]; show(); }
  else return;
  event.preventDefault();
});
"""
