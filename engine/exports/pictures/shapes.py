"""Shapes of which pictures consist, shared by SVG and PNG."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from meshwave.engine.exports.pictures.palette import SURFACES, Theme
from meshwave.engine.program.timeline import Floats


class Box(NamedTuple):
    """Filled rectangle, with ``words`` as its tooltip if the format supports tooltips."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    radius: float = 0
    words: str = ""


class Hatch(NamedTuple):
    """Hatched rectangle for idle time."""

    x: float
    y: float
    width: float
    height: float


class Line(NamedTuple):
    """Line or arrow."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    width: float = 1
    arrow: bool = False


class Text(NamedTuple):
    """Text at a point."""

    x: float
    y: float  # vertical middle of the text
    text: str
    colour: str
    size: float = 11
    anchor: str = "start"  # or middle, end
    bold: bool = False


class Shares(NamedTuple):
    """Lane that is too dense for blocks: columns of stacked shares of colours, from the bottom."""

    x: float
    y: float
    width: float
    height: float
    colours: tuple[str, ...]
    parts: Floats  # [colours, columns] each 0 to 1


Shape = Box | Hatch | Line | Text | Shares


@dataclass(frozen=True)
class Picture:
    """Shapes in drawing order, and the size of their sheet in pixels."""

    width: int
    height: int
    theme: Theme
    shapes: list[Shape] = field(default_factory=list)

    @property
    def surface_colours(self) -> dict[str, str]:
        """Colours of background and text, by name."""
        return dict(SURFACES[self.theme])
