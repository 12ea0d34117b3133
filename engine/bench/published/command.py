"""``meshwave bench published``: predict the runs of a file, and compare them with their published step times."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from meshwave.engine.bench.published import page
from meshwave.engine.bench.published.predictions import predict_runs, to_json
from meshwave.engine.bench.published.runs import read_rows
from meshwave.engine.bench.published.summary import summarize
from meshwave.engine.files import write_whole
from meshwave.engine.predict.similar_runs import ERROR_DIGITS, SimilarRun


def compare_published_runs(runs: Path | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Predict published training runs, and compare step times.

    Raises:
        Refusal: the file of runs cannot be read.
    """
    rows = read_rows(runs)
    found = []
    for number, each in enumerate(predict_runs(rows), start=1):
        found.append(each)
        if number % 50 == 0:
            say(f"{number} of {len(rows)} runs")
    return {"rows": [to_json(each) for each in found], "summary": summarize(found)}


def error_rows(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of :class:`SimilarRun` for all predicted runs, from which predictions list similar runs."""
    keys = [each.name for each in fields(SimilarRun)]
    rows = [{key: row[key] for key in keys} for row in figures["rows"] if "refused" not in row]
    return [{**row, "error": round(row["error"], ERROR_DIGITS), "parameters": round(row["parameters"])} for row in rows]


def write_results(figures: Mapping[str, Any], path: Path) -> None:
    """Write the prediction error of each published run, one per line, with a page and a picture next to the file."""
    lines = ",\n".join(json.dumps(row) for row in error_rows(figures))
    write_whole(path, f"[\n{lines}\n]\n".encode())
    write_whole(path.with_suffix(".md"), page.markdown_page(figures).encode())
    write_whole(path.with_suffix(".svg"), page.draw_svg(figures).encode())


def to_text(figures: Mapping[str, Any]) -> list[str]:
    """Return predicted and published runs and their summary as the lines of a table for a terminal."""
    lines = [_run_line(row) for row in figures["rows"]]
    summary = figures["summary"]
    for title, key in (("by source and device", "by_source"), ("by device", "by_device")):
        lines += ["", f"{title:<48}{'runs':>5}{'mean':>7}{'bias':>8}{'worst':>8}"]
        for each in summary[key]:
            name = " ".join(str(each[part]) for part in ("publication", "device", "arch") if part in each)
            lines.append(f"{name:<48}{each['rows']:>5}{each['mean']:>7.1%}{each['bias']:>+8.1%}{each['worst']:>+8.1%}")
    order = summary["order"]
    lines += ["", f"order of configurations of one model right in {order['right']} of {order['pairs']} pairs"]
    lines += [f"refused, {code}: {count} rows" for code, count in summary["refused"].items()]
    return lines


def _run_line(row: Mapping[str, Any]) -> str:
    if "refused" in row:
        return f"{row['id']}: refused: {row['refused']['text']}"
    published, predicted = row["published_memory_gib"], row["predicted_memory_gib"]
    memory = f"{predicted:.0f} GiB" if published is None else f"{predicted:.0f} of {published:.0f} GiB"
    speeds = row["predicted_tokens_per_s_per_device"], row["published_tokens_per_s_per_device"]
    return (
        f"{row['id']}: {row['predicted_s']:.4g} of {row['published_s']:.4g} s ({row['error']:+.1%}), "
        f"{speeds[0]:.0f} of {speeds[1]:.0f} tokens/s/device, "
        f"{row['predicted_model_tflops_per_device']:.0f} TFLOP/s, {memory}"
    )
