"""A timeline as a PNG, drawn without a browser; of any size, since what is too thin is drawn as shares."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwave.engine.exports._base import Export, exports
from meshwave.engine.exports.pictures.palette import Theme, rgb
from meshwave.engine.exports.pictures.shapes import Box, Hatch, Line, Picture, Shares, Text, draw
from meshwave.engine.exports.svg import arrow_head
from meshwave.engine.program.timeline import Timeline

if TYPE_CHECKING:
    from PIL import Image as Images
    from PIL import ImageDraw as Draws

    from meshwave.engine.predict.prediction import Prediction

PERIOD = 7  # pixels between the lines of the hatch


@exports.register("png")
class Png(Export):
    """The whole timeline as a picture."""

    title = "Timeline as PNG"
    note = "a picture"
    suffix = ".png"
    mime = "image/png"

    @staticmethod
    def make(prediction: Prediction) -> bytes:
        return png(prediction.timeline, title=prediction.design.name, unit=prediction.costs.unit)


def png(
    timeline: Timeline,
    *,
    title: str = "",
    unit: str = "s",
    window: tuple[float, float] | None = None,
    width: int = 1440,
    theme: Theme = "light",
    ratio: int = 2,
) -> bytes:
    """Draw the spans between the two ``window`` seconds, or all of them.

    Args:
        ratio: pixels of the picture for a pixel of the layout, as a screen of high density has.

    Raises:
        InputError: nothing lies in the window.
    """
    from PIL import Image

    picture = draw(timeline, title=title, unit=unit, window=window, width=width, theme=theme)
    image = Image.new("RGB", (picture.width * ratio, picture.height * ratio), picture.surface["background"])
    _Painter(picture, image, ratio).paint()
    file = BytesIO()
    image.save(file, "PNG", optimize=False)
    return file.getvalue()


class _Painter:
    """Puts the shapes of a picture into an image, each pixel of the layout ``ratio`` wide."""

    def __init__(self, picture: Picture, image: Images.Image, ratio: int) -> None:
        from PIL import ImageDraw

        self.picture, self.image, self.ratio = picture, image, ratio
        self.pen: Draws.ImageDraw = ImageDraw.Draw(image)
        self.fonts: dict[tuple[float, bool], Any] = {}
        self.hatch = self._hatch()

    def paint(self) -> None:
        for shape in self.picture.shapes:
            match shape:
                case Box():
                    self._box(shape)
                case Hatch():
                    self._idle(shape)
                case Line():
                    self._line(shape)
                case Text():
                    self._text(shape)
                case Shares():
                    self._shares(shape)

    def _corners(self, shape: Box | Hatch | Shares) -> tuple[int, int, int, int]:
        """Left, top, right and bottom, the last two outside."""
        x, y, width, height = shape[:4]
        edges = (x, y, x + width, y + height)
        left, top, right, bottom = (round(edge * self.ratio) for edge in edges)
        return left, top, max(right, left + 1), max(bottom, top + 1)

    def _box(self, box: Box) -> None:
        left, top, right, bottom = self._corners(box)
        if box.radius:
            self.pen.rounded_rectangle((left, top, right - 1, bottom - 1), box.radius * self.ratio, box.colour)
        else:
            self.pen.rectangle((left, top, right - 1, bottom - 1), box.colour)

    def _hatch(self) -> Images.Image:
        """Idle time the size of the whole picture, so that lines go on from lane to lane."""
        from PIL import Image

        height, width = self.image.height, self.image.width
        phase = (np.arange(height)[:, None] + np.arange(width)[None, :]) % (PERIOD * self.ratio)
        colours = np.array([rgb(self.picture.surface[name]) for name in ("hatch", "idle")], np.uint8)
        return Image.fromarray(colours[(phase >= self.ratio).astype(np.intp)])

    def _idle(self, hatch: Hatch) -> None:
        corners = self._corners(hatch)
        self.image.paste(self.hatch.crop(corners), corners[:2])

    def _line(self, line: Line) -> None:
        points = [value * self.ratio for value in line[:4]]
        self.pen.line(points, line.colour, max(1, round(line.width * self.ratio)))
        if line.arrow:
            self.pen.polygon([(x * self.ratio, y * self.ratio) for x, y in arrow_head(line)], line.colour)

    def _text(self, text: Text) -> None:
        anchor = {"start": "lm", "middle": "mm", "end": "rm"}[text.anchor]
        font = self._font(text.size)
        bold = self.ratio * 0.35 if text.bold else 0
        place = (text.x * self.ratio, text.y * self.ratio)
        self.pen.text(place, text.text, text.colour, font, anchor=anchor, stroke_width=bold, stroke_fill=text.colour)

    def _font(self, size: float) -> Any:
        from PIL import ImageFont

        key = (size, False)
        if key not in self.fonts:
            self.fonts[key] = ImageFont.load_default(size * self.ratio)
        return self.fonts[key]

    def _shares(self, shares: Shares) -> None:
        """A stack a column: each pixel takes the colour whose part of the stack it lies in."""
        from PIL import Image

        left, top, right, bottom = self._corners(shares)
        columns = np.linspace(0, shares.parts.shape[1] - 1, right - left).round().astype(np.intp)
        tops = np.cumsum(shares.parts, axis=0)[:, columns]
        level = (np.arange(bottom - top)[::-1, None] + 0.5) / (bottom - top)
        kind = sum((level >= part).astype(np.intp) for part in tops)
        below = np.asarray(self.image.crop((left, top, right, bottom)))
        self.image.paste(Image.fromarray(_coloured(kind, shares.colours, below)), (left, top))


def _coloured(kind: Any, colours: Sequence[str], below: Any) -> Any:
    """[rows, columns, 3] by the number of a colour; the number after the last leaves what lies below."""
    table = np.array([*map(rgb, colours), (0, 0, 0)], np.uint8)
    return np.where((kind == len(colours))[..., None], below, table[kind])
