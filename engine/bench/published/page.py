"""Page and picture of predicted published runs: tables by source and device, and reasons of errors beyond 10%."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any
from xml.sax.saxutils import escape

from meshwave.engine.bench.markdown import markdown_table

LARGE_ERROR = 0.1
"""Absolute error above which the reason of an error is listed."""
CLEAR_SHARE = 0.07
"""Relative difference of step times above which another release of a configuration explains an error."""
RELEASE = r"mbridge-([\d.]+)-(.*)"
"""Pattern of runs of Megatron-Bridge: the release, and the configuration."""
RENAMED = {"-FP8-MX-": "-MXFP8-", "-FP8-CS-": "-FP8-"}
"""Number formats in the names of early releases, and in those of later ones."""
SHOWN_ERROR = 0.5
"""Absolute error at the edge of the picture."""
WIDTH, ROW_HEIGHT, LABEL_WIDTH = 860, 18, 300
Json = Mapping[str, Any]


def markdown_page(figures: Json) -> str:
    """Return the page in Markdown."""
    rows, summary = [row for row in figures["rows"] if "refused" not in row], figures["summary"]
    order = summary["order"]
    lines = [
        "# Published training runs",
        "",
        "Comparison of predictions with published measurements. `make published` predicts the runs again and writes this page.",
        "An error is `predicted / published - 1` of the step time; *mean* is the mean of the absolute errors, *bias* the median error.",
        "Every kind of device has one set of constants, fitted to these rows and to measured kernels;",
        "[Constants of devices](development/published-runs.md) has the errors of sources that were left out of the fit.",
        "",
        f"{summary['predicted']} runs are predicted. The order of configurations of one model is right in "
        f"{order['right']} of {order['pairs']} pairs that differ by more than 10%.",
        "",
        "![Errors of all runs by source and device](published.svg)",
        "",
        "## By device",
        "",
        _errors_table(summary["by_device"], ("device", "arch")),
        "",
        "## By source and device",
        "",
        _errors_table(summary["by_source"], ("publication", "device", "arch")),
        "",
        "## Assumed",
        "",
        _counts_table("assumption", Counter(each for row in rows for each in row["assumed"])),
        "",
        "## Refused",
        "",
        _counts_table("reason", summary["refused"]),
        "",
        "## Errors beyond 10%",
        "",
        markdown_table(("run", "error", "reason"), _large_errors(rows)),
        "",
        "## Pairs in the wrong order",
        "",
        "Each pair has the reason of the run with the larger error.",
        "",
        _counts_table("reason", Counter(_wrong_pairs(rows, order["wrong"])), "pairs"),
    ]
    return "\n".join(lines) + "\n"


def _errors_table(groups: Sequence[Json], keys: Sequence[str]) -> str:
    lines = []
    for each in groups:
        errors = f"{each['mean']:.1%}", f"{each['bias']:+.1%}", f"{each['worst']:+.1%}"
        lines.append([*(str(each[key]) for key in keys), str(each["rows"]), *errors])
    return markdown_table((*keys, "runs", "mean", "bias", "worst"), lines)


def _counts_table(head: str, counts: Mapping[str, int], counted: str = "rows") -> str:
    return markdown_table((head, counted), ((name, str(count)) for name, count in Counter(counts).most_common()))


def _large_errors(rows: Sequence[Json]) -> Iterator[Sequence[str]]:
    for row in sorted(rows, key=lambda row: -abs(row["error"])):
        if abs(row["error"]) > LARGE_ERROR:
            yield row["id"], f"{row['error']:+.1%}", error_reason(row, rows)


def _wrong_pairs(rows: Sequence[Json], wrong: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the reason of each pair in the wrong order."""
    known = {row["id"]: row for row in rows}
    for pair in wrong:
        worst = max((known[name] for name in pair), key=lambda row: abs(row["error"]))
        yield error_reason(worst, rows)


def error_reason(row: Json, rows: Sequence[Json] = ()) -> str:
    """Return the known reason for the prediction error of a run, by another release among ``rows`` if there is one."""
    for release, share in _release_shares(row, rows):
        if (share - 1) * row["error"] > CLEAR_SHARE * abs(row["error"]):
            return f"release {release} ran the same configuration in {share:.2f} of the time"
    reasons = json.loads((resources.files(__package__) / "reasons.json").read_text())
    found = (each for each in reasons if re.search(each["runs"], row["id"]))
    return next((each["reason"] for each in found if each["sign"] * row["error"] > 0), "not found")


def _release_shares(row: Json, rows: Sequence[Json]) -> Iterator[tuple[str, float]]:
    """Yield the other releases of the configuration of a run, and their step times relative to that of the run."""
    own_release, own = _release(row["id"])
    for other in rows:
        release, configuration = _release(other["id"])
        if release and configuration == own and release != own_release:
            yield release, other["published_s"] / row["published_s"]


def _release(name: str) -> tuple[str, str]:
    """Return the release of a run, which may be empty, and its configuration."""
    for early, late in RENAMED.items():
        name = name.replace(early, late)
    found = re.fullmatch(RELEASE, name)
    return (found[1], found[2]) if found else ("", name)


def draw_svg(figures: Json) -> str:
    """Return a picture of all errors as SVG: one line per source and device, one mark per run."""
    rows = [row for row in figures["rows"] if "refused" not in row]
    names = sorted({_line_name(row) for row in rows})
    height = ROW_HEIGHT * (len(names) + 2)
    marks = [_grid_line(share, height) for share in (-0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5)]
    for number, name in enumerate(names):
        y = ROW_HEIGHT * (number + 1)
        marks.append(f'<text x="8" y="{y + 4}">{escape(name)}</text>')
        marks += [
            f'<circle cx="{_error_position(row["error"]):.1f}" cy="{y}" r="3"><title>{escape(row["id"])} {row["error"]:+.1%}</title></circle>'
            for row in rows
            if _line_name(row) == name
        ]
    style = (
        "text{font:12px sans-serif;fill:#888}circle{fill:#3b82c4;fill-opacity:.5}line{stroke:#888;stroke-opacity:.4}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"><style>{style}</style>'
    return "\n".join([head, *marks, "</svg>\n"])


def _line_name(row: Json) -> str:
    return f"{row['publication']}, {row['device']}, {row['arch']}"


def _error_position(error: float) -> float:
    """Return the horizontal position of an error in the picture."""
    shown = min(max(error, -SHOWN_ERROR), SHOWN_ERROR)
    return LABEL_WIDTH + (WIDTH - LABEL_WIDTH - 20) * (shown + SHOWN_ERROR) / (2 * SHOWN_ERROR)


def _grid_line(share: float, height: int) -> str:
    x = _error_position(share)
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - ROW_HEIGHT}"/>'
    return f'{line}<text x="{x:.1f}" y="{height - 4}" text-anchor="middle">{share:+.0%}</text>'
