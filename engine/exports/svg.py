"""SVG export: a timeline as a stand-alone drawing with a title, a legend and a tooltip for every block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshwave.engine.exports._base import Export, exports
from meshwave.engine.exports._markup import escape
from meshwave.engine.exports.pictures.palette import Theme
from meshwave.engine.exports.pictures.rows import ShownTimeline, count_blocks, whole_step
from meshwave.engine.exports.pictures.shapes import Box, Hatch, Line, Picture, Shape, Shares, Text
from meshwave.engine.exports.pictures.timelines import lay_out_timelines
from meshwave.engine.findings import Refusal
from meshwave.engine.program.timeline import Timeline

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

MAX_BLOCKS = 50_000


@exports.register("svg")
class Svg(Export):
    """Drawing of the whole timeline."""

    title = "Timeline as SVG"
    note = "vector graphics"
    suffix = ".svg"
    mime = "image/svg+xml"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        return Svg.shown_bytes(prediction, whole_step(prediction))

    @classmethod
    def shown_bytes(cls, prediction: Prediction, shown: Sequence[ShownTimeline]) -> bytes:
        _check_blocks(count_blocks(shown))
        title = prediction.design.name
        picture = lay_out_timelines(shown, title=title, unit=prediction.costs.unit, dense=False)
        return "\n".join(_document_lines(picture, title or "Timeline")).encode()


def draw_svg(
    timeline: Timeline,
    *,
    title: str = "",
    unit: str = "s",
    window: tuple[float, float] | None = None,
    width: int = 1440,
    theme: Theme = "light",
) -> str:
    """Return an SVG of the spans within ``window`` (in seconds), or of all spans.

    The other arguments are those of ``lay_out_timelines``.

    Raises:
        InputError: the window has no spans, or more blocks than a viewer can show.
    """
    start, end = window or (-np.inf, np.inf)
    _check_blocks(int((timeline.is_work & (timeline.end > start) & (timeline.start < end)).sum()))
    shown = (ShownTimeline(timeline),)
    picture = lay_out_timelines(shown, title=title, unit=unit, window=window, width=width, theme=theme, dense=False)
    return "\n".join(_document_lines(picture, title or "Timeline"))


def _check_blocks(blocks: int) -> None:
    if blocks > MAX_BLOCKS:
        raise Refusal("too_many_blocks_for_svg", {"blocks": blocks, "maximum": MAX_BLOCKS})


def theme_aware_svg(light: Picture, dark: Picture, title: str) -> str:
    """Return one drawing that follows the colour scheme preferred by its viewer."""
    style = ".dark{display:none}@media(prefers-color-scheme:dark){.light{display:none}.dark{display:inline}}"
    lines = [*_opening_tags(light, title), f"<style>{style}</style>"]
    for name, picture in (("light", light), ("dark", dark)):
        ground = (
            f'<rect width="{picture.width}" height="{picture.height}" fill="{picture.surface_colours["background"]}"/>'
        )
        idle = f"idle-{name}"
        lines += [_hatch_pattern(picture, idle), f'<g class="{name}">', ground, *_shape_elements(picture, idle), "</g>"]
    return "\n".join([*lines, "</svg>"])


def _opening_tags(picture: Picture, title: str) -> Iterator[str]:
    width, height = picture.width, picture.height
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif">'
    )
    yield f"<title>{escape(title)}</title>"


def _document_lines(picture: Picture, title: str) -> Iterator[str]:
    width, height, surface = picture.width, picture.height, picture.surface_colours
    yield from _opening_tags(picture, title)
    yield _hatch_pattern(picture, "idle")
    yield f'<rect width="{width}" height="{height}" fill="{surface["background"]}"/>'
    yield from _shape_elements(picture, "idle")
    yield "</svg>"


def _hatch_pattern(picture: Picture, name: str) -> str:
    """Return the hatch pattern of idle time, under the name by which shapes refer to it."""
    surface = picture.surface_colours
    return (
        f'<defs><pattern id="{name}" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="7" height="7" fill="{surface["idle"]}"/><rect width="1" height="7" fill="{surface["hatch"]}"/>'
        "</pattern></defs>"
    )


def _shape_elements(picture: Picture, idle: str) -> Iterator[str]:
    return (_shape_element(shape, idle) for shape in picture.shapes)


def _shape_element(shape: Shape, idle: str) -> str:
    match shape:
        case Box(x, y, width, height, colour, radius, words):
            says = f"><title>{escape(words)}</title></rect>" if words else "/>"
            rounded = f' rx="{radius:g}"' if radius else ""
            return f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"{rounded} fill="{colour}"{says}'
        case Hatch(x, y, width, height):
            return f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="url(#{idle})"/>'
        case Text(x, y, text, colour, size, anchor, bold):
            weight = ' font-weight="600"' if bold else ""
            return (
                f'<text x="{x:.2f}" y="{y:.2f}" fill="{colour}" font-size="{size:g}" text-anchor="{anchor}"{weight} '
                f'dominant-baseline="central" pointer-events="none">{escape(text)}</text>'
            )
        case Line():
            return _line_element(shape)
        case Shares():
            return _shares_element(shape)
        case _:
            raise TypeError(f"an SVG has no {type(shape).__name__}")


def _shares_element(shares: Shares) -> str:
    """Return a path for each colour, from the bottom of the strip to the top of the colour's share, uppermost first."""
    x, bottom, height = shares.x, shares.y + shares.height, shares.height
    edges = np.linspace(x, x + shares.width, shares.parts.shape[1] + 1)
    paths: list[str] = []
    tops = np.cumsum(shares.parts, axis=0).round(3)
    for colour, part, top in zip(shares.colours, shares.parts, tops, strict=True):
        first = np.flatnonzero(np.diff(top, prepend=-1.0))  # columns whose height differs from the one before
        steps = "".join(f"H{edges[at]:.1f}V{bottom - top[at] * height:.1f}" for at in first.tolist())
        path = f"M{x:.1f} {bottom:.1f}{steps}H{x + shares.width:.1f}V{bottom:.1f}Z"
        if part.any():
            paths.insert(0, f'<path d="{path}" fill="{colour}"/>')
    return "".join(paths)


def _line_element(line: Line) -> str:
    x1, y1, x2, y2, colour, width, _ = line
    path = f'<path d="M{x1:.2f} {y1:.2f}L{x2:.2f} {y2:.2f}" stroke="{colour}" stroke-width="{width:g}" fill="none"/>'
    if not line.arrow:
        return path
    points = " ".join(f"{x:.2f},{y:.2f}" for x, y in arrow_head(line))
    return f'{path}<polygon points="{points}" fill="{colour}"/>'


def arrow_head(line: Line, size: float = 4.5) -> list[tuple[float, float]]:
    """Return the three corners of the arrow head at the end of a line."""
    angle = np.arctan2(line.y2 - line.y1, line.x2 - line.x1)
    sides = [(line.x2 + size * np.cos(angle + turn), line.y2 + size * np.sin(angle + turn)) for turn in (2.62, -2.62)]
    return [(line.x2, line.y2), *((float(x), float(y)) for x, y in sides)]
